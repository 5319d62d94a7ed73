"""The certificate file, and regular files."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import final

from lipcert.core.canonical import MAX_BYTES


@final
class CertificateFileError(ValueError):
    """A certificate that cannot be read at all."""


def read_certificate_file(path: Path) -> bytes:
    """The bytes of a regular file, at most one more than a certificate may have."""
    try:
        content = read_regular(path, MAX_BYTES + 1)
    except (OSError, ValueError):
        raise CertificateFileError(f"{str(path)!a} cannot be read") from None
    if content is None:
        raise CertificateFileError(f"{str(path)!a} is not a regular file")
    return content


def read_regular(path: Path, most: int) -> bytes | None:
    """At most so many bytes of a regular file; None of any other, which is not waited for.

    Raises OSError or ValueError where the file cannot be read.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(handle, "rb") as file:
        return file.read(most) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
