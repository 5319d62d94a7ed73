"""Laws of every rule, at random steps and facts: torch and its derivatives are the oracle."""

import math
from dataclasses import fields

import numpy as np
import pytest
import torch

from lipcert.core.kinds import DivideByNorm
from lipcert.core.program import Operand, operands
from lipcert.core.rules.base import Entrywise, Weights
from lipcert.core.rules.facts import Cotangent, Fact
from lipcert.core.token_kinds import Scale
from tests.core.rules.attack import SLACK, holds, members
from tests.core.rules.cases import KINDS, Case, facts, ones, rule
from tests.core.rules.evaluate import apply, operands_of, spectral

TIGHT = frozenset({"Scale", "Shift", "BatchNorm", "Move", "AveragePool", "ReduceSum", "Centre",
                   "Add", "Concat"})  # fmt: skip
"""linear steps whose Lipschitz constant is the norm of their Jacobian"""


def _compute(case: Case):
    tensors = {operand: torch.tensor(operand.lo) for operand in operands_of(case.op)}
    return lambda *xs: apply(case.op, xs, case.shape, tensors)


def _jacobians(case: Case, point) -> list[torch.Tensor]:
    tensors = tuple(torch.tensor(x) for x in point)
    found = torch.autograd.functional.jacobian(_compute(case), tensors)
    return [part.reshape(math.prod(case.shape), -1) for part in found]


def _attacks(kind: str, rng: np.random.Generator):
    case = KINDS[kind](rng)
    inputs, known = facts(rng, case)
    for point in members(rng, inputs, known, _compute(case)):
        yield case, inputs, point


@pytest.mark.sample(seed=1)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_leaves_the_fact_or_is_steeper(kind: str, seed: int) -> None:
    """Linear steps with their true norm or with none."""
    rng = np.random.default_rng([seed, *map(ord, kind)])
    for case, inputs, point in _attacks(kind, rng):
        jacobians = _jacobians(case, point)
        norms = {"y": spectral(jacobians[0]) * (1 + 1e-9)} if seed % 3 else {}
        asked = rule(case.op, inputs, case.shapes, case.shape, Weights(norms))
        y = _compute(case)(*map(torch.tensor, point)).numpy()
        assert y.shape == case.shape
        size = max(float(np.max(np.abs(x), initial=0.0)) for x in point)
        slack = SLACK * (1.0 + size) / (1.0 + np.max(np.abs(y), initial=0.0))
        assert holds(asked.fact(), y, max(slack, SLACK))
        for index, jacobian in enumerate(jacobians):
            if torch.isfinite(jacobian).all():
                true = spectral(jacobian)
                assert true <= asked.lipschitz(index) * (1 + SLACK) + 1e-12
                _attack_tokens(rng, case, asked, index, jacobian)
                gradient = torch.randn(len(jacobian), dtype=torch.float64)
                peaks = _peaks(gradient, case.shape)
                received = asked.pulled(index, Cotangent(float(gradient.norm()), peaks=peaks))
                below = jacobian.T @ gradient
                assert below.norm() <= received.norm * (1 + SLACK) + 1e-9
                assert _peaks(below, case.shapes[index]) <= received.peak * (1 + SLACK) + 1e-9


def _attack_tokens(
    rng: np.random.Generator, case: Case, asked, index: int, jacobian: torch.Tensor
) -> None:
    """Cotangents along any axis, or none that is known: at all places, and at a single one."""
    if not min(case.shape, default=1):
        return
    for axis in range(-len(case.shape), 1):
        for is_lone in (False, True):
            gradient = torch.tensor(rng.normal(size=case.shape))
            if is_lone and axis:
                rows = gradient.movedim(axis, 0)
                rows *= torch.eye(len(rows))[rng.integers(len(rows))].reshape(
                    -1, *[1] * (rows.ndim - 1)
                )
            tokens = (axis, _by_token(gradient, axis)) if axis else None
            above = Cotangent(float(gradient.norm()), tokens=tokens)
            below = (jacobian.T @ gradient.reshape(-1)).reshape(tuple(case.shapes[index]))
            found = asked.tokens_pulled(index, above)
            if found is not None:
                assert _by_token(below, found[0]) <= found[1] * (1 + SLACK) + 1e-9
            if below.ndim > 2:
                sums = below.abs().movedim(1, 0).flatten(1).sum(1).norm()
                assert sums <= asked.pulled(index, above).sums * (1 + SLACK) + 1e-9


