"""Numbers of audits: measured norms beside the bounds they are held against.

What enters: norms, which may be NaN or infinite, and bounds. What leaves: short text. Invariant:
of a norm within its bound the text is never above that of the bound, and of a norm above its bound
never at or below it. Measured numbers are otherwise rounded to the nearest.
"""

from __future__ import annotations

import decimal
import math
from typing import Final

from lipcert.audit.records import AuditReport, GroupAudit, ValueAudit
from lipcert.report.numbers import at_most

_DIGITS: Final = 4
_NONE: Final = "–"


def largest(*norms: float | None) -> float | None:
    """The largest of those that exist; NaN is larger than every number."""
    found = [norm for norm in norms if norm is not None]
    if any(math.isnan(norm) for norm in found):
        return math.nan
    return max(found, default=None)


def tightness_of(item: GroupAudit | ValueAudit) -> float | None:
    """The largest norm that was found over its bound; None where there is none to compare."""
    attacked = item.max_attacked if isinstance(item, GroupAudit) else None
    norm, bound = largest(item.max_observed, attacked), _bound(item)
    if norm is None or not bound:
        return None
    return norm / bound


def factor_of(group: GroupAudit) -> float | None:
    """A bound too small by this factor or more would have been noticed; None: not known."""
    share = tightness_of(group)
    if share is None or not 0.0 < share < math.inf:
        return None
    factor = 1.0 / share
    return factor if math.isfinite(factor) else None


def report_factor(report: AuditReport) -> float | None:
    """Of the group that was tried least well; None where it is not known of one of them."""
    factors = [factor_of(group) for group in report.groups]
    known = [factor for factor in factors if factor is not None]
    return max(known) if known and len(known) == len(factors) else None


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
    share = tightness_of(item)
    if share is None or not math.isfinite(share):
        return measured(share)
    text = measured(share)
    return repr(share) if text == "1" and share != 1.0 else text


def _bound(item: GroupAudit | ValueAudit) -> float | None:
    return item.grad_norm_bound if isinstance(item, GroupAudit) else item.bound
