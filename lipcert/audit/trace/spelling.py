"""Spelling: objects of JSON written in exactly one way, and read strictly.

What enters: an object, or untrusted bytes. What leaves: ASCII bytes with sorted keys, no blanks and
no null, or the object in them; `FormError` for anything else. A number that is not finite is one of
three words, because JSON has no number for it and a recorded loss may be one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Final, NoReturn, TypeAlias

from lipcert.audit.trace.faults import FormError
from lipcert.core.codec import Codec, CodecError, Form

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json]"
JsonObject: TypeAlias = "dict[str, Json]"

_WORDS: Final[Mapping[str, float]] = {
    "NaN": math.nan,
    "Infinity": math.inf,
    "-Infinity": -math.inf,
}


def spelled(members: Mapping[str, Json]) -> bytes:
    """The one spelling of an object; floats as the shortest decimal that reads back."""
    text = json.dumps(
        members, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
    return text.encode("ascii")


def understood(data: bytes) -> JsonObject:
    """The object that is spelled so; `FormError` where it is not one, or not spelled so."""
    try:
        found = json.loads(
            data.decode("ascii"), object_pairs_hook=_members, parse_constant=_refuse_constant
        )
        if not isinstance(found, dict):
            raise FormError("not an object of JSON")
        if spelled(found) != data:
            raise FormError("not in the one spelling that traces use")
    except FormError:
        raise
    except (ValueError, RecursionError) as error:
        raise FormError(f"not readable as JSON ({str(error)[:120]})") from error
    return found


def _number(value: object) -> float:
    found = _WORDS.get(value) if isinstance(value, str) else value
    if type(found) not in {int, float}:
        raise CodecError("is not a number")
    try:
        return float(found)  # type: ignore[arg-type]
    except OverflowError:
        raise CodecError("is not a number") from None


def spelled_number(value: float) -> Json:
    """A number, as a word where it is not finite."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _members(pairs: list[tuple[str, Json]]) -> JsonObject:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise FormError("a key is given twice")
    return members


def _refuse_constant(word: str) -> NoReturn:
    raise FormError(f"{word} is not JSON")


FORMS: Final[Mapping[object, Form]] = {float: Form(lambda x: spelled_number(float(x)), _number)}
LARGEST: Final = 1 << 62
MEMBERS: Final = Codec(FormError, FORMS, largest=LARGEST)
"""how records stand in the objects of a trace: what is not recorded is left out"""
