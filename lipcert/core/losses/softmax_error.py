"""How far a softmax can be from the label: the suprema of ‖p − t‖₂ and 1 − p_y, p = softmax(z).

Here t = (1 − a)·e_y + (a/K)·1 is the target of a label y of K classes, a the smoothing. The logits
z lie in the ball ‖z‖₂ ≤ R and in a cube, max z − min z ≤ w. By symmetry y = 0. All arithmetic is
rational; inf stands for a radius or a width that is not known.

Notation: b = 1 − a, S = ‖p‖², F = ½‖p − t‖² = ½S − b·p_0 + const, c = S − b·p_0, so that
∂F/∂z_i = p_i(p_i − c) for i ≥ 1 and ∂F/∂z_0 = p_0(p_0 − b − c).

Rounding: ‖∂p/∂z‖ ≤ ½ and ‖p − t‖ ≤ √2, so an error of z by ε in the norm moves ‖p − t‖² and log
odds by at most 3ε/2. Logits and weights e^z are formed to 2^-80, relative to R and to the weights.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from lipcert.core.arithmetic import round_up, sqrt_up
from lipcert.core.exponential import Quotient, exp_bounds, exp_quotients
from lipcert.core.losses.softmax import LARGEST_RADIUS, LARGEST_WIDTH, AnyLogits

BITS: Final = 80
"""of logits and weights, relative to R and to the weights"""
_MOST_CORNERS: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class SoftmaxDomain(AnyLogits):
    """Logits of `classes` ≥ 2 classes with ‖z‖₂ ≤ radius and max z − min z ≤ width.

    `softmax_ball` makes use of the radius, this class of the width.
    """

    radius: float
    width: float

    def error(self, smoothing: Fraction) -> float:
        """≥ sup ‖p − t‖₂: the lesser of what the simplex and the cube yield."""
        squares = [self.largest_square(smoothing)]
        if self.width <= LARGEST_WIDTH and self.classes <= _MOST_CORNERS:
            squares.append(self._square_on_cube(smoothing))
        return sqrt_up(min(squares))

    def miss(self) -> float:
        """≥ sup (1 − p_0) = sup o/(1 + o), o the odds Σ_{i≥1} e^{z_i − z_0}.

        Proof: on the cube every z_i − z_0 is at most w. Attained.
        """
        if self.width > LARGEST_WIDTH:
            return 1.0
        odds = (self.classes - 1) * exp_bounds(Fraction(self.width), BITS)[1]
        return round_up(odds / (1 + odds))

    def _square_on_cube(self, smoothing: Fraction) -> Fraction:
        """sup ‖p − t‖² over max z − min z ≤ w.

        Proof: shifted, z fills [0, w]^K. No logit is inside at a maximum: where ∂F/∂z_i = 0 for
        i ≥ 1, p_i = c and the second derivative is p_i²(1 − S + 2b·p_0) > 0; where ∂F/∂z_0 = 0, it
        is p_0²(1 − p_0)(1 − b) ≥ 0, positive unless b = 1, when ∂F/∂z_0 = −p_0(1 − 2p_0 + S) < 0.
        So the supremum is at a corner: the label and any number of other classes at w. Attained.
        """
        top, _ = exp_quotients(*self.width.as_integer_ratio(), BITS)
        low = (1, 1)
        corners = (
            Fraction(*square_at(smoothing, label, (top, count), (low, self.classes - 1 - count)))
            for label in (low, top)
            for count in range(self.classes)
        )
        return max(corners) + self.rounding()

    def rounding(self) -> Fraction:
        """3/2 of the errors of all K logits, those of R and the relative ones of the weights."""
        size = Fraction(min(self.radius, LARGEST_RADIUS))
        return self.classes * (5 * size + 5) / (1 << BITS)


def square_at(
    smoothing: Fraction, label: Quotient, first: tuple[Quotient, int], second: tuple[Quotient, int]
) -> Quotient:
    """‖p − t‖², where p is proportional to a weight of the label and two of other classes."""
    (one, of_one), (other, of_other) = first[0], second[0]
    hit = label[0] * of_one * of_other
    one, other = one * of_other * label[1], other * of_one * label[1]
    classes = 1 + first[1] + second[1]
    total = hit + one * first[1] + other * second[1]
    scale = smoothing.denominator * classes
    share = smoothing.numerator * total
    missed = scale * (hit - total) + share * (classes - 1)
    parts = first[1] * (scale * one - share) ** 2 + second[1] * (scale * other - share) ** 2
    return missed**2 + parts, (scale * total) ** 2
