"""Norms of convolutions against explicit matrices, and known answers."""

import itertools
import math
import os

import numpy as np
import pytest
import torch

from lipcert.training.projection.torus import circulant_norm
from lipcert.norms.explicit import explicit_norm
from lipcert.geometry import Window
from lipcert.norms.laurent import laurent_norm, symbol_of
from lipcert.norms.linear_map import ConvMap
from lipcert.norms.operator_norm import (
    RULES,
    Tier,
    absolute_bound,
    frobenius_bound,
    operator_norm,
    reshape_bound,
)
from lipcert.training.projection.polyphase import live_kernels, polyphase
from lipcert.operand import Operand
from lipcert.upper import INFINITE, Upper
from tests.norms.operators import (
    certified,
    conv_matrix,
    is_at_least_the_norm,
    random_kernel,
    random_window,
    true_norm,
)

ROUNDING = 1 - 1e-12  # of the singular values that serve as truth
FUZZ_CASES = int(os.environ.get("LIPCERT_FUZZ_CASES", "240"))


def test_every_rung_bounds_random_convolutions() -> None:
    """Any stride, dilation, groups, asymmetric pads, kernels wider than the input, 1-D to 3-D."""
    rng = np.random.default_rng(20)
    for case in range(FUZZ_CASES):
        axes = (1, 2, 2, 3)[case % 4]
        geometry = tuple(random_window(rng, {1: 9, 2: 5, 3: 3}[axes]) for _ in range(axes))
        groups, outer, inner = (int(n) for n in rng.integers(1, 4, size=3))
        taps = tuple(window.taps for window in geometry)
        weight = random_kernel(rng, (groups * outer, inner, *taps))
        truth = true_norm(conv_matrix(weight, geometry, groups))
        kernels = live_kernels(weight.reshape(groups, outer, inner, *taps), geometry)
        rungs = {
            "frobenius": frobenius_bound(kernels, geometry),
            "reshape": reshape_bound(kernels, geometry),
            "absolute": absolute_bound(kernels, geometry),
            "explicit": explicit_norm(kernels, geometry),
            "laurent": laurent_norm(kernels, geometry, INFINITE, 1e12).bound,
            "circulant": circulant_norm(kernels, geometry, 1e12).bound,
        }
        for name, bound in rungs.items():
            assert bound.value >= truth * ROUNDING, (name, geometry, groups, weight)
        assert rungs["explicit"].value <= truth * (1 + 1e-6)
        for tier in Tier:
            assert certified(weight, geometry, groups, tier) >= truth * ROUNDING


def test_explicit_matrix_agrees_with_torch() -> None:
    """The truth of these tests is itself checked against an independent convolution."""
    rng = np.random.default_rng(4)
    weight = rng.standard_normal((4, 3, 3, 2))
    geometry = (Window(6, 3, 2, 1, 2, 1), Window(5, 2, 1, 2, 0, 1))
    images = torch.from_numpy(rng.standard_normal((1, 6, 6, 5)))
    padded = torch.nn.functional.pad(images, (0, 1, 2, 1))
    out = torch.nn.functional.conv2d(
        padded, torch.from_numpy(weight), stride=(2, 1), dilation=(1, 2), groups=2
    )
    matrix = conv_matrix(weight, geometry, 2)
    assert np.allclose(matrix @ images.numpy().ravel(), out.numpy().ravel())


def test_transposed_convolution_has_the_norm_of_its_adjoint() -> None:
    rng = np.random.default_rng(8)
    weight = rng.standard_normal((3, 2, 4, 4))  # ConvTranspose: 3 inputs, 2 outputs
    basis = torch.eye(3 * 16, dtype=torch.float64).reshape(-1, 3, 4, 4)
    out = torch.nn.functional.conv_transpose2d(
        basis, torch.from_numpy(weight), stride=2, padding=1, output_padding=1
    )
    truth = true_norm(out.reshape(len(basis), -1).numpy())
    size = out.shape[-1]
    geometry = (Window(size, 4, 2, 1, 1, 0), Window(size, 4, 2, 1, 1, 0))
    assert truth * ROUNDING <= certified(weight, geometry) <= truth * (1 + 1e-6)


