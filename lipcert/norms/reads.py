"""Reads: which input position each tap of each window reads, with any kind of padding.

What enters: a window, and what stands in the padding in front of it. What leaves: a table for one
spatial dimension. Where `Window` knows zeros only, a table also speaks of reflected, repeated and
wrapped borders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, final

import numpy as np

from lipcert.norms.geometry import IndexArray, Window

NOTHING: Final = -1
"""In place of a position: the tap reads a zero."""


class Border(Enum):
    """What stands in the padding, in the words of ONNX and of numpy."""

    REFLECT = "reflect"
    EDGE = "edge"
    WRAP = "wrap"


@final
@dataclass(frozen=True, slots=True, eq=False)
class Reads:
    """One spatial dimension: sources[output, tap] is an input position or `NOTHING`."""

    size: int
    sources: IndexArray

    @classmethod
    def of(cls, window: Window) -> Reads:
        """The table of a window over zeros."""
        sources = np.full((window.outputs, window.taps), NOTHING, dtype=np.int64)
        for tap in range(window.taps):
            sources[np.array(window.readers(tap), dtype=np.int64), tap] = window.positions(tap)
        return cls(window.size, sources)

    @classmethod
    def padded(cls, window: Window, begin: int, end: int, border: Border) -> Reads:
        """The table of a window that slides over an input padded before and after."""
        size = window.size - begin - end
        if size < 1:
            raise ValueError(f"a window over {window.size} positions has no room for {begin}+{end}")
        origin = np.append(np.pad(np.arange(size), (begin, end), mode=border.value), NOTHING)
        return cls(size, origin[cls.of(window).sources])

    @property
    def outputs(self) -> int:
        """Number of window positions."""
        return len(self.sources)

    @property
    def taps(self) -> int:
        """Number of taps."""
        return int(self.sources.shape[1])

    @property
    def overlap(self) -> int:
        """The largest number of (window, tap) pairs that read one input position."""
        read = self.sources[self.sources != NOTHING]
        return int(np.max(np.bincount(read, minlength=1)))

    def meetings(self, first: int, second: int) -> tuple[IndexArray, IndexArray]:
        """The pairs of outputs that read one input, the one through `first`, the other `second`."""
        one, other = self.sources[:, first], self.sources[:, second]
        order = np.argsort(other, kind="stable")
        start = np.searchsorted(other[order], one, side="left")
        counts = np.searchsorted(other[order], one, side="right") - start
        counts[one == NOTHING] = 0
        rows = np.repeat(np.arange(len(one)), counts)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        return rows, order[np.repeat(start, counts) + within]

    def bandwidth(self) -> int:
        """How far apart two outputs are at most that read one input position."""
        outputs, taps = np.nonzero(self.sources != NOTHING)
        read = self.sources[outputs, taps]
        first, last = np.full(self.size, self.outputs), np.zeros(self.size, dtype=np.int64)
        np.minimum.at(first, read, outputs)
        np.maximum.at(last, read, outputs)
        return int(np.max((last - first)[np.unique(read)], initial=0))

    def adjoint(self) -> Reads | None:
        """The table of the adjoint map, with the same taps; None where it has no table.

        That is so where one tap reads an input position for two outputs.
        """
        sources = np.full((self.size, self.taps), NOTHING, dtype=np.int64)
        for tap in range(self.taps):
            outputs = np.flatnonzero(self.sources[:, tap] != NOTHING)
            positions = self.sources[outputs, tap]
            if len(np.unique(positions)) < len(positions):
                return None
            sources[positions, tap] = outputs
        return Reads(self.outputs, sources)


def flat_positions(coordinates: Sequence[IndexArray], sizes: tuple[int, ...]) -> IndexArray:
    """Row-major numbers of all points of a product of coordinate lists."""
    grids = np.meshgrid(*coordinates, indexing="ij")
    flat: IndexArray = np.ravel_multi_index(tuple(grids), sizes).ravel()
    return flat
