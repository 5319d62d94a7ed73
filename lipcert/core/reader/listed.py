"""Read tensors that are not plain bytes: lists of numbers, and types that are not read."""

from typing import Final

import numpy as np
from onnx.onnx_ml_pb2 import TensorProto

from lipcert.core.reader.records import ModelReadError, Tensor, shown

_INT32_DATA: Final = frozenset(
    {"int8", "int16", "int32", "uint8", "uint16", "bool", "float16", "bfloat16"}
)
_FIELD: Final = {
    "float32": "float_data",
    "float64": "double_data",
    "int64": "int64_data",
    "uint32": "uint64_data",
    "uint64": "uint64_data",
    **dict.fromkeys(_INT32_DATA, "int32_data"),
}
_BITS: Final = {"float16": "uint16", "bfloat16": "uint16", "bool": "uint8"}
"""Types that int32_data stores as bit patterns, with the integer types of these patterns."""


def listed_content(proto: TensorProto, dtype: str, field: str) -> bytes:
    """Return the bytes of listed numbers; refuse a number that its type cannot represent."""
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


def unread_tensor(proto: TensorProto) -> Tensor:
    """Return the serialized description, without its name, of a tensor whose type is not read."""
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
