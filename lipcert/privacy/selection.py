"""Selection: the ε of a search that publishes only the best of a random number of trials.

`selected_epsilon` takes (ε, δ) statements of one trial, the law of the number of trials, its mean,
and δ. All numbers are rounded towards a larger ε.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Final

import numpy as np

from lipcert.core.arithmetic import round_down, round_up
from lipcert.core.exponential import exp_bounds
from lipcert.core.interval import Array, down, up

_MOST: Final = 500.0
"""A larger ε says nothing."""
_FARTHEST: Final = 700
_TOLERANCE: Final = 2.0**-14


class Law(Enum):
    """How the number K of trials is drawn, given its mean."""

    GEOMETRIC = "geometric"
    """K = k ≥ 1 with probability (1 − 1/mean)^(k−1)/mean"""
    POISSON = "poisson"
    """K = k ≥ 0 with probability e^−mean·mean^k/k!; without a trial nothing is published."""


def selected_epsilon(
    profile: Sequence[tuple[float, float]], law: Law, mean: int, delta: float
) -> float | None:
    """Return ε such that publishing the best of K trials is (ε, δ)-DP; None: none was found.

    Hypotheses: one trial is (ε, δ)-DP for every pair of `profile`, under a symmetric relation. All
    trials are drawn from one distribution, hyper-parameters included, independently of one another,
    and compared by what they would publish themselves. K is drawn from the law, independently of
    the data; K and the other trials stay secret.
    Proof: let P and Q be the laws of a trial for neighbours, r = dP/dQ, q(y) = P(better than y) and
    q'(y) = Q(better than y); ties are broken at random. The best of K trials has the density
    h(1 − q)·P, where the derivative h of E x^K is increasing. With H(E) = sup_S Q(S) − E·P(S),
    q' ≤ G(q) = inf_E E·q + H(E). So P'(S) − e^ε·Q'(S) ≤ E_Q F(r) for what is published, with
    F(t) = sup_q (h(1−q)·t − e^ε·h(1−G(q)))₊. F is convex, F(0) = 0, and its slope at most h(1). A
    piecewise linear convex function above it, with slopes that rise by s_k ≥ 0 at E_k, has the mean
    Σ s_k·E_Q(r − E_k)₊, of which an upper bound follows from the profile.
    Attained, up to a few per cent, by scores that put where q' is G(q) before the rarest losses.
    (Rényi divergences: Papernot and Steinke, Hyperparameter tuning with Rényi differential privacy,
    ICLR 2022; profiles: Koskela, Redberg and Wang, Privacy profiles for private selection, ICML
    2024.)
    """
    search = _Search.of(_Curve.of(profile), law, mean)
    low, high = 0.0, 1.0
    while search.delta(high) > delta:
        low, high = high, 2.0 * high
        if high > _MOST:
            return None
    while high - low > _TOLERANCE * high:
        middle = (low + high) / 2.0
        low, high = (low, middle) if search.delta(middle) <= delta else (middle, high)
    return high


@dataclass(frozen=True, slots=True)
class _Curve:
    """values[k] ≥ P(S) − ratios[k]·Q(S) for all S, and with P, Q swapped; both start at ratio 0."""

    ratios: Array
    values: Array

    @classmethod
    def of(cls, profile: Sequence[tuple[float, float]]) -> _Curve:
        """Proof (ratios below 1): P(S) − Q(S)/E = 1 − 1/E + (Q(S') − E·P(S'))/E, S' the rest."""
        known = {Fraction(1): Fraction(1)}
        least = Fraction(1)
        for epsilon, delta in sorted(profile):
            if epsilon > _MOST:
                break
            least = min(least, Fraction(delta))
            known[Fraction(round_up(exp_bounds(Fraction(epsilon))[1]))] = least
        below = {1 / ratio: 1 - (1 - value) / ratio for ratio, value in known.items() if ratio > 1}
        both = sorted({Fraction(0): Fraction(1), **below, **known}.items())
        # a larger ratio has a smaller value, so that both may be rounded upwards
        nodes = {round_up(ratio): round_up(value) for ratio, value in both}
        return cls(np.array([*nodes]), np.array([*nodes.values()]))

    def power(self, q: Array) -> Array:
        """Return an upper bound of G at each q."""
        lines = up(up(np.multiply.outer(self.ratios, q)) + self.values[:, None])
        return np.asarray(np.minimum(1.0, lines.min(axis=0)), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class _Search:
    """most[j] ≥ h(1 − q) and least[j] ≤ h(1 − G(q)) for all q of the j-th part of [0, 1]."""

    curve: _Curve
    most: Array
    least: Array

    @classmethod
    def of(cls, curve: _Curve, law: Law, mean: int) -> _Search:
        """Return the search. Proof: h(1 − q) falls in q, and G rises."""
        q = np.union1d(np.geomspace(1e-9, 1.0, 3000), np.linspace(0.0, 1.0, 500))
        bounds = _geometric if law is Law.GEOMETRIC else _poisson
        return cls(curve, bounds(q[:-1], mean)[1], bounds(curve.power(q[1:]), mean)[0])

    def delta(self, epsilon: float) -> Fraction:
        """Return an upper bound of the δ of the search."""
        factor = round_down(exp_bounds(Fraction(epsilon))[0])
        rises = up(np.multiply.outer(self.curve.ratios, self.most))
        heights = np.maximum(0.0, up(rises - down(factor * self.least)).max(axis=1))
        heights[0] = 0.0
        points = zip(map(Fraction, self.curve.ratios), map(Fraction, heights), strict=True)
        total, slope = Fraction(0), Fraction(0)
        values = map(Fraction, self.curve.values)
        for (before, low), (after, high) in itertools.pairwise(points):
            steeper = max(slope, Fraction(round_up((high - low) / (after - before))))
            total += (steeper - slope) * next(values)
            slope = steeper
        last = max(slope, Fraction(float(self.most.max())))
        return total + (last - slope) * next(values)


def _geometric(q: Array, mean: int) -> tuple[Array, Array]:
    """Return lower and upper bounds of h(1 − q) = K/(1 + (K − 1)·q)², K the mean."""
    low = down(1.0 + down((mean - 1.0) * q))
    high = up(1.0 + up((mean - 1.0) * q))
    return down(mean / up(high * high)), up(mean / down(low * low))


def _poisson(q: Array, mean: int) -> tuple[Array, Array]:
    """Return lower and upper bounds of h(1 − q) = K·e^(−K·q), K the mean."""
    found = []
    for part in q:
        exponent = mean * Fraction(float(part))
        low, high = exp_bounds(-min(exponent, Fraction(_FARTHEST)), 60)
        kept = low if exponent <= _FARTHEST else Fraction(0)
        found.append((round_down(mean * kept), round_up(mean * high)))
    lows, highs = np.array(found).T
    return lows, highs
