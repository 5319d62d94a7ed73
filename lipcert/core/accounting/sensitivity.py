"""From gradient bounds to sensitivities, and from sensitivities and noise to one multiplier."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

from lipcert.core.arithmetic import divide_up, multiply_up, sqrt_down, sqrt_up

_BOUNDS_MOVED = {"add-remove": 1, "zero-out": 1, "replace-one": 2}


def sensitivity_up(grad_norm: float, reduction: str, divisor: int | None, relation: str) -> float:
    """Returns Δ ≥ ‖release(D) − release(D')‖₂ for all neighbours D, D'; inf: no bound.

    Hypotheses: ‖∇ℓ‖₂ ≤ grad_norm for every example; a mean divides the sum by the public
    constant `divisor`, never by the size of the batch at hand.
    Proof: the sums differ by one gradient (add or remove one, zero it out) or by the difference of
    two (replace one), at most 2G; a mean divides both sums by the same number.
    Attained: by examples that attain G, with opposite gradients where one replaces the other.
    """
    moved = multiply_up(_BOUNDS_MOVED[relation], grad_norm)
    if reduction == "sum":
        return moved
    if reduction != "mean" or divisor is None or divisor < 1:
        raise ValueError("a mean needs a positive public divisor")
    return divide_up(moved, divisor)


def total_sensitivity(sensitivities: Iterable[float]) -> float:
    """√ΣΔ², rounded up: what one example moves of all groups together."""
    known = list(sensitivities)
    if not all(delta < math.inf for delta in known):
        return math.inf
    return sqrt_up(sum((Fraction(delta) ** 2 for delta in known), Fraction(0)))


def effective_multiplier(sensitivities: Sequence[float], noise: Sequence[float]) -> float:
    """Returns a lower bound of (Σ Δ_k²/s_k²)^(−1/2); 0: something is not hidden; inf: all is 0.

    Hypotheses: the groups are noised from one sample, with N(0, s_k²·I).
    Proof: scaled by 1/s_k the joint noise is N(0, I), and one example moves it by √Σ(Δ_k/s_k)². A
    group with Δ_k = 0 shows nothing. 1/√x = √(1/x), and x is rational.
    """
    total = Fraction(0)
    for delta, deviation in zip(sensitivities, noise, strict=True):
        if not (delta >= 0.0 and 0.0 <= deviation < math.inf):
            raise ValueError("sensitivities and deviations are not negative")
        if delta > 0.0 and (deviation == 0.0 or delta == math.inf):
            return 0.0
        if delta > 0.0:
            total += (Fraction(delta) / Fraction(deviation)) ** 2
    return sqrt_down(1 / total) if total else math.inf
