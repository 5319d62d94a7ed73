"""Files of traces and ledgers: opened without following links, private to their owner.

Invariant: only regular files are opened for reading, and a name is either absent or holds complete
content, except that a `ChainFile` may end in an unfinished line.
"""

import io
import os
import stat
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from lipcert.audit.trace.spelling import MAX_LINE, sealed
from lipcert.errors import NoVerdictError, UsageError

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
    """A file of chained lines (see `spelling`) that one process at a time locks and writes.

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
