import math
import sys
from fractions import Fraction

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.core import arithmetic as ar
from lipcert.core.exponential import exp_bounds, exp_near
from lipcert.core.logarithm import log_bounds

FINITE = st.floats(allow_nan=False, allow_infinity=False)
POSITIVE = st.floats(min_value=0.0, exclude_min=True, allow_infinity=False)


def is_smallest_above(found: float, exact: Fraction) -> bool:
    below = math.nextafter(found, -math.inf)
    reaches = found == math.inf or Fraction(found) >= exact
    return reaches and (below == -math.inf or Fraction(below) < exact)


def is_largest_below(found: float, exact: Fraction) -> bool:
    return is_smallest_above(-found, -exact)


@given(FINITE, FINITE)
def test_sums_and_products(a, b):
    x, y = Fraction(a), Fraction(b)
    assert is_smallest_above(ar.add_up(a, b), x + y)
    assert is_largest_below(ar.add_down(a, b), x + y)
    assert is_smallest_above(ar.multiply_up(a, b), x * y)
    assert is_largest_below(ar.multiply_down(a, b), x * y)


@given(FINITE, POSITIVE)
def test_quotients(a, b):
    exact = Fraction(a) / Fraction(b)
    assert is_smallest_above(ar.divide_up(a, b), exact)
    assert is_largest_below(ar.divide_down(a, b), exact)


@given(st.one_of(POSITIVE, st.fractions(min_value=0)))
def test_square_roots(a):
    up, down = Fraction(ar.sqrt_up(a)), Fraction(ar.sqrt_down(a))
    assert down**2 <= Fraction(a) <= up**2
    next_down, next_up = math.nextafter(float(up), 0.0), math.nextafter(float(down), math.inf)
    assert Fraction(a) == 0 or Fraction(next_down) ** 2 < Fraction(a) < Fraction(next_up) ** 2


@given(FINITE)
def test_float64_numbers_are_left_alone(a):
    assert ar.round_up(Fraction(a)) == ar.round_down(Fraction(a)) == a


def test_beyond_float64():
    largest = sys.float_info.max
    assert ar.add_up(largest, largest) == ar.multiply_up(largest, 2.0) == math.inf
    assert ar.add_down(largest, largest) == ar.multiply_down(largest, 2.0) == largest
    assert ar.add_down(-largest, -largest) == -math.inf
    assert ar.add_up(-largest, -largest) == -largest
    assert ar.multiply_up(5e-324, 0.5) == 5e-324
    assert ar.multiply_down(5e-324, 0.5) == 0.0
    assert ar.sqrt_up(Fraction(10) ** 1000) == math.inf
    assert ar.round_up(Fraction(1, 10**1000)) == 5e-324
    assert ar.sqrt_up(0.0) == ar.sqrt_down(0.0) == 0.0


def test_no_bound_stays_no_bound():
    inf = math.inf
    assert ar.add_up(inf, 1.0) == ar.multiply_up(0.0, inf) == ar.divide_up(inf, 2.0) == inf
    assert ar.sqrt_up(inf) == inf


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_refused_downward(number):
    for operation in (ar.add_down, ar.multiply_down, ar.divide_down):
        with pytest.raises(ValueError, match=r"\w"):
            operation(number, 1.0)
    with pytest.raises(ValueError, match=r"\w"):
        ar.sqrt_down(number)
    if number != math.inf:
        for operation in (ar.add_up, ar.multiply_up, ar.divide_up):
            with pytest.raises(ValueError, match=r"\w"):
                operation(number, 1.0)


def test_undefined_operations_are_refused():
    for divide in (ar.divide_up, ar.divide_down):
        for divisor in (0.0, -1.0, math.nan, math.inf):
            with pytest.raises(ValueError, match=r"\w"):
                divide(1.0, divisor)
    for root in (ar.sqrt_up, ar.sqrt_down):
        with pytest.raises(ValueError, match="negative"):
            root(-1.0)


_FINE = mpmath.mpf(2) ** -600


def _number(x: Fraction) -> mpmath.mpf:
    return mpmath.mpf(x.numerator) / x.denominator


@given(st.floats(-300.0, 300.0), st.sampled_from([20, 80, 200]))
def test_exp(x: float, bits: int) -> None:
    """The interval holds e^x, and is as narrow as promised."""
    with mpmath.workprec(800):
        low, high = exp_bounds(Fraction(x), bits)
        true = mpmath.exp(_number(Fraction(x)))
        assert _number(low) <= true * (1 + _FINE)
        assert true * (1 - _FINE) <= _number(high)
    assert high - low <= low / 2**bits
    assert Fraction(*exp_near(*Fraction(x).as_integer_ratio(), bits)) in {low, high}


@given(st.fractions(min_value=Fraction(1, 10**9), max_value=10**9), st.sampled_from([20, 80, 200]))
def test_log(x: Fraction, bits: int) -> None:
    """The interval holds log x, and is as narrow as promised."""
    with mpmath.workprec(800):
        low, high = log_bounds(x, bits)
        true = mpmath.log(_number(x))
        assert _number(low) <= true + _FINE
        assert true - _FINE <= _number(high)
    assert high - low <= (1 + max(abs(low), abs(high))) / 2**bits


@pytest.mark.parametrize("x", [5e-324, 1e300, 1.0, 0.5, 2.0, 1 - 2**-53, 1 + 2**-52])
def test_log_at_extremes(x: float) -> None:
    """Subnormal, huge, and next to 1."""
    with mpmath.workprec(1200):
        low, high = log_bounds(Fraction(x))
        true = mpmath.log(mpmath.mpf(x))
        assert _number(low) <= true <= _number(high)


def test_ends() -> None:
    """e^0, log 1, large arguments, and what is refused."""
    low, high = exp_bounds(Fraction(0))
    assert low <= 1 <= high
    low, high = log_bounds(Fraction(1))
    assert low <= 0 <= high
    low, high = exp_bounds(Fraction(-(1 << 17)))
    assert 0 < low < high < Fraction(1, 1 << 180000)
    with pytest.raises(ValueError, match="too large"):
        exp_bounds(Fraction((1 << 17) + 1))
    with pytest.raises(ValueError, match="not positive"):
        log_bounds(Fraction(0))
