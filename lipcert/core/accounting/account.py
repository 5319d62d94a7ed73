"""ε of a run, recomputed: an upper bound for every accountant that a certificate may name.

Input: the noise multiplier σ = s/Δ of one release, Δ under the relation at hand (G for
add-remove and zero-out, 2G for replace-one), and how batches are drawn. Output: an ε, or
None where none is recomputed. A run is accounted as `releases` Gaussian releases:

1. no amplification (full batches; disjoint batches, `releases` then counts those that one example
   can enter): one Gaussian release of shift √T/σ, exactly;
2. Poisson samples: discrete pairs and their convolution, with RDP where those fail;
3. samples of fixed size under replace-one: RDP.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Final

from lipcert.core.accounting.curve import Removed, bits_for
from lipcert.core.accounting.fixed import NormalTail
from lipcert.core.accounting.poisson import poisson_epsilon
from lipcert.core.accounting.renyi import poisson_renyi_epsilon, without_replacement_epsilon
from lipcert.core.arithmetic import round_up, sqrt_up
from lipcert.core.exponential import exp_bounds, log_bounds

_RELATIONS: Final = frozenset({"add-remove", "zero-out", "replace-one"})
_UNAMPLIFIED: Final = frozenset({"shuffle", "full-batch"})
_SAMPLED: Final = frozenset({"poisson", "without-replacement"})
_REFUSED: Final = frozenset(
    {
        ("shuffle", "add-remove"),
        ("without-replacement", "add-remove"),
        ("without-replacement", "zero-out"),
    }
)
_MOST_RELEASES: Final = 1 << 28


def epsilon_upper(  # noqa: PLR0917
    sampling: str, multiplier: float, rate: Fraction, releases: int, delta: Fraction, relation: str
) -> float | None:
    """Returns ε such that the run is (ε, δ)-DP under the relation; None: not recomputed.

    Hypotheses: `multiplier` is at most σ; batches are drawn as said and secret; releases may
    depend on those before.
    """
    known = relation in _RELATIONS and 0 < rate <= 1 and 0 < delta < 1 and multiplier > 0.0
    if not known or not 1 <= releases <= _MOST_RELEASES:
        return None
    if multiplier == math.inf:
        return 0.0
    if (sampling, relation) in _REFUSED:
        return None
    if sampling in _UNAMPLIFIED or (sampling in _SAMPLED and rate == 1):
        return gaussian_epsilon(multiplier, releases, delta)
    if sampling == "without-replacement":
        return without_replacement_epsilon(multiplier, rate, releases, delta)
    return _poisson(multiplier, rate, releases, delta, relation) if sampling in _SAMPLED else None


def _poisson(
    multiplier: float, rate: Fraction, releases: int, delta: Fraction, relation: str
) -> float | None:
    replaced = relation == "replace-one"
    found = poisson_epsilon(multiplier, rate, releases, delta, replaced=replaced)
    if found is not None or replaced:
        return found
    return poisson_renyi_epsilon(multiplier, rate, releases, delta)


def zero_concentrated(multiplier: float, releases: int, delta: Fraction) -> tuple[float, float]:
    """ρ = T/(2σ²) and ε = ρ + 2√(ρ·log(1/δ)), rounded up (Bun and Steinke, TCC 2016)."""
    rho = releases / (2 * Fraction(multiplier) ** 2)
    surprise = log_bounds(1 / delta)[1]
    return round_up(rho), round_up(rho + 2 * Fraction(sqrt_up(rho * surprise)))


def gaussian_epsilon(multiplier: float, releases: int, delta: Fraction) -> float | None:
    """The least float64 ε with Q(ε/μ − μ/2) − e^ε·Q(ε/μ + μ/2) ≤ δ, μ = √T/σ; but for rounding.

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
    """A float64 ≥ 0 at which `holds`, the least one if it is monotone."""
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
