"""Numbers for readers: a displayed bound is never below the bound.

Certified upper bounds (None: no bound), and measured norms, which may be NaN or infinite, are shown
as short decimal text. The text of a bound, read as a decimal, is at least the number it stands for.
The text of a norm within its bound is never above that of the bound, and the text of a norm above
its bound never at or below it; other measured numbers are rounded to the nearest. From a million on
numbers are powers of ten, in few digits: `4.81·10²²`.
"""

import decimal
import math
from collections.abc import Sequence
from typing import Final

_LARGE: Final = 1e6
"""From here on a number has few digits, and a power of ten."""
_LARGE_DIGITS: Final = 3
_SUPERSCRIPT: Final = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def rounded(value: float, digits: int, rounding: str = decimal.ROUND_HALF_EVEN) -> decimal.Decimal:
    """Return a finite number in this many significant digits, or fewer if it is large."""
    digits = min(digits, _LARGE_DIGITS) if abs(value) >= _LARGE else digits
    context = decimal.Context(prec=digits, rounding=rounding)
    return context.create_decimal(decimal.Decimal(value)).normalize(context)


def decimal_text(number: decimal.Decimal) -> str:
    """Return all digits of a number: `0.25`, `123460`, `1.5e-7`, `10⁶`, `4.81·10²²`."""
    power = number.adjusted()
    if number == 0:
        return "0"
    if -5 <= power <= 5:
        return format(number, "f")
    if power < 0:
        return format(number, "e")
    ten = "10" + str(power).translate(_SUPERSCRIPT)
    digits = format(number.scaleb(-power), "f")
    return {"1": ten, "-1": f"-{ten}"}.get(digits, f"{digits}·{ten}")


NO_BOUND: Final = "no bound"
_DIGITS: Final = 5
_BAR_WIDTH: Final = 12
_MEASURED_DIGITS: Final = 4
_NONE: Final = "–"


def finite(bound: float | None) -> float | None:
    """Return a bound for records: None if it is infinite or NaN."""
    return bound if bound is not None and math.isfinite(bound) else None


def at_most(value: float | None, digits: int = _DIGITS) -> str:
    """Return an upper bound with the given number of significant digits, rounded up."""
    if value is None or not math.isfinite(value):
        return NO_BOUND
    return decimal_text(rounded_up(value, digits))


def at_least(value: float, digits: int = _DIGITS) -> str:
    """Return a lower bound with the given number of significant digits, rounded down."""
    if not math.isfinite(value):
        return measured(value)
    return decimal_text(rounded(value, digits, decimal.ROUND_FLOOR))


def rounded_up(value: float, digits: int = _DIGITS) -> decimal.Decimal:
    """Return the number that `at_most` writes for a finite one."""
    return rounded(value, digits, decimal.ROUND_CEILING)


def counted(count: int, one: str, many: str = "") -> str:
    """Return a number with its noun, as in `1 step` and `1,200 steps`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def first_of(names: Sequence[str], most: int) -> str:
    """List names; of many the first ones, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def percent(share: float | None) -> str:
    """Return a share as a percentage, for orientation only (rounded to nearest)."""
    return "" if share is None or not math.isfinite(share) else f"{100.0 * share:.1f}%"


def bar(share: float) -> str:
    """Return a bar whose length is a share in [0, 1]; never empty, so that the row is visible."""
    eighths = max(1, round(min(max(share, 0.0), 1.0) * _BAR_WIDTH * 8))
    full, rest = divmod(eighths, 8)
    return "█" * full + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[rest]


def shape_text(shape: tuple[int, ...]) -> str:
    """`16×8×8`; a scalar is `scalar`."""
    return "×".join(str(size) for size in shape) or "scalar"


def measured(value: float | None, digits: int = _MEASURED_DIGITS) -> str:
    """Return a measured number with the given number of significant digits."""
    if value is None:
        return _NONE
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "infinite" if value > 0.0 else "-infinite"
    return decimal_text(rounded(value, digits))


def times(ratio: float) -> str:
    """Return a measured ratio in two digits: `0.052`, `12`, `340`, `3.1·10²²`."""
    return decimal_text(rounded(ratio, 2))


def beside(bound: float | None, *norms: float | None) -> tuple[str, ...]:
    """Return bound and norms; with all digits if short numbers hid that a norm is larger."""
    if bound is None or not any(_is_hidden(norm, bound) for norm in norms):
        return (at_most(bound, _MEASURED_DIGITS), *map(measured, norms))
    return (repr(bound), *map(_in_full, norms))


def _is_hidden(norm: float | None, bound: float) -> bool:
    if norm is None or not math.isfinite(norm) or not math.isfinite(bound) or norm <= bound:
        return False
    return rounded(norm, _MEASURED_DIGITS) <= rounded_up(bound, _MEASURED_DIGITS)


def _in_full(norm: float | None) -> str:
    return measured(norm) if norm is None or not math.isfinite(norm) else repr(norm)


def share_text(share: float | None) -> str:
    """Return a share of a bound; with all digits if rounding hid on which side of 1 it is."""
    if share is None or not math.isfinite(share):
        return measured(share)
    text = measured(share)
    return repr(share) if text == "1" and share != 1.0 else text
