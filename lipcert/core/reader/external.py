"""External data: tensors in files of untrusted names below the folder of the model.

Invariants: nothing outside the folder is opened, no link is followed, nothing but a regular file
with a single name (a hard link may be another file's content) is read, and that once, and all files
together keep to a budget.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Final

from onnx.onnx_ml_pb2 import TensorProto

from lipcert.core.reader.files import MAX_BYTES, Folder
from lipcert.core.reader.records import ModelReadError, shown

_FORBIDDEN: Final = frozenset("\\:\0")
_SAFE_FLAGS: Final = ("O_NOFOLLOW", "O_NONBLOCK", "O_DIRECTORY", "O_NOCTTY")
_KEYS: Final = frozenset({"location", "offset", "length", "checksum"})
OUTSIDE: Final = "LC015"
"""code of refused external data"""


def external_content(proto: TensorProto, folder: Folder) -> memoryview:
    """The bytes of a tensor that lies in another file."""
    entries = {entry.key: entry.value for entry in proto.external_data}
    if proto.data_location != TensorProto.EXTERNAL or len(entries) < len(proto.external_data):
        raise ModelReadError(
            "its external data are not marked as such, or have a key twice", OUTSIDE
        )
    if not set(entries) <= _KEYS or "location" not in entries:
        raise ModelReadError("its external data have no location, or an unknown key", OUTSIDE)
    whole = content_at(folder, entries["location"])
    start = _count(entries.get("offset", "0"))
    length = _count(entries["length"]) if "length" in entries else len(whole) - start
    if not 0 <= start <= start + length <= len(whole):
        reason = f"its external file has {len(whole)} bytes, fewer than it claims"
        raise ModelReadError(reason, OUTSIDE)
    _take(folder, length)
    return memoryview(whole)[start : start + length]


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ModelReadError(f"{shown(text)} is not a number of bytes", OUTSIDE)
    return int(text)


def content_at(folder: Folder, location: str) -> bytes:
    """The bytes of a file by its relative location."""
    if location not in folder.contents:
        content = _opened(folder, location)
        folder.unread -= len(content)
        folder.contents[location] = content
    return folder.contents[location]


def _take(folder: Folder, size: int) -> None:
    """Count the bytes of a tensor that lies in a file."""
    folder.untaken -= size
    if folder.untaken < 0:
        raise ModelReadError(f"the model holds more than {MAX_BYTES} bytes in all", OUTSIDE)


def _opened(folder: Folder, location: str) -> bytes:
    parts = location.split("/")
    if any(part in {"", ".", ".."} or _FORBIDDEN & set(part) for part in parts):
        reason = f"{shown(location)} is not a path inside the model's folder"
        raise ModelReadError(reason, OUTSIDE)
    if os.open not in os.supports_dir_fd or not all(hasattr(os, flag) for flag in _SAFE_FLAGS):
        reason = "this system cannot open external data without following links"
        raise ModelReadError(reason, OUTSIDE)
    try:
        with contextlib.ExitStack() as closing:
            return _walked(folder, parts, closing)
    except (OSError, UnicodeError) as error:
        reason = f"{shown(location)} cannot be opened as a plain file"
        raise ModelReadError(reason, OUTSIDE) from error


def _walked(folder: Folder, parts: list[str], closing: contextlib.ExitStack) -> bytes:
    """Step by step from the folder; each step refuses to be a link."""
    place = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY)
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
    if found.st_size > folder.unread:
        raise ModelReadError(f"the model holds more than {MAX_BYTES} bytes in all", OUTSIDE)
    return file.read(found.st_size)
