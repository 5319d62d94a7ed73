"""Decimals: numbers as short text. From a million on they are powers of ten: `4.81·10²²`."""

from __future__ import annotations

import decimal
from typing import Final

LARGE: Final = 1e6
"""from here on a number has few digits, and a power of ten"""
_LARGE_DIGITS: Final = 3
_SUPERSCRIPT: Final = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def rounded(value: float, digits: int, rounding: str = decimal.ROUND_HALF_EVEN) -> decimal.Decimal:
    """A finite number in so many significant digits, or fewer where it is large."""
    digits = min(digits, _LARGE_DIGITS) if abs(value) >= LARGE else digits
    context = decimal.Context(prec=digits, rounding=rounding)
    return context.create_decimal(decimal.Decimal(value)).normalize(context)


def decimal_text(number: decimal.Decimal) -> str:
    """All digits of a number: `0.25`, `123460`, `1.5e-7`, `10⁶`, `4.81·10²²`."""
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
