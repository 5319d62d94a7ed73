"""ε of Gaussian releases whose batches are balls in bins: the pair that dominates an epoch.

Input: the noise multiplier, the number of batches of an epoch, the number of epochs, δ. Output: an
ε, or None. In every epoch each example is put into one of the batches, uniformly and independently
of all others. The nodes affect only how tight ε is, never whether it is right.
"""

from __future__ import annotations

import itertools
import math
import operator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from lipcert.core.accounting.compose import composed_epsilon
from lipcert.core.accounting.curve import SLACK_BITS, NormalTail, Removed, bits_for
from lipcert.core.accounting.gaussian import gaussian_epsilon
from lipcert.core.accounting.pair import Losses, powers_of
from lipcert.core.arithmetic import add_up, round_up
from lipcert.core.interval import Array, up

_RARE: Final = 2.0**-14
_FARTHEST: Final = 60.0
_FINE: Final = 24.0
_WIDER: Final = 0.04
_RESOLUTION: Final = 200.0
_COARSEST: Final = 1e-3
_WIDEST: Final = 2.0**19
_MOST_BINS: Final = 1 << 32
"""Largest number of bins; for more, upper bounds of probabilities are useless."""
_GRID_BITS: Final = 160
_TINY: Final = 1e-290
_DRIFT: Final = 1.0 + 2.0**-40
"""A factor that exceeds what rounding of sums does to a ratio."""


def allocated_epsilon(multiplier: float, bins: int, epochs: int, delta: Fraction) -> float | None:
    """Return ε such that the run is (ε, δ)-DP under add-remove or zero-out; None if none is found.

    Hypotheses: `multiplier` is at most σ; the bins of an example are uniform, and independent of
    those of other examples and epochs; they stay secret; neighbours have the same number of bins.
    An unfinished epoch counts as a whole one.
    Proof: for one epoch, given all that precedes it and the bins of the others, let g_t be the
    example's gradient at step t, and a_t = ‖g_t‖/s ≤ a = 1/σ. The outputs with the example have the
    density r = Σ_t e^(a_t·z_t − a_t²/2)/T relative to those without it, where without it z_t is
    standard normal, given the releases before t. Let w_t be further independent normals, and
    M_t = e^(a_t·z_t − a_t²/2)·e^(√(a² − a_t²)·w_t − (a² − a_t²)/2). Given the past M_t is
    log-normal, of mean 1 and parameter a, so that R = ΣM_t/T is a mean of independent ones; and r
    is the mean of R given all z_t. By Jensen E φ(r) ≤ E φ(R) for convex φ. H(E) = E(r − E)₊ and
    1 − E + E·H(1/E) of the exchanged pair are of this form, so the pair of R dominates in both
    directions; means over the bins of others preserve that, and domination composes adaptively
    (Zhu, Dong and Wang, AISTATS 2022, theorem 10). Without amplification, an example is in one
    release of an epoch.
    Attained, up to the grid, by gradients of that norm (balls and bins: Chua et al., AISTATS 2025;
    random allocation: Feldman and Shenfeld, NeurIPS 2025).
    """
    alone = gaussian_epsilon(multiplier, epochs, delta)
    shift = max(1 / Fraction(multiplier), Fraction(1, 1 << 30))
    rare = float(delta) / epochs * _RARE
    batch = _batch(shift, rare) if 1 < bins <= _MOST_BINS and rare > 0.0 else None
    if batch is None:
        return alone
    pairs = batch.times(bins).losses(bins, epochs)
    found = [composed_epsilon(losses, epochs, delta) for losses in pairs]
    known = [epsilon for epsilon in found if epsilon is not None]
    if len(known) < len(found):
        return alone
    return max(known) if alone is None else min(alone, max(known))


@dataclass(frozen=True, slots=True)
class _Law:
    """A discrete variable above the sum of `count` independent M in convex order, with equal mean.

    masses: upper bounds of its probabilities at the increasing nodes; the first node is 0.
    infinite: the part of its mean that comes from unbounded values. deviation: about that of M.
    quantile: about the normal quantile of the rare probability.
    """

    count: int
    nodes: Array
    masses: Array
    infinite: float
    deviation: float
    quantile: float

    def times(self, count: int) -> _Law:
        """Return the sum of this many independent copies, by repeated doubling.

        Proof: sums of independent terms preserve the convex order.
        """
        result = self
        for digit in bin(count)[3:]:
            result = result.plus(result)
            if digit == "1":
                result = result.plus(self)
        return result

    def plus(self, other: _Law) -> _Law:
        """Return the sum of independent copies of both, on new nodes."""
        count = self.count + other.count
        lowest = self.nodes[self._rare()] + other.nodes[other._rare()]
        nodes = _nodes(count, lowest, self.deviation, self.quantile)
        sums = np.add.outer(self.nodes, other.nodes).ravel()
        masses, over = _moved(sums, np.multiply.outer(self.masses, other.masses).ravel(), nodes)
        infinite = (self.infinite + other.infinite + over) * _DRIFT
        return _Law(count, nodes, masses, infinite, self.deviation, self.quantile)

    def _rare(self) -> int:
        """Return the index of the node below which lies about the root of the rare probability."""
        below = np.cumsum(self.masses)
        return max(1, int(np.searchsorted(below, math.exp(-0.25 * self.quantile**2))))

    def losses(self, bins: int, epochs: int) -> tuple[Losses, Losses]:
        """Return the losses with the example relative to without it, and of the exchanged pair.

        Proof: R is the sum divided by the number of bins, and the density with the example relative
        to that without it. Sums are off by less than 2^−52 of themselves for each doubling.
        """
        ratios, absent = self.nodes[1:] / bins * _DRIFT, self.masses[1:]
        inverses, present = bins / self.nodes[:0:-1] * _DRIFT, (absent * ratios * _DRIFT)[::-1]
        spread = self.deviation / math.sqrt(bins)
        gap = max(
            min(_COARSEST, spread / _RESOLUTION),
            math.log(ratios[-1] / ratios[0]) / _WIDEST,
            16.0 * math.sqrt(epochs) * spread / _WIDEST,
        )
        exact = Fraction(math.ceil(gap * 2.0**32), 1 << 32)
        above = self.infinite / bins * _DRIFT
        return (
            _on_grid(ratios, absent, exact, above),
            _on_grid(inverses, present, exact, float(self.masses[0])),
        )


