"""ε of a run, recomputed: an upper bound for every accountant that a certificate may name.

What enters: the noise multiplier σ = s/Δ of one release, Δ under the relation at hand (G for
add-remove and zero-out, 2G for replace-one), and how batches are drawn. What leaves: an ε, or
None where none is recomputed. A run is accounted as `releases` Gaussian releases:

1. no amplification (full batches; disjoint batches, `releases` then counts those that one example
   can enter): one Gaussian release of shift √T/σ, exactly;
2. Poisson samples: discrete pairs and their convolution, with RDP where those fail;
3. samples of fixed size under replace-one: RDP.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, final

import numpy as np

from lipcert.checker.arithmetic import round_up, sqrt_up
from lipcert.checker.exponential import exp_bounds, log_bounds
from lipcert.checker.privacy.compose import composed_epsilon
from lipcert.checker.privacy.curve import (
    Losses,
    Removed,
    Replaced,
    bits_for,
    replaced_pair,
    sampled_pairs,
)
from lipcert.checker.privacy.fixed import NormalTail
from lipcert.checker.privacy.renyi import poisson_renyi_epsilon, without_replacement_epsilon

__all__ = ["epsilon_upper", "gaussian_epsilon", "zero_concentrated"]

_RELATIONS: Final = frozenset({"add-remove", "zero-out", "replace-one"})
_UNAMPLIFIED: Final = frozenset({"shuffle", "full-batch"})
_FINEST: Final = 3e7
_WIDEST: Final = 2.0**19
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
    if sampling in _UNAMPLIFIED:
        unsound = sampling == "shuffle" and relation == "add-remove"
        return None if unsound else gaussian_epsilon(multiplier, releases, delta)
    if sampling == "poisson":
        return _poisson(multiplier, rate, releases, delta, relation)
    if sampling == "without-replacement" and relation == "replace-one":
        if rate == 1:
            return gaussian_epsilon(multiplier, releases, delta)
        return without_replacement_epsilon(multiplier, rate, releases, delta)
    return None


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
    largest = shift * shift / 2.0 + shift * _quantile(delta) + 1.0
    bits = bits_for(largest, Fraction(1)) if largest < math.inf else None
    if bits is None or shift < 2.0**-30:
        return None
    wide = 1 << bits
    root = math.isqrt(math.floor(square * wide * wide)) + 1
    curve = Removed(root, Fraction(1), NormalTail(bits))
    return _least(lambda epsilon: _within(curve, epsilon, delta), largest)


def _within(curve: Removed, epsilon: float, delta: Fraction) -> bool:
    ratio = exp_bounds(Fraction(epsilon), curve.bits)[0] * (1 << curve.bits)
    return curve.upper(math.floor(ratio)) <= delta


@final
@dataclass(frozen=True, slots=True)
class _Grid:
    """A scale for the numbers, and the range of losses in steps of log(1 + gap)."""

    bits: int
    gap: Fraction
    lowest: int
    highest: int


def _poisson(
    multiplier: float, rate: Fraction, releases: int, delta: Fraction, relation: str
) -> float | None:
    if rate == 1:
        return gaussian_epsilon(multiplier, releases, delta)
    replaced = relation == "replace-one"
    pairs = _pairs(multiplier, rate, releases, delta, replaced=replaced)
    found = [composed_epsilon(pair, releases, delta) for pair in pairs]
    if found and None not in found:
        return max(epsilon for epsilon in found if epsilon is not None)
    return None if replaced else poisson_renyi_epsilon(multiplier, rate, releases, delta)


def _pairs(
    multiplier: float, rate: Fraction, releases: int, delta: Fraction, *, replaced: bool
) -> tuple[Losses, ...]:
    """Add-remove and zero-out: N(0) against (1−q)·N(0) + q·N(1/σ), either way round.

    Replace-one: given the rest of the sample, (1−q)·N(0) + q·N(a) against (1−q)·N(0) + q·N(b) with
    ‖a‖, ‖b‖ ≤ G/s = 1/(2σ). For α ≥ 1 the hockey-stick divergence is q·E(1 − α·e^X − v·e^Y)₊ with
    v = (1−q)(α−1)/q and e^X, e^Y log-normal of mean 1; by Kahane's inequality it grows with the
    covariances of X and Y, which are largest at b = −a, ‖a‖ = 1/(2σ).
    """
    shift = 1 / Fraction(multiplier) / (2 if replaced else 1)
    grid = _grid(float(shift), rate, releases, delta, replaced=replaced)
    if grid is None:
        return ()
    fixed = math.floor(shift * (1 << grid.bits)) + 1
    tail = NormalTail(grid.bits)
    if not replaced:
        return sampled_pairs(Removed(fixed, rate, tail), grid.gap, grid.lowest, grid.highest)
    bell = exp_bounds(-shift * shift / 2, grid.bits)[0] * rate
    weight = math.floor(bell * (1 << grid.bits))
    return (replaced_pair(Replaced(fixed, rate, tail, weight), grid.gap, grid.highest),)


def _grid(
    shift: float, rate: Fraction, releases: int, delta: Fraction, *, replaced: bool
) -> _Grid | None:
    """Fine against the deviation of one loss; tightness alone depends on it."""
    chance, stay = float(rate), math.log1p(-float(rate)) if rate < 1 else -math.inf
    quantile = _quantile(delta / releases / (1 << 20))
    rise = shift * quantile + shift * shift / 2.0
    if not (shift > 2.0**-30 and rise < 2.0**9 and chance > 2.0**-40):
        return None
    reach = float(np.logaddexp(stay, math.log(chance) + rise))
    if replaced:
        reach -= float(np.logaddexp(stay, math.log(chance) - rise - shift * shift))
    bits = bits_for(reach + shift * shift, rate)
    if bits is None:
        return None
    spread = min(shift, chance * math.sqrt(math.expm1(min(shift * shift, 700.0))))
    wanted = max(
        min(1e-3, spread / 200.0),
        max(reach, -stay) * bits / _FINEST,
        16.0 * math.sqrt(releases) * spread / _WIDEST,
    )
    scale = math.ceil(-math.log2(wanted)) + 7
    gap = Fraction(math.ceil(wanted * 2.0**scale), 1 << scale)
    step = math.log1p(gap)
    return _Grid(bits, gap, math.floor(stay / step), math.ceil(reach / step) + 1)


def _quantile(probability: Fraction) -> float:
    """About the x with e^(−x²/2) = probability: P(N(0,1) > x) is less."""
    surprise = math.log(probability.denominator) - math.log(probability.numerator)
    return math.sqrt(2.0 * max(surprise, 0.0))


def _least(holds: Callable[[float], bool], start: float) -> float | None:
    """A float64 ≥ 0 at which `holds`, the least one if it is monotone."""
    if holds(0.0):
        return 0.0
    low, high = 0.0, start
    while not holds(high):
        return None
    while low < (middle := low + (high - low) / 2.0) < high:
        if holds(middle):
            high = middle
        else:
            low = middle
    return high