def _by_token(gradient: torch.Tensor, axis: int) -> float:
    """The sum of the norms of what lies at each place along an axis."""
    return (
        float(gradient.movedim(axis, 0).flatten(1).norm(dim=1).sum())
        if gradient.ndim > 1
        else float(gradient.abs().sum())
    )


def _peaks(gradient: torch.Tensor, shape) -> float:
    """The root of the sum of the squares of the largest entries of runs along the last axis."""
    if not gradient.numel():
        return 0.0
    return float(gradient.reshape(-1, *shape[-1:]).abs().amax(-1).norm())


@pytest.mark.sample(seed=4)
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", sorted(TIGHT))
def test_the_constant_of_a_linear_step_is_the_norm_of_its_jacobian(kind: str, seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    case = KINDS[kind](rng)
    asked = rule(case.op, [Fact.of(shape) for shape in case.shapes], case.shapes, case.shape)
    zeros = [np.zeros(shape) for shape in case.shapes]
    for index, jacobian in enumerate(_jacobians(case, zeros)):
        true = spectral(jacobian)
        assert true * (1 - 1e-12) <= asked.lipschitz(index) <= true * (1 + 1e-6) + 1e-140


@pytest.mark.sample(seed=2)
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", KINDS)
def test_slopes_are_the_diagonal_of_a_diagonal_jacobian(kind: str, seed: int) -> None:
    for case, inputs, point in _attacks(kind, np.random.default_rng([seed, 77])):
        asked = rule(case.op, inputs, case.shapes, case.shape)
        if not isinstance(asked, Entrywise):
            return
        wide = asked.slopes().broadcast(case.shape)
        (jacobian,) = _jacobians(case, point)
        diagonal = torch.diagonal(jacobian)
        assert torch.equal(jacobian, torch.diag(diagonal))
        found = diagonal.numpy().reshape(case.shape)
        size = SLACK * (1 + np.abs(found))
        assert (found >= wide.lo - size).all()
        assert (found <= wide.hi + size).all()


@pytest.mark.sample(seed=2)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", KINDS)
def test_no_gradient_of_an_operand_is_larger(kind: str, seed: int) -> None:
    for case, inputs, point in _attacks(kind, np.random.default_rng(seed)):
        asked = rule(case.op, inputs, case.shapes, case.shape)
        found = dict(asked.gradients(Cotangent(2.0)))
        held = operands(case.op)
        names = {name: operand for operand in held for name in operand.sources}
        assert found.keys() == names.keys()
        assert {operand for operand, _ in asked.reaches()} == set(held)
        if not held:
            return
        fixed = {operand: torch.tensor(operand.lo) for operand in held}
        xs = [torch.tensor(x) for x in point]
        for name, operand in names.items():
            if found[name] == math.inf:
                continue
            true = 2.0 * _reach(case, xs, fixed, operand)
            assert true <= found[name] * (1 + 1e-9) + 1e-300


@pytest.mark.sample(seed=4)
@pytest.mark.parametrize("seed", range(40))
def test_no_gradient_of_factors_is_larger_than_peaks_allow(seed: int) -> None:
    """Runs and cotangents with few large entries, and with many."""
    rng = np.random.default_rng(seed)
    shape = (int(rng.integers(1, 4)), int(rng.integers(1, 4)), int(rng.integers(1, 5)))
    parts = ((1, 1, shape[-1]), shape, (1, 1, 1), (1, *shape[1:]), (*shape[:2], 1))
    factor = ones(parts[seed % 5], "s")
    x, g = (rng.choice([-1.0, 0.0, 1.0, 0.01], size=shape) for _ in range(2))
    if seed % 3:
        g = x / np.maximum(np.abs(x), 1e-9)  # the worst for equal entries
    peaks = _peaks(torch.tensor(g), shape)
    asked = rule(Scale(factor), [Fact.of(shape, float(np.linalg.norm(x)))], [shape], shape)
    found = dict(asked.gradients(Cotangent(float(np.linalg.norm(g)), peaks=peaks)))["s"]
    axes = tuple(axis for axis in range(3) if factor.shape[axis] == 1)
    assert np.linalg.norm((x * g).sum(axis=axes)) <= found * (1 + 1e-12)


def test_equal_runs_under_flat_cotangents_attain_what_peaks_allow() -> None:
    shape = (1, 4, 9)
    x, g = np.tile(np.eye(9)[0], (1, 4, 1)) + 1.0, np.ones(shape)
    found = rule(Scale(ones((1, 1, 9), "s")), [Fact.of(shape, float(np.linalg.norm(x)))], [shape],
                 shape).gradients(Cotangent(6.0, peaks=2.0))  # fmt: skip
    true = float(np.linalg.norm((x * g).sum(axis=(0, 1))))
    assert true * (1 - 1e-12) <= dict(found)["s"] <= true * (1 + 1e-12)


@pytest.mark.sample(seed=5)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", ["Dense", "Scale", "Shift", "Embedding", "Conv"])
def test_no_gradient_of_an_operand_is_larger_than_tokens_allow(kind: str, seed: int) -> None:
    """At all places along any axis, at a single one, and with one sign; of convolutions by the sums
    of channels."""
    rng = np.random.default_rng(seed)
    for case, inputs, point in _attacks(kind, rng):
        asked = rule(case.op, inputs, case.shapes, case.shape)
        fixed = {
            operand: torch.tensor(operand.lo, requires_grad=True) for operand in operands(case.op)
        }
        y = apply(case.op, [torch.tensor(x) for x in point], case.shape, fixed)
        for axis in range(-y.ndim, 0):
            gradient = torch.tensor(rng.normal(size=case.shape))
            if seed % 3 == 0:
                gradient = gradient.abs()
            if seed % 2:
                gradient.movedim(axis, 0)[1:] = 0.0
            found = torch.autograd.grad(y, list(fixed.values()), gradient, retain_graph=True)
            sums = gradient.abs().movedim(1, 0).flatten(1).sum(1).norm() if y.ndim > 2 else math.inf
            above = Cotangent(
                float(gradient.norm()), sums=float(sums), tokens=(axis, _by_token(gradient, axis))
            )
            limits = dict(asked.operand_gradients(above))
            for operand, true in zip(fixed, found, strict=True):
                assert true.norm() <= limits[operand] * (1 + SLACK) + 1e-12


def _reach(
    case: Case, xs: list[torch.Tensor], fixed: dict[Operand, torch.Tensor], operand: Operand
) -> float:
    jacobian = torch.autograd.functional.jacobian(
        lambda t: apply(case.op, xs, case.shape, {**fixed, operand: t}), fixed[operand]
    )
    return spectral(jacobian.reshape(math.prod(case.shape), -1))


@pytest.mark.parametrize("kind", KINDS)
def test_no_constant_of_a_step_is_forgotten(kind: str) -> None:
    """All that a step holds as an operand is one; what divides by a norm holds plain numbers."""
    for seed in range(20):
        op = KINDS[kind](np.random.default_rng(seed)).op
        if isinstance(op, DivideByNorm):
            continue
        held = [getattr(op, field.name) for field in fields(op)]
        found = set(operands(op))
        assert found == {item for item in held if isinstance(item, Operand)}
