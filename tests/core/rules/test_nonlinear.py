"""Steps that are not affine: bounds that are attained, and what has no bound."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from lipcert.core.interval import Interval, exact
from lipcert.core.program import (
    Activation,
    Attention,
    Divide,
    DivideByNorm,
    LpPool,
    MatMul,
    MaxPool,
    Multiply,
    Normalize,
    Op,
    Operand,
    ReduceMax,
    ReduceNorm,
    Shape,
    Softmax,
    Sort,
    Window,
)
from lipcert.core.rules.facts import Cotangent, Fact, Hull
from tests.core.rules.cases import number, rule

INF = math.inf


def _known(shape: Shape, norm: float = INF, box: Interval | None = None, **runs: float) -> Fact:
    return Fact.of(shape, norm, box, **runs)


def _output(op: Op, inputs: Sequence[Fact], shapes: Sequence[Shape], shape: Shape) -> Fact:
    return rule(op, inputs, shapes, shape).fact()


def _stretch(
    op: Op, index: int, inputs: Sequence[Fact], shapes: Sequence[Shape], shape: Shape
) -> float:
    return rule(op, inputs, shapes, shape).lipschitz(index)


def _everywhere(low: float, high: float, rank: int) -> Interval:
    return Interval(np.full((1,) * rank, low), np.full((1,) * rank, high))


@pytest.mark.parametrize(
    ("op", "shape", "norm", "expected"),
    [
        (Activation("relu"), (1, 5), 3.0, 3.0),
        (Activation("gelu"), (1, 5), 1e9, 1e9),
        (Activation("sigmoid"), (1, 4), 0.0, 1.0),
        (Activation("sigmoid"), (1, 4), INF, 2.0),
        (Activation("tanh"), (1, 4), INF, 2.0),
        (Softmax(1, logarithm=False), (3, 4), INF, math.sqrt(3)),
        (Softmax(1, logarithm=False), (3, 4), 0.0, math.sqrt(3) / 2),
        (Softmax(1, logarithm=True), (1, 4), 0.0, 2 * math.log(4)),
        (Normalize((1,), 1e-5, True), (1, 6), INF, math.sqrt(6)),
        (Normalize((1,), 0.5, True), (2, 6), 2.0, math.sqrt(12 * 4 / (4 + 12 * 0.5))),
        (Normalize((0, 1), 0.5, False), (2, 6), 2.0, math.sqrt(12 * 4 / (4 + 12 * 0.5))),
        (DivideByNorm((1,), number(0.5, 2), 3.0), (1, 6), INF, 2.0),
        (DivideByNorm((1,), number(0.5, 2), 3.0), (3, 6), INF, 2.0 * math.sqrt(3)),
        (DivideByNorm((0, 1), number(0.5, 2), 4.0), (3, 6), 2.0, 0.5),
        (Sort(1), (2, 3), 7.0, 7.0),
        (ReduceNorm((1,), 2, 9.0), (1, 4), 4.0, 5.0),
        (MaxPool(Window((2,), (1,), (1,), (0,), (4,))), (1, 1, 5), 1.0, math.sqrt(2)),
        (LpPool(Window((2,), (2,), (1,), (0,), (2,)), 1), (1, 1, 4), 1.0, math.sqrt(2)),
    ],
    ids=str,
)
def test_norms_that_are_attained(op: Op, shape: Shape, norm: float, expected: float) -> None:
    after = {MaxPool: (1, 1, 4), LpPool: (1, 1, 2), ReduceNorm: (1, 1)}.get(type(op), shape)
    found = _output(op, [_known(shape, norm)], [shape], after).norm
    assert expected * (1 - 1e-15) <= found <= expected * (1 + 1e-9)


@pytest.mark.parametrize(
    ("op", "shape", "expected"),
    [
        (Activation("gelu"), (3,), 1.128904145185154786),
        (Activation("silu"), (3,), 1.099839320128866917),
        (Activation("sigmoid"), (3,), 0.25),
        (Activation("erf"), (3,), 2 / math.sqrt(math.pi)),
        (Softmax(0, logarithm=False), (3,), 0.5),
        (Softmax(0, logarithm=False), (1,), 0.0),
        (Softmax(0, logarithm=True), (5,), math.sqrt(5)),
        (Normalize((0,), 0.25, True), (3,), 2.0),
        (Normalize((0,), 0.0, True), (3,), INF),
        (Normalize((0,), 0.0, True), (1,), 0.0),
        (DivideByNorm((0,), number(7.0, 1), 0.25), (3,), 4.0),
        (DivideByNorm((0,), number(7.0, 1), 0.0), (3,), INF),
        (DivideByNorm((0,), number(0.0, 1), 0.25), (3,), 4.0),
        (Sort(0), (4,), 1.0),
        (ReduceMax((0,), False), (4,), 1.0),
        (ReduceNorm((0,), 1, 0.0), (4,), 2.0),
    ],
    ids=str,
)
def test_lipschitz_constants_without_a_fact(op: Op, shape: Shape, expected: float) -> None:
    after = (1,) if isinstance(op, ReduceMax | ReduceNorm) else shape
    found = _stretch(op, 0, [_known(shape)], [shape], after)
    assert found == pytest.approx(expected, rel=1e-9)
    assert found >= expected * (1 - 1e-15)


def test_slopes_on_a_box_are_tight() -> None:
    box = _everywhere(1.0, 2.0, 1)
    for name, slope in (("tanh", 1 - math.tanh(1.0) ** 2), ("sigmoid", 0.19661193324148185)):
        found = _stretch(Activation(name), 0, [_known((3,), box=box)], [(3,)], (3,))
        assert found == pytest.approx(slope, rel=1e-9)


def test_normalisation_bounds_its_runs_inside_and_across_blocks() -> None:
    shape = (4, 6)
    found = _output(Normalize((1,), 0.5, True), [_known(shape, 2.0)], [shape], shape)
    assert found.run == pytest.approx(math.sqrt(6 * 4 / (4 + 6 * 0.5)))
    assert found.column == pytest.approx(math.sqrt(5 * 4 * 4 / (4 + 24 * 0.5)))
    assert found.max_abs == pytest.approx(math.sqrt(5 * 4 / (4 + 6 * 0.5)))


def test_division_by_a_norm_bounds_its_runs() -> None:
    op, shape = DivideByNorm((1,), number(0.5, 2), 0.1), (4, 6)
    near = Fact.of(shape, 3.0, Interval(np.zeros((1, 1)), np.full((1, 1), INF)), column=0.01)
    found = _output(op, [near], [shape], shape)
    assert found.run == pytest.approx(0.1 * math.sqrt(6))  # six columns of norm 0.01, over 0.1
    assert found.column == pytest.approx(0.1)
    assert found.box.lo.min() == 0.0
    far = _output(op, [_known(shape, 1e9)], [shape], shape)
    assert far.run == pytest.approx(2.0)
    assert far.max_abs == pytest.approx(2.0)
    no_radius = _output(DivideByNorm((1,), number(0.0, 2), 0.1), [near], [shape], shape)
    assert no_radius.norm == INF


def test_a_quotient_by_a_length_is_bounded() -> None:
    shape, length = (2, 3), (2, 1)
    x = _known(shape, 5.0)
    divisor = _output(ReduceNorm((1,), 2, 0.25), [x], [shape], length)
    assert divisor.box.lo.min() == pytest.approx(0.5)
    found = _output(Divide(), [x, divisor], [shape, length], shape)
    assert found.norm == pytest.approx(10.0)


@pytest.mark.parametrize("index", [0, 1])
def test_a_divisor_that_may_be_zero_has_no_bound(index: int) -> None:
    facts = [_known((3,), 1.0), _known((3,), box=_everywhere(-1e-9, 1.0, 1))]
    assert _stretch(Divide(), index, facts, [(3,), (3,)], (3,)) == INF
    assert _output(Divide(), facts, [(3,), (3,)], (3,)).norm == INF


@pytest.mark.parametrize("op", [Multiply(), MatMul()])
def test_products_of_unbounded_values_have_no_bound(op: Op) -> None:
    shape = (2, 2)
    facts = [_known(shape, 1.0), _known(shape)]
    assert _stretch(op, 0, facts, [shape, shape], shape) == INF
    assert _stretch(op, 1, facts, [shape, shape], shape) == pytest.approx(1.0)


def test_matrices_times_vectors_have_no_rule() -> None:
    facts = [_known((2, 3), 1.0), _known((3,), 1.0)]
    assert _output(MatMul(), facts, [(2, 3), (3,)], (2,)).norm == INF
    assert _stretch(MatMul(), 1, facts, [(2, 3), (3,)], (2,)) == INF


def test_attention_on_unbounded_tokens() -> None:
    shapes = ((2, 3), (3, 4), (4, 3))
    unknown = [_known(shape) for shape in shapes]
    assert _stretch(Attention(1.0), 0, unknown, shapes, (2, 3)) == INF
    assert _stretch(Attention(1.0), 1, unknown, shapes, (2, 3)) == INF
    assert _stretch(Attention(1.0), 2, unknown, shapes, (2, 3)) == pytest.approx(math.sqrt(2))


def test_attention_without_scores_spreads_evenly() -> None:
    """All probabilities are 1/4, unless a mask leaves one token: two queries, one column."""
    shapes = ((2, 3), (3, 4), (4, 3))
    facts = [_known(shapes[0], 0.0), _known(shapes[1], 1.0), _known(shapes[2], 1.0)]
    even = _stretch(Attention(1.0), 2, facts, shapes, (2, 3))
    assert even == pytest.approx(math.sqrt(0.5))
    lone = np.array([[0.0, -INF, -INF, -INF], [0.0, 0.0, -INF, -INF]])
    hidden = _stretch(Attention(1.0, Operand(lone, lone)), 2, facts, shapes, (2, 3))
    assert hidden == pytest.approx(math.sqrt(1.5))
    unsure = Operand(np.full((2, 4), -INF), np.zeros((2, 4)))
    assert _stretch(Attention(1.0, unsure), 2, facts, shapes, (2, 3)) == pytest.approx(math.sqrt(2))


def test_attention_to_equal_tokens_does_not_see_the_scores() -> None:
    token = exact(np.ones((4, 1)))
    shapes = ((2, 3), (3, 4), (4, 3))
    facts = [_known(shapes[0], 5.0), _known(shapes[1], 7.0), _known(shapes[2], box=token)]
    assert _stretch(Attention(2.0), 0, facts, shapes, (2, 3)) < 1e-12


def test_attention_heads_that_share_their_keys_have_no_rule() -> None:
    shapes = ((2, 2, 3), (1, 3, 4), (1, 4, 3))
    facts = [_known(shape, 1.0) for shape in shapes]
    assert _output(Attention(1.0), facts, shapes, (2, 2, 3)).norm == INF
    assert _stretch(Attention(1.0), 2, facts, shapes, (2, 2, 3)) == INF


def test_windows_that_read_padding_only_have_no_bound() -> None:
    padded = Window((1,), (1,), (1,), (1,), (3,))
    facts = [_known((1, 1, 1), 1.0)]
    for op in (MaxPool(padded), LpPool(padded, 2)):
        assert _output(op, facts, [(1, 1, 1)], (1, 1, 3)).norm == INF
        assert _stretch(op, 0, facts, [(1, 1, 1)], (1, 1, 3)) == INF


def test_lengths_with_a_negative_floor_have_no_bound() -> None:
    op, facts = ReduceNorm((0,), 2, -1.0), [_known((3,), 1.0)]
    assert _output(op, facts, [(3,)], (1,)).norm == INF
    assert _stretch(op, 0, facts, [(3,)], (1,)) == INF


def test_the_logarithm_of_a_softmax_passes_a_hull_on() -> None:
    shape, cotangent = (1, 4), Cotangent(1.5, Hull(4, 1.0))

    def pulled(shape: Shape, *, logarithm: bool) -> Cotangent:
        asked = rule(Softmax(1, logarithm), [_known(shape)], [shape], shape)
        return asked.pulled(0, cotangent)

    assert pulled(shape, logarithm=True) == cotangent
    assert pulled(shape, logarithm=False) == Cotangent(0.75)
    assert pulled((2, 2), logarithm=True).hull is None
