"""Files of traces and ledgers: lines of JSON, each written in one way and chained to the last.

An object becomes ASCII bytes with sorted keys and without blanks, in a line that holds the digest
of the previous line and, at its end, its own. Untrusted bytes that are not spelled in this way
raise `FormError`; the first line that breaks the chain raises a `TraceError` with a `Fault`, which
names the file of the trace and the number of the line. Invariant: a changed, moved, inserted or
removed line breaks the chain at that line or the next; only whole lines at the end can be missing
unnoticed, and a line of kind "close" states that there were none. A number that is not finite is
one of three words, because JSON has no number for it and a recorded loss may be one.

Files are opened without following links, and are private to their owner. Invariant: only regular
files are opened for reading, and a name is either absent or holds complete content, except that a
`ChainFile` may end in an unfinished line.
"""

import hashlib
import io
import json
import math
import os
import re
import stat
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn, TypeAlias, TypeVar

from lipcert.core.codec import CodecError
from lipcert.errors import NoVerdictError, UsageError
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
    return _SPELLING.encode(members).encode("ascii")


_SPELLING: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


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


if sys.platform != "win32":
    import fcntl  # where there is none, traces can still be read

_T = TypeVar("_T")
MANIFEST: Final = "manifest.json"
BLOBS: Final = "blobs"
FILE_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o700
_PATIENCE_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.05
_NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0)  # Windows has none of these
_PLAIN: Final = _NO_LINK | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


def steps_name(rank: int) -> str:
    """Return the name of the file that holds the lines of a rank."""
    return f"steps-{rank}.jsonl"


def open_regular(path: Path) -> io.BufferedReader:
    """Open a file for reading; raise OSError if it is a link, a pipe, a device or a folder."""
    handle = os.open(path, os.O_RDONLY | _PLAIN)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError("not a regular file")
        return os.fdopen(handle, "rb")
    except OSError:
        os.close(handle)
        raise


def make_private_folder(path: Path) -> None:
    """Create a folder that only its owner can enter; an existing one is unchanged."""
    if not path.is_dir():
        path.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        path.chmod(_FOLDER_MODE)


def replace_durably(path: Path, temporary: Path, pieces: Sequence[bytes | memoryview]) -> None:
    """Write content under a name that shows it only once it has reached the disk."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _NO_LINK
    with os.fdopen(os.open(temporary, flags, FILE_MODE), "wb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def awaited(path: Path, rank: int, read: Callable[[], _T | None]) -> _T:
    """Return what can be read of a file that rank 0 writes; raise NoVerdictError if it does not
    appear."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while (found := read()) is None:
        if time.monotonic() > deadline:
            raise NoVerdictError(
                f"trace: rank {rank} waited {_PATIENCE_SECONDS:.0f} s for {path}, which rank 0 "
                "writes: record all ranks, into one folder that they share"
            )
        time.sleep(_PAUSE_SECONDS)
    return found


class ChainFile:
    """A file of chained lines that one process at a time locks and writes.

    The kernel holds the lock until the process ends. Worker processes would inherit it and outlive
    a parent that is killed, so they close the file as they begin. The file only grows: what an
    interruption left unfinished is written over, and never cut off first.

    head: digest of the last complete line. end: the byte behind it. unfinished: how many bytes
    follow that.
    """

    def __init__(self, path: Path, what: str) -> None:
        """Open and lock the file. what: a trace or a ledger, for messages."""
        self.path, self._what = path, what
        self.head, self.end, self.unfinished = "", 0, 0
        try:
            make_private_folder(path.parent)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | _PLAIN, FILE_MODE)
            self._close = weakref.finalize(self, os.close, self._file)
            os.register_at_fork(after_in_child=partial(_close_in_child, weakref.ref(self)))
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                raise UsageError(f"{what}: {path} is not a regular file; name another folder")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            sync_folder(path.parent)
        except BlockingIOError as error:
            self.close()
            raise UsageError(
                f"{what}: {path} is held by another process, or by a run of this one that was not "
                "closed; end that one first"
            ) from error
        except OSError as error:
            raise self._failed(error) from error

    @property
    def is_open(self) -> bool:
        """Whether this process still holds the file."""
        return self._close.alive

    def reading(self) -> BinaryIO:
        """Return the same file, opened at its beginning."""
        file = os.fdopen(os.dup(self._file), "rb")
        file.seek(0)
        return file

    def go_on(self, head: str, end: int) -> None:
        """Continue behind these complete lines, whatever follows them."""
        self.head, self.end = head, end
        self.unfinished = os.fstat(self._file).st_size - end

    def append(self, members: dict[str, Any], *, synced: bool = True) -> None:
        """Write a line; it is on the disk when this returns, if synced.

        After a failure the same line can be written again.
        """
        if not self.is_open:
            raise UsageError(
                f"{self._what}: {self.path} was closed, or is held by the parent process"
            )
        line, digest = sealed(members, self.head)
        if len(line) > MAX_LINE:
            raise UsageError(f"{self._what}: a line of {len(line)} bytes is over {MAX_LINE}")
        found, end = os.fstat(self._file), self.end + len(line)
        if found.st_nlink == 0 or found.st_size != self.end + self.unfinished:
            raise NoVerdictError(
                f"{self._what}: {self.path} was removed or changed during the run, so nothing more "
                "is written or released; restore it and start the run again"
            )
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.pwrite(self._file, rest, end - len(rest)) :]
            if found.st_size > end:
                os.fsync(self._file)
                os.ftruncate(self._file, end)
            if synced:
                self.sync()
        except OSError as error:
            self.go_on(self.head, self.end)
            raise self._failed(error) from error
        self.go_on(digest, end)

    def sync(self) -> None:
        """Make what was written durable."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file, unless it is closed already; its content is as durable as before."""
        self._close()

    def _failed(self, error: OSError) -> NoVerdictError:
        return NoVerdictError(
            f"{self._what}: cannot write {self.path}: {error.strerror or error}; what was written "
            "before is kept, and the run can continue there once this is fixed"
        )


def _close_in_child(reference: weakref.ref[ChainFile]) -> None:
    file = reference()
    if file is not None:
        file.close()
