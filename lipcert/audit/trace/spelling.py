"""Spelling: JSON objects written in exactly one way, chained line by line, and their faults.

An object becomes ASCII bytes with sorted keys and without blanks, in a line that holds the digest
of the previous line and, at its end, its own. Untrusted bytes that are not spelled in this way
raise `FormError`; the first line that breaks the chain raises a `TraceError` with a `Fault`, which
names the file of the trace and the number of the line. Invariant: a changed, moved, inserted or
removed line breaks the chain at that line or the next; only whole lines at the end can be missing
unnoticed, and a line of kind "close" states that there were none. A number that is not finite is
one of three words, because JSON has no number for it and a recorded loss may be one.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, BinaryIO, Final, NoReturn, TypeAlias

from lipcert.core.codec import CodecError
from lipcert.errors import NoVerdictError
from lipcert.text.codec import Codec, Form

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json]"
JsonObject: TypeAlias = "dict[str, Json]"

_WORDS: Final[Mapping[str, float]] = {
    "NaN": math.nan,
    "Infinity": math.inf,
    "-Infinity": -math.inf,
}
MAX_LINE: Final = 1 << 26
"""Largest length of a line in bytes."""
_SEAL: Final = re.compile(rb',"h":"([0-9a-f]{64})"\}\n')
_SEAL_LENGTH: Final = 73


class FaultKind(Enum):
    """Kinds of faults of a trace."""

    UNREADABLE = "unreadable"
    """There is no trace of a known form here."""
    CHAIN = "chain"
    """Lines were changed, cut or moved, or are not what a recorder writes."""
    TORN = "torn"
    """The last line is unfinished: the recorder was interrupted, or the file was cut."""
    BLOB = "blob"
    """Tensors are missing, changed, or not those that the line names."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong.

    line: counted from 1; 0 for the file as a whole.
    """

    kind: FaultKind
    file: str
    line: int
    message: str

    def __str__(self) -> str:
        where = f"{self.file}, line {self.line}" if self.line else self.file
        return f"{where}: {self.message}"


class TraceError(NoVerdictError):
    """A trace that cannot be read further: exit code 3, unless the fault is the answer."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        super().__init__(str(fault))


class FormError(ValueError):
    """Bytes or members that do not have the required form; the caller knows the file and the
    line."""


def spelled(members: Mapping[str, Any]) -> bytes:
    """Return the one spelling of an object; floats as the shortest decimal that reads back."""
    text = json.dumps(
        members, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
    return text.encode("ascii")


def understood(data: bytes) -> JsonObject:
    """Return the object that is spelled in this way; raise `FormError` if it is not an object, or
    not spelled so."""
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
    """Return a number that is written as a float (1.0 for one), so that it is written again as it
    was."""
    found = _WORDS.get(value) if isinstance(value, str) else value
    if type(found) is not float:
        raise CodecError("is not a number")
    return found


def spelled_number(value: float) -> Json:
    """Return a number, as a word if it is not finite."""
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
"""Reads and writes records as objects of a trace; what is not recorded is left out."""


@dataclass(frozen=True, slots=True)
class Link:
    """A line: its number from 1, its members, its digest, and the byte behind it."""

    number: int
    members: JsonObject
    digest: str
    end: int


def sealed(members: Mapping[str, Any], previous: str) -> tuple[bytes, str]:
    """Return the line that follows the previous one with these members, and its digest."""
    body = spelled({**members, "prev": previous})
    digest = hashlib.sha256(body).hexdigest()
    return b'%s,"h":"%s"}\n' % (body[:-1], digest.encode("ascii")), digest


def links(file: BinaryIO, name: str, previous: str) -> Iterator[Link]:
    """Yield the complete lines of a file in order; a last one without an end is left to the
    caller."""
    number = end = 0
    while line := file.readline(MAX_LINE + 1):
        if len(line) > MAX_LINE:
            raise _broken(name, number + 1, f"is longer than {MAX_LINE} bytes")
        if not line.endswith(b"\n"):
            return
        number += 1
        end += len(line)
        try:
            members, digest = unsealed(line)
            if members.pop("prev", None) != previous:
                raise FormError("the chain is broken: the line does not follow the one before it")
        except FormError as error:
            raise _broken(name, number, str(error)) from error
        previous = digest
        yield Link(number, members, digest, end)


def unsealed(line: bytes) -> tuple[JsonObject, str]:
    """Return the members of a line ("prev" is the digest of what precedes it) and its own digest.

    Raises:
        FormError: if the line is not as it was written.
    """
    seal = _SEAL.fullmatch(line[-_SEAL_LENGTH:])
    if seal is None:
        raise FormError("the line does not end in its digest")
    body = line[:-_SEAL_LENGTH] + b"}"
    digest = hashlib.sha256(body).hexdigest()
    if digest != seal.group(1).decode("ascii"):
        raise FormError("the chain is broken: the line was changed")
    return understood(body), digest


def _broken(name: str, number: int, message: str) -> TraceError:
    return TraceError(Fault(FaultKind.CHAIN, name, number, message))
