"""Numbers of a certificate, as strings with exactly one spelling each.

A bound is a float64 in hexadecimal, a probability a rational number as two decimal strings, a
digest 64 lower-case hexadecimal digits. Readers take untrusted text and raise `NumberFormatError`
for any spelling but the one that the writer gives; no reader is ever asked for a number whose
size is not bounded by the length of its text.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Final, final

MAX_DIGITS: Final = 400
"""digits of a numerator or denominator: enough for 10^-308 and every exact small float64"""

_FLOAT: Final = re.compile(
    r"0x0\.0p\+0|-?0x0\.[0-9a-f]{13}p-1022"
    r"|-?0x1\.[0-9a-f]{13}p(?:\+0|[+-][1-9][0-9]{0,3})"
)
_NATURAL: Final = re.compile(r"0|[1-9][0-9]*+")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@final
class NumberFormatError(ValueError):
    """A string that is not the one spelling of a number."""


def read_float(text: str) -> float:
    """A finite float64 from the spelling of `float.hex`; zero has no sign.

    The expression admits nothing that means another number in another notation ("1e3" is 483 to
    `float.fromhex`); that the text is given back rules out what rounds, such as the subnormal
    digits of a normal exponent.
    """
    if len(text) > 32 or not _FLOAT.fullmatch(text):
        raise NumberFormatError(f"{text[:40]!r} is not a hexadecimal float64")
    try:
        number = float.fromhex(text)
    except OverflowError:
        raise NumberFormatError(f"{text!r} is beyond float64") from None
    if number.hex() != text:
        raise NumberFormatError(f"{text!r} is not how its number is written")
    return number


def read_bound(text: str) -> float:
    """A finite float64 that is not negative."""
    number = read_float(text)
    if number < 0.0:
        raise NumberFormatError(f"{text!r} is negative")
    return number


def write_float(number: float) -> str:
    """The spelling of a finite float64 that `read_float` takes."""
    if not math.isfinite(number):
        raise NumberFormatError(f"{number!r} has no spelling in a certificate")
    return (number + 0.0).hex()  # -0.0 + 0.0 is 0.0


def read_rational(numerator: str, denominator: str) -> Fraction:
    """A rational number ≥ 0 in lowest terms, from two decimal strings."""
    above, below = _read_natural(numerator), _read_natural(denominator)
    if below == 0:
        raise NumberFormatError("a denominator is zero")
    if math.gcd(above, below) != 1:
        raise NumberFormatError("a rational number is not in lowest terms")
    return Fraction(above, below)


def write_rational(number: Fraction) -> tuple[str, str]:
    """The two strings that `read_rational` takes."""
    if number < 0 or max(number.numerator, number.denominator) >= 10**MAX_DIGITS:
        raise NumberFormatError("a rational number is negative or has too many digits")
    return str(number.numerator), str(number.denominator)


def read_sha256(text: str) -> str:
    """The text itself, if it is spelt like a SHA-256 digest."""
    if len(text) != 64 or not _SHA256.fullmatch(text):
        raise NumberFormatError(f"{text[:80]!r} is not a SHA-256 digest")
    return text


def _read_natural(text: str) -> int:
    if len(text) > MAX_DIGITS or not _NATURAL.fullmatch(text):
        raise NumberFormatError(f"{text[:40]!r} is not a decimal number")
    return int(text)
