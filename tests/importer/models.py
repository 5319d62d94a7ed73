"""Small ONNX models made for the tests of the importer."""

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto

from tests.core.lower.cases import onnx_file

_FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE}


def model(
    nodes,
    shape,
    tensors=None,
    opset: int = 17,
    outputs=("y",),
    dtype: int = TensorProto.FLOAT,
) -> ModelProto:
    """A model with the input "x" and outputs of unknown shape, of its type or of floats."""
    out = dtype if dtype in _FLOATS else TensorProto.FLOAT
    return onnx_file(nodes, {"x": (dtype, shape)}, outputs, tensors or {}, opset, out)


def saved(proto: ModelProto, folder, name: str = "model.onnx"):
    """Write a model and return its path."""
    path = folder / name
    path.write_bytes(proto.SerializeToString())
    return path


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    """Random float32 numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


__all__ = ["NodeProto", "model", "onnx", "saved", "weights"]
