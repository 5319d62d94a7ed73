"""Keys: what names the examples of a trace that does not hold them.

A batch is named by HMAC-SHA256 of its tensors, as bytes, under a random key of 256 bits. The key
lies beside the trace, in `FOLDER.key`, readable by its owner alone, and belongs with the data: with
it, an audit tells whether given examples are those of the run; without it, the names tell nothing,
and no guess of an example can be tried out on them. (The gradients before the noise, which a trace
holds at detailed steps, are another matter.) Invariant: a trace has one key for all ranks and all
times, of which its manifest states a digest.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self, final

from lipcert.audit.trace.blobs import StoredTensor, bytes_of
from lipcert.audit.trace.files import MANIFEST, awaited, open_regular, replace_durably
from lipcert.errors import NoVerdictError, UsageError

_BYTES: Final = 32


def key_path(folder: Path) -> Path:
    """Where the key of a trace lies."""
    place = folder.absolute()
    return place.with_name(f"{place.name}.key")


@final
@dataclass(frozen=True, slots=True)
class ExamplesKey:
    """A secret; its digest tells keys apart, and nothing of the secret."""

    secret: bytes = field(repr=False)

    @property
    def digest(self) -> str:
        """What a manifest states of it."""
        return hashlib.sha256(b"lipcert examples key" + self.secret).hexdigest()

    def name(self, tensors: Mapping[str, StoredTensor]) -> str:
        """The name of these tensors: a keyed digest of names, types, shapes and numbers."""
        named = hmac.new(self.secret, digestmod="sha256")
        for piece in bytes_of(tensors):
            named.update(piece)
        return named.hexdigest()

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The key of a trace; None where there is none, or none that can be read."""
        try:
            with open_regular(key_path(folder)) as file:
                secret = bytes.fromhex(file.read(4 * _BYTES).decode("ascii"))
        except (OSError, ValueError):
            return None
        return cls(secret) if len(secret) == _BYTES else None

    @classmethod
    def of(cls, folder: Path, rank: int) -> Self:
        """The key for a recorder of the trace; rank 0 draws a new one, the others wait."""
        if rank == 0 and cls.read(folder) is None:
            cls._draw(folder)
        return awaited(key_path(folder), rank, lambda: cls.read(folder))

    @classmethod
    def _draw(cls, folder: Path) -> None:
        path = key_path(folder)
        if path.exists() or (folder / MANIFEST).exists():
            raise UsageError(
                f"trace: {path}, the key of the examples of {folder}, is missing or damaged: put "
                "it back, or name a new folder"
            )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            text = f"{secrets.token_hex(_BYTES)}\n".encode("ascii")
            replace_durably(path, path.with_name(f".{path.name}"), [text])
        except OSError as error:
            raise NoVerdictError(f"trace: cannot write {path}: {error.strerror}") from error
