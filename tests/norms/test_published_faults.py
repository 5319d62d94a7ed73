"""Published bounds that fall below the truth, each with a kernel that shows it; ours does not."""

import math

import numpy as np
import pytest

from lipcert.geometry import Window
from lipcert.norms.linear_map import ConvMap
from lipcert.norms.operator_norm import Tier, operator_norm
from lipcert.operand import Operand
from tests.norms.operators import Array, certified, conv_matrix, true_norm


def _same(size: int, taps: int) -> Window:
    pad = (taps - 1) // 2
    return Window(size, taps, pad_begin=pad, pad_end=taps - 1 - pad)


def _circular(weight: Array, sizes: tuple[int, ...]) -> float:
    """The largest singular value over the frequencies of a circular convolution."""
    symbol = np.fft.fftn(weight, s=sizes, axes=range(2, weight.ndim))
    matrices = np.moveaxis(symbol, (0, 1), (-2, -1)).reshape(-1, *weight.shape[:2])
    return float(np.max(np.linalg.norm(matrices, 2, axis=(1, 2))))


@pytest.mark.parametrize(("size", "excess"), [(3, 1.29), (5, 1.06), (7, 1.02)])
def test_circular_frequencies_miss_zero_padding(size: int, excess: float) -> None:
    line = np.array([-1.0, 2.0, -1.0])
    weight = np.outer(line, line)[None, None]
    geometry = (_same(size, 3),) * 2
    truth = true_norm(conv_matrix(weight, geometry))
    assert truth > excess * _circular(weight, (size, size))
    for tier in Tier:
        assert certified(weight, geometry, 1, tier) >= truth * (1 - 1e-12)


def test_truncating_a_kernel_wider_than_the_image() -> None:
    weight = np.zeros((1, 1, 3, 3))
    weight[0, 0, 2, 2] = 1.0
    geometry = (_same(2, 3),) * 2
    assert _circular(weight, (2, 2)) == 0.0
    assert true_norm(conv_matrix(weight, geometry)) == 1.0
    assert certified(weight, geometry) >= 1.0


@pytest.mark.parametrize("size", [4, 7, 14])
def test_average_overlap_is_not_the_largest(size: int) -> None:
    """Kernels that copy their patch reach √(largest overlap), above the average."""
    weight = np.eye(9).reshape(9, 1, 3, 3)
    geometry = (_same(size, 3),) * 2
    average = (3 * size - 2) / size
    truth = true_norm(conv_matrix(weight, geometry))
    assert truth == pytest.approx(3.0)
    assert truth > 1.02 * average
    assert certified(weight, geometry) >= truth * (1 - 1e-12)


def test_the_reshaped_matrix_alone_is_too_small() -> None:
    weight = np.ones((1, 1, 3, 3)) / 3
    geometry = (_same(20, 3),) * 2
    truth = true_norm(conv_matrix(weight, geometry))
    assert truth > 2.9 * true_norm(weight.reshape(1, -1))
    assert certified(weight, geometry) >= truth * (1 - 1e-12)


def test_alternating_maximisation_finds_a_local_maximum() -> None:
    """A strong channel with a box kernel among weaker ones: every local search may miss it."""
    rng = np.random.default_rng(0)
    weight = np.zeros((8, 8, 3, 3))
    weight[0, 0] = 1.0
    for channel in range(1, 8):
        left, _, right = np.linalg.svd(rng.standard_normal((3, 3)))
        weight[channel, channel] = 2.0 * np.outer(left[:, 0], right[0])
    geometry = (_same(30, 3),) * 2
    bound = certified(weight, geometry)
    assert (1 + 2 * math.cos(math.pi / 31)) ** 2 <= bound <= 9.0 * 1.003


def test_power_iteration_on_a_convolution_stays_below() -> None:
    weight = np.random.default_rng(3).standard_normal((6, 6, 3, 3))
    geometry = (_same(8, 3),) * 2
    matrix = conv_matrix(weight, geometry)
    vector = np.ones(matrix.shape[1])
    for _ in range(10):
        vector = matrix.T @ (matrix @ vector)
        vector /= np.linalg.norm(vector)
    truth = true_norm(matrix)
    assert np.linalg.norm(matrix @ vector) < truth * (1 - 1e-3)
    assert certified(weight, geometry) >= truth * (1 - 1e-12)


def test_few_frequency_samples_with_a_margin_for_the_wrong_grid() -> None:
    """Sampling both ends of the period wastes a sample: 8.0 claimed, 8.98 true."""
    line = np.array([-1.0, 1.0, -1.0])
    weight = np.outer(line, line)
    angles = np.linspace(0.0, 2 * np.pi, 4)
    phases = np.exp(1j * np.outer(angles, np.arange(3)))
    sampled = np.abs(np.einsum("at,bs,ts->ab", phases, phases, weight)).max() / (1 - 2 / 4)
    geometry = (_same(56, 3),) * 2
    truth = (1 + 2 * math.cos(math.pi / 57)) ** 2
    assert sampled < truth
    assert certified(weight[None, None], geometry) >= truth


def test_stride_is_not_ignored_and_not_overpaid() -> None:
    """The unit-stride supremum is sound for a strided convolution but far from tight."""
    weight = np.random.default_rng(0).standard_normal((8, 3, 7, 7))
    strided = (Window(24, 7, 2, 1, 3, 3),) * 2
    bound = operator_norm(ConvMap(Operand(weight), strided), Tier.FAST).value.value
    truth = true_norm(conv_matrix(weight, strided))
    assert truth <= bound <= 1.03 * truth
    assert _circular(weight, (64, 64)) > 1.2 * truth
