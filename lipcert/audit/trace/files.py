"""Files of a trace: opened without following links, private to their owner, replaced as a whole.

Invariant: only regular files are opened for reading, and a name is either absent or holds complete
content.
"""

import io
import os
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from lipcert.errors import NoVerdictError

_T = TypeVar("_T")
MANIFEST: Final = "manifest.json"
BLOBS: Final = "blobs"
FILE_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o700
_PATIENCE_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.05
_READ: Final = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
)


def steps_name(rank: int) -> str:
    """Return the name of the file that holds the lines of a rank."""
    return f"steps-{rank}.jsonl"


def open_regular(path: Path) -> io.BufferedReader:
    """Open a file for reading; raise OSError if it is a link, a pipe, a device or a folder."""
    handle = os.open(path, _READ)
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
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
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
