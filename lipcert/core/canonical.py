"""Canonical JSON, and numbers as strings: each certificate has exactly one spelling.

The text is RFC 8785 restricted to objects, arrays, strings, integers of magnitude at most 2^53 and
booleans. There are no floats, because a decimal number is not the float64 it is read as, and no
null, because absent members are left out. So a digest of the bytes is a digest of the value.
A bound is a float64 in hexadecimal, a probability a rational number as two decimal strings.

Readers take untrusted bytes and strings, and return a value or raise an error with the reason.
Invariant: writing a value that was read gives the same bytes. The reader enforces this directly:
it writes the value that a JSON parser returns and compares the bytes, so duplicate or unsorted
keys, other escapes, blanks, 1.0 for 1 or −0 for 0 are refused whatever that parser accepts.
"""

import json
import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Final, TypeAlias

from lipcert.core.codec import CodecError, Reader, mapping, words

Parameters: TypeAlias = tuple[tuple[str, float | str], ...]
"""Pairs of a name and a number or word, sorted by name."""
Json: TypeAlias = "str | int | bool | list[Json] | dict[str, Json]"

MAX_BYTES: Final = 1 << 24
"""Largest number of bytes of a text."""
MAX_DEPTH: Final = 64
"""Largest depth of nested objects and arrays."""
MAX_VALUES: Final = 1 << 20
"""Largest number of values in a text, at all depths."""
MAX_INTEGER: Final = 1 << 53
"""Largest magnitude of an integer: on this range all readers of JSON agree."""
MAX_DIGITS: Final = 400
"""Digits of a numerator or denominator: enough for 10^-308 and every exact small float64."""

_STRING: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""A string, or the rest of the text if it does not end: something matches from every quotation
mark, so that removing strings takes linear time."""
_FLOAT: Final = re.compile(
    r"0x0\.0p\+0|-?0x0\.[0-9a-f]{13}p-1022"
    r"|-?0x1\.[0-9a-f]{13}p(?:\+0|[+-][1-9][0-9]{0,3})"
)
_NATURAL: Final = re.compile(r"0|[1-9][0-9]*+")


class CanonicalFormError(ValueError):
    """A text or a value has no canonical form; the message says why."""


def read_canonical(data: bytes) -> Json:
    """Return the value of a canonical text; raise `CanonicalFormError` for any other bytes."""
    if len(data) > MAX_BYTES:
        raise CanonicalFormError(f"the text is longer than {MAX_BYTES} bytes")
    try:
        text = data.decode("utf-8", errors="strict")
        _require_few(text)
        value: Json = json.loads(text)
    except (ValueError, RecursionError) as error:  # also for thousands of digits or brackets
        raise CanonicalFormError(f"the text cannot be read: {error}") from None
    if write_canonical(value) != data:
        raise CanonicalFormError("the text is not in canonical form")
    return value


def write_canonical(value: Json) -> bytes:
    """Return the canonical text of a value, which `read_canonical` always accepts."""
    ordered, count = _ordered(value, 0)
    if count > MAX_VALUES:
        raise CanonicalFormError(f"there are more than {MAX_VALUES} values")
    text = json.dumps(ordered, ensure_ascii=False, separators=(",", ":"))
    try:
        data = text.encode("utf-8", errors="strict")
    except UnicodeEncodeError:
        raise CanonicalFormError("a string holds half of a surrogate pair") from None
    if len(data) > MAX_BYTES:
        raise CanonicalFormError(f"the text is longer than {MAX_BYTES} bytes")
    return data


def _require_few(text: str) -> None:
    """Refuse a text that would take too much memory to parse.

    No text of at most MAX_VALUES values is refused: outside of strings there are fewer commas than
    values, and no more opening brackets than values.
    """
    rest = _STRING.sub("", text)
    if sum(map(rest.count, ",[{")) > 2 * MAX_VALUES:
        raise CanonicalFormError(f"there are more than {MAX_VALUES} values")


def _ordered(value: Json, depth: int) -> tuple[Json, int]:
    """Return a copy with the keys of objects sorted by their UTF-16 code units (RFC 8785, section
    3.2.3), and the number of values in it."""
    if depth > MAX_DEPTH:
        raise CanonicalFormError(f"values are nested more than {MAX_DEPTH} deep")
    if type(value) in {bool, str} or (type(value) is int and abs(value) <= MAX_INTEGER):
        return value, 1
    if type(value) is list:
        items = [_ordered(item, depth + 1) for item in value]
        return [item for item, _ in items], 1 + sum(count for _, count in items)
    if type(value) is dict and all(type(key) is str for key in value):
        keys = sorted(value, key=lambda key: key.encode("utf-16-be", "surrogatepass"))
        named = {key: _ordered(value[key], depth + 1) for key in keys}
        members = {key: item for key, (item, _) in named.items()}
        return members, 1 + sum(count for _, count in named.values())
    raise CanonicalFormError(f"a {type(value).__name__} has no canonical form here")


def read_float(text: object) -> float:
    """Return a finite float64 from its spelling by `float.hex`; zero has no sign.

    The expression excludes texts that mean another number in another notation ("1e3" is 483 to
    `float.fromhex`). Comparing with `number.hex()` excludes texts that would be rounded, such as
    subnormal digits with a normal exponent.
    """
    if type(text) is not str or len(text) > 32 or not _FLOAT.fullmatch(text):
        raise CodecError("is not a hexadecimal float64")
    try:
        number = float.fromhex(text)
    except OverflowError:
        raise CodecError("is beyond float64") from None
    if number.hex() != text:
        raise CodecError("is not how its number is written")
    return number


def read_rational(pair: object) -> Fraction:
    """Return a rational number ≥ 0 from two decimal strings in lowest terms."""
    if type(pair) is not list or len(pair) != 2 or not all(map(_is_natural, pair)):
        raise CodecError("is not a pair of decimal numbers")
    above, below = map(int, pair)
    if below == 0 or math.gcd(above, below) != 1:
        raise CodecError("is not a rational number in lowest terms")
    return Fraction(above, below)


def _is_natural(text: object) -> bool:
    return type(text) is str and len(text) <= MAX_DIGITS and _NATURAL.fullmatch(text) is not None


def _read_number_or_word(text: object) -> float | str:
    """Return a hexadecimal number as a number, and any other string as a word."""
    if type(text) is not str:
        raise CodecError("is neither a number nor a word")
    return read_float(text) if text.removeprefix("-").startswith("0x") else text


def _read_parameters(value: object) -> Parameters:
    return tuple(sorted(mapping(str, _read_number_or_word)(value).items()))


READERS: Final[Mapping[object, Reader]] = {
    float: read_float,
    Parameters: _read_parameters,
    Fraction: read_rational,
    bool: words({"true": True}),
}
"""Readers of numbers and words of a certificate; a false member is left out."""
