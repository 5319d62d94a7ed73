"""Below: a lower bound of ε, from Gaussian releases of one example's gradients.

Functions take shifts a = ‖g‖/s of the releases, g the example's gradient, s the deviation of the
noise, and how the example is sampled. They return an ε such that these releases, with the example
and without it, are not (ε', δ)-DP for any ε' < ε. Nothing here enters a certificate: `accounting`
and the core bound ε from above.

For one release let P be the law with the example, Q that without it, L = ln P/Q. All releases
together have the loss ΣL, and δ(ε) ≥ E_P(1 − e^(ε − ΣL))₊, which rises with every loss. Here each
loss is rounded *down* to a multiple of a gap, with its probability under P, so that the law of the
sum is a convolution. Two parts are deducted from δ: the part of the sum below the window of the
Fourier transform, which comes back at its top, by Chernoff's bound; and the rounding of transforms
of length n, log₂n·2^−51 of the 2-norm each, which a power T takes T times and the 1-norm √n times.
What lies above the window comes back at its bottom, where it counts less. Gaps and windows decide
how close ε is, never its side.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import log_ndtr, logsumexp, ndtr

from lipcert.core.program import FloatArray

_LONGEST: Final = 1 << 21
_LONGEST_SUM: Final = 1 << 19
_LOST: Final = 0.004
"""Most that rounding losses down may take from ε, if the window leaves room."""
_ROUGH: Final = 0.5
_LEAST_ROUGH: Final = 1e-4
_RARE: Final = 1e-3
_LARGEST: Final = 20.0
_FARTHEST: Final = 700.0
_TAIL: Final = 9.0
_NEAR_TAIL: Final = 6.5
_STEP: Final = 0.97
_COARSE_STEP: Final = 0.9
_WEAKEST: Final = 0.1
_COARSEST: Final = 0.02
_LAWS: Final = 8
_SLOPES: Final = np.geomspace(0.02, 200.0, 50)


def gaussian_epsilon(shifts: FloatArray, delta: float) -> float:
    """Return ε of releases that all contain the example: together one of the shift μ = √Σa².

    Proof: δ(ε) = Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ) (Balle and Wang, ICML 2018, theorem 8), which
    falls in ε; at the end of the bracket that is returned it is above δ.
    """
    shift = float(np.linalg.norm(shifts))
    if not math.isfinite(shift):
        return math.inf

    def is_above(epsilon: float) -> bool:
        first = float(log_ndtr(shift / 2.0 - epsilon / shift))
        second = epsilon + float(log_ndtr(-shift / 2.0 - epsilon / shift))
        return second < first and first + math.log(-math.expm1(second - first)) > math.log(delta)

    if shift == 0.0 or not is_above(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while is_above(high):
        low, high = high, 2.0 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2.0
        low, high = (middle, high) if is_above(middle) else (low, middle)
    return low * (1.0 - 1e-9)


def poisson_epsilon(shifts: FloatArray, rate: float, delta: float) -> float:
    """Return ε of releases that contain the example with probability q each, independently.

    Proof: P = (1 − q)·N(0) + q·N(a), Q = N(0), and L = ln(1 − q + q·e^(ax − a²/2)) rises in x. A
    smaller shift loses less: scaled, and with more noise, N(0), N(a) are N(0), N(a'). So shifts are
    rounded down to a few, and releases of equal shift are composed at once.
    """
    if rate >= 1.0:
        return gaussian_epsilon(shifts, delta)
    levels = _lowered(shifts, _STEP)
    return _composed(
        lambda gap: [replace(_sampled(a, rate, gap), count=n) for a, n in levels],
        sum(n for _, n in levels),
        delta,
    )


def allocated_epsilon(epochs: Sequence[FloatArray], bins: int, delta: float) -> float:
    """Return ε of epochs, in each of which one of `bins` equally likely releases has the example.

    epochs: the shifts of the releases of each; missing ones are assumed to show nothing.
    Proof: of an epoch e^L = ΣM_t/b, M_t = e^(a_t·x_t − a_t²/2), x_t normal, and of the mean a_t if
    the example is in release t: a mixture over t. Under it the law of ΣM_t, each M_t cut off and
    rounded down, is a convolution. A smaller shift loses less, also in any place of an epoch, and
    places may be exchanged: of several epochs the least shifts count, the smallest of each first.
    """
    padded = [np.sort(np.pad(shifts, (0, bins - len(shifts)))) for shifts in epochs]
    parts = np.array_split(np.array(padded), min(len(padded), _LAWS))
    unit = 2.0 * _LOST / len(padded)
    laws = [(_sums(np.min(part, axis=0), unit), len(part)) for part in parts if part.size]
    return _composed(
        lambda gap: [replace(law.losses(gap, bins), count=n) for law, n in laws],
        len(padded),
        delta,
        sum(n * _rounding(len(law.masses), bins) for law, n in laws),
    )


def _lowered(shifts: FloatArray, step: float) -> list[tuple[float, int]]:
    """Round shifts down to a few, without the weakest; return each with its count."""
    largest = min(float(np.max(shifts, initial=0.0)), _LARGEST)
    if largest == 0.0:
        return []
    kept = np.minimum(shifts[shifts >= _WEAKEST * largest], largest)
    levels = np.ceil(np.log(kept / largest) / math.log(step) - 1e-9)
    found, counts = np.unique(largest * step**levels * (1.0 - 1e-8), return_counts=True)
    return [(float(a), int(n)) for a, n in zip(found, counts, strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class _Losses:
    """Losses (first + k)·gap with their probabilities under P, for `count` equal releases.

    The probability that is missing to 1 has the loss −∞.
    """

    gap: float
    first: int
    masses: FloatArray
    count: int = 1

    def log_moments(self, slopes: FloatArray) -> FloatArray:
        """Return ln E e^(λ·loss) of all the releases, for each λ."""
        losses = self.gap * (self.first + np.arange(len(self.masses)))
        kept = self.masses > 0.0
        exponents = slopes[:, np.newaxis] * losses[kept] + np.log(self.masses[kept])
        found: FloatArray = self.count * logsumexp(exponents, axis=1)
        return found

    def spectrum(self, size: int) -> npt.NDArray[np.complex128]:
        """Return the transform of the law of the sum, with places modulo `size`."""
        places = (self.first + np.arange(len(self.masses))) % size
        found: npt.NDArray[np.complex128] = (
            rfft(np.bincount(places, self.masses, size)) ** self.count
        )
        return found


def _sampled(shift: float, rate: float, gap: float) -> _Losses:
    """Return the losses of one release that contains the example with probability q."""
    rise = shift * _TAIL + shift * shift / 2.0
    least, most = math.log1p(-rate), float(np.logaddexp(math.log1p(-rate), math.log(rate) + rise))
    first = math.floor(least / gap)
    ends = gap * np.arange(first, math.ceil(most / gap) + 1)
    odds = (np.exp(ends) - (1.0 - rate)) / rate
    with np.errstate(divide="ignore", invalid="ignore"):
        at = np.where(odds > 0.0, (np.log(odds) + shift * shift / 2.0) / shift, -np.inf)
    beyond = (1.0 - rate) * ndtr(-at) + rate * ndtr(shift - at)
    return _Losses(gap, first, -np.diff(beyond, append=0.0))


@dataclass(frozen=True, slots=True, eq=False)
class _Sums:
    """The law under P of ΣM_t, rounded down to k·unit."""

    unit: float
    masses: FloatArray

    def losses(self, gap: float, bins: int) -> _Losses:
        """Return the losses ln(ΣM_t/b); −∞ where the sum is 0."""
        sums = self.unit * np.arange(1, len(self.masses))
        places = np.floor(np.log(sums / bins) / gap).astype(np.int64)
        masses = np.bincount(places - places[0], self.masses[1:]).astype(np.float64)
        return _Losses(gap, int(places[0]), masses)


def _sums(shifts: FloatArray, unit: float) -> _Sums:
    """Return the law for one epoch; unit: of the grid, unless that would be too short.

    A release of shift 0 adds 1. M_t is cut off where the grid would end; a sum beyond that comes
    back at its bottom.
    """
    bins, levels = len(shifts), _lowered(shifts, _COARSE_STEP)
    spread = _TAIL * math.sqrt(sum(n * math.expm1(min(a * a, _TAIL)) for a, n in levels))
    farthest = max((a * _NEAR_TAIL + a * a / 2.0 for a, _ in levels), default=0.0)
    reach = bins + spread + math.exp(min(farthest, 3.0 * _TAIL))
    unit = min(max(unit, reach / _LONGEST_SUM), max(unit, _COARSEST))
    size = next_fast_len(min(math.ceil(reach / unit), _LONGEST_SUM), real=True)
    ends = unit * np.arange(max(2, math.floor(size - (bins + spread) / unit)))
    still = bins - sum(n for _, n in levels)
    constant = rfft(np.bincount([math.floor(still / unit) % size], minlength=size))
    absent, present = constant, constant * (still / bins)
    for shift, count in levels:
        with np.errstate(divide="ignore"):
            at = np.log(ends) / shift + shift / 2.0
        without, with_it = (
            rfft(-np.diff(ndtr(mean - at), append=0.0), size) for mean in (0.0, shift)
        )
        others = without ** (count - 1)
        present = (present * without + absent * with_it * (count / bins)) * others
        absent = absent * without * others
    return _Sums(unit, np.maximum(irfft(present, size), 0.0))


def _composed(
    losses_at: Callable[[float], Sequence[_Losses]], releases: int, delta: float, lost: float = 0.0
) -> float:
    """Return the largest ε found at which δ(ε) is above `delta`.

    losses_at: gives losses for a gap. lost: probability that the losses may have in excess.
    """
    if not releases:
        return 0.0
    coarse, rare = max(_ROUGH / releases, _LEAST_ROUGH), math.log(_RARE * delta)
    rough = losses_at(coarse)
    below, above = (
        np.sum([item.log_moments(sign * _SLOPES) for item in rough], axis=0) for sign in (-1.0, 1.0)
    )
    lows = (rare - below) / _SLOPES
    low, high = float(np.max(lows)), float(np.min((above - rare) / _SLOPES)) + coarse * releases
    slope = _SLOPES[[int(np.argmax(lows))]]
    gap = max(2.0 * _LOST / releases, (high - low) / (_LONGEST - 64))
    fine, first = losses_at(gap), math.floor(low / gap)
    size = next_fast_len(math.ceil((high - low) / gap) + 2, real=True)
    law = irfft(reduce(np.multiply, (item.spectrum(size) for item in fine)), size)
    log_below = slope * first * gap + sum(item.log_moments(-slope) for item in fine)
    lost += math.exp(min(0.0, float(log_below[0]))) + _rounding(size, releases)
    losses, law = gap * (first + np.arange(size)), np.roll(law, -first)
    kept = (losses >= 0.0) & (losses <= _FARTHEST)
    losses, law = losses[kept], law[kept]
    reached = np.cumsum(law[::-1])[::-1] * (1.0 - size * 2.0**-51)
    paid = np.exp(losses) * np.cumsum((law * np.exp(-losses))[::-1])[::-1]
    places = np.flatnonzero(reached - paid - lost > delta)
    return float(losses[places[-1]]) if len(places) else 0.0


def _rounding(size: int, factors: int) -> float:
    """Return how much probability a convolution of this many factors may have in excess."""
    return math.sqrt(size) * math.log2(size) * (factors + 4) * 2.0**-51
