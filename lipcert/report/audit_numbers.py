"""Numbers of audits: measured norms beside the bounds they are held against.

What enters: norms, which may be NaN or infinite, and bounds. What leaves: short text. Invariant:
of a norm within its bound the text is never above that of the bound, and of a norm above its bound
never at or below it. Measured numbers are otherwise rounded to the nearest.
"""

from __future__ import annotations

import decimal
import math
from typing import Final

from lipcert.audit.records import GroupAudit, ValueAudit
from lipcert.report.numbers import at_most

_DIGITS: Final = 4
_NONE: Final = "–"


def measured(value: float | None, digits: int = _DIGITS) -> str:
    """A measured number with the given number of significant digits."""
    if value is None:
        return _NONE
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "infinite" if value > 0.0 else "-infinite"
    near = decimal.Context(prec=digits, rounding=decimal.ROUND_HALF_EVEN)
    rounded = near.create_decimal(decimal.Decimal(value)).normalize(near)
    if rounded == 0:
        return "0"
    return format(rounded, "f" if -5 <= rounded.adjusted() <= 5 else "e")


def beside(bound: float | None, *norms: float | None) -> tuple[str, ...]:
    """The bound, then the norms; in full where short numbers would hide that one is larger."""
    if bound is None or not any(_is_hidden(norm, bound) for norm in norms):
        return (at_most(bound, _DIGITS), *map(measured, norms))
    return (repr(bound), *map(_in_full, norms))


def _is_hidden(norm: float | None, bound: float) -> bool:
    if norm is None or not math.isfinite(norm) or not math.isfinite(bound) or norm <= bound:
        return False
    return decimal.Decimal(measured(norm)) <= decimal.Decimal(at_most(bound, _DIGITS))


def _in_full(norm: float | None) -> str:
    return measured(norm) if norm is None or not math.isfinite(norm) else repr(norm)


def share_of(item: GroupAudit | ValueAudit) -> str:
    """The tightness; in full where rounding would hide on which side of 1 it lies."""
    share = item.tightness
    if share is None or not math.isfinite(share):
        return measured(share)
    text = measured(share)
    return repr(share) if text == "1" and share != 1.0 else text
