"""The supremum of a function of one number, from bounds of it on intervals.

Input: an interval, and a function that bounds another one from above on any interval in it.
Output: a bound on the whole interval. Where the search looks first is of no consequence.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Final

_SPLITS: Final = 400
_FINEST: Final = Fraction(1, 1 << 24)


def largest_on(
    left: Fraction,
    right: Fraction,
    bound: Callable[[Fraction, Fraction], float],
    splits: int = _SPLITS,
    least: float = -math.inf,
) -> float:
    """The largest bound of the cells of a partition of [left, right], or `least` if that is more.

    Proof: the cells always cover the interval, so the largest of their bounds holds everywhere.
    The cell that has it is halved, until it is narrow, or no more than `least`, or patience ends.
    """

    def cell(low: Fraction, high: Fraction) -> tuple[float, Fraction, Fraction]:
        return -bound(low, high), low, high

    cells = [cell(left, right)]
    for _ in range(splits):
        negative, low, high = cells[0]
        if high - low <= _FINEST or -negative <= least:
            break
        middle = (low + high) / 2
        heapq.heapreplace(cells, cell(low, middle))
        heapq.heappush(cells, cell(middle, high))
    return max(-cells[0][0], least)
