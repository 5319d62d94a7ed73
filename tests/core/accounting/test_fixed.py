"""Fixed-point functions against mpmath at several precisions."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.core.accounting.curve import MOST_BITS, TAIL_ERROR, NormalTail, logarithm, pi

_BITS = (64, 200, 700)
_TAILS = {bits: NormalTail(bits) for bits in _BITS}


@pytest.mark.parametrize("bits", [64, 65, 300, MOST_BITS])
def test_pi(bits: int) -> None:
    with mpmath.workprec(bits + 80):
        assert abs(mpmath.pi * mpmath.mpf(2) ** bits - pi(bits)) < 1


@given(st.sampled_from(_BITS), st.integers(1, 1 << 1000))
def test_logarithm(bits: int, x: int) -> None:
    with mpmath.workprec(1200):
        exact = mpmath.log(mpmath.mpf(x) / mpmath.mpf(2) ** bits) * mpmath.mpf(2) ** bits
        assert abs(exact - logarithm(x, bits)) < 2


@given(st.sampled_from(_BITS), st.fractions(-45, 45))
def test_tail(bits: int, at: Fraction) -> None:
    x = int(at * (1 << bits))
    with mpmath.workprec(bits + 80):
        scale = mpmath.mpf(2) ** bits
        exact = mpmath.erfc(mpmath.mpf(x) / scale / mpmath.sqrt(2)) / 2 * scale
        assert abs(exact - _TAILS[bits](x)) < TAIL_ERROR


def test_tail_at_the_limits() -> None:
    tail = NormalTail(MOST_BITS)
    with mpmath.workprec(MOST_BITS + 80):
        for x in (0.03125, 30.9, 44.2, 44.5, 80.0):
            dyadic = mpmath.mpf(int(x * 2**20)) / 2**20
            exact = mpmath.erfc(dyadic / mpmath.sqrt(2)) / 2 * mpmath.mpf(2) ** MOST_BITS
            assert abs(exact - tail(int(x * 2**20) << MOST_BITS - 20)) < TAIL_ERROR
    with pytest.raises(ValueError, match="bits"):
        NormalTail(MOST_BITS + 1)
