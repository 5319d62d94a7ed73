"""One release: its hockey-stick curve H(E) = sup_S P(S) − E·Q(S), and a discrete pair above it.

What enters: the largest shift μ of N(0, 1) that one example causes, and the probability q that it
is in the sample. What leaves: probabilities of privacy losses i·log r, r = 1 + gap. The numbers
are fixed-point with an error far below 2^−`_SLACK`, which is added wherever a bound needs it.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, final

import numpy as np

from lipcert.checker.arithmetic import round_up
from lipcert.checker.interval import Array, up
from lipcert.checker.privacy.fixed import MOST_BITS, NormalTail, logarithm

__all__ = ["Losses", "Removed", "Replaced", "bits_for", "replaced_pair", "sampled_pairs"]

_SLACK: Final = 160


@final
@dataclass(frozen=True, slots=True)
class Losses:
    """Probability `masses[i]` of the loss (first + i)·log(1 + gap), `infinite` of any loss.

    Upper bounds; composing such pairs is monotone in each of them.
    """

    gap: Fraction
    first: int
    masses: Array
    infinite: float


def bits_for(largest: float, rate: Fraction) -> int | None:
    """A scale for ratios up to e^largest at sampling rates down to `rate`; None: too fine."""
    bits = _SLACK + 64 + max(0, math.ceil(1.45 * largest)) + rate.denominator.bit_length()
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
        """Scale of all numbers."""
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
        return Fraction(self(ratio), 1 << self.bits) + Fraction(1, 1 << _SLACK)


@final
@dataclass(frozen=True, slots=True)
class Replaced:
    """P = (1−q)·N(0) + q·N(−μ) against Q = (1−q)·N(0) + q·N(μ), for ratios from 1 up.

    Proof: with t = e^(μx) and c = q·e^(−μ²/2), P > E·Q where E·c·t² + (1−q)(E−1)·t < c: below the
    positive root t = 2c/((1−q)(E−1) + √((1−q)²(E−1)² + 4c²E)). By reflection the S = {x < log t/μ}
    is S = {x > −log t/μ} with the shifts exchanged.
    """

    shift: int
    rate: Fraction
    tail: NormalTail
    weight: int
    """c"""

    @property
    def bits(self) -> int:
        """Scale of all numbers."""
        return self.tail.bits

    def __call__(self, ratio: int) -> int:
        """H(ratio)."""
        bits, (n, d) = self.bits, self.rate.as_integer_ratio()
        rest = (ratio - (1 << bits)) * (d - n) // d
        root = math.isqrt(rest * rest + (4 * self.weight * self.weight * ratio >> bits))
        odds = ((rest + root) << bits) // (2 * self.weight)  # 1/t
        at = (logarithm(odds, bits) << bits) // self.shift
        near, far = self.tail(at - self.shift), self.tail(at + self.shift)
        absent = -rest * self.tail(at) >> bits
        return absent + n * (near - (ratio * far >> bits)) // d


def sampled_pairs(
    curve: Removed, gap: Fraction, lowest: int, highest: int
) -> tuple[Losses, Losses]:
    """(P, Q) on the grid lowest..highest ≥ 1, and (Q, P) on its mirror image.

    Proof: H is convex, decreasing, H(0) = 1 and H(E) ≥ 1 − E. The piecewise linear curve through
    (0, 1) and its values on the grid, constant beyond, is above it, and is that of the discrete
    pair with masses (r·H_(i−1) − (1+r)·H_i + H_(i+1))/gap: slopes change by the Q-masses p_i/E_i.
    A pair with a curve above composes to a curve above (Zhu, Dong and Wang, AISTATS 2022, theorem
    10; connect-the-dots of Doroshenko et al., PETS 2022).
    """
    ratios = _ratios(curve.bits, gap, lowest, highest)
    values = [curve(ratio) for ratio in ratios]
    mirrored = _mirrored(curve.bits, values, ratios)
    return (
        _losses(curve.bits, gap, lowest, values),
        _losses(curve.bits, gap, -highest, mirrored),
    )


def replaced_pair(curve: Replaced, gap: Fraction, highest: int) -> Losses:
    """(P, Q) on the grid −highest..highest; (Q, P) is its reflection, with the same curve."""
    ratios = _ratios(curve.bits, gap, 0, highest)
    values = [curve(ratio) for ratio in ratios]
    mirrored = _mirrored(curve.bits, values, ratios)
    return _losses(curve.bits, gap, -highest, mirrored[:-1] + values)


def _ratios(bits: int, gap: Fraction, lowest: int, highest: int) -> list[int]:
    """r^i, off by less than 2·|i| + 1 units of the larger of it and 1."""
    part, whole = gap.as_integer_ratio()
    powers = [1 << bits]
    for _ in range(max(-lowest, highest)):
        powers.append(powers[-1] + powers[-1] * part // whole)
    inverses = [(1 << 2 * bits) // powers[i] for i in range(-lowest, 0, -1)]
    return inverses + powers[: highest + 1]


def _mirrored(bits: int, values: list[int], ratios: list[int]) -> list[int]:
    """H_(Q,P)(1/E) = 1 − 1/E + H_(P,Q)(E)/E, in increasing order of 1/E."""
    one = 1 << bits
    pairs = zip(reversed(values), reversed(ratios), strict=True)
    return [one + ((value - one) << bits) // ratio for value, ratio in pairs]


def _losses(bits: int, gap: Fraction, first: int, curve: list[int]) -> Losses:
    """The discrete pair; every mass is raised by the slack of the three values it is made of.

    Below the grid the slope is (H_0 − 1)/E_0. A quotient of integers is rounded to nearest.
    """
    one, slack = 1 << bits, 1 << bits - _SLACK
    part, whole = gap.as_integer_ratio()
    falls = [before - after for before, after in itertools.pairwise(curve)]
    bends = [before - after for before, after in itertools.pairwise(falls)]
    masses = [one - curve[0] - falls[0] * whole // part]
    masses += [fall + bend * whole // part for fall, bend in zip(falls, bends, strict=False)]
    masses.append(falls[-1] + falls[-1] * whole // part)
    raised = [max(mass + 5 * slack * whole // part, 0) / one for mass in masses]
    return Losses(gap, first, up(np.array(raised)), round_up(Fraction(curve[-1] + slack, one)))
