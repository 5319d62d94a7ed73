"""Circular convolutions: exact where the input wraps around, refused elsewhere."""

import math

import numpy as np
import numpy.typing as npt
import pytest

from lipcert.geometry import Geometry, Window
from lipcert.norms.linear_map import PaddedConvMap
from lipcert.norms.operator_norm import Tier, operator_norm
from lipcert.norms.reads import Border, Reads
from lipcert.norms.wrapped import wrapped_norm
from lipcert.operand import Operand
from tests.norms.operators import random_kernel, true_norm

Array = npt.NDArray[np.float64]
ROUNDING = 1 - 1e-12


def _wrapped_matrix(kernel: Array, geometry: Geometry, pads: list[tuple[int, int]]) -> Array:
    """The convolution of the wrapped input, with remainders straight from the definition."""
    sizes = [w.size - sum(each) for w, each in zip(geometry, pads, strict=True)]
    outputs = [window.outputs for window in geometry]
    matrix = np.zeros((kernel.shape[0], *outputs, kernel.shape[1], *sizes))
    for place in np.ndindex(*outputs):
        for taps in np.ndindex(*kernel.shape[2:]):
            axes = zip(place, taps, geometry, pads, sizes, strict=True)
            source = tuple((o * w.stride + t * w.dilation - b) % n for o, t, w, (b, _), n in axes)
            where = (slice(None), *place, slice(None), *source)
            matrix[where] += kernel[(slice(None), slice(None), *taps)]
    return matrix.reshape(kernel.shape[0] * math.prod(outputs), -1)


def _random_wrapped_axis(rng: np.random.Generator) -> tuple[Window, tuple[int, int]]:
    size, stride = ((6, 1), (6, 2), (6, 3), (5, 1), (4, 2), (4, 4))[int(rng.integers(6))]
    taps, dilation = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    begin = int(rng.integers(0, dilation * (taps - 1) + 1))
    end = dilation * (taps - 1) - begin
    return Window(size + begin + end, taps, stride, dilation), (begin, end)


def test_circular_convolutions_are_exact() -> None:
    """Strides, dilations, pads and kernels wider than the input."""
    rng = np.random.default_rng(8)
    for case in range(150):
        windows, pads = zip(*(_random_wrapped_axis(rng) for _ in range(1 + case % 2)), strict=True)
        kernel = random_kernel(rng, (2, 3, *(window.taps for window in windows)))
        pairs = zip(windows, pads, strict=True)
        reads = [Reads.padded(window, *each, Border.WRAP) for window, each in pairs]
        truth = true_norm(_wrapped_matrix(kernel, windows, list(pads)))
        value = wrapped_norm(kernel[None], windows, reads, 1e12).bound.value
        assert truth * ROUNDING <= value
        assert value <= truth * (1 + 3e-4) + 1e-6 * np.max(np.abs(kernel))
        weight = Operand(kernel)
        for tier in Tier:
            bound = operator_norm(PaddedConvMap(weight, windows, pads, Border.WRAP), tier)
            assert bound.value.value >= truth * ROUNDING


def test_what_is_not_circular_is_refused() -> None:
    kernels = np.ones((1, 1, 1, 3))
    refused = [
        (Window(9, 3, 2), 1, 1, Border.WRAP),  # 7 positions, stride 2
        (Window(10, 3), 1, 2, Border.WRAP),  # 8 outputs of 7 positions
        (Window(9, 3, 1, 1, 1, 0), 1, 1, Border.WRAP),  # zeros, too
        (Window(9, 3), 1, 1, Border.REFLECT),
        (Window(9, 3), 1, 1, Border.EDGE),
    ]
    for window, begin, end, border in refused:
        reads = Reads.padded(window, begin, end, border)
        assert not wrapped_norm(kernels, (window,), [reads], 1e12).bound.is_finite
    allowed = Reads.padded(Window(8, 3), 1, 0, Border.WRAP)
    proved = wrapped_norm(kernels, (Window(8, 3),), [allowed], 1e12)
    assert proved.bound.value >= 3.0 * ROUNDING


def test_wrapping_costs_nothing_on_large_maps() -> None:
    """Neither on tori of all frequencies nor, beyond, by their supremum."""
    kernel = np.random.default_rng(0).standard_normal((2, 2, 3, 3))
    for size in (30, 200):
        wrapped = PaddedConvMap(
            Operand(kernel), (Window(size + 2, 3),) * 2, ((1, 1),) * 2, Border.WRAP
        )
        bound = operator_norm(wrapped, Tier.FAST)
        spectrum = np.moveaxis(np.fft.fft2(kernel, s=(size, size)), (0, 1), (2, 3))
        truth = float(np.max(np.linalg.norm(spectrum, 2, axis=(2, 3))))
        assert bound.rule == "norms.wrapped"
        assert truth * ROUNDING <= bound.value.value <= truth * 1.0035


@pytest.mark.parametrize("border", [Border.REFLECT, Border.EDGE])
def test_other_borders_are_exact_on_maps_of_moderate_size(border: Border) -> None:
    kernel = np.random.default_rng(0).standard_normal((3, 3, 3, 3))
    geometry, pads = (Window(34, 3),) * 2, ((1, 1),) * 2
    padded = PaddedConvMap(Operand(kernel), geometry, pads, border)
    assert operator_norm(padded, Tier.FAST).rule == "norms.banded"
