"""Turn a TensorProto into a `Tensor`: all numbers present, in one place, of a plain type."""

import math
from typing import Final

from onnx.onnx_ml_pb2 import TensorProto

from lipcert.core.reader import Folder
from lipcert.core.reader.records import ModelReadError, Tensor, shown

MAX_RANK: Final = 16
"""Largest number of dimensions of a tensor."""
MAX_ELEMENTS: Final = 1 << 28
"""Largest number of entries of a tensor."""

_WORDS: Final = "uint8 int8 uint16 int16 int32 int64 bool float16 uint32 uint64 bfloat16"
DTYPES: Final = {TensorProto.FLOAT: "float32", TensorProto.DOUBLE: "float64"} | {
    TensorProto.DataType.Value(word.upper()): word for word in _WORDS.split()
}
"""The types that are read, by their number in TensorProto.DataType."""
_UNREAD: Final = {*TensorProto.DataType.values()} - {TensorProto.UNDEFINED, *DTYPES}
"""The others: text, complex numbers, and types of a byte or less that are not plain integers."""

_LISTS: Final = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")


def read_tensor(proto: TensorProto, folder: Folder) -> Tensor:
    """Return the tensor, or its raw description if its type is not read (`unread_tensor`).

    Raise `ModelReadError` with its name if its numbers are incomplete or ambiguous.
    """
    if proto.data_type in _UNREAD:
        from lipcert.core.reader.listed import unread_tensor  # noqa: PLC0415  for such alone

        return unread_tensor(proto)
    try:
        return _read(proto, folder)
    except ModelReadError as error:
        raise error.at(f"tensor {shown(proto.name)}", "LC016") from None


def _read(proto: TensorProto, folder: Folder) -> Tensor:
    dtype = DTYPES.get(proto.data_type)
    if dtype is None:
        raise ModelReadError(f"its data type {proto.data_type} is not a plain number type")
    dims = tuple(proto.dims)
    if len(dims) > MAX_RANK or any(not 0 <= dim <= MAX_ELEMENTS for dim in dims):
        raise ModelReadError("its dimensions are negative, too large or too many")
    if math.prod(dims) > MAX_ELEMENTS:
        raise ModelReadError(f"it claims more than {MAX_ELEMENTS} numbers", "LC002")
    lists = [name for name in _LISTS if len(getattr(proto, name))]
    external = len(proto.external_data) > 0 or proto.data_location != TensorProto.DEFAULT
    if len(lists) + bool(proto.raw_data) + external > 1:
        raise ModelReadError("it has data in several places")
    if proto.HasField("segment") or proto.string_data:
        raise ModelReadError("it is segmented or holds text")
    content: bytes | memoryview
    if external:
        from lipcert.core.reader.external import external_content  # noqa: PLC0415  for such alone

        content = external_content(proto, folder)
    elif lists:
        from lipcert.core.reader.listed import listed_content  # noqa: PLC0415

        content = listed_content(proto, dtype, lists[0])
    else:
        content = proto.raw_data
    if dtype == "bool" and bytes(content).translate(None, b"\x00\x01"):
        raise ModelReadError("a truth value is neither 0 nor 1")
    return Tensor(dtype, dims, content)
