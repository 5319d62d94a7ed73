"""Files of untrusted names: opened below one folder, without following a link, and read once.

Invariants: nothing outside the folder is opened, nothing but a regular file with a single name
(a hard link may be another file's content) is read, and all files together keep to a budget.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import zlib
from pathlib import Path
from typing import Final, final

from lipcert.core.files import read_regular
from lipcert.core.reader.records import ExternalFile, ModelReadError, shown

MAX_BYTES: Final = 1 << 30
"""bytes of a model with its external data"""
_GZIP: Final = b"\x1f\x8b"
_ROOM: Final = 1 << 26
_RATIO: Final = 20
"""a gzip file may expand to _ROOM bytes, and further by this factor"""
_FORBIDDEN: Final = frozenset("\\:\0")
_SAFE_FLAGS: Final = ("O_NOFOLLOW", "O_NONBLOCK", "O_DIRECTORY", "O_NOCTTY")
OUTSIDE: Final = "LC015"
"""code of refused external data"""


def read_model_bytes(path: Path) -> bytes:
    """The bytes of the model file, whose path is the user's own; decompressed if it is a gzip."""
    try:
        content = read_regular(path, MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise ModelReadError(f"{shown(str(path))} cannot be read") from error
    if content is None:
        raise ModelReadError(f"{shown(str(path))} is not a regular file")
    if content.startswith(_GZIP):
        content = _decompressed(content)
    if len(content) > MAX_BYTES:
        raise ModelReadError(f"{shown(str(path))} is larger than {MAX_BYTES} bytes", "LC002")
    return content


def _decompressed(content: bytes) -> bytes:
    """What one gzip stream holds, and nothing behind it."""
    limit = min(MAX_BYTES, _ROOM + _RATIO * len(content))
    decoder = zlib.decompressobj(wbits=31)
    try:
        plain = decoder.decompress(content, limit)
    except zlib.error:
        raise ModelReadError("this is not a valid gzip file") from None
    if decoder.unconsumed_tail:
        raise ModelReadError(f"this gzip file expands to more than {limit} bytes", "LC002")
    if not decoder.eof or decoder.unused_data:
        raise ModelReadError("this gzip file is truncated, or followed by other data")
    return plain


@final
class Folder:
    """The folder of a model and the external data read from it.

    The budget bounds the files that are read, and likewise the tensors taken out of them, which
    may overlap but are each converted by themselves.
    """

    def __init__(self, path: Path, budget: int) -> None:
        self._path = path
        self._unread = budget
        self._untaken = budget
        self._contents: dict[str, bytes] = {}

    def read(self, location: str) -> bytes:
        """The bytes of a file by its relative location."""
        if location not in self._contents:
            content = self._open(location)
            self._unread -= len(content)
            self._contents[location] = content
        return self._contents[location]

    def take(self, size: int) -> None:
        """Count the bytes of a tensor that lies in a file."""
        self._untaken -= size
        if self._untaken < 0:
            raise ModelReadError(f"the model holds more than {MAX_BYTES} bytes in all", OUTSIDE)

    def files(self) -> tuple[ExternalFile, ...]:
        """What was read, by location."""
        return tuple(
            ExternalFile(location, hashlib.sha256(content).hexdigest(), len(content))
            for location, content in sorted(self._contents.items())
        )

    def _open(self, location: str) -> bytes:
        parts = location.split("/")
        if any(part in {"", ".", ".."} or _FORBIDDEN & set(part) for part in parts):
            reason = f"{shown(location)} is not a path inside the model's folder"
            raise ModelReadError(reason, OUTSIDE)
        if os.open not in os.supports_dir_fd or not all(hasattr(os, flag) for flag in _SAFE_FLAGS):
            reason = "this system cannot open external data without following links"
            raise ModelReadError(reason, OUTSIDE)
        try:
            with contextlib.ExitStack() as closing:
                return self._walk(parts, closing)
        except (OSError, UnicodeError) as error:
            reason = f"{shown(location)} cannot be opened as a plain file"
            raise ModelReadError(reason, OUTSIDE) from error

    def _walk(self, parts: list[str], closing: contextlib.ExitStack) -> bytes:
        """Step by step from the folder; each step refuses to be a link."""
        place = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        closing.callback(os.close, place)
        for part in parts[:-1]:
            place = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
            closing.callback(os.close, place)
        # a pipe would block, a terminal would be taken over
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
        last = os.open(parts[-1], flags, dir_fd=place)
        file = closing.enter_context(os.fdopen(last, "rb"))
        found = os.fstat(last)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise ModelReadError("external data must be a regular file with one name", OUTSIDE)
        if found.st_size > self._unread:
            raise ModelReadError(f"the model holds more than {MAX_BYTES} bytes in all", OUTSIDE)
        return file.read(found.st_size)
