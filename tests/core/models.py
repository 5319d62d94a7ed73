"""Small ONNX models for the tests of the checker."""

from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from lipcert.core.reader.model import read_model
from lipcert.core.reader.records import Model

SHIPPED = sorted((Path(__file__).resolve().parents[2] / "models").glob("*.onnx"))


def gated() -> ModelProto:
    """Gemm, then Relu and Sigmoid of it side by side, their product, MatMul."""
    rng = np.random.default_rng(0)
    shapes = {"w": (8, 16), "b": (16,), "v": (16, 4)}
    tensors = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], "gemm", alpha=1.0, transB=0),
        helper.make_node("Relu", ["h"], ["a"], "relu"),
        helper.make_node("Sigmoid", ["h"], ["s"], "sigmoid"),
        helper.make_node("Mul", ["a", "s"], ["p"], "mul"),
        helper.make_node("MatMul", ["p", "v"], ["y"], "matmul"),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 8])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])]
    graph = helper.make_graph(nodes, "gated", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def read(proto: ModelProto | bytes, folder: Path) -> Model:
    """The model through a file in this folder."""
    path = folder / "model.onnx"
    path.write_bytes(proto if isinstance(proto, bytes) else proto.SerializeToString())
    return read_model(path)


def saved_outside(proto: ModelProto, folder: Path) -> Model:
    """The model with its numbers in an external file."""
    path = folder / "model.onnx"
    onnx.save(
        proto,
        path,
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location="model.data",
        size_threshold=0,
    )
    return read_model(path)
