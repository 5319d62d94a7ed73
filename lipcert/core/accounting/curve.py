"""One release: its hockey-stick curve H(E) = sup_S P(S) − E·Q(S).

Input: the largest shift μ of N(0, 1) that one example causes, and the probability q that it
is in the sample. Output: H in fixed point, off by less than 2^−`SLACK_BITS`; callers that need a
bound add that.

Fixed point: an integer x stands for x·2^−bits. Every function states how far its result lies from
the exact one, in units of 2^−bits. Integer arithmetic is exact; only shifts and divisions lose
something, less than one unit each. `bits` is between 64 and `MOST_BITS`.
"""

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from lipcert.core.circle import pi
from lipcert.core.exponential import exp_bounds
from lipcert.core.logarithm import logarithm

MOST_BITS: Final = 1400
TAIL_ERROR: Final = 1 << 20
_LEAST_BITS: Final = 64


@dataclass(frozen=True, slots=True)
class NormalTail:
    """Q(x) = P(N(0,1) > x), off by less than `TAIL_ERROR`.

    Taylor series about the multiples c of 1/16 up to reach R, where Q(R) < e^(−R²/2) < 2^−bits.
    Proof: φ(c+d) = Σ t_k·d^k with (k+1)·t_(k+1) = −c·t_k − t_(k−1), since φ' = −xφ. By Cauchy's
    bound on a circle of radius 6, |t_k| ≤ e^18/√(2π)·6^−k < 2^25·6^−k, so with |d| ≤ 1/16 the
    terms from N on are below 2^26·96^−N, and 96 > 2^6.5. An error e_k of t_k obeys (k+1)·e_(k+1) ≤
    c·e_k + e_(k−1) + 3k+3,
    hence Σ e_k/16^k ≤ 8·e^(c/16 + 1) < 2^11 (c ≤ 64), and Q at the next centre, which is
    Q(c) − Σ t_k·d^(k+1)/(k+1), is off by 2^8 more than Q(c): below 2^18 after 1024 centres.
    """

    bits: int
    _series: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _LEAST_BITS <= self.bits <= MOST_BITS:
            raise ValueError("too many bits")

    def __call__(self, x: int) -> int:
        """Q(x)."""
        if x < 0:
            return (1 << self.bits) - self(-x)
        centre = ((x << 5 >> self.bits) + 1) >> 1
        if centre * centre > 360 * self.bits:  # x²/2 > (c−½)²/512 > bits·log 2
            return 0
        return self._near(centre, x - (centre << self.bits - 4))

    def _near(self, centre: int, offset: int) -> int:
        total = 0
        for coefficient in reversed(self._coefficients(centre)):
            total = coefficient + (total * offset >> self.bits)
        return total

    def _coefficients(self, centre: int) -> tuple[int, ...]:
        """Return the s_k of Q(c+d) = Σ s_k·d^k, after computing those of all smaller centres."""
        for c in range(len(self._series), centre + 1):
            start = self._near(c - 1, 1 << self.bits - 4) if c else 1 << self.bits - 1
            self._series[c] = (start, *self._density_terms(c))
        return self._series[centre]

    def _density_terms(self, centre: int) -> list[int]:
        """Return −t_k/(k+1) for every k below (bits + 26)/6.5."""
        bits = self.bits
        peak = math.isqrt((1 << 3 * bits) // (2 * pi(bits)))
        bell = exp_bounds(Fraction(-centre * centre, 512), bits)[0]
        before, term = 0, math.floor(peak * bell)
        terms = []
        for k in range(2 * bits // 13 + 5):
            terms.append(-term // (k + 1))
            before, term = term, -((centre * term >> 4) + before) // (k + 1)
        return terms


SLACK_BITS: Final = 160


def bits_for(largest: float, rate: Fraction) -> int | None:
    """Return a scale for ratios up to e^largest and sampling rates down to `rate`, or None."""
    bits = SLACK_BITS + 64 + max(0, math.ceil(1.45 * largest)) + rate.denominator.bit_length()
    return bits if bits <= MOST_BITS else None


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
