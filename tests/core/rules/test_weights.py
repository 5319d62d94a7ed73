"""Weights: bounds of operands over a scope, against members of the scope."""

import math

import numpy as np
import pytest
import torch

from lipcert.core.program import PLUS, Dense, Operand
from lipcert.core.rules.base import Constraint, Weights
from lipcert.core.rules.constrained import Constrained
from lipcert.core.rules.windows import convolution_axes, kernel_square
from tests.core.rules.cases import KINDS, Case
from tests.core.rules.evaluate import apply, spectral


def _norm_of(case: Case, weight: np.ndarray) -> float:
    zeros = torch.zeros(case.shapes[0], dtype=torch.float64)
    tensors = {case.op.weight: torch.tensor(weight)}
    if case.op.bias is not None:
        tensors[case.op.bias] = torch.tensor(case.op.bias.lo)
    found = torch.autograd.functional.jacobian(
        lambda x: apply(case.op, [x], case.shape, tensors), zeros
    )
    return spectral(found.reshape(math.prod(case.shape), -1))


@pytest.mark.sample(seed=9)
@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("kind", ["Dense", "Conv"])
def test_the_fallback_is_a_bound(kind: str, seed: int) -> None:
    case = KINDS[kind](np.random.default_rng(seed))
    bound = Weights({}).operator_norm("y", case.op, case.shapes[0], case.shape)
    assert _norm_of(case, case.op.weight.lo) <= bound * (1 + 1e-12)
    assert Weights({"y": 0.25}).operator_norm("y", case.op, case.shapes[0], case.shape) == 0.25


@pytest.mark.sample(seed=9)
@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("kind", ["Dense", "Conv"])
def test_members_of_a_frobenius_ball(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = KINDS[kind](rng)
    scope = Constrained({"y": 1e-9}, {"w": ("frobenius", 2.0)}, frozenset({"w", "b"}))
    bound = scope.operator_norm("y", case.op, case.shapes[0], case.shape)
    for weight in (rng.normal(size=case.op.weight.shape), np.ones(case.op.weight.shape)):
        member = weight * (2.0 / np.linalg.norm(weight))
        assert _norm_of(case, member) <= bound * (1 + 1e-12)
    assert scope.norm(case.op.weight) == scope.max_abs(case.op.weight) == 2.0


def test_the_stretch_of_kernels_is_attained_without_overlap() -> None:
    """2 taps with stride 2: κ = 1; 3 taps with stride 1: κ = √3, reached by long images of ones."""
    for seed in range(200):
        case = KINDS["Conv"](np.random.default_rng(seed))
        axes = convolution_axes(case.op, case.shapes[0], case.shape)
        disjoint = all(axis.at_positions.sum(axis=1).max() <= 1 for axis in axes)
        assert kernel_square(axes) <= math.prod(case.op.window.taps)
        assert not disjoint or kernel_square(axes) <= 1


def _operand(gain: float, *more: str) -> Operand:
    array = np.array([[1.0, 2.0], [3.0, 4.0]])
    return Operand(array, array, {"w": gain} | dict.fromkeys(more, math.inf))


@pytest.mark.parametrize(
    ("kind", "gain", "entry", "norm", "largest"),
    [
        ("frobenius", 1.0, 3.0, 3.0, 3.0),
        ("frobenius", 0.5, 1.5, 1.5, 1.5),
        ("spectral", 0.5, 3.0, 6.0, 3.0),
        ("spectral", 2.0, 6.0, 12.0, 6.0),
        ("spectral", math.inf, math.inf, math.inf, math.inf),
        ("frobenius", math.inf, math.inf, math.inf, math.inf),
    ],
)
def test_gains(kind: str, gain: float, entry: float, norm: float, largest: float) -> None:
    constraints: dict[str, Constraint] = {
        "w": ("spectral", 3.0) if kind == "spectral" else ("frobenius", 3.0)
    }
    scope = Constrained({"y": 0.1}, constraints, frozenset({"w"}))
    operand = _operand(gain)
    assert scope.max_abs(operand) == entry
    assert scope.norm(operand) == norm
    assert (scope.entries(operand).hi == entry).all()
    assert scope.operator_norm("y", Dense(operand, None), (1, 2), (1, 2)) == largest


def test_fixed_weights_are_those_of_the_file() -> None:
    scope = Constrained({"y": 5.5}, {"w": ("spectral", 3.0)}, frozenset({"other"}))
    operand = _operand(1.0)
    assert scope.entries(operand).lo is operand.lo
    assert scope.operator_norm("y", Dense(operand, None), (1, 2), (1, 2)) == 5.5
    assert scope.norm(operand) == pytest.approx(math.sqrt(30.0))
    assert scope.max_abs(operand) == 4.0


def test_trained_without_a_constraint_or_with_two_sources_is_unknown() -> None:
    free = Constrained({"y": 1.0}, {}, frozenset({"w"}))
    two = Constrained({}, {"w": ("frobenius", 1.0)}, frozenset({"w", "v"}))
    other = Constrained({}, {"w": ("nuclear", 1.0)}, frozenset({"w"}))
    broken = Constrained({}, {"w": ("frobenius", math.nan)}, frozenset({"w"}))
    for scope, operand in (
        (free, _operand(1.0)),
        (two, _operand(1.0, "v")),
        (broken, _operand(1.0)),
        (Constrained({}, {"w": ("frobenius", 1.0)}, frozenset({"w"})), _operand(1.0, PLUS)),
        (other, _operand(1.0)),
    ):
        assert scope.norm(operand) == scope.max_abs(operand) == math.inf
        dense = Dense(operand, None)
        assert scope.operator_norm("y", dense, (1, 2), (1, 2)) == math.inf
        assert (scope.entries(operand).lo == -math.inf).all()
