"""Blobs: tensors in files that are named by their digest.

What enters: tensors by name, or a digest and what it should hold. What leaves: a durable file, or
arrays. Invariant: arrays that leave have the digest of their name and the shapes expected of them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

from lipcert.audit.trace.faults import Fault, FaultKind, FormError, TraceError
from lipcert.audit.trace.files import BLOBS, make_private_folder, open_regular, replace_durably
from lipcert.audit.trace.tensors import Array, StoredTensor, bytes_of, tensors_in

MAX_BLOB_BYTES: Final = 1 << 36
Shape = tuple[int, ...]


@final
@dataclass(frozen=True, slots=True)
class Expected:
    """What a blob must hold: no names but those of `shapes` (None: any), all of them if complete.

    examples: length of the first axis of "input" and "losses", None where it is not known. (What a
    loss calls its logits and labels may have been flattened.)
    """

    shapes: Mapping[str, Shape] | None = None
    complete: bool = False
    examples: int | None = None

    def check(self, tensors: Mapping[str, Array]) -> None:
        """`FormError` for tensors that are not the expected ones."""
        if self.shapes is not None:
            for name, array in tensors.items():
                if name not in self.shapes:
                    raise FormError(f"the manifest knows no tensor {name[:80]!r}")
                if array.shape != self.shapes[name]:
                    raise FormError(
                        f"{name[:80]!r} has shape {array.shape}, not {self.shapes[name]}"
                    )
            if self.complete and len(tensors) != len(self.shapes):
                raise FormError(f"{min(set(self.shapes) - set(tensors))[:80]!r} is missing")
        if self.examples is not None:
            for name in {"input", "losses"} & set(tensors):
                array = tensors[name]
                if array.shape[:1] != (self.examples,):
                    raise FormError(
                        f"{name[:80]!r} of shape {array.shape} holds not {self.examples} examples"
                    )


@final
@dataclass(frozen=True, slots=True)
class Blob:
    """Tensors that lie in a file of the trace; equal if the bytes are."""

    sha256: str
    folder: Path = field(compare=False, repr=False)
    expected: Expected = field(default_factory=Expected, compare=False, repr=False)

    @property
    def file(self) -> str:
        """Path within the trace."""
        return f"{BLOBS}/{self.sha256}"

    def tensors(self) -> dict[str, Array]:
        """Read the file; TraceError where it is not what the line named."""
        try:
            data = self._read()
            if hashlib.sha256(data).hexdigest() != self.sha256:
                raise self._error("is corrupt: its digest is not its name")
            tensors = tensors_in(data)
            self.expected.check(tensors)
        except OSError as error:
            raise self._error(f"cannot be read: {error.strerror or error}") from error
        except FormError as error:
            raise self._error(str(error)) from error
        return tensors

    def _read(self) -> bytes:
        if (self.folder / BLOBS).is_symlink():
            raise self._error("lies behind a link, which is not followed")
        with open_regular(self.folder / self.file) as file:
            if os.fstat(file.fileno()).st_size > MAX_BLOB_BYTES:
                raise self._error(f"is larger than {MAX_BLOB_BYTES} bytes")
            return file.read()

    def _error(self, message: str) -> TraceError:
        return TraceError(Fault(FaultKind.BLOB, self.file, 0, message))


@final
class BlobStore:
    """The folder that blobs are written to; one writer for each rank."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self._temporary = folder / BLOBS / f".unfinished-{rank}"
        make_private_folder(folder / BLOBS)
        self._temporary.unlink(missing_ok=True)

    def put(self, tensors: Mapping[str, StoredTensor]) -> Blob:
        """Store tensors; when this returns they are on the disk under their digest."""
        pieces = bytes_of(tensors)
        digest = hashlib.sha256()
        for piece in pieces:
            digest.update(piece)
        blob = Blob(digest.hexdigest(), self._folder)
        path = self._folder / blob.file
        if not path.is_file() or path.stat().st_size != sum(piece.nbytes for piece in pieces):
            replace_durably(path, self._temporary, pieces)
        return blob