@pytest.mark.parametrize(
    ("shape", "stride", "dilation"),
    [((8, 6, 3, 3), 1, 1), ((6, 5, 4, 4), 2, 1), ((4, 3, 7, 7), 2, 1), ((5, 5, 3, 3), 3, 2),
     ((4, 4, 3, 3), 2, 2), ((12, 7, 9), 1, 1), ((3, 2, 5, 2), 1, 1), ((4, 4, 3, 3, 3), 1, 1),
     ((16, 16, 3, 3), 1, 1)],
)  # fmt: skip
@pytest.mark.parametrize("smooth", [False, True])
def test_laurent_is_within_tolerance_of_the_supremum(
    shape: tuple[int, ...], stride: int, dilation: int, smooth: bool
) -> None:
    """The supremum is approached from below on a fine grid of frequencies."""
    rng = np.random.default_rng(3)
    weight = rng.standard_normal(shape) + (1.0 if smooth else 0.0)
    geometry = tuple(Window(64, taps, stride, dilation, 1, 1) for taps in shape[2:])
    bound = laurent_norm(weight[None], geometry, INFINITE, 1e12).bound.value
    phases = polyphase(weight[None], geometry)[0]
    points = {1: 2048, 2: 200, 3: 48}[len(shape) - 2]
    grid = np.fft.fftn(phases, s=(points,) * (len(shape) - 2), axes=range(2, len(shape)))
    matrices = np.moveaxis(grid, (0, 1), (-2, -1)).reshape(-1, *phases.shape[:2])
    supremum = float(np.max(np.linalg.norm(matrices, 2, axis=(1, 2))))
    assert supremum * ROUNDING <= bound <= supremum * (1.005 if len(shape) == 5 else 1.0033)


def test_dilation_and_polyphase_keep_the_supremum() -> None:
    """The reduced kernel has the norm of the dilated, strided kernel written out with zeros."""
    rng = np.random.default_rng(6)
    for stride, dilation in itertools.product((1, 2, 3, 4), repeat=2):
        weight = rng.standard_normal((1, 3, 2, 4))
        written_out = np.zeros((1, 3, 2, 3 * dilation + 1))
        written_out[..., ::dilation] = weight
        dilated = (Window(50, 4, stride, dilation),)
        plain = (Window(50, 3 * dilation + 1, stride),)
        one = laurent_norm(weight, dilated, INFINITE, 1e11).bound.value
        two = laurent_norm(written_out, plain, INFINITE, 1e11).bound.value
        assert one == pytest.approx(two, rel=3e-3)


def test_a_small_budget_loosens_the_bound_only() -> None:
    rng = np.random.default_rng(3)
    weight = rng.standard_normal((1, 6, 6, 3, 3))
    geometry = (Window(12, 3, pad_begin=1, pad_end=1),) * 2
    truth = true_norm(conv_matrix(weight[0], geometry))
    bounds = [
        laurent_norm(weight, geometry, INFINITE, b).bound.value for b in (1e5, 3e6, 1e7, 1e10)
    ]
    assert bounds[0] == math.inf
    assert all(bound >= truth for bound in bounds)
    assert bounds[1] >= bounds[-1]
    assert bounds[1] < 1.4 * truth


def test_a_search_that_improves_nothing_claims_nothing() -> None:
    """So that the bound at hand keeps the name of the rule that proves it."""
    weight = np.random.default_rng(3).standard_normal((1, 6, 6, 3, 3))
    geometry = (Window(90, 3, pad_begin=1, pad_end=1),) * 2
    found = laurent_norm(weight, geometry, INFINITE, 1e10)
    assert found.witness is not None
    for known, budget in ((found.bound * Upper(0.99), 1e10), (found.bound, 1e3)):
        nothing = laurent_norm(weight, geometry, known, budget)
        assert not nothing.bound.is_finite
        assert nothing.witness is None


def test_extreme_scales() -> None:
    rng = np.random.default_rng(9)
    geometry = (Window(5, 3, pad_begin=1, pad_end=1),) * 2
    weight = rng.standard_normal((3, 2, 3, 3))
    truth = true_norm(conv_matrix(weight, geometry))
    for exponent in (-1070, -1030, -500, 900, 1015):
        kernels = np.ldexp(weight, exponent)
        for bound in (
            certified(kernels, geometry),
            laurent_norm(kernels[None], geometry, INFINITE, 1e11).bound.value,
        ):
            exact = conv_matrix(np.ldexp(kernels, -exponent), geometry)
            assert math.ldexp(bound, -exponent) >= true_norm(exact) * ROUNDING
            assert bound <= math.ldexp(1.2 * truth, exponent) + 1e-320


def test_mixed_scales_in_one_kernel() -> None:
    weight = np.random.default_rng(1).standard_normal((2, 2, 3))
    weight[0, 0] *= 1e-300
    weight[1, 1] *= 1e300
    geometry = (Window(6, 3, pad_begin=1, pad_end=1),)
    assert certified(weight, geometry) >= true_norm(conv_matrix(weight * 1e-300, geometry)) * 1e300


def test_exact_rational_truth_for_a_tiny_convolution() -> None:
    rng = np.random.default_rng(11)
    for _ in range(20):
        geometry = (random_window(rng, 4), random_window(rng, 3))
        weight = random_kernel(rng, (1, 1, geometry[0].taps, geometry[1].taps))
        for tier in Tier:
            bound = certified(weight, geometry, 1, tier)
            assert is_at_least_the_norm(bound, conv_matrix(weight, geometry))


