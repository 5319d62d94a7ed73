"""The discrete pair of one release is above the exact one, between the points of the grid too."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.core.accounting import poisson
from lipcert.core.accounting.curve import MOST_BITS, TAIL_ERROR, NormalTail, logarithm, pi
from lipcert.core.accounting.pair import Grid, Losses
from tests.core.accounting.test_account import _added, _removed, _replaced


@pytest.mark.sample(2)
@pytest.mark.parametrize(("sigma", "rate"), [(1.0, "1/100"), (0.3, "1/1000"), (5.0, "3/4")])
@pytest.mark.parametrize("replaced", [False, True])
def test_dominates(sigma: float, rate: str, replaced: bool) -> None:
    q, shift = Fraction(rate), 1 / Fraction(sigma) / (2 if replaced else 1)
    grid = poisson._grid(float(shift), q, 10, Fraction("1e-4"), replaced, 4.0)
    assert grid is not None
    pairs = poisson._pairs(shift, q, grid, replaced=replaced)
    exactly = mpmath.mpf(shift.numerator) / shift.denominator
    curves = [_replaced(exactly, q)] if replaced else [_removed(exactly, q), _added(exactly, q)]
    assert len(pairs) == len(curves)
    spread = float(shift) * float(q)
    for losses, curve in zip(pairs, curves, strict=True):
        with mpmath.workprec(200):
            for at in (-2 * spread, -spread / 3, 1e-7, spread, 3 * spread, float(shift) ** 2 / 2):
                exact = curve(mpmath.exp(mpmath.mpf(at)))
                assert exact <= _of(losses, at) <= exact * (1 + 1e-3) + float(grid.gap)


def _of(losses: Losses, epsilon: float) -> mpmath.mpf:
    """infinite + Σ (1 − e^(ε − loss))₊·mass, in 200 bits."""
    step = mpmath.log(1 + mpmath.mpf(losses.gap.numerator) / losses.gap.denominator)
    total = mpmath.mpf(losses.infinite)
    for index, mass in zip(losses.indices, losses.masses, strict=True):
        if mass > 1e-30 and int(index) * step > epsilon:  # what is left out makes it smaller
            total += (1 - mpmath.exp(epsilon - int(index) * step)) * mpmath.mpf(float(mass))
    return total


@pytest.mark.parametrize(
    ("lowest", "highest", "fine"),
    [(0, 3, 1), (-100, 70, 20), (-5, 400, 20), (-40, 2, 3), (-1, 1, 0)],
)
def test_nodes(lowest: int, highest: int, fine: int) -> None:
    nodes = Grid(64, Fraction(1, 100), lowest, highest, fine).nodes()
    assert nodes == sorted(set(nodes))
    assert 0 in nodes
    assert nodes[0] <= lowest
    assert nodes[-1] >= highest


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
