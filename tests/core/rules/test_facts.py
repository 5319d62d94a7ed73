"""Facts: what follows from what, and norms of rows rounded upwards."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lipcert.core.interval import Interval, exact
from lipcert.core.rules.facts import Fact, Hull, box_norm, lengths_up, root_up
from tests.core.rules.attack import holds
from tests.core.rules.cases import fact

numbers = st.floats(-1e300, 1e300, allow_nan=False, width=64)


@given(arrays(np.float64, st.tuples(st.integers(1, 3), st.integers(1, 5)), elements=numbers))
def test_lengths_are_upper_bounds_and_close(rows: np.ndarray) -> None:
    for row, length in zip(rows, lengths_up(rows), strict=True):
        square = sum(Fraction(float(x)) ** 2 for x in row)
        assert length == math.inf or Fraction(float(length)) ** 2 >= square
        if length < math.inf:
            room = Fraction(float(np.max(np.abs(row)))) ** 2 * Fraction(1, 10**12)
            assert Fraction(float(length)) ** 2 <= square * (1 + Fraction(1, 10**12)) + max(
                room, Fraction(2) ** -2140
            )


@pytest.mark.parametrize("scale", [1e-320, 1e-160, 1.0, 1e160, 1e308])
def test_lengths_neither_overflow_nor_vanish(scale: float) -> None:
    row = np.array([[3.0, 4.0]]) * (scale / 5.0)
    assert lengths_up(row)[0] >= math.hypot(*row[0])
    assert lengths_up(row)[0] <= math.hypot(*row[0]) * (1 + 1e-12) + 1e-322


def test_lengths_of_zero_and_infinite_rows() -> None:
    assert lengths_up(np.zeros((2, 3))).tolist() == [0.0, 0.0]
    assert lengths_up(np.array([[1.0, math.inf]])).tolist() == [math.inf]
    assert lengths_up(np.ones((2, 0))).tolist() == [0.0, 0.0]


@pytest.mark.sample(seed=67)
@pytest.mark.parametrize("seed", range(200))
def test_reduced_facts_keep_their_members(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(1, 5, size=rng.integers(0, 4)))
    found, members = fact(rng, shape)
    assert all(holds(found, member, 1e-12) for member in members)
    assert len(found.box.shape) == len(shape)
    other, _ = fact(rng, shape)
    stated = Fact.of(shape, found.norm, found.box, found.row_norm, found.column_norm)
    both = stated.meet(found, shape)
    assert (both.row_spread, both.column_spread) == (found.row_spread, found.column_spread)
    assert both.norm <= found.norm
    assert other.norm >= 0.0


def test_what_follows() -> None:
    shape = (1, 4, 9)
    x = Fact.of(shape, box=Interval(np.full((1, 1, 1), -1.0), np.full((1, 1, 1), 0.5)))
    assert (x.norm, x.row_norm, x.column_norm) == pytest.approx((6.0, 3.0, 2.0), rel=1e-12)
    x = Fact.of(shape, row_norm=1.5)
    assert (x.norm, x.row_norm, x.column_norm, x.max_abs) == pytest.approx(
        (3.0, 1.5, 3.0, 1.5), rel=1e-12
    )
    x = Fact.of(shape, 2.0)
    assert (x.row_norm, x.column_norm, x.max_abs) == (2.0, 2.0, 2.0)
    assert x.box.shape == (1, 1, 1)
    assert Fact.of(shape).norm == math.inf
    assert Fact.of(shape, box=exact(np.ones(9))).box.shape == (1, 1, 9)
    assert Fact.of((), 2.0).box.shape == ()
    assert Fact.of((1, 0), 2.0).norm == 0.0


def test_a_contradiction_is_an_error() -> None:
    with pytest.raises(ValueError, match="interval"):
        Fact.of((1, 2), 1.0, exact(np.array([[5.0, 5.0]])))


def test_box_norm_counts_what_is_repeated() -> None:
    assert box_norm(exact(np.array([[3.0], [4.0]])), (2, 4)) == pytest.approx(10.0, rel=1e-12)
    assert root_up(2) ** 2 >= 2
    assert root_up(2**60) == math.inf


@pytest.mark.parametrize("arguments", [(0, 1.0, 0.0), (2, -1.0, 0.0), (2, 1.0, 1.5)])
def test_a_hull_is_checked(arguments: tuple[int, float, float]) -> None:
    with pytest.raises(ValueError, match="hull"):
        Hull(*arguments)


def test_a_hull_may_be_unknown_in_size() -> None:
    with pytest.raises(ValueError, match="hull"):
        Hull(2, math.nan)


@pytest.mark.sample(seed=20)
@pytest.mark.parametrize("seed", range(60))
def test_products_of_intervals_hold_every_product(seed: int) -> None:
    """Ends and points between, exactly by rational arithmetic."""
    rng = np.random.default_rng(seed)
    m, n, k = (int(x) for x in rng.integers(1, 5, size=3))
    left, right = (_interval(rng, shape) for shape in ((m, n), (n, k)))
    found = left @ right
    for _ in range(8):
        a, b = (_member(rng, interval) for interval in (left, right))
        for i in range(m):
            for j in range(k):
                true = sum(Fraction(float(a[i, x])) * Fraction(float(b[x, j])) for x in range(n))
                assert Fraction(float(found.lo[i, j])) <= true <= Fraction(float(found.hi[i, j]))


@pytest.mark.sample(seed=4)
@pytest.mark.parametrize("seed", range(10))
def test_long_sums_of_radii_are_rounded_up(seed: int) -> None:
    """The ends of Σ ±r·|b| over many terms, exactly; numpy's own sum falls short about as often."""
    rng = np.random.default_rng(seed)
    r, b = rng.uniform(1, 2, size=(1, 2000)), rng.uniform(1, 2, size=(2000, 1))
    found = Interval(-r, r) @ exact(b)
    true = sum(Fraction(float(x)) * Fraction(float(y)) for x, y in zip(r[0], b[:, 0], strict=True))
    assert Fraction(float(found.hi.item())) >= true
    assert Fraction(float(found.lo.item())) <= -true


def test_products_are_tight_where_one_factor_is_known() -> None:
    left = Interval(np.array([[-1.0, 2.0]]), np.array([[3.0, 2.0]]))
    found = left @ exact(np.array([[2.0], [-5.0]]))
    assert (found.lo.item(), found.hi.item()) == pytest.approx((-12.0, -4.0), rel=1e-12)


def test_products_with_unknown_or_huge_numbers_are_unknown() -> None:
    for entry in (math.inf, 1e300):
        left = Interval(np.array([[-entry, 0.0]]), np.array([[entry, 1.0]]))
        found = left @ exact(np.array([[1e300], [1.0]]))
        assert (found.lo.item(), found.hi.item()) == (-math.inf, math.inf)


def _interval(rng: np.random.Generator, shape: tuple[int, int]) -> Interval:
    scale = 10.0 ** rng.integers(-200, 100)
    low = rng.normal(size=shape) * scale
    width = rng.choice([0.0, 1e-16, 1.0]) * np.abs(rng.normal(size=shape)) * scale
    return Interval(low, low + width)


def _member(rng: np.random.Generator, interval: Interval) -> np.ndarray:
    ends = rng.integers(3, size=interval.shape)
    middle = np.clip(0.5 * interval.lo + 0.5 * interval.hi, interval.lo, interval.hi)
    return np.where(ends == 0, interval.lo, np.where(ends == 1, interval.hi, middle))
