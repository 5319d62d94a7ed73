"""Norms of weights in a scope, against explicit matrices of weights that obey the constraints."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipcert.geometry import Geometry, Window
from lipcert.norms.linear_map import ConvMap, DenseMap
from lipcert.norms.operator_norm import Tier
from lipcert.operand import Operand
from lipcert.ops.affine import Shift
from lipcert.ops.normalization import LayerNorm
from lipcert.scope import Constraint, ConstraintKind, ConstraintScope, PointScope
from lipcert.upper import Upper
from tests.mirror import correlation
from tests.networks import ball

SPECTRAL, FROBENIUS = ConstraintKind.SPECTRAL, ConstraintKind.FROBENIUS


def constrained(kind: ConstraintKind, radius: float) -> ConstraintScope:
    return ConstraintScope({"w": Constraint(kind, Upper(radius))}, frozenset({"w"}), Tier.FAST)


def operand(array: np.ndarray, gain: float = 1.0) -> Operand:
    return Operand(array, "w", Upper(gain))


def explicit(kernel: np.ndarray, geometry: Geometry, groups: int) -> np.ndarray:
    """The matrix of a convolution."""
    channels = kernel.shape[1] * groups
    sizes = tuple(window.size for window in geometry)
    basis = torch.eye(channels * math.prod(sizes), dtype=torch.float64)
    columns = [
        correlation(e.reshape(channels, *sizes), torch.tensor(kernel), geometry, groups).flatten()
        for e in basis
    ]
    return torch.stack(columns, dim=1).numpy()


@st.composite
def windows(draw: st.DrawFn) -> Window:
    size, taps = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    stride, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    short = max(0, dilation * (taps - 1) + 1 - size)
    begin = draw(st.integers(0, 2))
    end = draw(st.integers(max(0, short - begin), max(0, short - begin) + 2))
    return Window(size, taps, stride, dilation, begin, end)


@given(windows(), windows(), st.integers(1, 2), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_frobenius_constraint_bounds_every_convolution(
    first: Window, second: Window, groups: int, seed: int
) -> None:
    """The worst kernel of a given Frobenius norm, by ascent, stays below r·κ."""
    generator = np.random.default_rng(seed)
    geometry = (first, second)
    kernel = generator.standard_normal((2 * groups, 2, first.taps, second.taps))
    scope = constrained(FROBENIUS, 1.5)
    bound = scope.operator_norm(ConvMap(operand(kernel), geometry, groups)).value.value
    for trial in (kernel, np.abs(kernel), np.ones_like(kernel)):
        inside = 1.5 * trial / np.linalg.norm(trial)
        assert np.linalg.norm(explicit(inside, geometry, groups), 2) <= bound * (1 + 1e-12)


def test_frobenius_constraint_of_a_matrix_and_of_its_scaled_view() -> None:
    scope = constrained(FROBENIUS, 2.0)
    assert scope.operator_norm(DenseMap(operand(np.eye(3)))).value.value == 2.0
    assert scope.operator_norm(DenseMap(operand(np.eye(3), 0.25))).value.value == 0.5
    assert scope.norm(operand(np.eye(3), 0.25)).value.value == 0.5


@pytest.mark.parametrize("shape", [(), (4,), (3, 1), (3, 1, 1), (1, 5), (2, 3)])
def test_spectral_constraint_covers_any_tensor_of_such_entries(shape: tuple[int, ...]) -> None:
    """A bias or a scale under `spectral:r` may hold r everywhere, whatever its shape."""
    scope = constrained(SPECTRAL, 0.5)
    extreme = np.full(shape, 0.5)
    claimed = scope.norm(operand(np.zeros(shape))).value.value
    assert claimed >= np.linalg.norm(extreme)
    assert scope.entries(operand(np.zeros(shape))).norm().value >= np.linalg.norm(extreme)
    assert scope.max_abs(operand(np.zeros(shape))).value.value == 0.5


def test_spectral_constraint_of_a_kernel_that_no_window_shows_whole() -> None:
    """Two positions, three taps: ‖T‖ = r, and the kernel is longer than r."""
    geometry = (Window(2, 3, 1, 1, 1, 1),)
    kernel = np.array([[[1.0, 0.0, 1.0]]])
    assert np.linalg.norm(explicit(kernel, geometry, 1), 2) == pytest.approx(1.0)
    claimed = constrained(SPECTRAL, 1.0).norm(operand(np.zeros((1, 1, 3)))).value.value
    assert claimed >= np.linalg.norm(kernel)


def test_spectral_constraint_on_the_op_or_on_the_parameter_behind_a_scaled_view() -> None:
    """W = ½θ with ‖W‖ ≤ 1, or W = 2θ with ‖θ‖ ≤ 1: both readings are covered."""
    scope = constrained(SPECTRAL, 1.0)
    assert scope.operator_norm(DenseMap(operand(np.eye(2), 0.5))).value.value == 1.0
    assert scope.operator_norm(DenseMap(operand(np.eye(2), 2.0))).value.value == 2.0
    assert scope.entries(operand(np.eye(2), 0.5)).max_abs().value == 1.0


@pytest.mark.parametrize("kind", list(ConstraintKind))
def test_shifts_by_constrained_tensors(kind: ConstraintKind) -> None:
    """x + b with b at the border of its constraint, x = 0."""
    shape = (3, 1, 1)
    scope = constrained(kind, 1.0)
    worst = np.ones(shape) if kind is SPECTRAL else np.ones(shape) / math.sqrt(3)
    facts = Shift(operand(np.zeros(shape))).output_facts([ball((3, 2, 2), 0.0)], scope)
    value = np.broadcast_to(worst, (3, 2, 2))
    assert facts.norm.value.value >= np.linalg.norm(value) * (1 - 1e-12)
    layer = LayerNorm(2, 0.1, None, operand(np.zeros((2, 3))))
    biased = layer.output_facts([ball((4, 2, 3), 0.0)], scope).norm.value.value
    bias = np.ones((2, 3)) if kind is SPECTRAL else np.ones((2, 3)) / math.sqrt(6)
    assert biased >= np.linalg.norm(np.broadcast_to(bias, (4, 2, 3))) * (1 - 1e-12)


def test_a_trained_parameter_without_constraint_has_no_norm() -> None:
    scope = ConstraintScope({}, frozenset({"w"}), Tier.FAST)
    weight = operand(np.eye(2))
    for answer in (
        scope.norm(weight),
        scope.operator_norm(DenseMap(weight)),
        scope.max_abs(weight),
    ):
        assert not answer.is_finite
        assert "'w'" in answer.reason
        assert "--freeze" in answer.remedy
    assert scope.entries(weight).max_abs().value == math.inf


def test_frozen_parameters_and_constants_keep_their_numbers() -> None:
    scope = ConstraintScope({}, frozenset({"other"}), Tier.FAST)
    point = PointScope(Tier.FAST)
    for weight in (operand(np.diag([3.0, 1.0])), Operand(np.diag([3.0, 1.0]))):
        for at in (scope, point):
            assert at.entries(weight).is_exact
            assert at.norm(weight).value.value == pytest.approx(math.sqrt(10))
            assert at.operator_norm(DenseMap(weight)).value.value == pytest.approx(3.0)
            assert at.max_abs(weight).value.value == 3.0


def test_norms_are_certified_once_per_array_and_use() -> None:
    asked = []

    def certify(linear_map, tier):
        asked.append(linear_map)
        return PointScope(tier).operator_norm(linear_map)

    scope = PointScope(Tier.QUICK, certify)
    first, second = Operand(np.eye(2), "w"), Operand(3.0 * np.eye(2), "w")
    assert [scope.operator_norm(DenseMap(w)).value.value for w in (first, first, second)] == [
        pytest.approx(1.0),
        pytest.approx(1.0),
        pytest.approx(3.0),
    ]
    assert len(asked) == 2
    kernel = Operand(np.ones((1, 1, 3)), "w")
    near, far = ((Window(size, 3),) for size in (3, 9))
    norms = [scope.operator_norm(ConvMap(kernel, g)).value.value for g in (near, far)]
    assert norms[0] == pytest.approx(math.sqrt(3))
    assert norms[1] > 2.5
