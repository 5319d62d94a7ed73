"""The focal loss: its scale is the supremum of a function of the probability of the label."""

from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Final

from lipcert.core.arithmetic import multiply_up, round_up
from lipcert.core.exponential import exp_bounds
from lipcert.core.logarithm import log_bounds
from lipcert.core.losses.base import ClassLoss, NotNegative
from lipcert.core.losses.softmax import softmax_domain
from lipcert.core.losses.softmax_ball import CELLS, largest_on
from lipcert.core.rules.facts import Cotangent, Fact, Hull, root_up

_SPLITS: Final = 2000
_VANISHING: Final = Fraction(-(1 << 16))
_BITS: Final = 48
_INVERSE_E: Final = exp_bounds(Fraction(-1), _BITS)


@dataclass(frozen=True, slots=True)
class Focal(ClassLoss):
    """ℓ = −(1 − p_y)^γ · log p_y with p = softmax(z)."""

    focal_gamma: NotNegative = 2.0

    def bound(self, logits: Fact, outputs: int) -> Cotangent:
        """h(p_y)·(p − e_y), h(p) = (1 − p)^γ − γp(1 − p)^{γ−1}·log p ≥ 0, p = softmax(z).

        Proof: p − e_y is 1 − p_y times a member of conv{e_j − e_y}, which is no longer than √2; so
        the supremum of h(p)(1 − p) over the p that the logits admit scales hull and norm.
        Attained: where one wrong class has the rest of the mass.
        """
        miss = softmax_domain(logits, outputs, 1.0).miss()
        scale = focal_scale(Fraction(self.focal_gamma), Fraction(miss))
        return Cotangent(multiply_up(root_up(2), scale), Hull(outputs, scale))


def focal_scale(gamma: Fraction, miss: Fraction) -> float:
    """≥ sup of (1 − p)^{γ+1} + γ(1 − p)^γ·(−p·log p) over 1 − miss ≤ p ≤ 1, for γ ≥ 0.

    Proof: on [l, r] the powers are at most those at l, and the concave −p·log p is at most 1/e,
    its value at 1/e; where that point lies outside, at most the larger end value.
    Attained: up to the search.
    """

    @cache  # most ends belong to two parts, and to parts of these
    def at(n: int) -> tuple[Fraction, Fraction, Fraction]:
        p = 1 - miss * (CELLS - n) / CELLS
        entropy = -p * log_bounds(p, _BITS)[0] if p > 0 else Fraction(0)
        return 1 - p, _power(1 - p, gamma), entropy

    def bound(low: int, high: int) -> float:
        (rest, power, left), (least, _, right) = at(low), at(high)
        holds_peak = 1 - rest <= _INVERSE_E[1] and 1 - least >= _INVERSE_E[0]
        most = _INVERSE_E[1] if holds_peak else max(left, right)
        return round_up(power * (rest + gamma * most))

    return largest_on(bound, 0.0, _SPLITS)


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    """≥ base^exponent for 0 ≤ base ≤ 1, which falls with the exponent."""
    if base == 0:
        return Fraction(int(exponent == 0))
    logarithm = min(log_bounds(base, _BITS)[1], Fraction(0))
    return exp_bounds(max(exponent * logarithm, _VANISHING), _BITS)[1]
