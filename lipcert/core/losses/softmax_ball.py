"""The suprema of `softmax_error` over a ball of logits, in the notation of that file."""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Final, TypeAlias, TypeVar

from lipcert.core.arithmetic import round_up, sqrt_up
from lipcert.core.exponential import exp_bounds, exp_near
from lipcert.core.losses.softmax_error import BITS, SoftmaxDomain, square_at

CELLS: Final = 1 << 25
_SPLITS: Final = 400
NumberT = TypeVar("NumberT", int, float)
_ROUGHLY_ROOT_2: Final = Fraction(3, 2)
_UNIT: Final = 1 << BITS
_FINEST: Final = CELLS >> 21
"""what a part of this length adds is below 2^-30 of the whole"""
_Near: TypeAlias = Callable[[int, int, int], int]
"""takes the two logits of `BallDomain._differences`, and a distance in units of 2/CELLS; bounds are
in units of 2^-80"""


@dataclass(frozen=True, slots=True)
class BallDomain(SoftmaxDomain):
    """Logits of a radius of which the ball says more than the simplex."""

    def error(self, smoothing: Fraction) -> float:
        """The lesser of what the ball and the others yield."""
        square = self._on_ball(self._near_square(smoothing))
        return min(SoftmaxDomain.error(self, smoothing), sqrt_up(square))

    def miss(self) -> float:
        """≥ sup o/(1 + o), o the odds."""
        odds = self._on_ball(self._near_odds())
        return min(SoftmaxDomain.miss(self), round_up(odds / (1 + odds)))

    def _on_ball(self, near: _Near) -> Fraction:
        """The supremum of ‖p − t‖², or of the odds, over ‖z‖ ≤ R. near: as `_near_square`.

        Proof. *Few levels.* At a maximum ∇F = μz, μ ≥ 0 (0 inside). Two classes i, j ≥ 1 of equal
        logit allow the tangent e_i − e_j, along which p_i(2p_i − c) ≤ μ. The z_i, i ≥ 1, are roots
        of h(t) = A²e^{2t} − cAe^t − μt, A = p_i/e^{z_i}, and that condition is h'(z_i) ≤ 0. If
        μ = 0, then p_i = c for all i ≥ 1 and 2c² − c² ≤ 0, which is absurd for K ≥ 3. If μ > 0,
        then h tends to ∞ on both sides and h'' changes sign once at most, so that h has two roots
        at most, of an even total multiplicity; h' > 0 at the larger of two, where so one class at
        most sits. ∇F sums to 0, hence so does z. For log odds, h(t) = Ae^t − μt and Ae^t ≤ μ lead
        to the same: z = R(cos θ·e + sin θ·f), e = (−1, 1, 0, …)/√2, f = (1, 1, −2/m, …)/√(2K/m),
        m = K − 2. For K = 2 both functions are monotone in z_1 − z_0, on each side of the target,
        and θ = 0 or π. In terms of differences to z_0: √2·x for the one class and
        x/√2 − √(K/2m)·y for the m others, where (x, y) = R(cos θ, sin θ).
        *From points to the circle.* With s = tan(θ/2) in [−1, 1], and its antipodes, the points
        are rational, and θ moves by at most twice what s moves, so from the middle of a part by
        its length at most.
        """
        at, largest = self._differences(), 0
        for sign in (1, -1):
            if self.classes == 2:
                largest = max(largest, near(*at(0, sign), 0))
                continue

            def bound(low: int, high: int, sign: int = sign) -> int:
                return near(*at(low + high - CELLS, sign), high - low)

            largest = largest_on(bound, largest, finest=_FINEST)
        return Fraction(largest, _UNIT)

    def _near_square(self, smoothing: Fraction) -> _Near:
        """From a point and δ: a bound of a largest ‖p − t‖² no further than δ in θ from it.

        Proof: at the largest value on the circle the derivative by θ is 0, so that a point at
        distance δ loses at most ½δ²·max(−φ''), and −φ'' ≤ (10/9 + a/3)R² + √2·R: with J = ∂p/∂z,
        ‖Dφ‖ ≤ 2·½·√2. For ‖d‖ = 1, V = Var_p(d) ≤ ½ and the mean d̄ of d under p,
        D²φ[d, d] = 2‖Jd‖² + 2Σ_i (p_i − t_i)p_i((d_i − d̄)² − V). The term of i is at least −p_i²V
        if p_i ≥ t_i, and else −(t_i − p_i)p_i(d_i − d̄)². Those of i ≥ 1 with t_i = a/K sum up to no
        less than −V(1 − p_0)² − aV/K ≥ −½(1 − p_0)² − a/6, and that of 0 is at least −½p_0², or
        −2p_0(1 − p_0)³, as d_0 − d̄ is 1 − p_0 times a difference to a mean of the others, at most
        √2. In all this is more than −(5/9 + a/6).
        """
        excess = self._excess((Fraction(10, 3) + smoothing) / 3)
        more = cache(lambda distance: math.ceil(excess(distance) * _UNIT))

        def near(one: int, others: int, distance: int) -> int:
            first, second = exp_near(one, _UNIT, BITS), exp_near(others, _UNIT, BITS)
            n, d = square_at(smoothing, (1, 1), (first, 1), (second, self.classes - 2))
            return more(distance) - (-n << BITS) // d

        return near

    def _near_odds(self) -> _Near:
        """The same for the odds, whose logarithm has |φ''| ≤ ½R² + √2·R.

        Proof: with the softmax q of the classes i ≥ 1, the gradient of log odds is (−1, q), its
        Hessian the covariance of q, whose norm is at most ½.
        """
        excess = self._excess(Fraction(1, 2))
        factor = cache(lambda distance: exp_bounds(excess(distance), BITS)[1])

        def near(one: int, others: int, distance: int) -> int:
            (n, d), (m, e) = exp_near(one, _UNIT, BITS), exp_near(others, _UNIT, BITS)
            more = factor(distance)
            odds = n * e + (self.classes - 2) * m * d
            return -((-odds * more.numerator << BITS) // (d * e * more.denominator))

        return near

    def _excess(self, square: Fraction) -> Callable[[int], Fraction]:
        """What a distance from a point may add: ½δ²·max(−φ''), and rounding. The maximum is
        square·R² + √2·R."""
        radius, rounding = Fraction(self.radius), self.rounding()
        most = (square * radius + _ROUGHLY_ROOT_2) * radius
        return lambda distance: most * Fraction(2 * distance, CELLS) ** 2 / 2 + rounding

    def _differences(self) -> Callable[[int, int], tuple[int, int]]:
        """From s = p/CELLS = tan(θ/2) and a sign, of θ or its antipode, to the logits there minus
        z_0.

        They are those of the one class and of the others, in units of 2^-80, within 3R + 1 of them.
        With q = CELLS, x/R = (q² − p²)/(q² + p²) and y/R = 2pq/(q² + p²).
        """
        radius = Fraction(self.radius)
        root, slope = _root(2, 1), _root(self.classes, 2 * max(self.classes - 2, 1))

        def at(p: int, sign: int) -> tuple[int, int]:
            q, length = CELLS, sign * radius.numerator
            unit = radius.denominator * (q * q + p * p)
            one = root * (q * q - p * p)
            others = one - 4 * slope * p * q
            return one * length // unit, others * length // (2 * unit)

        return at


def _root(numerator: int, denominator: int) -> int:
    """√(numerator/denominator) in units of 2^-80, at most one of them below."""
    return math.isqrt((numerator << 2 * BITS) // denominator)


def largest_on(
    bound: Callable[[int, int], NumberT], least: NumberT, splits: int = _SPLITS, finest: int = 1
) -> NumberT:
    """The largest bound of the parts of a partition of [0, CELLS], or `least` if that is more.

    bound: of a function, from above, on cells in a row. Where the search looks first is of no
    consequence.
    Proof: the parts always cover the interval, so the largest of their bounds holds everywhere.
    The part that has it is halved, until it has `finest` cells, or no more than `least`, or
    patience ends.
    """

    def part(low: int, high: int) -> tuple[NumberT, int, int]:
        return -bound(low, high), low, high

    parts = [part(0, CELLS)]
    for _ in range(splits):
        negative, low, high = parts[0]
        if high - low <= finest or -negative <= least:
            break
        middle = (low + high) // 2
        heapq.heapreplace(parts, part(low, middle))
        heapq.heappush(parts, part(middle, high))
    return max(-parts[0][0], least)
