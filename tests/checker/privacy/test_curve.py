"""The discrete pair of one release is above the exact one, between the points of the grid too."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import numpy as np
import pytest

from lipcert.checker.privacy import account
from lipcert.checker.privacy.curve import Losses
from tests.checker.privacy.test_account import _added, _removed, _replaced


@pytest.mark.parametrize(("sigma", "rate"), [(1.0, "1/100"), (0.3, "1/1000"), (5.0, "3/4")])
@pytest.mark.parametrize("replaced", [False, True])
def test_dominates(sigma: float, rate: str, replaced: bool) -> None:
    q, shift = Fraction(rate), 1 / mpmath.mpf(sigma)
    pairs = account._pairs(sigma, q, 10, Fraction("1e-4"), replaced=replaced)
    curves = [_replaced(shift / 2, q)] if replaced else [_removed(shift, q), _added(shift, q)]
    assert len(pairs) == len(curves)
    for losses, curve in zip(pairs, curves, strict=True):
        spread = float(shift) * float(q)
        with mpmath.workprec(200):
            for at in (-2 * spread, -spread / 3, 1e-7, spread, 3 * spread, 0.5 * float(shift) ** 2):
                exact = curve(mpmath.exp(mpmath.mpf(at)))
                assert exact <= _of(losses, at) <= exact * (1 + 1e-3) + 1e-5 * spread + 1e-12


def _of(losses: Losses, epsilon: float) -> mpmath.mpf:
    """infinite + Σ (1 − e^(ε − loss))₊·mass, in 200 bits."""
    step = mpmath.log(1 + mpmath.mpf(losses.gap.numerator) / losses.gap.denominator)
    first = int(mpmath.floor(mpmath.mpf(epsilon) / step)) + 1 - losses.first
    start = max(first, 0)
    above = np.array(losses.masses[start:])
    ratio = mpmath.exp(mpmath.mpf(epsilon) - step * (losses.first + start))
    shrink, total = mpmath.exp(-step), mpmath.mpf(losses.infinite)
    for mass in above:
        total += (1 - ratio) * mpmath.mpf(float(mass))
        ratio *= shrink
    return total
