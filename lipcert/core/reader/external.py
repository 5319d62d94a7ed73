"""Read what a model file does not hold as plain bytes: a gzip, and external data.

External data are tensors in files with untrusted names below the folder of the model.

Invariants: nothing outside the folder is opened; no link is followed; only regular files with a
single name are read (a hard link may expose another file's content), each once; all files together
stay within a budget of bytes.
"""

import contextlib
import os
import stat
import zlib
from typing import Final

from onnx.onnx_ml_pb2 import TensorProto

from lipcert.core.reader import MAX_BYTES, Folder
from lipcert.core.reader.records import ModelReadError, shown

_FORBIDDEN: Final = frozenset("\\:\0")
_SAFE_FLAGS: Final = ("O_NOFOLLOW", "O_NONBLOCK", "O_DIRECTORY", "O_NOCTTY")
_KEYS: Final = frozenset({"location", "offset", "length", "checksum"})
_ROOM: Final = 1 << 26
_RATIO: Final = 20
"""A gzip file may expand to `_ROOM` bytes plus this many times its own size."""


def decompressed(content: bytes, most: int) -> bytes:
    """Return the content of a single gzip stream, of at most `most` bytes; refuse trailing data."""
    limit = min(most, _ROOM + _RATIO * len(content))
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


def _refused(reason: str) -> ModelReadError:
    return ModelReadError(reason, "LC015")


def external_content(proto: TensorProto, folder: Folder) -> memoryview:
    """Return the bytes of a tensor that is stored in another file."""
    entries = {entry.key: entry.value for entry in proto.external_data}
    if proto.data_location != TensorProto.EXTERNAL or len(entries) < len(proto.external_data):
        raise _refused("its external data are not marked as such, or have a key twice")
    if not set(entries) <= _KEYS or "location" not in entries:
        raise _refused("its external data have no location, or an unknown key")
    location = entries["location"]
    if location not in folder.contents:
        folder.contents[location] = _opened(folder, location)
        folder.unread -= len(folder.contents[location])
    whole = folder.contents[location]
    start = _count(entries.get("offset", "0"))
    length = _count(entries["length"]) if "length" in entries else len(whole) - start
    if not 0 <= start <= start + length <= len(whole):
        raise _refused(f"its external file has {len(whole)} bytes, fewer than it claims")
    folder.untaken -= length
    if folder.untaken < 0:
        raise _refused(f"the model holds more than {MAX_BYTES} bytes in all")
    return memoryview(whole)[start : start + length]


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise _refused(f"{shown(text)} is not a number of bytes")
    return int(text)


def _opened(folder: Folder, location: str) -> bytes:
    parts = location.split("/")
    if any(part in {"", ".", ".."} or _FORBIDDEN & set(part) for part in parts):
        raise _refused(f"{shown(location)} is not a path inside the model's folder")
    if os.open not in os.supports_dir_fd or not all(hasattr(os, flag) for flag in _SAFE_FLAGS):
        raise _refused("this system cannot open external data without following links")
    try:
        with contextlib.ExitStack() as closing:
            return _walked(folder, parts, closing)
    except (OSError, UnicodeError) as error:
        raise _refused(f"{shown(location)} cannot be opened as a plain file") from error


def _walked(folder: Folder, parts: list[str], closing: contextlib.ExitStack) -> bytes:
    """Open the path part by part from the folder, refusing links, and return the file's bytes."""
    place = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY)
    closing.callback(os.close, place)
    for part in parts[:-1]:
        place = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
        closing.callback(os.close, place)
    # O_NONBLOCK: a pipe would block; O_NOCTTY: a terminal could become the process's own
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    last = os.open(parts[-1], flags, dir_fd=place)
    file = closing.enter_context(os.fdopen(last, "rb"))
    found = os.fstat(last)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        raise _refused("external data must be a regular file with one name")
    if found.st_size > folder.unread:
        raise _refused(f"the model holds more than {MAX_BYTES} bytes in all")
    return file.read(found.st_size)
