"""Rényi divergences of sampled Gaussian releases, at integer orders, and the resulting ε.

Input: σ, the sampling rate, the number of releases, δ. Output: an ε. Everything is a positive
combination of upper bounds of M_j = e^(j(j−1)/(2σ²)), the j-th moment of the ratio of N(1/σ) to
N(0), or of differences of the M_j; all numbers are integers in units of 2^−`_BITS`.
"""

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from lipcert.core.arithmetic import round_up
from lipcert.core.exponential import exp_bounds
from lipcert.core.logarithm import log_bounds

_ORDERS: Final = (*range(1, 65), 72, 80, 96, 112, 128, 160, 192, 256, 512, 1024)
_PARTS: Final = 10
_FINE: Final = 11
_LARGEST_EXPONENT: Final = 30_000
_DIFFERENCES: Final = 256
_BITS: Final = 3 * _DIFFERENCES


def poisson_renyi_epsilon(
    sigma: float, rate: Fraction, releases: int, delta: Fraction
) -> float | None:
    """Return ε of Poisson samples under add-remove or zero-out.

    Proof: the α-th moment of the ratio of (1−q)·N(0) + q·N(1/σ) to N(0) is the binomial mean of
    the M_j; the moment of the reverse pair is no larger (Mironov, Talwar and Zhang, Rényi
    differential privacy of the sampled Gaussian mechanism, 2019).
    """
    moments = [high for _, high in _moments(sigma)]
    return _epsilon(moments, rate, 1 - rate, releases, delta)


def without_replacement_epsilon(
    sigma: float, rate: Fraction, releases: int, delta: Fraction
) -> float | None:
    """Return ε of samples of fixed size under replace-one.

    Proof: theorem 27 of Wang, Balle and Kasiviswanathan (AISTATS 2019): the α-th moment is at most
    1 + Σ_{j≥2} C(α,j)·q^j·min(4·√(B_⌊j⌋·B_⌈j⌉), 2·M_j), where ⌊j⌋, ⌈j⌉ are the even numbers next
    to j and B_l = Σ_i (−1)^i·C(l,i)·M_i is E(ratio − 1)^l, from upper and lower bounds of M_i.
    """
    moments = _moments(sigma)
    central = {
        order: _central(moments, order)
        for order in range(2, min(_DIFFERENCES + 1, len(moments)), 2)
    }
    terms = [1 << _BITS, 0]
    for j in range(2, len(moments)):
        term = 2 * moments[j][1]
        below, above = j - j % 2, j + j % 2
        if above in central:
            term = min(term, 4 * (math.isqrt(central[below] * central[above]) + 1))
        terms.append(term)
    return _epsilon(terms, rate, Fraction(1), releases, delta)


def _moments(sigma: float) -> list[tuple[int, int]]:
    """Return lower and upper bounds of M_j, for all j up to the first too large exponent."""
    half = 1 / (2 * Fraction(sigma) ** 2)
    found = []
    for j in range(_ORDERS[-1] + 1):
        if j * (j - 1) * half > _LARGEST_EXPONENT:
            break
        low, high = exp_bounds(j * (j - 1) * half, _BITS)
        found.append((math.floor(low * (1 << _BITS)), math.ceil(high * (1 << _BITS))))
    return found


def _central(moments: Sequence[tuple[int, int]], order: int) -> int:
    """Return an upper bound of B_order for even order: even terms rounded up, odd ones down."""
    signed = (
        math.comb(order, i) * (-moments[i][0] if i % 2 else moments[i][1]) for i in range(order + 1)
    )
    return max(0, sum(signed))


def _epsilon(
    terms: Sequence[int], rate: Fraction, stay: Fraction, releases: int, delta: Fraction
) -> float | None:
    """Return the least ε over all orders, for moments Σ_j C(α,j)·stay^(α−j)·rate^j·terms_j.

    Proof: log-moments L add up over releases and are convex in the order, so chords are bounds.
    ε = L(α)/(α−1) + log(1 − 1/α) − log(α·δ)/(α−1): Canonne, Kamath and Steinke, The discrete
    Gaussian for differential privacy, NeurIPS 2020, proposition 12.
    """
    orders = [order for order in _ORDERS if order < len(terms)]
    logs = {order: releases * _log_moment(terms, rate, stay, order) for order in orders}
    surprise = log_bounds(1 / delta)[1]
    best = math.inf
    for low, high in itertools.pairwise(orders):
        parts = _PARTS if high <= _FINE else 1
        for part in range(1, parts + 1):
            share = Fraction(part, parts)
            log_moment = (1 - share) * logs[low] + share * logs[high]
            best = min(best, _converted(low + share * (high - low), log_moment, surprise))
    return max(0.0, best) if best < math.inf else None


def _converted(order: Fraction, log_moment: Fraction, surprise: Fraction) -> float:
    shrink = log_bounds(1 - 1 / order)[1]
    return round_up(shrink + (log_moment + surprise - log_bounds(order)[0]) / (order - 1))


def _log_moment(terms: Sequence[int], rate: Fraction, stay: Fraction, order: int) -> Fraction:
    """Return an upper bound ≥ 0 of log Σ_j C(order,j)·stay^(order−j)·rate^j·terms_j."""
    scale = rate.denominator
    left, taken = stay.numerator * (scale // stay.denominator), rate.numerator
    total = sum(
        math.comb(order, j) * left ** (order - j) * taken**j * terms[j] for j in range(order + 1)
    )
    moment = -(-total // scale**order)
    return log_bounds(Fraction(max(moment, 1 << _BITS), 1 << _BITS))[1]
