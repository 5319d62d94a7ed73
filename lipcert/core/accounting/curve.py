"""One release: its hockey-stick curve H(E) = sup_S P(S) − E·Q(S).

Input: the largest shift μ of N(0, 1) that one example causes, and the probability q that it
is in the sample. Output: H in fixed point, off by less than 2^−`SLACK_BITS`, which callers
that need a bound add.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, final

from lipcert.core.accounting.fixed import MOST_BITS, NormalTail, logarithm

SLACK_BITS: Final = 160


def bits_for(largest: float, rate: Fraction) -> int | None:
    """A scale for ratios up to e^largest at sampling rates down to `rate`; None: too fine."""
    bits = SLACK_BITS + 64 + max(0, math.ceil(1.45 * largest)) + rate.denominator.bit_length()
    return bits if bits <= MOST_BITS else None


@final
@dataclass(frozen=True, slots=True)
class Removed:
    """P = (1−q)·N(0) + q·N(μ) against Q = N(0).

    Proof: P − E·Q = q·(N(μ) − E'·N(0)) with E' = (E − 1 + q)/q, positive beyond the x with
    e^(μx − μ²/2) = E', everywhere if E' ≤ 0; so H(E) = q·(Q(x−μ) − E'·Q(x)), Q the normal tail.
    The x at hand is off by below 2^40 units of the scale (μ ≥ 2^−30), the densities are below 1.
    """

    shift: int
    rate: Fraction
    tail: NormalTail

    @property
    def bits(self) -> int:
        """The number of fractional bits of all numbers."""
        return self.tail.bits

    def __call__(self, ratio: int) -> int:
        """H(ratio)."""
        one, (n, d) = 1 << self.bits, self.rate.as_integer_ratio()
        odds = ((ratio - one) * d + n * one) // n
        if odds <= 0:
            return one - ratio
        at = (logarithm(odds, self.bits) << self.bits) // self.shift + (self.shift >> 1)
        above = self.tail(at - self.shift) - (odds * self.tail(at) >> self.bits)
        return n * above // d

    def upper(self, ratio: int) -> Fraction:
        """Upper bound of H(ratio)."""
        return Fraction(self(ratio), 1 << self.bits) + Fraction(1, 1 << SLACK_BITS)
