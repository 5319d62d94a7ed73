"""Shapes of the outputs of one node, by the shape inference of onnx and checks of our own.

What enters: a node and the types of its inputs. What leaves: the outputs of static shape;
ShapeError where the first one has none, where inputs do not fit or an output is too large.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, final

import numpy as np
from onnx import TypeProto, defs, helper, numpy_helper, shape_inference

from lipcert.core.program import Shape
from lipcert.importer.constant import Constant
from lipcert.importer.limits import MAX_VALUE_ELEMENTS
from lipcert.importer.raw import RawModel, RawNode
from lipcert.importer.static_graph import Value

_SMALL: Final = 64
"""entries of a constant up to which its numbers may tell a shape"""
_SHAPE_KEEPING: Final = frozenset(
    {
        "BatchNormalization",
        "GroupNormalization",
        "LayerNormalization",
        "RMSNormalization",
        "RootMultiple",
        "SoftThreshold",
    }
)
"""ops through which onnx does not always infer a shape, or that it does not know"""


class ShapeError(Exception):
    """The outputs of a node have no static shape, or one that cannot be; holds code and reason."""

    def __init__(self, code: str, reason: str) -> None:
        self.code = code
        super().__init__(reason)


@final
class ShapeInference:
    """Shape inference in the operator sets of one model."""

    def __init__(self, model: RawModel) -> None:
        self._opsets = [
            helper.make_opsetid("" if domain == "ai.onnx" else domain, version)
            for domain, version in model.opset.items()
        ]
        self._opset = model.opset.get("ai.onnx", 1)
        self._ir_version = model.ir_version

    def outputs(
        self, node: RawNode, values: Mapping[str, Value], constants: Mapping[str, Constant]
    ) -> dict[str, Value]:
        """The outputs whose shape is static; the first one is among them."""
        if (node.domain or node.op_type in _SHAPE_KEEPING) and node.inputs[0] in values:
            return {node.outputs[0]: values[node.inputs[0]]}
        found = self._inferred(node, values, constants)
        outputs = {}
        for name in node.output_names:
            shape = _static_shape(found.get(name))
            if shape is not None:
                dtype = helper.tensor_dtype_to_np_dtype(found[name].tensor_type.elem_type)
                outputs[name] = Value(_checked(shape), np.dtype(dtype))
            elif name == node.outputs[0]:
                raise ShapeError("LC008", "the shape of its output depends on data")
        shapes = [
            values[name].shape if name in values else constants[name].shape
            for name in node.inputs[:2]
            if name
        ]
        _check_fit(node, shapes, outputs[node.outputs[0]].shape)
        return outputs

    def _inferred(
        self, node: RawNode, values: Mapping[str, Value], constants: Mapping[str, Constant]
    ) -> Mapping[str, TypeProto]:
        types: dict[str, TypeProto] = {}
        data = {}
        for name in filter(None, node.inputs):
            constant = constants.get(name)
            value = values.get(name)
            if constant is not None:
                types[name] = _type(constant.shape, constant.array.dtype)
                if constant.array.size <= _SMALL and constant.array.dtype.kind in "iuf":
                    data[name] = numpy_helper.from_array(np.ascontiguousarray(constant.array), name)
            elif value is not None:
                types[name] = _type(value.shape, value.dtype)
        try:
            found: Mapping[str, TypeProto] = shape_inference.infer_node_outputs(
                defs.get_schema(node.op_type, max(self._opset, node.since_version), ""),
                helper.make_node(node.op_type, node.inputs, node.outputs, **node.attributes),
                types,
                data,
                opset_imports=self._opsets,
                ir_version=self._ir_version,
            )
        except Exception as error:
            # the C++ inference raises several kinds
            raise ShapeError("LC008", f"its shapes do not fit: {_first_line(error)}") from error
        return found


def _checked(shape: Shape) -> Shape:
    if math.prod(shape) > MAX_VALUE_ELEMENTS or min(shape, default=1) < 1:
        raise ShapeError("LC002", f"its output has the shape {shape}")
    return shape


def _check_fit(node: RawNode, shapes: list[Shape], shape: Shape) -> None:
    """What the shape inference of onnx does not check."""
    if node.op_type == "Reshape" and math.prod(shapes[0]) != math.prod(shape):
        raise ShapeError("LC008", f"{shapes[0]} cannot be reshaped to {shape}")
    if node.op_type == "Gemm":
        left, right = shapes
        rows = left[0 if node.integer("transA", 0) else 1]
        if rows != right[1 if node.integer("transB", 0) else 0]:
            raise ShapeError("LC008", f"{left} cannot be multiplied by {right}")


def _type(shape: Shape, dtype: np.dtype[Any]) -> TypeProto:
    code = helper.np_dtype_to_tensor_dtype(dtype)
    return helper.make_tensor_type_proto(code, list(shape))


def _static_shape(found: TypeProto | None) -> Shape | None:
    if found is None or not found.tensor_type.HasField("shape"):
        return None
    dims = found.tensor_type.shape.dim
    if not all(dim.HasField("dim_value") for dim in dims):
        return None
    return tuple(dim.dim_value for dim in dims)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
