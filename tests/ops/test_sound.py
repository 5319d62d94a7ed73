"""Every op against its independent torch reference: values, and attacks on every bound.

The attacks maximise, by projected gradient ascent from many starts, (a) the norm of the output,
(b) the norm of the Jacobian with respect to each input, (c) the norm of the Jacobian with respect
to each operand. None may exceed what the op's rule claims.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from functools import partial

import numpy as np
import pytest
import torch

import tests.ops as package
from lipcert.facts import Bound, ValueFacts
from lipcert.interval import Interval
from lipcert.norms.operator_norm import Tier
from lipcert.scope import PointScope
from lipcert.upper import Upper
from tests.cases import Case

STARTS = 24
STEPS = 40


def all_cases() -> list[Case]:
    names = [
        module.name
        for module in pkgutil.iter_modules(package.__path__)
        if module.name.startswith("cases_")
    ]
    return [
        case
        for name in sorted(names)
        for case in importlib.import_module(f"tests.ops.{name}").CASES
    ]


CASES = all_cases()
IDS = [case.name for case in CASES]


def scope() -> PointScope:
    return PointScope(Tier.FAST)


def input_facts(case: Case) -> list[ValueFacts]:
    facts = []
    for shape in case.inputs:
        norm = Bound(Upper(case.radius), "test.radius")
        box = None
        if case.box is not None:
            low, high = (np.full(shape, end) for end in case.box)
            box = Interval(low, high)
        facts.append(ValueFacts.of(shape, norm, box))
    return facts


def project(case: Case, points: list[torch.Tensor]) -> list[torch.Tensor]:
    """Into the domain: the box first, then radially into the ball (both hold afterwards if 0 is in
    the box; otherwise the radius of the case must be large enough)."""
    projected = []
    for point in points:
        inside = point if case.box is None else point.clamp(*case.box)
        flat = inside.reshape(len(inside), -1)
        length = flat.norm(dim=1, keepdim=True).clamp_min(1e-300)
        shrunk = flat * torch.clamp(case.radius / length, max=1.0)
        projected.append(shrunk.reshape(point.shape))
    return projected


def starts(case: Case, generator: torch.Generator) -> list[torch.Tensor]:
    points = []
    for shape in case.inputs:
        drawn = torch.randn(STARTS, *shape, generator=generator, dtype=torch.float64)
        scales = torch.logspace(-3, 0.5, STARTS, dtype=torch.float64).reshape(-1, *[1] * len(shape))
        drawn = drawn / drawn.reshape(STARTS, -1).norm(dim=1).reshape(scales.shape).clamp_min(1e-9)
        drawn = drawn * scales * case.radius
        drawn[-1] = 0.0
        drawn[-2] = 1.0
        if case.box is not None:
            low, high = case.box
            uniform = torch.rand(drawn.shape, generator=generator, dtype=torch.float64)
            drawn[::2] = (low + (high - low) * uniform)[::2]
        points.append(drawn)
    return project(case, points)


def operands(case: Case) -> dict[str, torch.Tensor]:
    return {slot: torch.tensor(op.array.copy()) for slot, op in case.op.operands().items()}


def row_norm(value: torch.Tensor) -> torch.Tensor:
    return value.reshape(len(value), -1).norm(dim=1)


def unit_rows(value: torch.Tensor) -> torch.Tensor:
    return value / row_norm(value).clamp_min(1e-300).reshape(-1, *[1] * (value.dim() - 1))


def ascend(case: Case, points: list[torch.Tensor], objective) -> float:
    """Best value of objective(points) -> [starts] found by normalised projected ascent."""
    best = 0.0
    for step in range(STEPS):
        leaves = [point.detach().requires_grad_() for point in points]
        score = objective(leaves)
        finite = torch.nan_to_num(score, nan=0.0, posinf=0.0)
        best = max(best, float(finite.detach().max()))
        if not score.requires_grad:
            break
        gradients = torch.autograd.grad(finite.sum(), leaves, allow_unused=True)
        rate = case.radius * 0.3 * 0.9**step
        points = project(case, moved(leaves, gradients, rate))
    return best


def moved(
    points: list[torch.Tensor], gradients: tuple[torch.Tensor | None, ...], rate: float
) -> list[torch.Tensor]:
    return [
        point.detach()
        if gradient is None
        else point.detach() + rate * unit_rows(torch.nan_to_num(gradient))
        for point, gradient in zip(points, gradients, strict=True)
    ]


def within(measured: float, bound: Bound, slack: float = 1e-9) -> bool:
    return measured <= bound.value.value * (1 + slack) + slack


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_evaluate_equals_torch(case: Case) -> None:
    points = starts(case, torch.Generator().manual_seed(0))
    expected = case.reference(points, operands(case)).numpy()
    actual = case.op.evaluate(*(point.numpy() for point in points))
    assert actual.shape[1:] == case.op.output_shape(case.inputs)
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_output_facts_hold_under_attack(case: Case) -> None:
    claimed = case.op.output_facts(input_facts(case), scope())
    points = starts(case, torch.Generator().manual_seed(1))
    constants = operands(case)
    value = case.reference(points, constants).numpy()
    box = claimed.box.broadcast(claimed.shape)
    slack = 1e-9 * (1 + np.abs(value))
    assert np.all(value >= box.lo - slack)
    assert np.all(value <= box.hi + slack)
    best = ascend(case, points, lambda x: row_norm(case.reference(x, constants)))
    assert within(best, claimed.norm)
    if "output" in case.attained:
        assert best >= 0.99 * claimed.norm.value.value


class Stretch:
    """‖Jᵀu‖ after power steps on u, differentiable in x; every call goes on from the last u."""

    def __init__(self, case: Case, index: int) -> None:
        self.case, self.index, self.constants = case, index, operands(case)
        self.last: torch.Tensor | None = None

    def __call__(self, x: list[torch.Tensor]) -> torch.Tensor:
        out = self.case.reference(x, self.constants)
        generator = torch.Generator().manual_seed(3)
        u = unit_rows(torch.randn(out.shape, generator=generator, dtype=out.dtype))
        steps = 6
        if self.last is not None:  # a little of the fresh draw, for rows where Jᵀu was 0
            u, steps = torch.nan_to_num(unit_rows(self.last)) + 0.05 * u, 1
        for _ in range(steps):
            (v,) = torch.autograd.grad(
                out,
                x[self.index],
                unit_rows(u),
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
            u = _jvp(self.case, x, self.index, v, self.constants)
        self.last = u
        (v,) = torch.autograd.grad(out, x[self.index], unit_rows(u), create_graph=True)
        return row_norm(v)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_input_lipschitz_holds_under_attack(case: Case) -> None:
    for index in range(len(case.inputs)):
        claimed = case.op.input_lipschitz(index, input_facts(case), scope())
        points = starts(case, torch.Generator().manual_seed(4))
        best = ascend(case, points, Stretch(case, index))
        assert within(best, claimed), f"input {index}: {best} > {claimed}"
        if f"input:{index}" in case.attained:
            assert best >= 0.99 * claimed.value.value


def _jvp(case, x, index, tangent, constants):
    def at(point):
        return case.reference([point if i == index else y for i, y in enumerate(x)], constants)

    return torch.func.jvp(at, (x[index].detach(),), (tangent.detach(),))[1].detach()


@pytest.mark.parametrize("case", [c for c in CASES if c.op.operands()], ids=lambda c: c.name)
def test_param_lipschitz_holds_under_attack(case: Case) -> None:
    claimed = case.op.param_lipschitz(input_facts(case), scope())
    assert set(claimed) == set(case.op.operands())
    for slot, bound in claimed.items():
        best = _attack_parameter(case, slot)
        assert within(best, bound), f"{slot}: {best} > {bound}"
        if f"param:{slot}" in case.attained:
            assert best >= 0.99 * bound.value.value


def _attack_parameter(case: Case, slot: str) -> float:
    """Largest ‖Jᵀu‖ of one example's Jacobian w.r.t. an operand, by alternating ascent.

    Every start has a copy of the operand of its own, so that one gradient holds those of all.
    """
    constants = operands(case)
    points = starts(case, torch.Generator().manual_seed(5))
    copies = torch.stack([constants[slot]] * STARTS)

    def alone(x: list[torch.Tensor], theta: torch.Tensor) -> torch.Tensor:
        batch = [point.unsqueeze(0) for point in x]
        return case.reference(batch, {**constants, slot: theta}).squeeze(0)

    each = torch.func.vmap(alone)
    u, best = None, 0.0
    for step in range(25):
        leaves = [point.detach().requires_grad_() for point in points]
        theta = copies.clone().requires_grad_()
        out = each(leaves, theta)
        if u is None:
            generator = torch.Generator().manual_seed(6)
            u = torch.randn(out.shape, generator=generator, dtype=out.dtype)
        (pulled,) = torch.autograd.grad(
            out, theta, unit_rows(u), create_graph=True, allow_unused=True, materialize_grads=True
        )
        length = row_norm(pulled)
        best = max(best, float(torch.nan_to_num(length.detach()).max()))
        gradients: tuple[torch.Tensor | None, ...] = (None,) * len(leaves)
        if length.requires_grad:
            gradients = torch.autograd.grad(length.sum(), leaves, allow_unused=True)
        _, u = torch.func.jvp(partial(each, points), (copies,), (pulled.detach(),))
        rate = case.radius * 0.3 * 0.9**step
        points = project(case, moved(leaves, gradients, rate))
    return best


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_bounds_grow_with_the_input_radius(case: Case) -> None:
    """Monotone in X: a larger domain never has smaller bounds."""
    small, large = (
        [ValueFacts.of(shape, Bound(Upper(r), "test"), None) for shape in case.inputs]
        for r in (case.radius, 3.0 * case.radius)
    )
    at = scope()
    assert case.op.output_facts(small, at).norm.value <= case.op.output_facts(large, at).norm.value
    for index in range(len(case.inputs)):
        assert (
            case.op.input_lipschitz(index, small, at).value
            <= case.op.input_lipschitz(index, large, at).value
        )
    first, second = case.op.param_lipschitz(small, at), case.op.param_lipschitz(large, at)
    for slot in first:
        assert first[slot].value <= second[slot].value


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_an_unbounded_input_never_gives_an_unexplained_answer(case: Case) -> None:
    """Nothing known of the input: every answer is finite for a reason or absent with a reason."""
    unknown = Bound(Upper(math.inf), "test.unknown", "nothing is known of this value")
    facts = [ValueFacts.of(shape, unknown) for shape in case.inputs]
    at = scope()
    answers = [case.op.output_facts(facts, at).norm]
    answers += [case.op.input_lipschitz(i, facts, at) for i in range(len(case.inputs))]
    answers += list(case.op.param_lipschitz(facts, at).values())
    for answer in answers:
        assert answer.is_finite or answer.reason
