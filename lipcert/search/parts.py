"""Parts of a chain without a common unknown slope, such as the tokens of a layer that acts on each.

`parts_of` takes a descent, and returns for each part a descent of its own, with the indices that
its variables and its entries at the top have in the whole.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lipcert.core.forms.descent import Descent

_Numbers = npt.NDArray[np.int64]
_Mask = npt.NDArray[np.bool_]
_SMALLEST: Final = 1 << 14
"""Size of the incidence table below which searching the whole is as fast."""
_LARGEST: Final = 1 << 23


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Some unknown slopes, numbered as in the whole, and the entries at the top that they meet."""

    descent: Descent
    own: _Numbers
    top: _Numbers

    @property
    def key(self) -> tuple[object, ...]:
        """A key that is equal for parts that differ only in their indices."""
        arrays = [self.descent.bottom.rows]
        for block in self.descent.blocks:
            arrays += [block.above.rows, block.low, block.high]
        return tuple((array.shape, array.tobytes()) for array in arrays)


def parts_of(descent: Descent) -> tuple[Part, ...]:
    """Return the parts; () if there is only one, or if the table is too large."""
    unknown = descent.total - descent.size
    rows = unknown + len(descent.bottom.rows)
    if not _SMALLEST <= unknown * rows <= _LARGEST:
        return ()
    meeting = np.zeros((rows, descent.total), dtype=np.bool_)
    for block in descent.blocks:
        meeting[block.own, block.above.where] = block.above.rows != 0.0
    meeting[unknown:, descent.bottom.where] = descent.bottom.rows != 0.0
    meeting[:unknown, :unknown] |= np.eye(unknown, dtype=np.bool_)
    labels = _labels(meeting[:, :unknown])
    lowest = meeting[unknown:]
    if len(set(labels)) < 2 or (lowest.any(axis=1) & ~lowest[:, :unknown].any(axis=1)).any():
        return ()
    parts = [_part(descent, meeting, labels == label) for label in np.unique(labels)]
    return tuple(parts) if all(part.top.size for part in parts) else ()


def _labels(meeting: _Mask) -> _Numbers:
    """Return for each column the least index that rows join it to, directly or not."""
    count = meeting.shape[1]
    labels, open_ = np.full(count, count), np.ones(len(meeting), dtype=np.bool_)
    for first in range(count):
        new = np.array([first] if labels[first] == count else [], dtype=np.int64)
        while new.size:
            labels[new] = first
            rows = open_ & meeting[:, new].any(axis=1)
            open_ &= ~rows
            new = np.flatnonzero(meeting[rows].any(axis=0) & (labels == count))
    return labels


def _part(descent: Descent, meeting: _Mask, own: _Mask) -> Part:
    unknown = len(own)
    rows: _Mask = np.any(meeting[:, :unknown][:, own], axis=1)
    top = meeting[rows, unknown:].any(axis=0)
    kept = np.concatenate([own, top])

    def place(number: int) -> int:
        return int(np.count_nonzero(kept[:number]))

    def chosen(above: Any, which: _Mask) -> Any:
        return replace(
            above,
            rows=above.rows[np.ix_(which, kept[above.where])],
            first=place(above.first),
        )

    def blocks() -> Iterator[Any]:
        for block in descent.blocks:
            which: _Mask = own[block.own]
            if which.any():
                yield replace(
                    block,
                    above=chosen(block.above, which),
                    own=slice(place(block.own.start), place(block.own.stop)),
                    low=block.low[which],
                    high=block.high[which],
                )

    bottom = chosen(descent.bottom, rows[unknown:])
    found = Descent(tuple(blocks()), bottom, place(len(kept)), int(np.count_nonzero(top)))
    return Part(found, np.flatnonzero(own), np.flatnonzero(top))