def test_known_answers() -> None:
    same = (Window(500, 3, pad_begin=1, pad_end=1),) * 2
    box = certified(np.ones((1, 1, 3, 3)), same)
    assert box == pytest.approx(9.0, rel=1e-9)  # the constant image, as the map grows
    for size in (7, 14, 28, 56):
        small = (Window(size, 3, pad_begin=1, pad_end=1),) * 2
        exact = (1 + 2 * math.cos(math.pi / (size + 1))) ** 2
        value = certified(np.ones((1, 1, 3, 3)), small, 1, Tier.TIGHT)
        assert exact <= value <= exact * (1 + 2e-6)
        quicker = certified(np.ones((1, 1, 3, 3)), small)
        assert exact <= quicker <= exact * (1 + 2e-6 if size <= 14 else 1.01)
    shift = np.zeros((1, 1, 3, 3))
    shift[0, 0, 0, 1] = 2.0
    assert certified(shift, same) == pytest.approx(2.0, rel=1e-6)
    assert certified(np.zeros((2, 2, 3, 3)), same) == 0.0


def test_pointwise_and_disjoint_windows_are_exact() -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((20, 30, 1, 1))
    geometry = (Window(56, 1, 2), Window(56, 1, 2))
    truth = true_norm(weight[:, :, 0, 0])
    assert truth * ROUNDING <= certified(weight, geometry) <= truth * (1 + 1e-6)
    depthwise = rng.standard_normal((6, 1, 1, 1))
    value = certified(depthwise, (Window(9, 1), Window(9, 1)), 6)
    assert np.max(np.abs(depthwise)) <= value <= np.max(np.abs(depthwise)) * (1 + 1e-12)
    patches = rng.standard_normal((5, 3, 4, 4))
    embedding = certified(patches, (Window(224, 4, 4), Window(224, 4, 4)))
    assert embedding == pytest.approx(true_norm(patches.reshape(5, -1)), rel=1e-6)


def test_taps_on_padding_do_not_count() -> None:
    weight = np.full((1, 1, 3, 3), 5.0)
    weight[0, 0, 1, 1] = 1.0
    geometry = (Window(1, 3, pad_begin=1, pad_end=1),) * 2
    assert certified(weight, geometry) == pytest.approx(1.0, rel=1e-12)


def test_groups_are_bounded_by_the_largest() -> None:
    rng = np.random.default_rng(0)
    geometry = (Window(12, 3, pad_begin=1, pad_end=1),) * 2
    weight = rng.standard_normal((12, 2, 3, 3)) * np.linspace(0.1, 3, 12)[:, None, None, None]
    together = certified(weight, geometry, 4)
    apart = max(certified(weight[3 * g : 3 * g + 3], geometry) for g in range(4))
    assert together == pytest.approx(apart, rel=3e-3)


def test_a_weight_that_does_not_fit_is_an_error() -> None:
    linear_map = ConvMap(Operand(np.ones((2, 2, 3))), (Window(9, 4),))
    with pytest.raises(ValueError, match="fit"):
        operator_norm(linear_map, Tier.FAST)


def test_every_rule_states_and_proves_its_contract() -> None:
    for name, rule in RULES.items():
        text = rule.__doc__ or ""
        assert name.startswith("norms.")
        assert text.startswith("Returns B with B ≥ ")
        for part in ("Hypotheses", "Proof", "Attained"):
            assert part in text, (name, part)


@pytest.mark.parametrize("tier", list(Tier))
def test_a_bound_names_a_rule(tier: Tier) -> None:
    rng = np.random.default_rng(0)
    for shape in ((1, 1, 3), (4, 4, 3), (4, 4, 1)):
        geometry = (Window(30, shape[2]),)
        linear_map = ConvMap(Operand(rng.standard_normal(shape)), geometry)
        assert operator_norm(linear_map, tier).rule in RULES


def test_symbol_matches_its_definition() -> None:
    rng = np.random.default_rng(0)
    kernels = rng.standard_normal((2, 4, 3, 3, 2))
    symbol, exponent = symbol_of(kernels)
    numerators, denominators = np.array([[1, 5], [0, 0], [7, 2]]), np.array([12, 3, 8])
    groups = np.array([1, 0, 1])
    values = symbol.at(groups, numerators, denominators)
    for k, group in enumerate(groups):
        angles = 2 * np.pi * numerators[k] / denominators[k]
        phase = np.exp(1j * (np.arange(3)[:, None] * angles[0] + np.arange(2) * angles[1]))
        matrix = (kernels[group] * phase).sum(axis=(2, 3)) * 2.0**-exponent
        exact = matrix.conj().T @ matrix
        assert np.linalg.norm(values[k] - exact, 2) <= symbol.error.value
    assert symbol.error.value <= 1e-11
