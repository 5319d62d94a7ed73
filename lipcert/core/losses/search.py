"""The supremum of a function of one number, from bounds of it on intervals.

Input: a function that bounds another one from above on any of `CELLS` cells in a row, or several.
Output: a bound on all of them. Where the search looks first is of no consequence.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final, TypeVar

CELLS: Final = 1 << 25
_SPLITS: Final = 400
NumberT = TypeVar("NumberT", int, float)


def largest_on(
    bound: Callable[[int, int], NumberT], least: NumberT, splits: int = _SPLITS, finest: int = 1
) -> NumberT:
    """The largest bound of the parts of a partition of [0, CELLS], or `least` if that is more.

    Proof: the parts always cover the interval, so the largest of their bounds holds everywhere.
    The part that has it is halved, until it has `finest` cells, or no more than `least`, or
    patience ends.
    """

    def part(low: int, high: int) -> tuple[NumberT, int, int]:
        return -bound(low, high), low, high

    parts = [part(0, CELLS)]
    for _ in range(splits):
        negative, low, high = parts[0]
        if high - low <= finest or -negative <= least:
            break
        middle = (low + high) // 2
        heapq.heapreplace(parts, part(low, middle))
        heapq.heappush(parts, part(middle, high))
    return max(-parts[0][0], least)
