"""Clips round a layer: facts behind them, and gradients of convolutions by channel sums."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipcert.core.interval import Interval
from lipcert.core.program import Conv, CotangentClip, InputClip, Move, Operand, Shape, Window
from lipcert.core.rules.base import Rule
from lipcert.core.rules.facts import Cotangent, Fact, Hull
from tests.core.rules.attack import holds
from tests.core.rules.cases import KINDS, fact, rule
from tests.core.rules.evaluate import apply, operands_of


def _clipped_fact(op: InputClip, x: Fact, shape: Shape) -> Fact:
    return rule(op, [x], [shape], shape).fact()


def _clipped_cotangent(op: CotangentClip, cotangent: Cotangent) -> Cotangent:
    return rule(op, [Fact.of((1, 3))], [(1, 3)], (1, 3)).pulled(0, cotangent)


def _behind(move: Move, x: Fact, before: Shape) -> Rule[Any]:
    return rule(move, [x], [before], move.sources.shape)


def clipped(x: np.ndarray, radius: float) -> np.ndarray:
    return x * min(1.0, radius / max(float(np.linalg.norm(x)), 1e-300))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.01, 8.0))
def test_the_fact_behind_a_clip_holds_for_what_is_clipped(seed: int, radius: float) -> None:
    rng = np.random.default_rng(seed)
    shape = (1, *(int(n) for n in rng.integers(1, 5, size=rng.integers(1, 4))))
    known, values = fact(rng, shape)
    radius *= float(np.linalg.norm(values[0])) / 4.0
    found = _clipped_fact(InputClip(radius), known, shape)
    assert found.norm <= radius
    for x in values:
        assert holds(known, x, 1e-9)
        assert holds(found, clipped(x, radius), 1e-9)


def test_a_box_that_does_not_hold_zero_is_drawn_to_it() -> None:
    box = Interval(np.full((1, 2), 3.0), np.full((1, 2), 4.0))
    found = _clipped_fact(InputClip(1.0), Fact.of((1, 2), box=box), (1, 2))
    assert found.norm == 1.0
    assert (found.box.lo == 0.0).all()
    assert (found.box.hi == 1.0).all()
    assert holds(found, clipped(np.full((1, 2), 3.0), 1.0), 0.0)


def test_what_is_within_the_radius_is_left_alone() -> None:
    known = Fact.of((1, 2), 1.0, Interval(np.full((1, 2), 0.25), np.full((1, 2), 0.5)))
    assert _clipped_fact(InputClip(1.0), known, (1, 2)) is known


@pytest.mark.parametrize(("by_channel", "sums"), [(True, 0.5), (False, math.inf)])
def test_a_cotangent_is_clipped_in_its_norm(by_channel: bool, sums: float) -> None:
    hull = Hull(3, 1.0)
    found = _clipped_cotangent(CotangentClip(0.5, by_channel), Cotangent(math.inf, hull))
    assert found == Cotangent(0.5, hull, sums)
    assert _clipped_cotangent(CotangentClip(2.0, by_channel=False), found) == found


def _bounds(op: Conv, x: Fact, before, after, behind=None) -> dict[str, float]:
    """For cotangents with √Σ_c ‖g_c‖₁² ≤ 2 of which nothing else is known."""
    received = Cotangent(math.inf, None, 2.0)
    asked = rule(op, [x], [before], after, behind=behind)
    return dict(asked.gradients(received))


def _steepest(op: Conv, operand: Operand, x: np.ndarray, after) -> float:
    """sup of ‖Jᵀg‖ over √Σ_c ‖g_c‖₁² ≤ 2: reached where g is one number, the longest row of J."""
    tensors = {item: torch.tensor(item.lo) for item in operands_of(op)}
    jacobian = torch.autograd.functional.jacobian(
        lambda t: apply(op, [torch.tensor(x)], after, tensors | {operand: t}), tensors[operand]
    )
    return 2.0 * float(jacobian.reshape(math.prod(after), -1).norm(dim=1).max())


@pytest.mark.parametrize("seed", range(40))
def test_no_gradient_is_larger_than_by_channel_sums(seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = KINDS["Conv"](rng)
    assert isinstance(case.op, Conv)
    (before,) = case.shapes
    x = rng.normal(size=before)
    found = _bounds(case.op, Fact.of(before, float(np.linalg.norm(x))), before, case.shape)
    for operand in operands_of(case.op):
        (name,) = operand.sources
        assert _steepest(case.op, operand, x, case.shape) <= found[name] * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_behind_any_move(seed: int) -> None:
    """Repetition within a window counts, repetition between windows does not."""
    rng = np.random.default_rng(seed)
    case = KINDS["Conv"](rng)
    assert isinstance(case.op, Conv)
    (before,) = case.shapes
    source = (int(rng.integers(1, 9)),)
    move = Move(rng.integers(-1, source[0], size=before))
    x = rng.normal(size=source)
    behind = _behind(move, Fact.of(source, float(np.linalg.norm(x))), source)
    inside = np.append(x, 0.0)[move.sources]
    found = _bounds(case.op, Fact.of(before), before, case.shape, behind)
    weight = case.op.weight
    (name,) = weight.sources
    assert _steepest(case.op, weight, inside, case.shape) <= found[name] * (1 + 1e-9)


def _one_by_three(padding: str, strides: int = 1) -> tuple[Conv, Move]:
    """Three taps over four entries, padded by one at both ends."""
    window = Window((3,), (strides,), (1,), (0,), ((6 - 3) // strides + 1,))
    weight = Operand(np.ones((2, 1, 3)), np.ones((2, 1, 3)), {"w": 1.0})
    bias = Operand(np.ones(2), np.ones(2), {"b": 1.0})
    sources = np.pad(np.arange(4), 1, mode=padding).reshape(1, 1, 6)
    return Conv(weight, bias, window, 1, transposed=False), Move(sources)


@pytest.mark.parametrize(
    ("padding", "repeated"), [("wrap", 1), ("reflect", 2), ("edge", 2), ("symmetric", 2)]
)
def test_the_published_bound_holds_for_circular_padding_alone(padding: str, repeated: int) -> None:
    """β·C for circular padding; a reflected or repeated entry is met twice by one window."""
    op, move = _one_by_three(padding)
    behind = _behind(move, Fact.of((1, 1, 4), 0.5), (1, 1, 4))
    found = _bounds(op, Fact.of((1, 1, 6)), (1, 1, 6), (1, 2, 4), behind)
    assert found["w"] == pytest.approx(0.5 * 2.0 * math.sqrt(repeated), rel=1e-15)
    assert found["b"] == 2.0
    x = np.zeros(4)
    x[1 if padding == "reflect" else 0] = 0.5
    inside = x[move.sources]
    assert _steepest(op, op.weight, inside, (1, 2, 4)) == pytest.approx(found["w"])


def test_other_steps_make_no_use_of_channel_sums() -> None:
    case = KINDS["Dense"](np.random.default_rng(0))
    inputs = [Fact.of(shape, 1.0) for shape in case.shapes]
    received = Cotangent(math.inf, None, 1.0)
    found = rule(case.op, inputs, case.shapes, case.shape).gradients(received)
    assert {bound for _, bound in found} == {math.inf}
