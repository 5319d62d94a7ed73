"""Reader: turn the untrusted bytes of an ONNX file into plain frozen records.

The checker uses only the message classes of the onnx package, to parse the bytes, and none of its
helpers. A file with two readings is refused (`ModelReadError`).
"""

import hashlib
from pathlib import Path
from typing import Final

from lipcert.core.certificate import ExternalFile, read_regular
from lipcert.core.reader.records import ModelReadError, shown

MAX_BYTES: Final = 1 << 30
"""Largest size in bytes of a model with its external data."""
_GZIP: Final = b"\x1f\x8b"


def read_model_bytes(path: Path) -> bytes:
    """Return the bytes of the model file, decompressed if it is a gzip.

    path: the user's own, so links are followed.
    """
    content = read_regular(path, MAX_BYTES + 1, ModelReadError)
    if content.startswith(_GZIP):
        from lipcert.core.reader.external import decompressed  # noqa: PLC0415  for such alone

        content = decompressed(content, MAX_BYTES)
    if len(content) > MAX_BYTES:
        raise ModelReadError(f"{shown(str(path))} is larger than {MAX_BYTES} bytes", "LC002")
    return content


class Folder:
    """The folder of a model, and the external data read from it so far.

    unread: bytes of files that may still be read. untaken: bytes of tensors that may still be taken
    from these files; tensors may overlap, but each is converted separately.
    """

    def __init__(self, path: Path, budget: int) -> None:
        self.path = path
        self.unread = self.untaken = budget
        self.contents: dict[str, bytes] = {}

    def files(self) -> tuple[ExternalFile, ...]:
        """Return the files that were read, sorted by location."""
        return tuple(
            ExternalFile(location, hashlib.sha256(content).hexdigest(), len(content))
            for location, content in sorted(self.contents.items())
        )
