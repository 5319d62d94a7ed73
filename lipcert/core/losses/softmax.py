"""Cross-entropy, and what softmaxes of bounded logits have in common."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from lipcert.core.arithmetic import add_up, divide_up, sqrt_up
from lipcert.core.losses.base import ClassLoss, Positive, Share
from lipcert.core.rules.facts import Cotangent, Fact, Hull

LARGEST_RADIUS: Final = 12
LARGEST_WIDTH: Final = 64
"""of logits that keep a softmax away from the corners of the simplex to some purpose"""


@dataclass(frozen=True, slots=True)
class CrossEntropy(ClassLoss):
    """ℓ = −Σ_j t_j·log softmax(z/τ)_j with t = (1 − a)·e_y + (a/K)·1 (smoothing a)."""

    temperature: Positive = 1.0
    label_smoothing: Share = 0.0

    def bound(self, logits: Fact, outputs: int) -> Cotangent:
        """(p − t)/τ with p = softmax(z/τ), t as in `softmax_error`; √2/τ for logits without bounds.

        Proof of the hull: p is a mean of the e_j, so that p − t lies in conv{e_j − t}. Without
        smoothing p − e_y = Σ_{j≠y} p_j(e_j − e_y) is (1 − p_y) times a member, and the hull, which
        holds 0, holds every shorter multiple of a member: the largest 1 − p_y scales it.
        """
        domain = softmax_domain(logits, outputs, self.temperature)
        smoothing = Fraction(self.label_smoothing)
        scale = 1.0 if smoothing else domain.miss()
        hull = Hull(outputs, divide_up(scale, self.temperature), float(smoothing))
        return Cotangent(divide_up(domain.error(smoothing), self.temperature), hull)


@dataclass(frozen=True, slots=True)
class AnyLogits:
    """Logits of `classes` ≥ 2 classes, of which nothing is known: p is any distribution.

    t = (1 − a)·e_y + (a/K)·1 is the target of a label y, a the smoothing.
    """

    classes: int

    def error(self, smoothing: Fraction) -> float:
        """≥ sup ‖p − t‖₂."""
        return sqrt_up(self.largest_square(smoothing))

    def miss(self) -> float:
        """≥ sup (1 − p_y)."""
        return 1.0

    def largest_square(self, smoothing: Fraction) -> Fraction:
        """sup ‖p − t‖² over all distributions p.

        Proof: a convex function is largest at a vertex e_j, and no j = y has a larger value than
        another: (t_y)² + (1 − t_j)², and t_i² for each of the K − 2 others.
        Attained: in the limit of growing logits.
        """
        share = smoothing / self.classes
        return (1 - smoothing + share) ** 2 + (1 - share) ** 2 + (self.classes - 2) * share**2


def softmax_domain(logits: Fact, classes: int, temperature: float) -> AnyLogits:
    """The logits, over a temperature."""
    low, high = float(np.min(logits.box.lo)), float(np.max(logits.box.hi))
    width = add_up(high, -low) if math.isfinite(low) else math.inf
    radius, width = divide_up(logits.norm, temperature), divide_up(width, temperature)
    return domain_of(classes, radius, width)


def domain_of(classes: int, radius: float, width: float) -> AnyLogits:
    """Logits with ‖z‖₂ ≤ radius and max z − min z ≤ width, of which the smaller is made use of."""
    if radius <= LARGEST_RADIUS:
        from lipcert.core.losses.softmax_ball import BallDomain  # noqa: PLC0415  for these only

        return BallDomain(classes, radius, width)
    if width <= LARGEST_WIDTH:
        from lipcert.core.losses.softmax_error import SoftmaxDomain  # noqa: PLC0415  for these only

        return SoftmaxDomain(classes, radius, width)
    return AnyLogits(classes)
