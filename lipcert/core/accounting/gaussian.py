"""ε of Gaussian releases without sampling: exactly that of one release with a larger shift."""

import math
from collections.abc import Callable
from fractions import Fraction

from lipcert.core.accounting.curve import NormalTail, Removed, bits_for
from lipcert.core.arithmetic import sqrt_up
from lipcert.core.exponential import exp_bounds
from lipcert.core.logarithm import log_bounds


def gaussian_epsilon(multiplier: float, releases: int, delta: Fraction) -> float | None:
    """Return, up to rounding, the least float64 ε with Q(ε/μ − μ/2) − e^ε·Q(ε/μ + μ/2) ≤ δ.

    Here μ = √T/σ.

    Proof: T Gaussian releases of shift 1/σ are one of shift √T/σ (the sum of the outputs is
    sufficient); Balle and Wang, ICML 2018, theorem 8. The left side decreases in e^ε.
    """
    square = releases / Fraction(multiplier) ** 2
    shift = sqrt_up(square)
    largest = shift * shift / 2.0 + shift * math.sqrt(2.0 * float(log_bounds(1 / delta)[1])) + 1.0
    bits = bits_for(largest, Fraction(1)) if largest < math.inf else None
    if bits is None:
        return None
    wide = 1 << bits
    root = max(math.isqrt(math.floor(square * wide * wide)) + 1, wide >> 30)
    curve = Removed(root, Fraction(1), NormalTail(bits))
    return _least(lambda epsilon: _within(curve, epsilon, delta), largest)


def _within(curve: Removed, epsilon: float, delta: Fraction) -> bool:
    ratio = exp_bounds(Fraction(epsilon), curve.bits)[0] * (1 << curve.bits)
    return curve.upper(math.floor(ratio)) <= delta


def _least(holds: Callable[[float], bool], start: float) -> float | None:
    """Return a float64 ≥ 0 at which `holds` is true, the least one if `holds` is monotone."""
    if holds(0.0):
        return 0.0
    low, high = 0.0, start
    if not holds(high):
        return None
    while low < (middle := low + (high - low) / 2.0) < high:
        if holds(middle):
            high = middle
        else:
            low = middle
    return high
