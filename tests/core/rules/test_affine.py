"""Affine steps: bounds that are attained, hulls that survive, shapes that are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lipcert.core.interval import Interval, exact
from lipcert.core.program import (
    Add,
    AveragePool,
    BatchNorm,
    Centre,
    Concat,
    Conv,
    Dense,
    Move,
    Op,
    Operand,
    ReduceSum,
    Scale,
    Shape,
    Shift,
    Window,
)
from lipcert.core.rules.dense import pair_norm
from lipcert.core.rules.facts import Cotangent, Fact, Hull
from lipcert.core.rules.weights import Point
from tests.core.rules.cases import rule

INF = math.inf


def _operand(array: object) -> Operand:
    numbers = np.asarray(array, dtype=np.float64)
    return Operand(numbers, numbers)


def _out(op: Op, x: Fact, before: Shape, after: Shape, norms: dict[str, float]) -> Fact:
    return rule(op, [x], [before], after, Point(norms)).fact()


def test_attained_dense_without_bias() -> None:
    w = np.diag([3.0, 1.0])
    x = Fact.of((1, 2), 2.0)
    found = _out(Dense(_operand(w), None), x, (1, 2), (1, 2), {"y": 3.0})
    assert found.norm == pytest.approx(6.0, rel=1e-9)
    assert found.box.hi.ravel() == pytest.approx([6.0, 2.0], rel=1e-9)


def test_attained_dense_expanded_and_centred() -> None:
    """A bias across the image of W adds its square; a point box is mapped exactly."""
    w, b = [[3.0, 0.0], [0.0, 0.0]], [0.0, 4.0]
    op = Dense(_operand(w), _operand(b))
    assert _out(op, Fact.of((1, 2), 1.0), (1, 2), (1, 2), {"y": 3.0}).norm == pytest.approx(5.0)
    point = Fact.of((1, 2), box=exact(np.array([[1.0, 7.0]])))
    assert _out(op, point, (1, 2), (1, 2), {"y": 3.0}).norm == pytest.approx(5.0)


def test_attained_round_the_centre_of_equal_tokens() -> None:
    """Entries in [9, 11] at 4 positions: all of them 11."""
    x = Fact.of((1, 4, 2), box=Interval(np.full((1, 1, 1), 9.0), np.full((1, 1, 1), 11.0)))
    found = _out(Dense(_operand(np.eye(2)), None), x, (1, 4, 2), (1, 4, 2), {"y": 1.0})
    assert found.norm == pytest.approx(11.0 * math.sqrt(8), rel=1e-12)
    assert found.norm >= 11.0 * math.sqrt(8)


def test_attained_convolution_box_at_the_border() -> None:
    """Ones under a kernel of ones: 4 at corners of a padded image and 9 inside, so a range."""
    w = Window((3, 3), (1, 1), (1, 1), (1, 1), (4, 4))
    op = Conv(_operand(np.ones((1, 1, 3, 3))), _operand([0.5]), w, 1, transposed=False)
    x = Fact.of((1, 1, 4, 4), box=exact(np.ones((1, 1, 1, 1))))
    found = _out(op, x, (1, 1, 4, 4), (1, 1, 4, 4), {"y": 9.0})
    assert (found.box.lo.item(), found.box.hi.item()) == pytest.approx((4.5, 9.5))
    counts = np.outer([2, 3, 3, 2], [2, 3, 3, 2]) + 0.5
    assert found.norm == pytest.approx(np.linalg.norm(counts), rel=1e-9)


def test_attained_repetition_sum_mean_and_average() -> None:
    x = Fact.of((1, 2), 1.0)
    twice = Move(np.array([[0, 1, 0, 1, -1]]))
    assert _out(twice, x, (1, 2), (1, 5), {}).norm == pytest.approx(math.sqrt(2), rel=1e-15)
    x = Fact.of((1, 4), 1.0)
    assert _out(ReduceSum((1,), mean=False), x, (1, 4), (1, 1), {}).norm == 2.0
    assert _out(ReduceSum((1,), mean=True), x, (1, 4), (1, 1), {}).norm == 0.5
    pool = AveragePool(Window((2,), (2,), (1,), (0,), (2,)), counts_padding=True)
    y = _out(pool, Fact.of((1, 1, 4), 1.0), (1, 1, 4), (1, 1, 2), {})
    assert y.norm == pytest.approx(math.sqrt(0.5), rel=1e-12)


def test_attained_overlapping_average() -> None:
    """3 taps, stride 2: AAᵀ is tridiagonal with 1/3 and 1/9, of norm 1/3 + 2/9·cos(π/(n + 1))."""
    pool = AveragePool(Window((3,), (2,), (1,), (0,), (40,)), counts_padding=True)
    true = math.sqrt(1 / 3 + 2 / 9 * math.cos(math.pi / 41))
    bound = rule(pool, [], [(1, 5, 81)], (1, 5, 40)).lipschitz(0)
    assert true <= bound <= true * (1 + 1e-9)


def test_nonnegative_sums_and_means_stay_nonnegative() -> None:
    box = Interval(np.zeros((1, 1, 1)), np.ones((1, 1, 1)))
    x = Fact.of((1, 3, 6), box=box)
    assert (_out(ReduceSum((2,), mean=True), x, (1, 3, 6), (1, 3, 1), {}).box.lo == 0.0).all()
    pool = AveragePool(Window((2,), (2,), (1,), (0,), (3,)), counts_padding=False)
    assert (_out(pool, x, (1, 3, 6), (1, 3, 3), {}).box.lo == 0.0).all()


def test_unknown_inputs_stay_unknown_behind_weights_that_are_not_zero() -> None:
    x = Fact.of((1, 3))
    found = _out(Dense(_operand(np.eye(3)), None), x, (1, 3), (1, 3), {})
    assert found.norm == math.inf
    nothing = _out(Dense(_operand(np.zeros((2, 3))), None), x, (1, 3), (1, 2), {})
    assert nothing.norm < 1e-300


def test_zero_weights_on_known_inputs() -> None:
    x = Fact.of((1, 3), 5.0)
    found = _out(Dense(_operand(np.zeros((2, 3))), _operand([3.0, 4.0])), x, (1, 3), (1, 2), {})
    assert found.norm == pytest.approx(5.0, rel=1e-12)


def test_boxes_of_images_stay_small() -> None:
    w = Window((3, 3), (1, 1), (1, 1), (1, 1), (200, 200))
    kernel = np.multiply.outer([1.0, 2.0], np.ones((1, 3, 3)))
    op = Conv(_operand(kernel), None, w, 1, transposed=False)
    x = Fact.of((1, 1, 200, 200), 1.0)
    found = _out(op, x, (1, 1, 200, 200), (1, 2, 200, 200), {})
    assert found.box.shape == (1, 2, 1, 1)
    flat = Move(np.arange(80000).reshape(1, 2, 40000))
    assert _out(flat, found, (1, 2, 200, 200), (1, 2, 40000), {}).box.shape == (1, 2, 1)


def test_runs_follow_heads() -> None:
    """Tokens split into heads and transposed: columns are parts of tokens."""
    x = Fact.of((1, 6, 8), 3.0, run=2.0)
    places = np.arange(48).reshape(1, 6, 2, 4)
    heads = _out(Move(places.transpose(0, 2, 1, 3).copy()), x, (1, 6, 8), (1, 2, 6, 4), {})
    assert (heads.run, heads.column) == (2.0, 3.0)
    keys = _out(Move(places.transpose(0, 2, 3, 1).copy()), x, (1, 6, 8), (1, 2, 4, 6), {})
    assert (keys.run, keys.column) == (3.0, 2.0)


def test_a_shape_that_does_not_fit_is_refused() -> None:
    x = Fact.of((1, 3), 1.0)
    for op, after in (
        (Dense(_operand(np.ones((2, 4))), None), (1, 2)),
        (Scale(_operand(np.ones((1, 2)))), (1, 3)),
        (Move(np.array([[3]])), (1, 1)),
        (Add((1, 1)), (1, 3)),
    ):
        with pytest.raises(ValueError, match=r"fit|sum|broadcast|shape"):
            _out(op, x, (1, 3), after, {})


def _vertices(hull: Hull) -> np.ndarray:
    eye = np.eye(hull.classes)
    targets = (1 - hull.smoothing) * eye + hull.smoothing / hull.classes
    return hull.scale * (eye[:, None] - targets[None]).reshape(-1, hull.classes)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("seed", range(10))
def test_pair_norm_is_the_largest_vertex(seed: int, smoothing: float) -> None:
    rng = np.random.default_rng(seed)
    hull = Hull(int(rng.integers(1, 8)), float(rng.uniform(0.1, 2)), smoothing)
    weight = rng.normal(size=(hull.classes, 5)) * 10.0 ** rng.integers(-20, 20) + rng.normal(size=5)
    rows = np.longdouble(weight) - np.longdouble(weight[0])
    squares = ((np.longdouble(_vertices(hull)) @ rows) ** 2).sum(axis=1)
    true = float(np.sqrt(squares.max()))
    bound = pair_norm(exact(weight), hull)
    room = 1e-7 * np.max(np.abs(weight)) * hull.scale
    assert true * (1 - 1e-12) <= bound <= true + room
    wide = Interval(weight - 0.1, weight + 0.1)
    inside = weight + rng.uniform(-0.1, 0.1, size=weight.shape)
    worst = np.max(np.linalg.norm(_vertices(hull) @ inside, axis=1))
    assert worst <= pair_norm(wide, hull) * (1 + 1e-12)


def test_hulls_survive_what_keeps_them_and_nothing_else() -> None:
    hull, shape = Hull(3, 1.0, 0.1), (1, 3)
    x, received = Fact.of(shape, 1.0), Cotangent(9.0, hull)

    def pulled(op: Op, before: Shape = shape, index: int = 0) -> Cotangent:
        shapes = [before] * (index + 1)
        return rule(op, [x] * (index + 1), shapes, shape).pulled(index, received)

    assert pulled(Shift(_operand([[1.0, 2.0, 3.0]]))).hull == hull
    assert pulled(Move(np.array([[0, 1, 2]])), (3,)).hull == hull
    assert pulled(Add((1, -1))).hull == hull
    assert pulled(Scale(_operand([[2.0]]))).hull == Hull(3, 2.0, 0.1)
    for op in (
        Scale(_operand([[2.0, 2.0, 2.1]])),
        Scale(_operand([[-2.0]])),
        Move(np.array([[0, 2, 1]])),
        BatchNorm(*[_operand(np.ones(3)) for _ in range(4)]),
        Concat(1),
    ):
        assert pulled(op).hull is None
    assert pulled(Add((1, -1)), index=1).hull is None
    assert pulled(Move(np.array([[0, 1, 2]])), (1, 4)).hull is None


def test_slopes_are_the_factors() -> None:
    op = BatchNorm(*[_operand([2.0, 3.0]) for _ in range(4)])
    found = rule(op, [Fact.of((1, 2, 4))], [(1, 2, 4)], (1, 2, 4)).slopes()
    assert found is not None
    assert found.hi.ravel() == pytest.approx([4.0, 9.0])


def test_what_is_left_of_a_value_without_its_mean() -> None:
    shape = (2, 6)
    unit = Fact.of(shape, box=Interval(np.zeros((1, 1)), np.ones((1, 1))))
    found = _out(Centre((1,)), unit, shape, shape, {})
    assert found.norm == pytest.approx(math.sqrt(12) / 2)  # half of the entries at each end
    assert found.max_abs == pytest.approx(1.0)
    runs = Fact.of(shape, 4.0, run=3.0, column=2.0)
    assert _out(Centre((1,)), runs, shape, shape, {}).run == 3.0
    assert _out(Centre((0,)), runs, shape, shape, {}).column == 2.0
    assert _out(Centre((0, 1)), runs, shape, shape, {}).norm == 4.0
    alone = _out(Centre((1,)), Fact.of((2, 1), 4.0), (2, 1), (2, 1), {})
    assert alone.norm == 0.0
