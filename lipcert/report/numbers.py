"""Numbers for people: a displayed bound is never below the bound.

What enters: certified upper bounds (None: no bound). What leaves: short decimal text. Invariant:
the text, read as a decimal, is at least the number it stands for.
"""

from __future__ import annotations

import decimal
import math
from typing import Final

NO_BOUND: Final = "no bound"
_DIGITS: Final = 5
_BAR_WIDTH: Final = 12


def at_most(value: float | None, digits: int = _DIGITS) -> str:
    """An upper bound with the given number of significant digits, rounded up."""
    if value is None or not math.isfinite(value):
        return NO_BOUND
    up = decimal.Context(prec=digits, rounding=decimal.ROUND_CEILING)
    rounded = up.create_decimal(decimal.Decimal(value)).normalize(up)
    if rounded == 0:
        return "0"
    if -5 <= rounded.adjusted() <= 5:
        return format(rounded, "f")
    return format(rounded, "e")


def percent(share: float | None) -> str:
    """A share of a whole, for orientation only (rounded to nearest)."""
    return "" if share is None or not math.isfinite(share) else f"{100.0 * share:.1f}%"


def bar(share: float) -> str:
    """A bar whose length is a share in [0, 1]; at least a sliver, so that a row is seen."""
    eighths = max(1, round(min(max(share, 0.0), 1.0) * _BAR_WIDTH * 8))
    full, rest = divmod(eighths, 8)
    return "█" * full + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[rest]


def shape_text(shape: tuple[int, ...]) -> str:
    """`16×8×8`; a scalar is `scalar`."""
    return "×".join(str(size) for size in shape) or "scalar"
