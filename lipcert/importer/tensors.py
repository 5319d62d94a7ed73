"""From a TensorProto to a numpy array: complete and inside the file, or refused.

NaN and +∞ are refused here, −∞ where it is used: the mask of an attention may hold it.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from lipcert.errors import Refusal
from lipcert.importer.limits import MAX_RANK, MAX_VALUE_ELEMENTS
from lipcert.importer.raw import Array

_TYPED_FIELDS: Final = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")
_NUMERIC: Final = frozenset(
    {
        TensorProto.FLOAT,
        TensorProto.DOUBLE,
        TensorProto.FLOAT16,
        TensorProto.BFLOAT16,
        TensorProto.INT8,
        TensorProto.INT16,
        TensorProto.INT32,
        TensorProto.INT64,
        TensorProto.UINT8,
        TensorProto.UINT16,
        TensorProto.UINT32,
        TensorProto.UINT64,
        TensorProto.BOOL,
    }
)


def read_tensor(tensor: TensorProto, where: str, refusals: list[Refusal]) -> Array | None:
    """The tensor's numbers (bfloat16 as float32), or None after adding the reason to `refusals`."""

    def refuse(code: str, reason: str, remedy: str = "") -> None:
        refusals.append(Refusal(code, "", "", f"{where}: {reason}", remedy))

    if tensor.data_type not in _NUMERIC:
        refuse("LC016", f"data type {tensor.data_type} is not a plain number type")
        return None
    dims = tuple(tensor.dims)
    if len(dims) > MAX_RANK or any(not 0 <= dim <= MAX_VALUE_ELEMENTS for dim in dims):
        refuse("LC016", "its dimensions are negative, too large or too many")
        return None
    size = math.prod(dims)
    if size > MAX_VALUE_ELEMENTS:
        refuse("LC002", f"it claims more than {MAX_VALUE_ELEMENTS} elements")
        return None
    if not _is_complete(tensor, size):
        refuse("LC016", f"its data does not fit its {size} elements")
        return None
    try:
        array: Array = np.asarray(numpy_helper.to_array(tensor))
    except Exception as error:  # noqa: BLE001  third-party decoder of untrusted bytes
        refuse("LC016", f"it cannot be decoded ({type(error).__name__})")
        return None
    if tensor.data_type == TensorProto.BFLOAT16:
        array = array.astype(np.float32)
    if array.dtype.kind == "f" and not np.all(array < np.inf):
        refuse("LC014", "it holds NaN or infinite numbers", "retrain, or repair the file")
        return None
    return array


def _is_complete(tensor: TensorProto, size: int) -> bool:
    typed = [name for name in _TYPED_FIELDS if len(getattr(tensor, name))]
    if tensor.HasField("segment") or tensor.string_data:
        return False
    if tensor.external_data or tensor.data_location != TensorProto.DEFAULT:
        return False  # only numbers inside the tensor are ever read
    if tensor.HasField("raw_data") and tensor.raw_data:
        item: np.dtype[Any] = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
        return not typed and len(tensor.raw_data) == size * item.itemsize
    field = helper.tensor_dtype_to_field(tensor.data_type)
    if not typed:
        return size == 0
    return typed == [field] and len(getattr(tensor, field)) == size
