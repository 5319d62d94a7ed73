"""From a TensorProto to a `Tensor`: its numbers in one place, complete, of a plain type."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from onnx.onnx_ml_pb2 import TensorProto

from lipcert.core.reader.files import OUTSIDE, Folder
from lipcert.core.reader.records import ModelReadError, Tensor, shown

MAX_RANK: Final = 16
"""dimensions of a tensor"""
MAX_ELEMENTS: Final = 1 << 28
"""numbers of a tensor"""

DTYPES: Final = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    16: "bfloat16",
}
"""types by their number in TensorProto.DataType"""
UNREAD: Final = frozenset({8, 14, 15, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26})
"""the others: text, complex numbers, and those of a byte or less that are not plain integers"""

_INT32_DATA: Final = frozenset(
    {"int8", "int16", "int32", "uint8", "uint16", "bool", "float16", "bfloat16"}
)
_TYPED: Final = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")
_FIELD: Final = {
    "float32": "float_data",
    "float64": "double_data",
    "int64": "int64_data",
    "uint32": "uint64_data",
    "uint64": "uint64_data",
    **dict.fromkeys(_INT32_DATA, "int32_data"),
}
_BITS: Final = {"float16": "uint16", "bfloat16": "uint16", "bool": "uint8"}
"""types that int32_data holds as bit patterns"""
_KEYS: Final = frozenset({"location", "offset", "length", "checksum"})


def read_tensor(proto: TensorProto, folder: Folder) -> Tensor:
    """The numbers of a tensor; `ModelReadError` with its name where they are not all there."""
    try:
        return _read(proto, folder)
    except ModelReadError as error:
        raise error.at(f"tensor {shown(proto.name)}", "LC016") from None


def unread_tensor(proto: TensorProto) -> Tensor:
    """What the file says of a tensor whose type is not read, but for its name."""
    if len(proto.external_data) or proto.data_location != TensorProto.DEFAULT:
        raise ModelReadError(
            f"tensor {shown(proto.name)}: its data type {proto.data_type} is not a plain number"
            " type, and its numbers are stored elsewhere",
            "LC016",
        )
    kept = TensorProto()
    kept.CopyFrom(proto)
    kept.ClearField("name")
    kept.ClearField("doc_string")
    content = kept.SerializeToString(deterministic=True)
    return Tensor("unread", (len(content),), content)


def _read(proto: TensorProto, folder: Folder) -> Tensor:
    dtype = DTYPES.get(proto.data_type)
    if dtype is None:
        raise ModelReadError(f"its data type {proto.data_type} is not a plain number type")
    dims = tuple(proto.dims)
    if len(dims) > MAX_RANK or any(not 0 <= dim <= MAX_ELEMENTS for dim in dims):
        raise ModelReadError("its dimensions are negative, too large or too many")
    if math.prod(dims) > MAX_ELEMENTS:
        raise ModelReadError(f"it claims more than {MAX_ELEMENTS} numbers", "LC002")
    typed = [name for name in _TYPED if len(getattr(proto, name))]
    external = len(proto.external_data) > 0 or proto.data_location != TensorProto.DEFAULT
    if len(typed) + bool(proto.raw_data) + external > 1:
        raise ModelReadError("it has data in several places")
    if proto.HasField("segment") or proto.string_data:
        raise ModelReadError("it is segmented or holds text")
    content: bytes | memoryview
    if external:
        content = _external(proto, folder)
    elif typed:
        content = _typed(proto, dtype, typed[0])
    else:
        content = proto.raw_data
    if dtype == "bool" and bytes(content).translate(None, b"\x00\x01"):
        raise ModelReadError("a truth value is neither 0 nor 1")
    return Tensor(dtype, dims, content)


def _typed(proto: TensorProto, dtype: str, field: str) -> bytes:
    """The bytes of numbers stored one by one, none of which may be changed by its type."""
    if field != _FIELD[dtype]:
        raise ModelReadError(f"{field} cannot hold {dtype}")
    numbers = getattr(proto, field)
    if field in {"float_data", "double_data"}:
        stored = np.asarray(numbers, dtype=dtype)
        return stored.astype(stored.dtype.newbyteorder("<")).tobytes()
    wide = np.asarray(numbers, dtype=np.uint64 if field == "uint64_data" else np.int64)
    narrow = wide.astype(_BITS.get(dtype, dtype))
    if not np.array_equal(narrow, wide):
        raise ModelReadError(f"a number is outside the range of {dtype}")
    return narrow.astype(narrow.dtype.newbyteorder("<")).tobytes()


def _external(proto: TensorProto, folder: Folder) -> memoryview:
    entries = {entry.key: entry.value for entry in proto.external_data}
    if proto.data_location != TensorProto.EXTERNAL or len(entries) < len(proto.external_data):
        raise ModelReadError(
            "its external data are not marked as such, or have a key twice", OUTSIDE
        )
    if not set(entries) <= _KEYS or "location" not in entries:
        raise ModelReadError("its external data have no location, or an unknown key", OUTSIDE)
    whole = folder.read(entries["location"])
    start = _count(entries.get("offset", "0"))
    length = _count(entries["length"]) if "length" in entries else len(whole) - start
    if not 0 <= start <= start + length <= len(whole):
        reason = f"its external file has {len(whole)} bytes, fewer than it claims"
        raise ModelReadError(reason, OUTSIDE)
    folder.take(length)
    return memoryview(whole)[start : start + length]


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ModelReadError(f"{shown(text)} is not a number of bytes", OUTSIDE)
    return int(text)
