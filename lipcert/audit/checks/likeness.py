"""Likeness: how unlikely it is that two noises, or two parts of one, are as alike as they are.

What enters: noises with what rounding may have added to them. What leaves: the shift at which they
are the most alike, their cosine there, and a bound of the probability of it.

The statistic: two noises a, b of p and q entries: at each shift, a segment of a meets one of b, of
m entries each. If b is Gaussian of whatever size and independent of a, the direction of its segment
is uniform, and (1 + c)/2 has the distribution Beta((m − 1)/2, (m − 1)/2) exactly. One noise a with
itself, k entries further on: let i run over those places for which ⌊i/k⌋ is even. Then i + k is in
a block for which it is odd, so that the segments a[i] and a[i + k] share no entry and are
independent; the same holds for the other half of the places, and each of the two halves is a test
like that of two noises.

All shifts are looked at by a fast Fourier transform, in rounded arithmetic. It only chooses; the
probability is that of the segments themselves. What rounding to the stored type may have added to
the noise counts in favour of the run: for n = d − e, |e| ≤ moved entry by entry, |⟨n, n'⟩| ≥ |⟨d,
d'⟩| − |d|·e' − e·|d'| − e·e' and ‖n‖ ≤ ‖d‖ + ‖e‖.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import numpy.typing as npt
from scipy.fft import irfft, next_fast_len, rfft
from scipy.stats import beta

from lipcert.upper import FloatArray

SHORTEST: Final = 8
"""entries of a segment; shorter ones are compared unshifted only"""
_LOOKED_AT: Final = 4
_ALMOST: Final = 1.0 - 2.0**-30


@final
@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Noise, or its beginning, and a bound of what rounding added to it, entry by entry."""

    noise: FloatArray
    moved: FloatArray

    def __len__(self) -> int:
        return len(self.noise)

    def __getitem__(self, places: slice | npt.NDArray[np.int64]) -> Piece:
        return Piece(self.noise[places], self.moved[places])


@final
@dataclass(frozen=True, slots=True)
class Likeness:
    """chance: bound of the probability of this cosine, or a larger one, at this one shift."""

    shift: int
    cosine: float
    chance: float


def shifts(first: int, second: int) -> int:
    """How many tests `likeness` makes of noises of these sizes."""
    return max(first + second - 1, 0)


def self_shifts(size: int) -> int:
    """How many tests `self_likeness` makes of a noise of this size."""
    return 2 * max(size - 1, 0)


def unshifted(first: Piece, second: Piece, shift: int = 0) -> Likeness:
    """Of two independent segments of one size m ≥ 2."""
    a, b, e, f = first.noise, second.noise, first.moved, second.moved
    product = float(a @ b)
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    slack = float(np.abs(a) @ f + e @ np.abs(b) + e @ f)
    longest = (np.linalg.norm(a) + np.linalg.norm(e)) * (np.linalg.norm(b) + np.linalg.norm(f))
    if not 0.0 < lengths < math.inf:
        return Likeness(shift, 0.0, 1.0)
    likely = min(1.0, max(abs(product) - slack, 0.0) / float(longest))
    half = (len(a) - 1) / 2.0
    chance = min(1.0, 2.0 * float(beta.cdf((1.0 - likely) / 2.0, half, half)))
    return Likeness(shift, product / lengths, chance)


def likeness(first: Piece, second: Piece) -> Likeness:
    """At the best of all shifts: first[i] meets second[i + shift], at `SHORTEST` places or more."""
    a, b = first.noise, second.noise
    if min(len(a), len(b)) < SHORTEST:
        return Likeness(0, 0.0, 1.0)
    size = next_fast_len(len(a) + len(b) - 1, real=True)
    products = irfft(np.conj(rfft(a, size)) * rfft(b, size), size)
    shift = np.arange(SHORTEST - len(a), len(b) - SHORTEST + 1)
    start, stop = np.maximum(0, -shift), np.minimum(len(a), len(b) - shift)
    squares = _between(a, start, stop) * _between(b, start + shift, stop + shift)
    best = int(_most_alike(products[shift % size], squares, stop - start)[-1])
    k, i, j = int(shift[best]), int(start[best]), int(stop[best])
    return unshifted(first[i:j], second[i + k : j + k], k)


def self_likeness(piece: Piece) -> Likeness:
    """The same for one noise with itself, further on by at least one entry."""
    a = piece.noise
    if len(a) < 2 * SHORTEST:
        return Likeness(0, 0.0, 1.0)
    size = next_fast_len(2 * len(a), real=True)
    spectrum = rfft(a, size)
    products = irfft(spectrum.real**2 + spectrum.imag**2, size)
    shift = np.arange(1, len(a) - SHORTEST + 1)
    nothing = np.zeros_like(shift)
    squares = _between(a, nothing, len(a) - shift) * _between(a, shift, nothing + len(a))
    found = [Likeness(0, 0.0, 1.0)]
    for best in _most_alike(products[shift], squares, len(a) - shift):
        k = int(shift[best])
        places = np.arange(len(a) - k)
        for half in (0, 1):
            chosen = places[(places // k) % 2 == half]
            if len(chosen) >= SHORTEST:
                found.append(unshifted(piece[chosen], piece[chosen + k], k))
    return min(found, key=lambda item: item.chance)


def _between(
    a: FloatArray, start: npt.NDArray[np.int64], stop: npt.NDArray[np.int64]
) -> FloatArray:
    """Σ a² over each of these ranges."""
    sums = np.concatenate([[0.0], np.cumsum(np.square(a))])
    found: FloatArray = sums[stop] - sums[start]
    return found


def _most_alike(
    products: FloatArray, squares: FloatArray, counts: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The few best places, the best one last, by the exponent of the probability."""
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.nan_to_num(np.square(products) / squares, nan=0.0, posinf=0.0)
    score = -(counts - 1) * np.log1p(-np.minimum(share, _ALMOST))
    few = min(_LOOKED_AT, len(score))
    chosen = np.argpartition(score, -few)[-few:]
    return np.asarray(chosen[np.argsort(score[chosen])], dtype=np.int64)
