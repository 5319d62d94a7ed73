"""From a TensorProto to a `Tensor`: its numbers in one place, complete, of a plain type.

No message that is interpreted, here or in `model`, has an unknown field: protobuf keeps what it
does not know, so that two programs may read two models from the same bytes.
"""

from __future__ import annotations

import math
from typing import Final

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from onnx.onnx_ml_pb2 import TensorProto

from lipcert.core.reader.files import Folder
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
_UNREAD: Final = frozenset({8, 14, 15, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26})
"""the others: text, complex numbers, and those of a byte or less that are not plain integers"""

_LISTS: Final = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")


def check_known(message: Message) -> None:
    """Raise `ModelReadError` if a message itself has a field that its type does not declare."""
    unknown = UnknownFieldSet(message)
    if len(unknown):
        kind = message.DESCRIPTOR.name
        raise ModelReadError(f"a {kind} has a field {unknown[0].field_number} that is not known")


def read_tensor(proto: TensorProto, folder: Folder) -> Tensor:
    """The numbers of a tensor, or what the file says of one whose type is not read.

    `ModelReadError` with its name where they are not all there.
    """
    check_known(proto)
    if proto.data_type in _UNREAD:
        from lipcert.core.reader.unread import unread_tensor  # noqa: PLC0415  for such alone

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
