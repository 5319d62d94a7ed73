"""Correlation of noises: how unlikely it is that two of them, or two parts of one, are as alike.

Noises are given with what rounding may have added to them; the result is the shift at which they
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

Sketches: the noises on one tensor at all recorded steps, short enough to compare every two. A
sketch of independent noises N(0, s²) consists of independent N(0, s²), exactly: it has k ≤ p
entries, each a sum of its own ones of the p, with signs, over the root of their number. So time
grows with p and not with p times the steps, and statements on noises hold of sketches. Two noises
of which a share is common have in the mean the same cosine in the sketch. Every two sketches:
(1 + cosine)/2 is Beta((k − 1)/2, (k − 1)/2), exactly, if the direction of one of them is uniform
and independent of the other. What rounding may have moved, e entry by entry, is carried along, and
counts for the run: |⟨a, b⟩| is less by at most ‖a‖‖f‖ + ‖e‖‖b‖ + ‖e‖‖f‖.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
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
_SHORTEST_SKETCH: Final = 16
_LONGEST_SKETCH: Final = 1 << 12
_BUDGET: Final = 1 << 22
_ROWS: Final = 256


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
class Correlation:
    """chance: bound of the probability of this cosine, or a larger one, at this one shift."""

    shift: int
    cosine: float
    chance: float


def shifts(first: int, second: int) -> int:
    """How many tests `best_correlation` makes of noises of these sizes."""
    return max(first + second - 1, 0)


def own_shifts(size: int) -> int:
    """How many tests `own_correlation` makes of a noise of this size."""
    return 2 * max(size - 1, 0)


def unshifted(first: Piece, second: Piece, shift: int = 0) -> Correlation:
    """The correlation of two independent segments of one size m ≥ 2."""
    a, b, e, f = first.noise, second.noise, first.moved, second.moved
    product = float(a @ b)
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    slack = float(np.abs(a) @ f + e @ np.abs(b) + e @ f)
    longest = (np.linalg.norm(a) + np.linalg.norm(e)) * (np.linalg.norm(b) + np.linalg.norm(f))
    if not 0.0 < lengths < math.inf:
        return Correlation(shift, 0.0, 1.0)
    likely = (abs(product) - slack) / float(longest)
    return Correlation(shift, product / lengths, _chance(likely, len(a)))


def _chance(likely: float, entries: int) -> float:
    """How probable such a cosine, or a larger one of either sign, is by chance."""
    half, cosine = (entries - 1) / 2.0, min(1.0, max(likely, 0.0))
    return min(1.0, 2.0 * float(beta.cdf((1.0 - cosine) / 2.0, half, half)))


def best_correlation(first: Piece, second: Piece) -> Correlation:
    """The correlation at the best of all shifts, which leave at least `SHORTEST` places.

    At a shift, first[i] meets second[i + shift].
    """
    a, b = first.noise, second.noise
    if min(len(a), len(b)) < SHORTEST:
        return Correlation(0, 0.0, 1.0)
    size = next_fast_len(len(a) + len(b) - 1, real=True)
    products = irfft(np.conj(rfft(a, size)) * rfft(b, size), size)
    shift = np.arange(SHORTEST - len(a), len(b) - SHORTEST + 1)
    start, stop = np.maximum(0, -shift), np.minimum(len(a), len(b) - shift)
    squares = _between(a, start, stop) * _between(b, start + shift, stop + shift)
    best = int(_most_alike(products[shift % size], squares, stop - start)[-1])
    k, i, j = int(shift[best]), int(start[best]), int(stop[best])
    return unshifted(first[i:j], second[i + k : j + k], k)


def own_correlation(piece: Piece) -> Correlation:
    """The same for one noise with itself, further on by at least one entry."""
    a = piece.noise
    if len(a) < 2 * SHORTEST:
        return Correlation(0, 0.0, 1.0)
    size = next_fast_len(2 * len(a), real=True)
    spectrum = rfft(a, size)
    products = irfft(spectrum.real**2 + spectrum.imag**2, size)
    shift = np.arange(1, len(a) - SHORTEST + 1)
    nothing = np.zeros_like(shift)
    squares = _between(a, nothing, len(a) - shift) * _between(a, shift, nothing + len(a))
    found = [Correlation(0, 0.0, 1.0)]
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


@final
@dataclass(slots=True, eq=False)
class Sketches:
    """Sketches of the noises on one tensor. places: what the steps are called, in order.

    size: entries of a sketch. stds: of each noise; None where it is not stated.
    """

    tensor: str
    size: int
    _signs: FloatArray = field(repr=False)
    places: list[str] = field(default_factory=list)
    stds: list[float | None] = field(default_factory=list)
    _rows: list[FloatArray] = field(default_factory=list, repr=False)
    _moved: list[FloatArray] = field(default_factory=list, repr=False)

    @classmethod
    def of(cls, tensor: str, entries: int, count: int) -> Sketches:
        """entries: of the noise; count: of the sketches of all tensors at all steps."""
        size = min(entries, _LONGEST_SKETCH, max(_SHORTEST_SKETCH, _BUDGET // max(count, 1)))
        signs = np.random.default_rng(entries).choice([-1.0, 1.0], entries)
        return cls(tensor, size, np.ones(entries) if size == entries else signs)

    @property
    def pairs(self) -> int:
        """How many tests `most_alike` makes."""
        return len(self.places) * (len(self.places) - 1) // 2

    def take(self, place: str, piece: Piece, std: float | None) -> None:
        """The noise of one step; another number of entries is passed over."""
        if len(piece) == len(self._signs):
            self.places.append(place)
            self.stds.append(std)
            self._rows.append(self._folded(self._signs * piece.noise))
            self._moved.append(self._folded(piece.moved))

    def _folded(self, entries: FloatArray) -> FloatArray:
        counts = np.bincount(np.arange(len(entries)) % self.size, minlength=self.size)
        padded = np.zeros(-(-len(entries) // self.size) * self.size)
        padded[: len(entries)] = entries
        found: FloatArray = padded.reshape(-1, self.size).sum(axis=0) / np.sqrt(counts)
        return found

    def in_time(self) -> Piece | None:
        """All of them one after another, in units of their deviations; None: those are not known.

        Independent noises make one noise of independent entries.
        """
        stds = np.array([std or 0.0 for std in self.stds])
        if len(stds) < 2 or not np.all(stds > 0.0):
            return None
        rows, moved = (np.stack(part) / stds[:, None] for part in (self._rows, self._moved))
        return Piece(rows.reshape(-1), moved.reshape(-1))

    def most_alike(self) -> tuple[Correlation, str, str] | None:
        """The pair that is the least likely; None where there is none."""
        if not self.pairs:
            return None
        rows, moved = np.stack(self._rows), np.stack(self._moved)
        long, slack = np.linalg.norm(rows, axis=1), np.linalg.norm(moved, axis=1)
        best = (-1.0, 0, 0)
        for start in range(0, len(rows), _ROWS):
            stop = start + _ROWS
            a, e = long[start:stop, None], slack[start:stop, None]
            products = np.abs(rows[start:stop] @ rows.T) - (a * slack + e * long + e * slack)
            alike = np.triu(products / ((a + e) * (long + slack)), start + 1)
            place = int(np.argmax(alike))
            i, j = divmod(place, len(rows))
            best = max(best, (float(alike[i, j]), start + i, j))
        likely, i, j = best
        cosine = float(rows[i] @ rows[j] / (long[i] * long[j]))
        return Correlation(0, cosine, _chance(likely, self.size)), self.places[i], self.places[j]

    def noticed(self, chance: float) -> float:
        """The cosine of two noises that a test of this chance notices."""
        half = (self.size - 1) / 2.0
        return 1.0 - 2.0 * float(beta.ppf(chance / 2.0, half, half))
