"""The file of a ledger: its lines, and how one process at a time locks and writes it.

    {"kind":"header", …}                     what the run is
    {"kind":"release","number":1,"time":…}   before release 1; with a number k, before all up to k
    {"kind":"unused","number":…}             the process ended having made only this many
    {"kind":"torn","number":…}               an unfinished line stood here; it counts as a release
    {"kind":"epoch","number":…}              the rest of a shuffled epoch that was not continued

Every line holds the digest of the line before (`audit.trace.spelling`). Reading takes untrusted
bytes and returns the header and a count, or raises NoVerdictError with the line of the first
irregularity. Invariant: the count never falls, except that "unused" gives back releases that the
line right before it counted.

The file only grows, before anything is released; an unfinished end is overwritten, never cut off
first.
"""

import fcntl
import os
import stat
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

from lipcert.audit.trace.files import FILE_MODE, make_private_folder, sync_folder
from lipcert.audit.trace.spelling import FormError, Json, JsonObject, TraceError, links, sealed
from lipcert.errors import NoVerdictError, UsageError
from lipcert.privacy.accounting import Accountant
from lipcert.privacy.plan import TrainingPlan
from lipcert.settings.values import check_positive

_SCHEMA: Final = "lipcert.ledger/1"
_BEGINNING: Final = ""
_SPENDING: Final = frozenset({"release", "torn", "epoch"})
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class LedgerHeader:
    """The first line of a ledger: what a run releases, how often, and with how much noise.

    It is the same in all processes of a run. mechanism: described in words. digest: of the settings
    and of the structure of the model. versions: of libraries; they may change when a run is
    resumed. released: the content of one release.
    """

    plan: TrainingPlan
    noise_multiplier: float
    mechanism: str
    digest: str
    target_epsilon: float | None = None
    accountant: Accountant | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    released: str = "one gradient: the noised sum over a batch, divided by a constant"

    def __post_init__(self) -> None:
        check_positive("noise-multiplier", float(self.noise_multiplier))
        check_positive("ledger: target-epsilon", self.target_epsilon)

    def members(self) -> dict[str, Json]:
        """Return the members as they are written in the file; those that are None are omitted."""
        plan = self.plan
        found: dict[str, Json | None] = {
            "schema": _SCHEMA,
            "dataset_size": plan.dataset_size,
            "dataset_size_from": plan.dataset_size_from.value if plan.size_tells else None,
            "sampling": plan.sampling.value,
            "delta": plan.delta,
            "batch_size": plan.batch,
            "steps": plan.steps,
            "epochs": None if plan.epochs is None else float(plan.epochs),
            "neighbours": plan.neighbours.value,
            "noise_multiplier": float(self.noise_multiplier),
            "mechanism": self.mechanism,
            "digest": self.digest,
            "target_epsilon": self.target_epsilon,
            "accountant": None if self.accountant is None else self.accountant.value,
            "released": self.released,
            "versions": dict(self.versions),
        }
        return {key: value for key, value in found.items() if value is not None}

    @classmethod
    def of_members(cls, members: JsonObject) -> Self:
        """Return the header with these members; raise `FormError` if they do not describe one."""
        given: Any = members
        try:
            accountant = given.get("accountant")
            header = cls(
                plan=TrainingPlan.described(given),
                noise_multiplier=given["noise_multiplier"],
                mechanism=given["mechanism"],
                digest=given["digest"],
                target_epsilon=given.get("target_epsilon"),
                accountant=None if accountant is None else Accountant(accountant),
                versions=dict(given["versions"]),
                released=given["released"],
            )
        except (KeyError, TypeError, ValueError, UsageError) as error:
            raise FormError(f"it does not describe a run: {error}") from error
        if header.members() != members:
            raise FormError(f"it is not a header of {_SCHEMA}")
        return header


@dataclass(frozen=True, slots=True)
class LedgerContent:
    """The complete lines of a file: how many releases they count, and where the next line goes."""

    header: LedgerHeader
    releases: int
    head: str
    """Digest of the last line."""
    end: int
    """Length of the complete lines in bytes."""


def header_line(header: LedgerHeader) -> tuple[bytes, str]:
    """Return the first line and its digest."""
    return sealed({"kind": "header", **header.members()}, _BEGINNING)


def spending_line(kind: str, number: int, previous: str) -> tuple[bytes, str]:
    """Return a line after which `number` releases are counted, and its digest."""
    return sealed({"kind": kind, "number": number, "time": time.time()}, previous)


