"""The file of a ledger: held by one process at a time, and written before anything is released.

What enters: a path, lines. What leaves: lines that are on the disk. Invariant: what is in the file
is only ever added to; an unfinished end is written over, never cut off first.
"""

from __future__ import annotations

import fcntl
import os
import stat
import weakref
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, final

from lipcert.audit.trace.files import FILE_MODE, make_private_folder, sync_folder
from lipcert.errors import NoVerdictError, UsageError

_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@final
class LedgerFile:
    """An open, locked file; lines are added behind `end`, where the whole ones before end."""

    def __init__(self, path: Path) -> None:
        """Open and lock it.

        The lock is the kernel's and ends with the process. Worker processes would inherit it and
        outlive a parent that is killed, so they let go as they begin.
        """
        self.path = path
        self.end = 0
        try:
            make_private_folder(path.parent)
            self._file = os.open(path, _FLAGS, FILE_MODE)
            self._close = weakref.finalize(self, os.close, self._file)
            os.register_at_fork(after_in_child=partial(_let_go, weakref.ref(self)))
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
        """In bytes, with what is unfinished."""
        return os.fstat(self._file).st_size

    def reading(self) -> BinaryIO:
        """The same file, from its beginning."""
        file = os.fdopen(os.dup(self._file), "rb")
        file.seek(0)
        return file

    def append(self, line: bytes, unfinished: int = 0) -> None:
        """Write a line behind the whole ones, over what is `unfinished` there; on the disk when
        this returns. After a failure the file is closed and takes no more."""
        try:
            found = os.fstat(self._file)
            if found.st_nlink == 0 or found.st_size != self.end + unfinished:
                raise NoVerdictError(
                    f"ledger: {self.path} was removed or changed while the run was under way, so "
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
        """Let go of it; it may be closed already."""
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
            "and the run can be started again once this is remedied"
        )


def _let_go(reference: weakref.ref[LedgerFile]) -> None:
    file = reference()
    if file is not None:
        file.close()
