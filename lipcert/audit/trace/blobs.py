"""Blobs: tensors in files that are named by their digest.

A file is one line of JSON, {"name": {"dtype": …, "shape": […]}, …} in order of the names, padded by
blanks to whole words, and then the little-endian numbers of each tensor. Equal tensors have equal
bytes; untrusted bytes become numpy arrays, without torch and without pickle, or raise `FormError`.
Invariants: the tensors fill the bytes behind the line exactly; arrays that are read have the digest
of their name and the expected shapes.

Examples that a trace does not hold are named by HMAC-SHA256 of these bytes, under a random key of
256 bits. The key lies beside the trace, in `FOLDER.key`, readable only by its owner, and belongs
with the data: with it, an audit can decide whether given examples are those of the run; without it,
the names reveal nothing, and no guess of an example can be tested on them. (The gradients before
the noise, which a trace holds at detailed steps, are another matter.) Invariant: a trace has one
key for all ranks and all times, and its manifest states a digest of it.
"""

import hashlib
import hmac
import math
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from lipcert.audit.trace.files import (
    BLOBS,
    MANIFEST,
    MEMBERS,
    Fault,
    FaultKind,
    FormError,
    TraceError,
    awaited,
    make_private_folder,
    open_regular,
    replace_durably,
    spelled,
    understood,
)
from lipcert.errors import NoVerdictError, UsageError

Array: TypeAlias = npt.NDArray[Any]

MAX_TENSORS: Final = 100_000
_MAX_HEADER: Final = 1 << 25
_ALIGNMENT: Final = 8
_BFLOAT16: Final = "BF16"
_MOST_AXES: Final = 64
"""Most lengths of a tensor: many of them are slow to multiply."""
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
_KEY_BYTES: Final = 32
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """A tensor on its way into a file: its type in the file, and numbers of that width.

    bfloat16, which numpy lacks, is represented as the uint16 of its bits.
    """

    kind: str
    array: Array

    def __post_init__(self) -> None:
        if (
            self.kind not in _TYPES
            or self.array.dtype.itemsize != np.dtype(_TYPES[self.kind]).itemsize
        ):
            raise ValueError(f"{self.array.dtype} is not the data of a tensor of type {self.kind}")


@dataclass(frozen=True, slots=True)
class _Entry:
    """The entry of a tensor in the first line."""

    dtype: str
    shape: Shape

    @property
    def size(self) -> int:
        """The size of the tensor in bytes."""
        return math.prod(self.shape) * np.dtype(_TYPES[self.dtype]).itemsize


def stored(array: Array) -> StoredTensor:
    """Return an array as a stored tensor of its own type."""
    code = array.dtype.newbyteorder("<").str.replace("=", "<")
    if code not in _NAMES:
        raise ValueError(f"tensors of type {array.dtype} are not stored in traces")
    return StoredTensor(_NAMES[code], array.astype(code, copy=False))


def stored_as(kind: str, array: Array) -> StoredTensor | None:
    """Return an array rounded to a type of the file.

    None if numpy has no such type, or if the type would cut off numbers that are not whole.
    """
    if kind not in _TYPES or kind == _BFLOAT16:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        found = array.astype(_TYPES[kind])
    is_cut = found.dtype.kind != "f" and not np.array_equal(found, array)
    return None if is_cut else StoredTensor(kind, found)


def bytes_of(tensors: Mapping[str, StoredTensor]) -> list[memoryview]:
    """Return the file in pieces: a header, and the numbers of each tensor in order of the names."""
    header = _header({name: _Entry(x.kind, x.array.shape) for name, x in tensors.items()})
    numbers = (np.ravel(tensors[name].array).view(np.uint8).data for name in sorted(tensors))
    return [memoryview(header), *numbers]


def _header(entries: Mapping[str, _Entry]) -> bytes:
    """Return the first line of a file of these tensors; there is exactly one spelling."""
    text = spelled({name: MEMBERS.write(entry) for name, entry in entries.items()})
    return text + b" " * (-(len(text) + 1) % _ALIGNMENT) + b"\n"


