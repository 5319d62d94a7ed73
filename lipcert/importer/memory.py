"""Memory: which entries of a stored tensor an array shows.

What enters: an array that lowering made of constants, and a tensor of the model. What leaves: the
places of its entries, where it is a view of the one array that holds the numbers of the tensor.
Copies are not recognised: that numbers are equal says nothing.
"""

from __future__ import annotations

import numpy as np

from lipcert.core.lower.values import owner
from lipcert.core.program import FloatArray
from lipcert.core.reader.records import Tensor
from lipcert.graph.operand import PlaceArray


def lies_in(array: FloatArray, tensor: Tensor) -> bool:
    """Whether an array shows entries of a stored tensor: the memory of its numbers, no copy."""
    return tensor.is_float and owner(array) is owner(tensor.values())


def places_in(array: FloatArray, tensor: Tensor) -> PlaceArray | None:
    """Which entries an array shows that lies in a tensor; None for all of them in order."""
    if array.flags.c_contiguous and array.size == tensor.size:
        return None
    unit, start = array.itemsize, _address(array) - _address(tensor.values())
    places = np.asarray(start // unit)
    for size, stride in zip(array.shape, array.strides, strict=True):
        places = places[..., None] + np.arange(size) * (stride // unit)
    return places.astype(np.int32)


def _address(array: FloatArray) -> int:
    return int(array.__array_interface__["data"][0])
