"""Rearrangements: exact norms for any attributes, known answers, hulls."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lipcert.facts import Bound, CotangentFacts, PairHull, ValueFacts
from lipcert.interval import Interval
from lipcert.geometry import Window
from lipcert.norms.operator_norm import Tier
from lipcert.operand import Operand
from lipcert.ops.base import Op
from lipcert.ops.conv import Conv
from lipcert.ops.shape import Expand, Pad, PadMode, Reshape, Select, Tile, Transpose
from lipcert.scope import PointScope
from lipcert.upper import ONE, Upper

POINT = PointScope(Tier.FAST)
LENGTHS = st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple)


def ball(shape: tuple[int, ...], radius: float = 1.0) -> ValueFacts:
    return ValueFacts.of(shape, Bound(Upper(radius), "test"))


def jacobian(op: Op, shape: tuple[int, ...]) -> np.ndarray:
    """[inputs, outputs] of the linear part."""
    size = math.prod(shape)
    units = np.eye(size).reshape(size, *shape)
    at_zero = op.evaluate(np.zeros((1, *shape)))
    return (op.evaluate(units) - at_zero).reshape(size, -1)


@st.composite
def rearrangements(draw) -> tuple[Op, tuple[int, ...]]:
    shape = draw(LENGTHS)
    rank = len(shape)
    few = st.integers(0, 3)
    match draw(st.sampled_from(["pad", "select", "tile", "expand", "transpose", "reshape"])):
        case "pad":
            mode = draw(st.sampled_from(list(PadMode)))
            begin, end = (tuple(draw(few) for _ in shape) for _ in range(2))
            return Pad(begin, end, mode, draw(st.sampled_from([0.0, -2.0]))), shape
        case "select":
            axis = draw(st.integers(0, rank - 1))
            indices = draw(st.lists(st.integers(0, shape[axis] - 1), min_size=1, max_size=5))
            return Select(axis, tuple(indices)), shape
        case "tile":
            return Tile(tuple(draw(st.integers(1, 3)) for _ in shape)), shape
        case "expand":
            kept = tuple(n if draw(st.booleans()) else 1 for n in shape)
            return Expand((*draw(LENGTHS), *shape)), kept
        case "transpose":
            return Transpose(tuple(draw(st.permutations(range(rank))))), shape
        case _:
            return Reshape((math.prod(shape), 1)), shape


@settings(max_examples=150, deadline=None)
@given(rearrangements(), st.integers(0, 2**32))
def test_norms_and_boxes_are_exact(found: tuple[Op, tuple[int, ...]], seed: int) -> None:
    op, shape = found
    rng = np.random.default_rng(seed)
    matrix = jacobian(op, shape)
    truth = np.linalg.norm(matrix, 2)
    assert op.input_lipschitz(0, [ball(shape)], POINT).value.value == pytest.approx(truth)
    low, high = np.sort(rng.normal(size=(2, *shape)), axis=0)
    facts = op.output_facts(
        [ValueFacts.of(shape, ball(shape, 99.0).norm, Interval(low, high))], POINT
    )
    ends = op.evaluate(np.stack([low, high]))
    assert facts.shape == ends.shape[1:] == op.output_shape([shape])
    box = facts.box.broadcast(facts.shape)
    np.testing.assert_array_equal(box.lo, ends[0])
    np.testing.assert_array_equal(box.hi, ends[1])
    constants = op.evaluate(np.zeros((1, *shape)))
    norm = op.output_facts([ball(shape, 2.0)], POINT).norm.value.value
    worst = math.hypot(2.0 * truth, float(np.linalg.norm(constants)))
    assert norm == pytest.approx(worst, rel=1e-12)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_reflect_padding_by_one_costs_root_two_per_dimension(rank: int) -> None:
    pad = Pad((0, *[1] * rank), (0, *[1] * rank), PadMode.REFLECT)
    found = pad.input_lipschitz(0, [ball((1, *[6] * rank))], POINT).value.value
    assert found == pytest.approx(math.sqrt(2.0) ** rank, rel=1e-15)


def test_a_shift_kernel_under_reflect_padding_has_norm_two() -> None:
    """Bounds for zero or circular padding would say 1."""
    shape = (1, 6, 6)
    pad = Pad((0, 1, 1), (0, 1, 1), PadMode.REFLECT)
    kernel = np.zeros((1, 1, 3, 3))
    kernel[0, 0, 0, 0] = 1.0
    conv = Conv(Operand(kernel, "w"), None, (Window(8, 3), Window(8, 3)))
    units = np.eye(36).reshape(36, *shape)
    truth = np.linalg.norm(conv.evaluate(pad.evaluate(units)).reshape(36, -1), 2)
    assert truth == pytest.approx(2.0)
    claimed = pad.input_lipschitz(0, [ball(shape)], POINT)
    claimed = claimed.scaled(conv.input_lipschitz(0, [ball((1, 8, 8))], POINT).value)
    assert truth <= claimed.value.value <= 2.0 * (1 + 1e-3)


def test_padding_with_ones_adds_their_norm() -> None:
    pad = Pad((1,), (2,), PadMode.CONSTANT, 1.0)
    assert pad.output_facts([ball((4,), 1.0)], POINT).norm.value.value == pytest.approx(2.0)


def test_reshape_keeps_the_hull_of_a_single_slice() -> None:
    at_logits = CotangentFacts(Bound(Upper(1.5), "test"), PairHull(4, ONE))
    kept = Reshape((1, 4)).input_cotangent(0, at_logits, [ball((4,))], POINT)
    moved = Reshape((4,)).input_cotangent(0, at_logits, [ball((4, 1))], POINT)
    several = Reshape((2, 4)).input_cotangent(0, at_logits, [ball((2, 1, 4))], POINT)
    assert kept == at_logits
    assert moved == several == CotangentFacts(at_logits.norm)


@pytest.mark.parametrize(
    ("op", "shape"),
    [
        (Reshape((5,)), (2, 3)),
        (Transpose((0, 1)), (2,)),
        (Select(0, (3,)), (3,)),
        (Select(1, (0,)), (3,)),
        (Pad((1,), (1,)), (2, 2)),
        (Expand((2, 3)), (2, 2)),
        (Expand((3,)), (2, 3)),
        (Tile((2,)), (2, 2)),
    ],
)
def test_wrong_shapes_are_refused(op: Op, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"\("):
        op.output_shape([shape])


def test_wrong_attributes_are_refused() -> None:
    for make in (
        lambda: Transpose((0, 0)),
        lambda: Select(-1, (0,)),
        lambda: Select(0, (-1,)),
        lambda: Pad((-1,), (0,)),
        lambda: Pad((1,), (0,), PadMode.CONSTANT, math.inf),
        lambda: Tile((0,)),
    ):
        with pytest.raises(ValueError, match=r"\w"):
            make()


def test_nothing_selected_is_nothing() -> None:
    op = Select(0, ())
    assert op.input_lipschitz(0, [ball((3,))], POINT).value == Upper(0.0)
