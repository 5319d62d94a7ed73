"""Sketches: the noises on one tensor at all recorded steps, short enough to compare every two.

What enters: noises of p entries, step after step. What leaves: the two steps whose noises are the
least likely to be independent, and how alike all of them are to those some steps later. Invariant:
a sketch of independent noises N(0, s²) consists of independent N(0, s²), exactly: it has k ≤ p
entries, each a sum of its own ones of the p, with signs, over the root of their number. So time
grows with p and not with p times the steps, and statements on noises hold of sketches. Two noises
of which a share is common have in the mean the same cosine in the sketch.

Every two sketches: (1 + cosine)/2 is Beta((k − 1)/2, (k − 1)/2), exactly, if the direction of one
of them is uniform and independent of the other. What rounding may have moved, e entry by entry, is
carried along, and counts for the run: |⟨a, b⟩| is less by at most ‖a‖‖f‖ + ‖e‖‖b‖ + ‖e‖‖f‖.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, final

import numpy as np
from scipy.stats import beta

from lipcert.audit.checks.likeness import Likeness, Piece
from lipcert.upper import FloatArray

_LEAST: Final = 16
_MOST: Final = 1 << 12
_BUDGET: Final = 1 << 22
_ROWS: Final = 256


@final
@dataclass(slots=True, eq=False)
class Sketches:
    """Of the noises on one tensor. places: what the steps are called, in order.

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
        size = min(entries, _MOST, max(_LEAST, _BUDGET // max(count, 1)))
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

    def most_alike(self) -> tuple[Likeness, str, str] | None:
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
        return Likeness(0, cosine, self._chance(likely)), self.places[i], self.places[j]

    def _chance(self, likely: float) -> float:
        half = (self.size - 1) / 2.0
        return min(1.0, 2.0 * float(beta.cdf((1.0 - min(1.0, max(likely, 0.0))) / 2.0, half, half)))

    def noticed(self, chance: float) -> float:
        """The cosine of two noises that a test of this chance notices."""
        half = (self.size - 1) / 2.0
        return 1.0 - 2.0 * float(beta.ppf(chance / 2.0, half, half))