def read_ledger(file: BinaryIO, name: str) -> LedgerContent | None:
    """Return the content of a file; None if it has no complete line."""
    content = None
    least = 0
    try:
        for link in links(file, name, _BEGINNING):
            try:
                if content is None:
                    header, number = _header(link.members), 0
                else:
                    header, number = content.header, _counted(link.members, content.releases, least)
                    least = content.releases + 1 if number > content.releases else number
            except FormError as error:
                raise _refused(name, f"line {link.number}: {error}") from error
            content = LedgerContent(header, number, link.digest, link.end)
    except TraceError as error:
        raise _refused(name, f"line {error.fault.line}: {error.fault.message}") from error
    return content


def require_same(path: str, found: LedgerHeader, given: LedgerHeader) -> None:
    """Raise UsageError with the members that differ, except versions."""
    one, other = found.members(), given.members()
    differ = [
        f"{key.replace('_', '-')} {one.get(key, 'none')} there, {other.get(key, 'none')} here"
        for key in (one | other)
        if key != "versions" and one.get(key) != other.get(key)
    ]
    if differ:
        raise UsageError(
            f"ledger: {path} counts the releases of another run ({'; '.join(differ)}): continue "
            "the same run, or name a new folder"
        )


def _header(members: JsonObject) -> LedgerHeader:
    if members.pop("kind", None) != "header":
        raise FormError("it is not a header")
    return LedgerHeader.of_members(members)


def _counted(members: JsonObject, before: int, least: int) -> int:
    """Return the number of releases that are counted after a line."""
    number, kind = members.get("number"), members.get("kind")
    if members.keys() != {"kind", "number", "time"} or type(number) is not int:
        raise FormError("it is not a line of a ledger")
    rises = kind in _SPENDING and number > before
    falls = kind == "unused" and least <= number < before
    if not (rises or falls):
        raise FormError(f"{kind!r} with the number {number} cannot follow {before} releases")
    return number


def _refused(name: str, reason: str) -> NoVerdictError:
    return NoVerdictError(
        f"ledger: {name}, {reason}; so the number of releases is unknown: restore the file as it "
        "was written, or begin a new run in another folder with a budget of its own"
    )


class LedgerFile:
    """An open, locked file; new lines are written at `end`, the end of the complete ones."""

    def __init__(self, path: Path) -> None:
        """Open and lock the file.

        The kernel holds the lock until the process ends. Worker processes would inherit it and
        outlive a parent that is killed, so they close the file as they begin.
        """
        self.path = path
        self.end = 0
        try:
            make_private_folder(path.parent)
            self._file = os.open(path, _FLAGS, FILE_MODE)
            self._close = weakref.finalize(self, os.close, self._file)
            os.register_at_fork(after_in_child=partial(_close_in_child, weakref.ref(self)))
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                raise UsageError(f"ledger: {path} is not a regular file; name another folder")
            self._lock()
            sync_folder(path.parent)
        except OSError as error:
            raise self._failed(error) from error

    @property
    def is_open(self) -> bool:
        """Whether this process still holds the file."""
        return self._close.alive

    @property
    def size(self) -> int:
        """Size in bytes, including an unfinished end."""
        return os.fstat(self._file).st_size

    def reading(self) -> BinaryIO:
        """Return the same file, opened at its beginning."""
        file = os.fdopen(os.dup(self._file), "rb")
        file.seek(0)
        return file

    def append(self, line: bytes, unfinished: int = 0) -> None:
        """Write a line behind the complete ones, over `unfinished` bytes; it is on the disk when
        this returns.

        After a failure the file is closed and accepts no more lines.
        """
        try:
            found = os.fstat(self._file)
            if found.st_nlink == 0 or found.st_size != self.end + unfinished:
                raise NoVerdictError(
                    f"ledger: {self.path} was removed or changed during the run, so "
                    "nothing more is released; restore it and start the run again"
                )
            self._write(line)
        except OSError as error:
            self.close()
            raise self._failed(error) from error
        except NoVerdictError:
            self.close()
            raise

    def close(self) -> None:
        """Close the file, unless it is closed already."""
        self._close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise UsageError(
                f"ledger: {self.path} is held by another process, or by a run of this one that was "
                "not closed; end that one first: two runs cannot share a budget"
            ) from error

    def _write(self, line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            place = self.end + len(line) - len(rest)
            rest = rest[os.pwrite(self._file, rest, place) :]
        os.fsync(self._file)
        self.end += len(line)
        if self.size > self.end:
            os.ftruncate(self._file, self.end)
            os.fsync(self._file)

    def _failed(self, error: OSError) -> NoVerdictError:
        return NoVerdictError(
            f"ledger: cannot write {self.path}: {error.strerror or error}; nothing was released, "
            "and the run can be started again once this is fixed"
        )


def _close_in_child(reference: weakref.ref[LedgerFile]) -> None:
    file = reference()
    if file is not None:
        file.close()
