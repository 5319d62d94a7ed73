"""The hockey-stick curve, as in `curve`, of one release in which an example may be replaced."""

import math
from dataclasses import dataclass
from fractions import Fraction

from lipcert.core.accounting.curve import NormalTail
from lipcert.core.logarithm import logarithm


@dataclass(frozen=True, slots=True)
class Replaced:
    """P = (1−q)·N(0) + q·N(−μ) against Q = (1−q)·N(0) + q·N(μ), for ratios from 1 up.

    Proof: with t = e^(μx) and c = q·e^(−μ²/2), P > E·Q iff E·c·t² + (1−q)(E−1)·t < c, so below the
    positive root t = 2c/((1−q)(E−1) + √((1−q)²(E−1)² + 4c²E)). By reflection the S = {x < log t/μ}
    becomes S = {x > −log t/μ} with the shifts exchanged.
    """

    shift: int
    rate: Fraction
    tail: NormalTail
    weight: int
    """c"""

    @property
    def bits(self) -> int:
        """The number of fractional bits of all numbers."""
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
