"""Decompress model files that are gzips, up to a limited size."""

import zlib
from typing import Final

from lipcert.core.reader.records import ModelReadError

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
