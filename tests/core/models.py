"""Small ONNX models for the tests of the checker."""

from pathlib import Path

import numpy as np
import onnx

from lipcert.core.reader.model import read_model
from tests.core.lower.cases import model

SHIPPED = sorted((Path(__file__).resolve().parents[2] / "models").glob("*.onnx"))


def gated():
    """Gemm, then Relu and Sigmoid of it side by side, their product, MatMul."""
    rng = np.random.default_rng(0)
    shapes = {"w": (8, 16), "b": (16,), "v": (16, 4)}
    tensors = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    nodes = """[gemm] h = Gemm<alpha=1.0, transB=0>(x, w, b)  [relu] a = Relu(h)
        [sigmoid] s = Sigmoid(h)  [mul] p = Mul(a, s)  [matmul] y = MatMul(p, v)"""
    return model(nodes, ["N", 8], tensors, 21)


def saved_outside(proto, folder: Path):
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
