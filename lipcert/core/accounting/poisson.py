"""ε of Poisson-sampled Gaussian releases: the pair that dominates one release, and its grid.

Input: the noise multiplier, the sampling rate, the number of releases, δ, the relation.
Output: an ε, or None. The grid affects only how tight ε is, never whether it is right.
"""

import math
from fractions import Fraction
from typing import Final

import numpy as np

from lipcert.core.accounting.compose import composed_epsilon
from lipcert.core.accounting.curve import NormalTail, Removed, bits_for
from lipcert.core.accounting.pair import STRIDE, Grid, Losses, both_directions, symmetric_direction
from lipcert.core.exponential import exp_bounds

_MOST_NODES: Final = 1e7
_MOST_FINE: Final = 20_000
_FARTHEST: Final = 256.0
_RAREST: Final = 2.0**-40
_WIDEST: Final = 2.0**19
_RESOLUTION: Final = 200.0
_COARSEST: Final = 1e-3
_COARSENINGS: Final = (1, 4, 16)


def poisson_epsilon(
    multiplier: float, rate: Fraction, releases: int, delta: Fraction, *, replaced: bool
) -> float | None:
    """Return ε such that the run is (ε, δ)-DP; None if the numbers are too extreme.

    Proof: each release is dominated by the pair of `_pairs`, and domination composes adaptively.
    The ε of the run is the larger ε of its two directions.
    """
    shift = max(1 / Fraction(multiplier) / (2 if replaced else 1), Fraction(1, 1 << 30))
    for coarseness in _COARSENINGS:
        grid = _grid(float(shift), rate, releases, delta, replaced, coarseness)
        pairs = () if grid is None else _pairs(shift, rate, grid, replaced=replaced)
        found = [composed_epsilon(pair, releases, delta) for pair in pairs]
        known = [epsilon for epsilon in found if epsilon is not None]
        if known and len(known) == len(pairs):
            return max(known)
    return None


def _pairs(shift: Fraction, rate: Fraction, grid: Grid, *, replaced: bool) -> tuple[Losses, ...]:
    """Return the dominating pairs of one release.

    Add-remove and zero-out: N(0) against (1−q)·N(0) + q·N(1/σ), in both directions.

    Replace-one: given the rest of the sample, (1−q)·N(0) + q·N(a) against (1−q)·N(0) + q·N(b) with
    ‖a‖, ‖b‖ ≤ G/s = 1/(2σ). For α ≥ 1 the hockey-stick divergence is q·E(1 − α·e^X − v·e^Y)₊ with
    v = (1−q)(α−1)/q and e^X, e^Y log-normal of mean 1; by Kahane's inequality it grows with the
    covariances of X and Y, which are largest at b = −a, ‖a‖ = 1/(2σ). For α < 1 swap the pair.
    """
    one = 1 << grid.bits
    fixed, tail = math.floor(shift * one) + 1, NormalTail(grid.bits)
    if not replaced:
        return both_directions(Removed(fixed, rate, tail), grid)
    from lipcert.core.accounting.replaced import Replaced  # noqa: PLC0415  for these only

    weight = math.floor(exp_bounds(-shift * shift / 2, grid.bits)[0] * rate * one)
    return (symmetric_direction(Replaced(fixed, rate, tail, weight), grid),)


def _grid(  # noqa: PLR0917
    shift: float, rate: Fraction, releases: int, delta: Fraction, replaced: bool, coarseness: float
) -> Grid | None:
    """Return a grid that is fine, against the deviation `spread` of losses, as time allows."""
    chance = float(rate)
    stay = math.log1p(-chance) if chance < 1.0 else -math.inf
    rise = shift * _quantile(delta / releases / (1 << 20)) + shift * shift / 2.0
    reach = float(np.logaddexp(stay, math.log(chance) + rise))
    if replaced:
        reach -= float(np.logaddexp(stay, math.log(chance) - rise - shift * shift))
    bits = bits_for(reach + shift * shift, rate)
    if bits is None or rise > _FARTHEST or stay < -_FARTHEST or chance < _RAREST:
        return None
    spread = min(shift, chance * math.sqrt(math.expm1(min(shift * shift, 700.0))))
    gap = coarseness * max(
        min(_COARSEST, spread / _RESOLUTION),
        max(reach, -stay) * bits / STRIDE / _MOST_NODES,
        16.0 * math.sqrt(releases) * spread / _WIDEST,
    )
    scale = math.ceil(-math.log2(gap)) + 7
    exact = Fraction(math.ceil(gap * 2.0**scale), 1 << scale)
    step = math.log1p(exact)
    fine = math.ceil(min(24.0 * spread, reach) / step)
    lowest = -math.ceil(reach / step) if replaced else math.floor(stay / step)
    return Grid(bits, exact, lowest, math.ceil(reach / step), min(fine, _MOST_FINE))


def _quantile(probability: Fraction) -> float:
    """Return the x with e^(−x²/2) = probability; P(N(0,1) > x) is smaller."""
    surprise = math.log(probability.denominator) - math.log(probability.numerator)
    return math.sqrt(2.0 * max(surprise, 0.0))
