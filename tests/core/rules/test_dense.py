"""Dense: bounds that are attained, the vertices of a hull, gradients of weights."""

import math

import numpy as np
import pytest

from lipcert.core.interval import Interval, exact
from lipcert.core.program import Dense, Operand
from lipcert.core.rules.base import Weights
from lipcert.core.rules.constrained import Constrained
from lipcert.core.rules.dense import pair_norm
from lipcert.core.rules.facts import Cotangent, Fact, Hull
from tests.core.rules.cases import KINDS, exactly, fact_behind, ones, rule, shares


def test_attained_dense_without_bias() -> None:
    w = np.diag([3.0, 1.0])
    x = Fact.of((1, 2), 2.0)
    found = fact_behind(Dense(exactly(w), None), x, (1, 2), (1, 2), {"y": 3.0})
    assert found.norm == pytest.approx(6.0, rel=1e-9)
    assert found.box.hi.ravel() == pytest.approx([6.0, 2.0], rel=1e-9)


def test_attained_by_inputs_of_one_sign() -> None:
    """3x − 4y is at most 3 and at least −4 where x, y ≥ 0, and 5 where only the norm is known."""
    op, y = Dense(exactly([[3.0, -4.0]]), None), {"y": 5.0}
    positive = Interval(np.zeros((1, 1)), np.full((1, 1), math.inf))
    found = fact_behind(op, Fact.of((1, 2), 1.0, positive), (1, 2), (1, 1), y)
    assert found.box.hi.item() == pytest.approx(3.0, rel=1e-9)
    assert found.box.lo.item() == pytest.approx(-4.0, rel=1e-9)
    assert found.box.hi.item() >= 3.0
    assert found.box.lo.item() <= -4.0
    almost = Interval(np.array([[0.0, -1.0]]), np.ones((1, 2)))
    either = fact_behind(op, Fact.of((1, 2), 1.0, almost), (1, 2), (1, 1), y)
    assert either.box.hi.item() >= 5.0


def test_attained_dense_expanded_and_centred() -> None:
    """A bias across the image of W adds its square; a point box is mapped exactly."""
    w, b = [[3.0, 0.0], [0.0, 0.0]], [0.0, 4.0]
    op = Dense(exactly(w), exactly(b))
    assert fact_behind(op, Fact.of((1, 2), 1.0), (1, 2), (1, 2), {"y": 3.0}).norm == pytest.approx(
        5.0
    )
    point = Fact.of((1, 2), box=exact(np.array([[1.0, 7.0]])))
    assert fact_behind(op, point, (1, 2), (1, 2), {"y": 3.0}).norm == pytest.approx(5.0)


def test_attained_round_the_centre_of_equal_tokens() -> None:
    """Entries in [9, 11] at 4 positions: all of them 11."""
    x = Fact.of((1, 4, 2), box=Interval(np.full((1, 1, 1), 9.0), np.full((1, 1, 1), 11.0)))
    found = fact_behind(Dense(exactly(np.eye(2)), None), x, (1, 4, 2), (1, 4, 2), {"y": 1.0})
    assert found.norm == pytest.approx(11.0 * math.sqrt(8), rel=1e-12)
    assert found.norm >= 11.0 * math.sqrt(8)


def test_unknown_inputs_stay_unknown_behind_weights_that_are_not_zero() -> None:
    x = Fact.of((1, 3))
    found = fact_behind(Dense(exactly(np.eye(3)), None), x, (1, 3), (1, 3), {})
    assert found.norm == math.inf
    nothing = fact_behind(Dense(exactly(np.zeros((2, 3))), None), x, (1, 3), (1, 2), {})
    assert nothing.norm < 1e-300


def test_what_is_0_stays_so_whatever_finite_weights_are() -> None:
    op, free = Dense(ones((2, 3), "w"), None), Constrained({}, {}, frozenset({"w"}))
    found = rule(op, [Fact.of((1, 3), 0.0)], [(1, 3)], (1, 2), free).fact()
    assert found.norm < 1e-300


def test_zero_weights_on_known_inputs() -> None:
    x = Fact.of((1, 3), 5.0)
    found = fact_behind(
        Dense(exactly(np.zeros((2, 3))), exactly([3.0, 4.0])), x, (1, 3), (1, 2), {}
    )
    assert found.norm == pytest.approx(5.0, rel=1e-12)


@pytest.mark.sample(seed=4)
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", ["spectral", "frobenius"])
def test_free_weights_have_the_bound_of_their_intervals_and_attain_it(kind: str, seed: int) -> None:
    """W = ruv* with v along the longest x and u along the bias; entries within ±r say no less."""
    rng = np.random.default_rng(seed)
    ins, outs = (int(n) for n in rng.integers(1, 6, size=2))
    r, b, (low, high) = rng.uniform(0.1, 3.0), rng.normal(size=outs), rng.uniform(size=(2, 1, ins))
    x, ends = Fact.of((1, ins), rng.uniform(), Interval(-low, high)), np.full((outs, ins), r)
    free = Dense(Operand(ends, ends, {"w": 1.0}), exactly(b))
    entries = Dense(Operand(-ends, ends, {}), exactly(b))
    within = Constrained({}, {"w": (kind, r)}, frozenset({"w"}))
    found = rule(free, [x], [(1, ins)], (1, outs), within)
    stated, fact = fact_behind(entries, x, (1, ins), (1, outs), {"y": r}), found.fact()
    assert fact.norm <= stated.norm * (1 + 1e-15)
    assert (fact.box.hi <= stated.box.hi + 1e-12).all()
    corner = np.where(low > high, -low, high)[0]
    corner *= min(1.0, x.norm / np.linalg.norm(corner))
    worst = r * np.outer(b / np.linalg.norm(b), corner / np.linalg.norm(corner)) @ corner + b
    assert fact.norm == pytest.approx(np.linalg.norm(worst), rel=1e-12)
    assert (abs(worst) <= fact.box.magnitude() * (1 + 1e-12)).all()
    hull = Hull(outs, 1.0)
    above = Cotangent(np.linalg.norm(_vertices(hull), axis=-1).max(), hull)
    pulled = rule(entries, [x], [(1, ins)], (1, outs), Weights({"y": r})).pulled(0, above)
    assert found.pulled(0, above).norm <= pulled.norm * (1 + 1e-15)
    assert found.pulled(0, above).peak <= pulled.peak * (1 + 1e-15)


def _vertices(hull: Hull) -> np.ndarray:
    eye = np.eye(hull.classes)
    targets = (1 - hull.smoothing) * eye + hull.smoothing / hull.classes
    return hull.scale * (eye[:, None] - targets[None]).reshape(-1, hull.classes)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.sample(seed=4)
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


def test_gains_multiply_and_unknown_ones_are_unknown() -> None:
    x = Fact.of((1, 2), 3.0)
    assert shares(Dense(ones((2, 2), "w", 2.0), None), x, (1, 2), (1, 2)) == {"w": 6.0}
    assert shares(Dense(ones((2, 2), "w", math.inf), None), x, (1, 2), (1, 2)) == {"w": math.inf}
    assert shares(Dense(ones((2, 2), "w"), None), Fact.of((1, 2)), (1, 2), (1, 2)) == {
        "w": math.inf
    }


def test_other_steps_make_no_use_of_channel_sums() -> None:
    case = KINDS["Dense"](np.random.default_rng(0))
    inputs = [Fact.of(shape, 1.0) for shape in case.shapes]
    received = Cotangent(math.inf, None, 1.0)
    found = rule(case.op, inputs, case.shapes, case.shape).gradients(received)
    assert {bound for _, bound in found} == {math.inf}
