"""Operators in an import: its refusals and its parameters.

What operators compute, with all of their attributes, `core/lower` compares with onnxruntime, and
`test_peer` by the node tests of the onnx project.
"""

import itertools

import numpy as np
import pytest

from lipcert.graph.ir import BatchStatus
from lipcert.importer.load import load_model
from tests.importer.models import model, saved, weights

IMAGE = ("N", 4, 7, 6)


def check(tmp_path, nodes, tensors=None, shape=IMAGE, opset=17, dtype=1):
    proto = model(nodes, shape, tensors, opset=opset, dtype=dtype)
    proto.ir_version = 9
    found = load_model(saved(proto, tmp_path), trusted=True)
    assert found.batch.status is BatchStatus.PROVED
    assert found.verification.max_difference < 1e-4
    return found


@pytest.mark.parametrize("order", ["cx", "xc", "xcx", "cxc", "cxcx"])
def test_concat_with_parameters(tmp_path, order):
    count = itertools.count()
    inputs = ["x" if letter == "x" else f"c{next(count)}" for letter in order]
    tensors = {name: weights(1, 2, 3, seed=3) for name in inputs if name != "x"}
    expanded = "  ".join(f"{name}e = Expand({name}, shape)" for name in tensors)
    names = ", ".join(f"{name}e" if name in tensors else name for name in inputs)
    shape = "full = Shape(x)  n = Slice(full, zero, one)  shape = Concat<axis=0>(n, rest)"
    tensors |= {"zero": np.array([0]), "one": np.array([1]), "rest": np.array([2, 3])}
    nodes = f"{shape}  {expanded}  y = Concat<axis=1>({names})"
    imported = check(tmp_path, nodes, tensors, ("N", 4, 3))
    assert all(
        operand.gain == 1.0 for item in imported.graph.nodes for operand in item.operands.values()
    )


def test_double_precision(tmp_path):
    tensors = {"w": np.random.default_rng(0).standard_normal((4, 3))}
    imported = check(tmp_path, "y = MatMul(x, w)", tensors, ("N", 4), dtype=11)
    assert imported.verification.max_difference < 1e-12
