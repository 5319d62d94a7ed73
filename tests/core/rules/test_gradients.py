"""Gradient bounds of operands: attained ones, and what the step before adds to them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from lipcert.core.interval import exact
from lipcert.core.program import (
    BatchNorm,
    Conv,
    Dense,
    Move,
    Normalize,
    Op,
    Operand,
    PRelu,
    Scale,
    Shape,
    Shift,
    Window,
)
from lipcert.core.rules.base import Rule
from lipcert.core.rules.facts import Cotangent, Fact
from tests.core.rules.cases import KINDS, POINT, rule
from tests.core.rules.evaluate import apply, operands_of, spectral

INF = math.inf


def _behind(op: Op, x: Fact, before: Shape) -> Rule[Any]:
    """The rule of a step that computes an input from one value."""
    after = op.sources.shape if isinstance(op, Move) else before
    return rule(op, [x], [before], after)


@pytest.mark.parametrize("seed", range(20))
def test_kernels_behind_a_move(seed: int) -> None:
    """Any rearrangement in front of a convolution, with repetition and zeros."""
    rng = np.random.default_rng(seed)
    case = KINDS["Conv"](rng)
    assert isinstance(case.op, Conv)
    (before,) = case.shapes
    source: Shape = (int(rng.integers(1, 9)),)
    move = Move(rng.integers(-1, source[0], size=before))
    x = rng.normal(size=source)
    behind = _behind(move, Fact.of(source, float(np.linalg.norm(x))), source)
    inside = np.append(x, 0.0)[move.sources]
    facts = [Fact.of(before)]
    found = dict(
        rule(case.op, facts, [before], case.shape, POINT, behind).gradients(Cotangent(1.0))
    )
    tensors = {operand: torch.tensor(operand.lo) for operand in operands_of(case.op)}
    jacobian = torch.autograd.functional.jacobian(
        lambda t: apply(case.op, [torch.tensor(inside)], case.shape, tensors | {case.op.weight: t}),
        tensors[case.op.weight],
    )
    assert spectral(jacobian.reshape(math.prod(case.shape), -1)) <= found["w"] * (1 + 1e-9)


def test_attained_behind_a_move() -> None:
    """One number at all 4 places, read by 3 windows of 2 taps: a matrix of 6 ones."""
    window = Window((2,), (1,), (1,), (0,), (3,))
    op = Conv(_operand((1, 1, 2), "w"), None, window, 1, transposed=False)
    behind = _behind(Move(np.zeros((1, 1, 4), dtype=np.int64)), Fact.of((1, 1, 1), 1.0), (1, 1, 1))
    asked = rule(op, [Fact.of((1, 1, 4))], [(1, 1, 4)], (1, 1, 3), POINT, behind)
    found = asked.gradients(Cotangent(1.0))
    assert dict(found)["w"] == pytest.approx(math.sqrt(6), rel=1e-15)


@pytest.mark.parametrize(("groups", "bound"), [(2, 2.0), (1, 5.0), (4, 4.0)])
def test_factors_of_channels_within_groups(groups: int, bound: float) -> None:
    """4 channels of 3×3; a run behind the move holds one group of channels, or a part of one."""
    shape, channels = (1, 4, 3, 3), (1, 4, 1, 1)
    before = (1, groups, 36 // groups) if groups < 4 else (1, 12, 3)
    fact = Fact.of(before, 5.0, run=2.0)
    behind = _behind(Move(np.arange(36).reshape(shape)), fact, before)
    x = Fact.of(shape, 4.0 if groups == 4 else 5.0)
    op = Scale(_operand(channels, "s"))
    found = rule(op, [x], [shape], shape, POINT, behind).gradients(Cotangent(1.0))
    assert dict(found)["s"] == (min(bound, 2.0) if groups == 1 else bound)


def test_factors_of_what_a_move_repeats() -> None:
    """Every entry of a run of norm 2 stands twice where one factor meets it: √2·2."""
    before, shape = (1, 3, 4), (1, 3, 8)
    move = Move(np.tile(np.arange(12).reshape(before), (1, 1, 2)))
    behind = _behind(move, Fact.of(before, 3.0, run=2.0), before)
    op, x = Scale(_operand((1, 3, 1), "s")), Fact.of(shape, 50.0)
    found = rule(op, [x], [shape], shape, POINT, behind).gradients(Cotangent(1.0))
    assert dict(found)["s"] == pytest.approx(2.0 * math.sqrt(2), rel=1e-15)


@pytest.mark.parametrize(("axes", "bound"), [((2, 3), 3.0), ((1, 2, 3), 6.0), ((1,), 50.0)])
def test_factors_behind_a_normalisation(axes: Shape, bound: float) -> None:
    """√n for blocks of n entries that hold all that one factor meets."""
    shape = (1, 4, 3, 3)
    behind = _behind(Normalize(axes, 1e-5, centred=True), Fact.of(shape), shape)
    op, x = Scale(_operand((1, 4, 1, 1), "s")), Fact.of(shape, 50.0)
    found = rule(op, [x], [shape], shape, POINT, behind).gradients(Cotangent(1.0))
    assert dict(found)["s"] == bound


def _share(op: Op, x: Fact, before: Shape, after: Shape) -> dict[str, float]:
    return dict(rule(op, [x], [before], after).gradients(Cotangent(1.0)))


def _operand(shape: Shape, name: str, gain: float = 1.0) -> Operand:
    array = np.ones(shape)
    return Operand(array, array, {name: gain})


def test_attained() -> None:
    x = Fact.of((1, 2), 3.0)
    assert _share(Dense(_operand((2, 2), "w"), _operand((2,), "b")), x, (1, 2), (1, 2)) == {
        "w": 3.0,
        "b": 1.0,
    }
    image = Fact.of((1, 2, 3, 3), 3.0)
    assert _share(Shift(_operand((1, 2, 1, 1), "b")), image, (1, 2, 3, 3), (1, 2, 3, 3)) == {
        "b": 3.0
    }
    one = Window((1, 1), (1, 1), (1, 1), (0, 0), (3, 3))
    conv = Conv(_operand((2, 2, 1, 1), "w"), _operand((2,), "b"), one, 1, transposed=False)
    assert _share(conv, image, (1, 2, 3, 3), (1, 2, 3, 3)) == {"w": 3.0, "b": 3.0}
    box = Fact.of((1, 2, 3, 3), box=exact(np.array([1.0, 2.0]).reshape(1, 2, 1, 1)))
    scale = Scale(_operand((1, 2, 1, 1), "s"))
    assert _share(scale, box, (1, 2, 3, 3), (1, 2, 3, 3))["s"] == pytest.approx(6.0, rel=1e-12)
    four = [_operand((2,), name) for name in ("scale", "shift", "mean", "inverse")]
    found = _share(BatchNorm(*four), box, (1, 2, 3, 3), (1, 2, 3, 3))
    assert found == pytest.approx({"scale": 3.0, "shift": 3.0, "mean": 3.0, "inverse": 3.0})


def test_slopes_see_negative_numbers_only() -> None:
    box = exact(np.array([[3.0, -4.0, 5.0]]))
    x = Fact.of((1, 3), box=box)
    assert _share(PRelu(_operand((1, 1), "s")), x, (1, 3), (1, 3))["s"] == pytest.approx(4.0)


def test_runs_bound_what_one_factor_per_token_meets() -> None:
    x = Fact.of((1, 5, 4), 8.0, run=7.5)
    assert _share(Scale(_operand((1, 5, 1), "s")), x, (1, 5, 4), (1, 5, 4))["s"] == 7.5
    assert _share(Scale(_operand((1, 1, 4), "s")), x, (1, 5, 4), (1, 5, 4))["s"] == 8.0


def test_gains_multiply_and_unknown_ones_are_unknown() -> None:
    x = Fact.of((1, 2), 3.0)
    assert _share(Dense(_operand((2, 2), "w", 2.0), None), x, (1, 2), (1, 2)) == {"w": 6.0}
    assert _share(Dense(_operand((2, 2), "w", math.inf), None), x, (1, 2), (1, 2)) == {
        "w": math.inf
    }
    assert _share(Dense(_operand((2, 2), "w"), None), Fact.of((1, 2)), (1, 2), (1, 2)) == {
        "w": math.inf
    }
