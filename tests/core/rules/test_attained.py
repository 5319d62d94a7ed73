"""Bounds that are attained, by kind of step; hulls that survive; shapes that are refused."""

import math
from fractions import Fraction

import numpy as np
import pytest

from lipcert.core.interval import Interval, exact
from lipcert.core.kinds import BatchNorm, Concat, DivideByNorm, ReduceMax, ReduceNorm, Sort
from lipcert.core.program import Activation, Dense, Move, Op, Shape
from lipcert.core.rules.facts import Cotangent, Fact, Hull
from lipcert.core.token_kinds import Add, MatMul, Normalize, ReduceSum, Scale, Shift, Softmax
from lipcert.core.window_kinds import AveragePool, Conv, LpPool, MaxPool, Window
from tests.core.rules.cases import exactly, fact_behind, number, ones, output, rule, shares, stretch

INF = math.inf


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
        (DivideByNorm((1,), number(0.5, 2), number(3.0, 2), INF), (1, 6), INF, 2.0),
        (DivideByNorm((1,), number(0.5, 2), number(3.0, 2), INF), (3, 6), INF, 2.0 * math.sqrt(3)),
        (DivideByNorm((0, 1), number(0.5, 2), number(4.0, 2), INF), (3, 6), 2.0, 0.5),
        (Sort(1), (2, 3), 7.0, 7.0),
        (ReduceNorm((1,), 2, 9.0), (1, 4), 4.0, 5.0),
        (MaxPool(Window((2,), (1,), (1,), (0,), (4,))), (1, 1, 5), 1.0, math.sqrt(2)),
        (LpPool(Window((2,), (2,), (1,), (0,), (2,)), 1), (1, 1, 4), 1.0, math.sqrt(2)),
    ],
    ids=str,
)
def test_norms_that_are_attained(op: Op, shape: Shape, norm: float, expected: float) -> None:
    after = {MaxPool: (1, 1, 4), LpPool: (1, 1, 2), ReduceNorm: (1, 1)}.get(type(op), shape)
    found = output(op, [Fact.of(shape, norm)], [shape], after).norm
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
        (DivideByNorm((0,), number(7.0, 1), number(0.25, 1), INF), (3,), 4.0),
        (DivideByNorm((0,), number(7.0, 1), number(0.25, 1), 1.0), (3,), 4.0),
        (DivideByNorm((0,), number(7.0, 1), number(0.0, 1), INF), (3,), INF),
        (DivideByNorm((0,), number(0.0, 1), number(0.25, 1), INF), (3,), 4.0),
        (Sort(0), (4,), 1.0),
        (ReduceMax((0,), False), (4,), 1.0),
        (ReduceNorm((0,), 1, 0.0), (4,), 2.0),
    ],
    ids=str,
)
def test_lipschitz_constants_without_a_fact(op: Op, shape: Shape, expected: float) -> None:
    after = (1,) if isinstance(op, ReduceMax | ReduceNorm) else shape
    found = stretch(op, 0, [Fact.of(shape)], [shape], after)
    assert found == pytest.approx(expected, rel=1e-9)
    assert found >= expected * (1 - 1e-15)


def test_attained_repetition_sum_mean_and_average() -> None:
    x = Fact.of((1, 2), 1.0)
    twice = Move(np.array([[0, 1, 0, 1, -1]]))
    assert fact_behind(twice, x, (1, 2), (1, 5), {}).norm == pytest.approx(math.sqrt(2), rel=1e-15)
    x = Fact.of((1, 4), 1.0)
    assert fact_behind(ReduceSum((1,), mean=False), x, (1, 4), (1, 1), {}).norm == 2.0
    assert fact_behind(ReduceSum((1,), mean=True), x, (1, 4), (1, 1), {}).norm == 0.5
    pool = AveragePool(Window((2,), (2,), (1,), (0,), (2,)), counts_padding=True)
    y = fact_behind(pool, Fact.of((1, 1, 4), 1.0), (1, 1, 4), (1, 1, 2), {})
    assert y.norm == pytest.approx(math.sqrt(0.5), rel=1e-12)


