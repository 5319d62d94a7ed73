"""The file of a model, decompressed if it is a gzip, and the folder that it lies in."""

from __future__ import annotations

import hashlib
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
    """The folder of a model, and the external data read from it so far.

    unread: bytes of files that may still be read; untaken: of tensors taken out of them, which may
    overlap but are each converted by themselves.
    """

    def __init__(self, path: Path, budget: int) -> None:
        self.path = path
        self.unread = self.untaken = budget
        self.contents: dict[str, bytes] = {}

    def files(self) -> tuple[ExternalFile, ...]:
        """What was read, by location."""
        return tuple(
            ExternalFile(location, hashlib.sha256(content).hexdigest(), len(content))
            for location, content in sorted(self.contents.items())
        )
