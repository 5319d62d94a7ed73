"""Tensors as bytes: the format safetensors, written and read without torch and without pickle.

What enters: tensors by name, or untrusted bytes. What leaves: the same bytes for the same tensors,
or numpy arrays; `FormError` where the bytes are anything else. Invariant: the data of the tensors
fill the bytes behind the header exactly, without gaps and without overlap.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

import numpy as np
import numpy.typing as npt

from lipcert.audit.trace.faults import FormError
from lipcert.audit.trace.spelling import MEMBERS

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
    if data[:2] in {b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"}:
        raise FormError("looks like a pickle or a file of torch.save, which is never read")
    if len(data) < 8:
        raise FormError("too short for a header")
    length = int.from_bytes(data[:8], "little")
    if length > min(_MAX_HEADER, len(data) - 8):
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