def tensors_in(data: bytes) -> dict[str, Array]:
    """Return the arrays in a file, as read-only views of its bytes; bfloat16 as the float32 of its
    value.

    Raises:
        FormError: unless the file is the one that is written for these arrays: the header is
            written again and compared.
    """
    begin = data.find(b"\n", 0, _MAX_HEADER) + 1
    members = understood(data[:begin].rstrip())
    entries: dict[str, _Entry] = MEMBERS.read_any(dict[str, _Entry], members, "header")
    if len(entries) > MAX_TENSORS:
        raise FormError(f"the header holds more than {MAX_TENSORS} tensors")
    for name, entry in entries.items():
        if entry.dtype not in _TYPES or len(entry.shape) > _MOST_AXES:
            what = f"{len(entry.shape)} axes of type {entry.dtype[:20]!r}"
            raise FormError(f"tensor {name[:80]!r}: {what} are not what a recorder writes")
    if _header(entries) != data[:begin]:
        raise FormError("the header is not padded to whole words")
    if sum(entry.size for entry in entries.values()) != len(data) - begin:
        raise FormError(f"the {len(data) - begin} bytes behind the header are not its tensors")
    found: dict[str, Array] = {}
    body = memoryview(data)
    for name, entry in sorted(entries.items()):
        begin, piece = begin + entry.size, body[begin : begin + entry.size]
        found[name] = _array(entry, piece, f"tensor {name[:80]!r}")
    return found


def _array(entry: _Entry, numbers: memoryview, where: str) -> Array:
    try:
        kind = _TYPES["U8" if entry.dtype == "BOOL" else entry.dtype]
        array = np.frombuffer(numbers, dtype=kind).reshape(entry.shape)
    except ValueError as error:
        raise FormError(f"{where}: {error}") from error
    if entry.dtype == "BOOL":
        if array.size and int(array.max()) > 1:
            raise FormError(f"{where}: a boolean is neither 0 nor 1")
        array = array.view(np.bool_)
    elif entry.dtype == _BFLOAT16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    array.setflags(write=False)
    return array


@dataclass(frozen=True, slots=True)
class Expected:
    """The required content of a blob: only names of `shapes` (None: any), all of them if complete.

    examples: length of the first axis of "input", None if not known. (A loss may have flattened its
    labels.)
    """

    shapes: Mapping[str, Shape] | None = None
    complete: bool = False
    examples: int | None = None

    def check(self, tensors: Mapping[str, Array]) -> None:
        """Raise `FormError` for tensors that are not the expected ones."""
        if self.shapes is not None:
            for name, array in tensors.items():
                if name not in self.shapes:
                    raise FormError(f"the manifest has no tensor {name[:80]!r}")
                if array.shape != self.shapes[name]:
                    raise FormError(
                        f"{name[:80]!r} has shape {array.shape}, not {self.shapes[name]}"
                    )
            if self.complete and len(tensors) != len(self.shapes):
                raise FormError(f"{min(set(self.shapes) - set(tensors))[:80]!r} is missing")
        shape = (self.examples,) if "input" not in tensors else tensors["input"].shape
        if self.examples is not None and shape[:1] != (self.examples,):
            raise FormError(f"'input' of shape {shape} is not of {self.examples} examples")


@dataclass(frozen=True, slots=True)
class Blob:
    """Tensors that lie in a file of the trace; two blobs are equal if their bytes are."""

    sha256: str
    folder: Path = field(compare=False, repr=False)
    expected: Expected = field(default_factory=Expected, compare=False, repr=False)

    @property
    def file(self) -> str:
        """Its path within the trace."""
        return f"{BLOBS}/{self.sha256}"

    def tensors(self) -> dict[str, Array]:
        """Read the file; raise TraceError if it is not what the line named."""
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


def key_path(folder: Path) -> Path:
    """Return the path of the key of a trace."""
    place = folder.absolute()
    return place.with_name(f"{place.name}.key")


@dataclass(frozen=True, slots=True)
class ExamplesKey:
    """A secret key; its digest identifies it, and reveals nothing about the secret."""

    secret: bytes = field(repr=False)

    @property
    def digest(self) -> str:
        """The digest that a manifest states."""
        return hashlib.sha256(b"lipcert examples key" + self.secret).hexdigest()

    def name(self, tensors: Mapping[str, StoredTensor]) -> str:
        """Return the name of these tensors: a keyed digest of names, types, shapes and numbers."""
        named = hmac.new(self.secret, digestmod="sha256")
        for piece in bytes_of(tensors):
            named.update(piece)
        return named.hexdigest()

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Return the key of a trace; None if there is none, or none that can be read."""
        try:
            with open_regular(key_path(folder)) as file:
                secret = bytes.fromhex(file.read(4 * _KEY_BYTES).decode("ascii"))
        except (OSError, ValueError):
            return None
        return cls(secret) if len(secret) == _KEY_BYTES else None

    @classmethod
    def of(cls, folder: Path, rank: int) -> Self:
        """Return the key for a recorder of the trace; rank 0 draws a new one, and the others wait
        for it."""
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
            text = f"{secrets.token_hex(_KEY_BYTES)}\n".encode("ascii")
            replace_durably(path, path.with_name(f".{path.name}"), [text])
        except OSError as error:
            raise NoVerdictError(f"trace: cannot write {path}: {error.strerror}") from error