def _batch(shift: Fraction, rare: float) -> _Law | None:
    """Return the law of M itself; None if it is too wide.

    Proof: E(M' − x)₊ is the chord of E(M − x)₊ between nodes, and then flat: a curve above, which
    is the convex order. Its slopes s_k = (H_k − H_(k+1))/(x_(k+1) − x_k) change by the
    probabilities, from s_(−1) = 1 on. An error of H below `slack` changes a slope by less than
    2·slack/(x_(k+1) − x_k).
    """
    rough, quantile = float(shift), math.sqrt(-2.0 * math.log(rare))
    farthest = rough * quantile + rough * rough / 2.0
    bits = bits_for(farthest + rough * rough, Fraction(1)) if farthest < _FARTHEST else None
    if bits is None:
        return None
    one, deviation = 1 << bits, math.sqrt(math.expm1(rough * rough))
    nodes = _nodes(1, math.exp(-farthest), deviation, quantile)
    curve = Removed(math.floor(shift * one) + 1, Fraction(1), NormalTail(bits))
    ratios = [math.floor(Fraction(node) * one) for node in nodes]
    values = [curve(ratio) for ratio in ratios]
    falls = [here - there for here, there in itertools.pairwise(values)]
    rises = [there - here for here, there in itertools.pairwise(ratios)]
    slopes = [Fraction(1), *map(Fraction, falls, rises), Fraction(0)]
    slack = 1 << bits - SLACK_BITS
    errors = [Fraction(0), *(Fraction(2 * slack, rise) for rise in rises), Fraction(0)]
    highs = map(operator.add, slopes, errors)
    lows = map(operator.sub, slopes[1:], errors[1:])
    masses = up(np.array([float(high - low) for high, low in zip(highs, lows, strict=False)]))
    infinite = round_up(Fraction(values[-1] + slack, one))
    return _Law(1, nodes, masses, infinite, deviation, quantile)


def _nodes(count: int, lowest: float, deviation: float, quantile: float) -> Array:
    """Return 0 and nodes from `lowest` on, close together around the mean of the sum."""
    step = math.sqrt(count) * deviation / _FINE
    reach = math.ceil(quantile * _FINE) * step
    near = np.arange(max(lowest, count - reach, step / _WIDER), count + reach, step)
    jump = math.exp(quantile * math.sqrt(math.log1p(deviation**2)) + 0.5 * math.log1p(deviation**2))
    ends = lowest, float(near[0]), float(near[-1]), float(near[-1]) + jump
    below, above = (
        np.geomspace(low, high, 2 + math.ceil(math.log(high / low) / _WIDER))
        for low, high in (ends[:2], ends[2:])
    )
    found = np.unique(np.concatenate([[0.0], below, near, above]))
    kept: Array = found[np.diff(found, prepend=-1.0) > found * 2.0**-30]
    return kept


def _moved(values: Array, masses: Array, nodes: Array) -> tuple[Array, float]:
    """Move masses to the nodes next to each value, at the same mean; return bounds and the excess.

    Values beyond the last node move to it; the excess is what their mean loses by that.
    Proof: a chord lies above a convex curve. A part is off by less than 2^−51 of the node above,
    relative to the gap; a value within rounding of a node has all but that much of its mass there.
    Products that underflow are below 2^−1022 each.
    """
    at = np.clip(np.searchsorted(nodes, values, side="right") - 1, 0, len(nodes) - 2)
    low, high = nodes[at], nodes[at + 1]
    part = np.clip((values - low) / (high - low), 0.0, 1.0)
    room = 2.0**-50 * high / (high - low)
    found = np.bincount(at, masses * (1.0 - part + room), len(nodes)) + _TINY
    found += np.bincount(at + 1, masses * (part + room), len(nodes))
    rounding = 1.0 + (len(values) + 8) * 2.0**-50
    over = float(np.dot(masses, np.maximum(values - nodes[-1], 0.0))) * rounding
    return np.asarray(found * rounding, dtype=np.float64), over


def _on_grid(ratios: Array, other: Array, gap: Fraction, infinite: float) -> Losses:
    """Return a measure's losses, from its ratios to another measure and the latter's masses."""
    ends = [math.log(float(ratios[end])) / math.log1p(float(gap)) for end in (0, -1)]
    indices = np.arange(min(math.floor(ends[0]) - 2, 0), max(math.ceil(ends[1]) + 2, 1) + 1)
    scale = 1 << _GRID_BITS
    powers = np.array([n / scale for n in powers_of(gap, indices.tolist(), _GRID_BITS)])
    masses, over = _moved(ratios, other, powers)
    kept = np.flatnonzero(masses)
    found = up(masses[kept] * powers[kept] * _DRIFT)
    return Losses(gap, indices[kept].astype(np.int64), found, add_up(infinite, over))
