"""Write files atomically: a reader finds either the old content or all of the new."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def write_whole(
    file: Path, content: bytes | Callable[[BinaryIO], object], *, private: bool = False
) -> None:
    """Write a file atomically; content: the bytes, or a function that writes them.

    private: only the owner can read it; otherwise it has the permissions of the file that it
    replaces, or those of any new file. It survives a crash of the system.

    Raises:
        OSError: or whatever `content` raises; then the old file is unchanged.
    """
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name[:64]}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            if isinstance(content, bytes):
                stream.write(content)
            else:
                content(stream)
            stream.flush()
            os.fsync(stream.fileno())
        if not private:
            temporary.chmod(_permissions(file))
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def _permissions(file: Path) -> int:
    """Return the permissions of the replaced file, or those of a new file under the umask."""
    if file.exists():
        return file.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
