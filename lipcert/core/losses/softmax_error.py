"""How far a softmax can be from the label: the suprema of ‖p − t‖₂ and 1 − p_y, p = softmax(z).

Here t = (1 − a)·e_y + (a/K)·1 is the target of a label y of K classes, a the smoothing. The logits
z lie in the ball ‖z‖₂ ≤ R and in a cube, max z − min z ≤ w. By symmetry y = 0. All arithmetic is
rational; inf stands for a radius or a width that is not known.

Notation: b = 1 − a, S = ‖p‖², F = ½‖p − t‖² = ½S − b·p_0 + const, c = S − b·p_0, so that
∂F/∂z_i = p_i(p_i − c) for i ≥ 1 and ∂F/∂z_0 = p_0(p_0 − b − c).

Rounding: ‖∂p/∂z‖ ≤ ½ and ‖p − t‖ ≤ √2, so an error of z by ε in the norm moves ‖p − t‖² and log
odds by at most 3ε/2. Logits and weights e^z are formed to 2^-80, relative to R and to the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, final

from lipcert.core.arithmetic import round_up, sqrt_up
from lipcert.core.exponential import exp_bounds
from lipcert.core.losses.search import largest_on
from lipcert.core.losses.softmax import LARGEST_RADIUS, LARGEST_WIDTH, AnyLogits

_BITS: Final = 80
_MOST_CORNERS: Final = 1 << 14
_ROUGHLY_ROOT_2: Final = Fraction(3, 2)


@final
@dataclass(frozen=True, slots=True)
class SoftmaxDomain(AnyLogits):
    """Logits of `classes` ≥ 2 classes with ‖z‖₂ ≤ radius and max z − min z ≤ width."""

    radius: float
    width: float

    def error(self, smoothing: Fraction) -> float:
        """≥ sup ‖p − t‖₂: the least that the simplex, the ball and the cube yield."""
        squares = [self.largest_square(smoothing)]
        if self.radius <= LARGEST_RADIUS:
            squares.append(self._on_ball(self._near_square(smoothing)))
        if self.width <= LARGEST_WIDTH and self.classes <= _MOST_CORNERS:
            squares.append(self._square_on_cube(smoothing))
        return sqrt_up(min(squares))

    def miss(self) -> float:
        """≥ sup (1 − p_0) = sup o/(1 + o), o the odds Σ_{i≥1} e^{z_i − z_0}.

        Proof: on the cube every z_i − z_0 is at most w. Attained.
        """
        odds = []
        if self.radius <= LARGEST_RADIUS:
            odds.append(self._on_ball(self._near_odds))
        if self.width <= LARGEST_WIDTH:
            odds.append((self.classes - 1) * exp_bounds(Fraction(self.width), _BITS)[1])
        return round_up(min((o / (1 + o) for o in odds), default=Fraction(1)))

    def _square_on_cube(self, smoothing: Fraction) -> Fraction:
        """sup ‖p − t‖² over max z − min z ≤ w.

        Proof: shifted, z fills [0, w]^K. No logit is inside at a maximum: where ∂F/∂z_i = 0 for
        i ≥ 1, p_i = c and the second derivative is p_i²(1 − S + 2b·p_0) > 0; where ∂F/∂z_0 = 0, it
        is p_0²(1 − p_0)(1 − b) ≥ 0, positive unless b = 1, when ∂F/∂z_0 = −p_0(1 − 2p_0 + S) < 0.
        So the supremum is at a corner: the label and any number of other classes at w. Attained.
        """
        top = exp_bounds(Fraction(self.width), _BITS)[0]
        low = Fraction(1)
        corners = (
            _square(smoothing, label, (top, count), (low, self.classes - 1 - count))
            for label in (low, top)
            for count in range(self.classes)
        )
        return max(corners) + self._rounding()

    def _on_ball(self, near: Callable[[Fraction, Fraction, Fraction], Fraction]) -> Fraction:
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
        are rational, and θ moves by at most twice what s moves.
        """
        at = self._differences()
        if self.classes == 2:
            return max(near(*at(Fraction(0), sign), Fraction(0)) for sign in (1, -1))

        def on_half(sign: int) -> Fraction:
            def bound(left: Fraction, right: Fraction) -> Fraction:
                return near(*at((left + right) / 2, sign), right - left)

            return Fraction(largest_on(Fraction(-1), Fraction(1), bound))

        return max(on_half(1), on_half(-1))

    def _near_square(
        self, smoothing: Fraction
    ) -> Callable[[Fraction, Fraction, Fraction], Fraction]:
        """From a point and δ: a bound of a largest ‖p − t‖² no further than δ in θ from it.

        Proof: at the largest value on the circle the derivative by θ is 0, so that a point at
        distance δ loses at most ½δ²·max|φ''|, and |φ''| ≤ R²‖D²φ‖ + R‖Dφ‖ ≤ 5R²/2 + 3R/2: with
        J = ∂p/∂z, ‖Dφ‖ ≤ 2·½·√2, and D²φ[d, d] = 2‖Jd‖² + 2⟨p − t, D²p[d, d]⟩ is at most
        ½ + 2·max|p − t|·2Var_p(d) ≤ ½ + 2 for ‖d‖ = 1, since Var_p(d) ≤ ½.
        """
        radius = Fraction(self.radius)
        curvature = Fraction(5, 2) * radius**2 + Fraction(3, 2) * radius
        rounding = self._rounding()

        def near(one: Fraction, others: Fraction, distance: Fraction) -> Fraction:
            first, second = (exp_bounds(z, _BITS)[0] for z in (one, others))
            square = _square(smoothing, Fraction(1), (first, 1), (second, self.classes - 2))
            return square + (curvature * distance**2 / 2 + rounding)

        return near

    def _near_odds(self, one: Fraction, others: Fraction, distance: Fraction) -> Fraction:
        """The same for the odds, whose logarithm has |φ''| ≤ ½R² + √2·R.

        Proof: with the softmax q of the classes i ≥ 1, the gradient of log odds is (−1, q), its
        Hessian the covariance of q, whose norm is at most ½.
        """
        radius = Fraction(self.radius)
        curvature = radius**2 / 2 + _ROUGHLY_ROOT_2 * radius
        first, second = (exp_bounds(z, _BITS)[1] for z in (one, others))
        excess = curvature * distance**2 / 2 + self._rounding()
        return (first + (self.classes - 2) * second) * exp_bounds(excess, _BITS)[1]

    def _differences(self) -> Callable[[Fraction, int], tuple[Fraction, Fraction]]:
        """From s = tan(θ/2) and a sign, of θ or its antipode, to the logits there minus z_0.

        They are those of the one class and of the others, within (3R + 1)·2^-80. With s = p/q,
        x/R = (q² − p²)/(q² + p²) and y/R = 2pq/(q² + p²).
        """
        radius = Fraction(self.radius)
        root, slope = _root(2, 1), _root(self.classes, 2 * max(self.classes - 2, 1))

        def at(s: Fraction, sign: int) -> tuple[Fraction, Fraction]:
            p, q = s.numerator, s.denominator
            length = sign * radius.numerator
            unit = radius.denominator * (q * q + p * p)
            one = root * (q * q - p * p)
            others = one - 4 * slope * p * q
            return _dyadic(one * length // unit), _dyadic(others * length // (2 * unit))

        return at

    def _rounding(self) -> Fraction:
        """3/2 of the errors of all K logits, those of R and the relative ones of the weights."""
        size = Fraction(min(self.radius, LARGEST_RADIUS))
        return self.classes * (5 * size + 5) / (1 << _BITS)


def _square(
    smoothing: Fraction,
    label: Fraction,
    first: tuple[Fraction, int],
    second: tuple[Fraction, int],
) -> Fraction:
    """‖p − t‖², where p is proportional to a weight of the label and two of other classes."""
    classes = 1 + first[1] + second[1]
    unit = math.lcm(label.denominator, first[0].denominator, second[0].denominator)
    hit, one, other = (w.numerator * (unit // w.denominator) for w in (label, first[0], second[0]))
    total = hit + one * first[1] + other * second[1]
    scale = smoothing.denominator * classes
    share = smoothing.numerator * total
    missed = scale * (hit - total) + share * (classes - 1)
    parts = first[1] * (scale * one - share) ** 2 + second[1] * (scale * other - share) ** 2
    return Fraction(missed**2 + parts, (scale * total) ** 2)


def _root(numerator: int, denominator: int) -> int:
    """√(numerator/denominator) in units of 2^-80, at most one of them below."""
    return math.isqrt((numerator << 2 * _BITS) // denominator)


def _dyadic(units: int) -> Fraction:
    return Fraction(units, 1 << _BITS)
