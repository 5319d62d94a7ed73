"""exp and log, against mpmath."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.core.exponential import exp_bounds, log_bounds

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
    assert log_bounds(Fraction(1)) == (0, 0)
    low, high = exp_bounds(Fraction(-(1 << 17)))
    assert 0 < low < high < Fraction(1, 1 << 180000)
    with pytest.raises(ValueError, match="too large"):
        exp_bounds(Fraction((1 << 17) + 1))
    with pytest.raises(ValueError, match="not positive"):
        log_bounds(Fraction(0))
