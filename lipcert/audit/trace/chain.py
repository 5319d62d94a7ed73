"""The chain: every line holds the digest of the line before it, and its own at its end.

What enters: an object and the digest of what precedes it, or a file of lines. What leaves: a line,
or objects whose chain holds; TraceError at the first line where it does not. Invariant: a changed,
moved, inserted or removed line breaks the chain at that line or the next; only whole lines at the
end can go unnoticed, and a line of kind "close" says that there were none.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Final, final

from lipcert.audit.trace.faults import Fault, FaultKind, FormError, TraceError
from lipcert.audit.trace.spelling import Json, JsonObject, spelled, understood

MAX_LINE: Final = 1 << 26
"""bytes of a line"""
_SEAL: Final = re.compile(rb',"h":"([0-9a-f]{64})"\}\n')
_SEAL_LENGTH: Final = 73


@final
@dataclass(frozen=True, slots=True)
class Link:
    """A line: its number from 1, its members, its digest, and the byte behind it."""

    number: int
    members: JsonObject
    digest: str
    end: int


def sealed(members: Mapping[str, Json], previous: str) -> tuple[bytes, str]:
    """The line that says this after the previous one, and its digest."""
    body = spelled({**members, "prev": previous})
    digest = hashlib.sha256(body).hexdigest()
    return b'%s,"h":"%s"}\n' % (body[:-1], digest.encode("ascii")), digest


def links(file: BinaryIO, name: str, previous: str) -> Iterator[Link]:
    """The whole lines of a file in order; a last one without an end is left to the caller."""
    number = end = 0
    while line := file.readline(MAX_LINE + 1):
        if len(line) > MAX_LINE:
            raise _broken(name, number + 1, f"is longer than {MAX_LINE} bytes")
        if not line.endswith(b"\n"):
            return
        number += 1
        end += len(line)
        try:
            members, previous = _unsealed(line, previous)
        except FormError as error:
            raise _broken(name, number, str(error)) from error
        yield Link(number, members, previous, end)


def _unsealed(line: bytes, previous: str) -> tuple[JsonObject, str]:
    seal = _SEAL.fullmatch(line[-_SEAL_LENGTH:])
    if seal is None:
        raise FormError("the line does not end in its digest")
    body = line[:-_SEAL_LENGTH] + b"}"
    digest = hashlib.sha256(body).hexdigest()
    if digest != seal.group(1).decode("ascii"):
        raise FormError("the chain is broken: the line was changed")
    members = understood(body)
    if members.pop("prev", None) != previous:
        raise FormError("the chain is broken: the line does not follow what stands before it")
    return members, digest


def _broken(name: str, number: int, message: str) -> TraceError:
    return TraceError(Fault(FaultKind.CHAIN, name, number, message))