def test_attained() -> None:
    x = Fact.of((1, 2), 3.0)
    assert shares(Dense(ones((2, 2), "w"), ones((2,), "b")), x, (1, 2), (1, 2)) == {
        "w": 3.0,
        "b": 1.0,
    }
    image = Fact.of((1, 2, 3, 3), 3.0)
    assert shares(Shift(ones((1, 2, 1, 1), "b")), image, (1, 2, 3, 3), (1, 2, 3, 3)) == {"b": 3.0}
    one = Window((1, 1), (1, 1), (1, 1), (0, 0), (3, 3))
    conv = Conv(ones((2, 2, 1, 1), "w"), ones((2,), "b"), one, 1, transposed=False)
    assert shares(conv, image, (1, 2, 3, 3), (1, 2, 3, 3)) == {"w": 3.0, "b": 3.0}
    box = Fact.of((1, 2, 3, 3), box=exact(np.array([1.0, 2.0]).reshape(1, 2, 1, 1)))
    scale = Scale(ones((1, 2, 1, 1), "s"))
    assert shares(scale, box, (1, 2, 3, 3), (1, 2, 3, 3))["s"] == pytest.approx(6.0, rel=1e-12)
    four = [ones((2,), name) for name in ("scale", "shift", "mean", "inverse")]
    found = shares(BatchNorm(*four), box, (1, 2, 3, 3), (1, 2, 3, 3))
    assert found == pytest.approx({"scale": 3.0, "shift": 3.0, "mean": 3.0, "inverse": 3.0})


def test_products_of_positive_boxes_begin_at_the_products_of_their_ends() -> None:
    box = Interval(np.full((2, 3), 0.1), np.full((2, 3), 9.0))
    given = [Fact.of((2, 3), box=box), Fact.of((3, 2), box=box.transposed())]
    least = output(MatMul(), given, [(2, 3), (3, 2)], (2, 2)).box.lo.flat[0]
    true = 3 * Fraction(0.1) ** 2
    assert true * Fraction(1 - 1e-12) <= Fraction(float(least)) <= true


def test_hulls_survive_what_keeps_them_and_nothing_else() -> None:
    hull, shape = Hull(3, 1.0, 0.1), (1, 3)
    x, received = Fact.of(shape, 1.0), Cotangent(9.0, hull)

    def pulled(op: Op, before: Shape = shape, index: int = 0) -> Cotangent:
        shapes = [before] * (index + 1)
        return rule(op, [x] * (index + 1), shapes, shape).pulled(index, received)

    assert pulled(Shift(exactly([[1.0, 2.0, 3.0]]))).hull == hull
    assert pulled(Move(np.array([[0, 1, 2]])), (3,)).hull == hull
    assert pulled(Add((1, -1))).hull == hull
    assert pulled(Scale(exactly([[2.0]]))).hull == Hull(3, 2.0, 0.1)
    for op in (
        Scale(exactly([[2.0, 2.0, 2.1]])),
        Scale(exactly([[-2.0]])),
        Move(np.array([[0, 2, 1]])),
        BatchNorm(*[exactly(np.ones(3)) for _ in range(4)]),
        Concat(1),
    ):
        assert pulled(op).hull is None
    assert pulled(Add((1, -1)), index=1).hull is None
    assert pulled(Move(np.array([[0, 1, 2]])), (1, 4)).hull is None


def test_a_shape_that_does_not_fit_is_refused() -> None:
    x = Fact.of((1, 3), 1.0)
    for op, after in (
        (Dense(exactly(np.ones((2, 4))), None), (1, 2)),
        (Scale(exactly(np.ones((1, 2)))), (1, 3)),
        (Move(np.array([[3]])), (1, 1)),
        (Add((1, 1)), (1, 3)),
    ):
        with pytest.raises(ValueError, match=r"fit|sum|broadcast|shape"):
            fact_behind(op, x, (1, 3), after, {})
