"""From a path to bytes: read once, decompressed under a cap, hashed, and shown to be one model.

What enters: a path. What leaves: the very bytes that will be parsed and their SHA-256. Invariant:
no other file is opened, and the bytes are one serialised ModelProto, not several concatenated
ones (protobuf would merge them silently).
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from lipcert.errors import ModelFileError
from lipcert.importer.limits import MAX_FILE_BYTES

_GZIP: Final = b"\x1f\x8b"
_ROOM: Final = 1 << 26
_RATIO: Final = 20
"""a gzip file may expand to _ROOM bytes, and further by this factor"""
_SINGULAR: Final = frozenset({1, 2, 3, 4, 5, 6, 7})  # ir_version .. graph
_REPEATED: Final = frozenset({8, 14, 20, 25, 26})  # opset_import, metadata, training, functions


@final
@dataclass(frozen=True, slots=True)
class ModelBytes:
    """The bytes to parse and their digest."""

    content: bytes
    sha256: str


def read_bytes(path: Path) -> ModelBytes:
    """Read a model file, plain or gzip-compressed; ModelFileError where it is not one."""
    try:
        if not path.is_file():
            raise _refuse(path, "LC001", "there is no such file, or it is not a regular file")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise _refuse(path, "LC002", f"is larger than {MAX_FILE_BYTES} bytes")
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise _refuse(path, "LC001", f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise _refuse(path, "LC001", "is not a valid path") from error
    if len(content) > MAX_FILE_BYTES:
        raise _refuse(path, "LC002", f"is larger than {MAX_FILE_BYTES} bytes")
    if content.startswith(_GZIP):
        content = _decompress(path, content)
    if not content:
        raise _refuse(path, "LC001", "is empty")
    _check_single_model(path, content)
    return ModelBytes(content, hashlib.sha256(content).hexdigest())


def _refuse(path: Path, code: str, why: str) -> ModelFileError:
    return ModelFileError(f"{str(path)!r} {why}", code)


def _decompress(path: Path, content: bytes) -> bytes:
    limit = min(MAX_FILE_BYTES, _ROOM + _RATIO * len(content))
    decoder = zlib.decompressobj(wbits=31)
    try:
        plain = decoder.decompress(content, limit + 1)
    except zlib.error as error:
        raise _refuse(path, "LC001", f"is not a valid gzip file: {error}") from error
    if len(plain) > limit:
        raise _refuse(path, "LC002", f"expands to more than {limit} bytes")
    if not decoder.eof or decoder.unused_data:
        raise _refuse(path, "LC001", "is a truncated gzip file, or has bytes after its end")
    return plain


def _check_single_model(path: Path, content: bytes) -> None:
    seen: set[int] = set()
    try:
        for field in _top_level_fields(content):
            if field not in _SINGULAR | _REPEATED:
                raise _refuse(path, "LC001", f"is not an ONNX model (unknown field {field})")
            if field in seen and field in _SINGULAR:
                raise _refuse(path, "LC001", "holds several models one after another")
            seen.add(field)
    except (IndexError, OverflowError) as error:
        raise _refuse(path, "LC001", "is not an ONNX model, or is truncated") from error
    if 7 not in seen:
        raise _refuse(path, "LC001", "is not an ONNX model: it holds no graph")


def _top_level_fields(content: bytes) -> Iterator[int]:
    """Field numbers of a protobuf message, in order; IndexError where it is cut off."""
    position, end = 0, len(content)
    while position < end:
        key, position = _varint(content, position)
        match key & 7:
            case 0:
                _, position = _varint(content, position)
            case 1:
                position += 8
            case 2:
                length, position = _varint(content, position)
                position += length
            case 5:
                position += 4
            case _:
                raise IndexError
        if position > end:
            raise IndexError
        yield key >> 3


def _varint(content: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise OverflowError
