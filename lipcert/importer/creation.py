"""Constants made from little: literals, ranges, one-hot codes, identities, triangles.

What enters: a raw node and its constant inputs. What leaves: an array of bounded size. ValueError
where the node is not sound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np
from onnx import helper

from lipcert.importer.limits import MAX_CONSTANT_ELEMENTS
from lipcert.importer.raw import Array, RawNode

Inputs = Sequence[Array | None]
Evaluate = Callable[[RawNode, Inputs], Array]


def given(inputs: Inputs, position: int) -> Array:
    """A required input."""
    found = inputs[position] if position < len(inputs) else None
    if found is None:
        raise ValueError("a required input is missing")
    return found


def _constant(node: RawNode, inputs: Inputs) -> Array:
    del inputs
    for name, dtype in (("value_float", np.float32), ("value_floats", np.float32)):
        if name in node.attributes:
            return np.asarray(node.attributes[name], dtype=dtype)
    for name in ("value_int", "value_ints"):
        if name in node.attributes:
            return np.asarray(node.attributes[name], dtype=np.int64)
    if "value" not in node.attributes:
        raise ValueError("Constant holds no number")
    return np.asarray(node.attributes["value"])


def _constant_of_shape(node: RawNode, inputs: Inputs) -> Array:
    shape = tuple(int(item) for item in given(inputs, 0).reshape(-1))
    if math.prod(shape) > MAX_CONSTANT_ELEMENTS or min(shape, default=0) < 0:
        raise ValueError("the shape of ConstantOfShape is negative or too large")
    value = np.asarray(node.attributes.get("value", np.zeros(1, np.float32)))
    return np.full(shape, value.reshape(-1)[0])


def _range(node: RawNode, inputs: Inputs) -> Array:
    del node
    start, limit, step = (given(inputs, index).reshape(-1)[0] for index in range(3))
    if step == 0 or (limit - start) / step > MAX_CONSTANT_ELEMENTS:
        raise ValueError("Range is endless or too long")
    return np.arange(start, limit, step, dtype=start.dtype)


def _one_hot(node: RawNode, inputs: Inputs) -> Array:
    indices, depth, values = (given(inputs, position) for position in range(3))
    count = int(depth.reshape(-1)[0])
    if count < 1 or indices.size * count > MAX_CONSTANT_ELEMENTS:
        raise ValueError("the depth of OneHot is not positive or too large")
    whole = indices.astype(np.int64)
    places = np.where(whole < 0, whole + count, whole)
    hot = places[..., np.newaxis] == np.arange(count)
    axis = node.integer("axis", -1)
    return np.moveaxis(np.where(hot, values[1], values[0]), -1, axis)


def _eye_like(node: RawNode, inputs: Inputs) -> Array:
    like = given(inputs, 0)
    dtype = node.attributes.get("dtype")
    kind = like.dtype if dtype is None else np.dtype(helper.tensor_dtype_to_np_dtype(int(dtype)))
    rows, columns = like.shape
    return np.asarray(np.eye(rows, columns, k=node.integer("k", 0))).astype(kind)


def _trilu(node: RawNode, inputs: Inputs) -> Array:
    diagonal = inputs[1] if len(inputs) > 1 else None
    offset = 0 if diagonal is None else int(diagonal.reshape(-1)[0])
    keep = np.triu if node.integer("upper", 1) else np.tril
    return np.asarray(keep(given(inputs, 0), offset))


CREATION: Final[Mapping[str, Evaluate]] = MappingProxyType(
    {
        "Constant": _constant,
        "ConstantOfShape": _constant_of_shape,
        "EyeLike": _eye_like,
        "OneHot": _one_hot,
        "Range": _range,
        "Trilu": _trilu,
    }
)
