"""Blobs: tensors in files that are named by their digest, in the format safetensors.

What enters: tensors by name, a digest and what it should hold, or untrusted bytes. What leaves: the
same bytes for the same tensors, a durable file, or numpy arrays, without torch and without pickle;
`FormError` where the bytes are anything else. Invariants: the data of the tensors fill the bytes
behind the header exactly, without gaps and without overlap; arrays that leave have the digest of
their name and the shapes expected of them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias, final

import numpy as np
import numpy.typing as npt

from lipcert.audit.trace.files import BLOBS, make_private_folder, open_regular, replace_durably
from lipcert.audit.trace.spelling import MEMBERS, Fault, FaultKind, FormError, TraceError

Array: TypeAlias = npt.NDArray[Any]

MAX_TENSORS: Final = 100_000
_MAX_HEADER: Final = 1 << 25
_MAX_AXES: Final = 32
_ALIGNMENT: Final = 8
_BFLOAT16: Final = "BF16"
_TYPES: Final[Mapping[str, str]] = {
    "BOOL": "|b1",
    "U8": "|u1",
    "I8": "|i1",
    "U16": "<u2",
    "I16": "<i2",
    "U32": "<u4",
    "I32": "<i4",
    "U64": "<u8",
    "I64": "<i8",
    "F16": "<f2",
    _BFLOAT16: "<u2",
    "F32": "<f4",
    "F64": "<f8",
}
_NAMES: Final = {code: name for name, code in _TYPES.items() if name != _BFLOAT16}
MAX_BLOB_BYTES: Final = 1 << 36
Shape = tuple[int, ...]


@final
@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """A tensor on its way into a file: its type in the file, and numbers of that width.

    bfloat16, which numpy does not have, comes as the uint16 of its bits.
    """

    kind: str
    array: Array

    def __post_init__(self) -> None:
        if (
            self.kind not in _TYPES
            or self.array.dtype.itemsize != np.dtype(_TYPES[self.kind]).itemsize
        ):
            raise ValueError(f"{self.array.dtype} is not the data of a tensor of type {self.kind}")


@final
@dataclass(frozen=True, slots=True)
class _Entry:
    """What the header says of a tensor."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def stored(array: Array) -> StoredTensor:
    """An array as it is."""
    code = array.dtype.newbyteorder("<").str.replace("=", "<")
    if code not in _NAMES:
        raise ValueError(f"tensors of type {array.dtype} are not stored in traces")
    return StoredTensor(_NAMES[code], array.astype(code, copy=False))


def stored_as(kind: str, array: Array) -> StoredTensor | None:
    """An array in the type of a file, rounded to it; None where numpy has no such type."""
    if kind not in _TYPES or kind == _BFLOAT16:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        return StoredTensor(kind, array.astype(_TYPES[kind]))


def bytes_of(tensors: Mapping[str, StoredTensor]) -> list[memoryview]:
    """The file, in pieces: a header and the numbers of each tensor in order of the names."""
    header: dict[str, object] = {}
    pieces: list[memoryview] = []
    end = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        piece = np.ascontiguousarray(tensor.array).reshape(-1).view(np.uint8).data
        header[name] = {
            "dtype": tensor.kind,
            "shape": list(tensor.array.shape),
            "data_offsets": [end, end + piece.nbytes],
        }
        end += piece.nbytes
        pieces.append(piece)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=True).encode("ascii")
    text += b" " * (-len(text) % _ALIGNMENT)
    return [memoryview(struct.pack("<Q", len(text)) + text), *pieces]


def tensors_in(data: bytes) -> dict[str, Array]:
    """The arrays in a file, read-only views of its bytes; bfloat16 as the float32 of its value."""
    text, body = _parts(data)
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except FormError:
        raise
    except (ValueError, RecursionError) as error:
        raise FormError(f"the header is not JSON ({str(error)[:120]})") from error
    entries: dict[str, _Entry] = MEMBERS.read_any(dict[str, _Entry], header, "header")
    if len(entries) > MAX_TENSORS:
        raise FormError(f"the header holds more than {MAX_TENSORS} tensors")
    found: dict[str, Array] = {}
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        found[name], end = _tensor(entry, f"tensor {name[:80]!r}", body, end)
    if end != len(body):
        raise FormError(f"{len(body) - end} bytes belong to no tensor")
    return found


def _parts(data: bytes) -> tuple[bytes, memoryview]:
    """Header and numbers."""
    if len(data) < 8:
        raise FormError("too short for a header")
    length = int.from_bytes(data[:8], "little")
    if length > min(_MAX_HEADER, len(data) - 8):
        if data[:2] in {b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"}:
            raise FormError("looks like a pickle or a file of torch.save, which is never read")
        raise FormError(f"a header of {length} bytes is longer than the file or than allowed")
    return data[8 : 8 + length], memoryview(data)[8 + length :]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise FormError("a name is given twice in the header")
    return members


def _tensor(entry: _Entry, where: str, body: memoryview, begin: int) -> tuple[Array, int]:
    """The tensor that begins at this byte, and where it ends."""
    kind, shape, (first, end) = entry.dtype, entry.shape, entry.data_offsets
    if kind not in _TYPES:
        raise FormError(f"{where}: the type {kind[:20]!r} is not known")
    numbers = math.prod(shape)
    if len(shape) > _MAX_AXES or (first, end) != (
        begin,
        begin + numbers * np.dtype(_TYPES[kind]).itemsize,
    ):
        raise FormError(f"{where}: its place does not fit its type and shape")
    if end > len(body):
        raise FormError(f"{where}: ends behind the end of the file")
    try:
        array = np.frombuffer(body[begin:end], dtype=_TYPES["U8" if kind == "BOOL" else kind])
        array = array.reshape(shape)
    except ValueError as error:
        raise FormError(f"{where}: {error}") from error
    return _values(kind, array, where), end


def _values(kind: str, array: Array, where: str) -> Array:
    if kind == "BOOL":
        if array.size and int(array.max()) > 1:
            raise FormError(f"{where}: a truth value is neither 0 nor 1")
        array = array.view(np.bool_)
    elif kind == _BFLOAT16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    array.setflags(write=False)
    return array


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
