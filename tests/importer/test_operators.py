"""Operators in an import: its refusals and its parameters.

What operators compute, with all of their attributes, `core/lower` compares with onnxruntime, and
`test_peer` by the node tests of the onnx project.
"""

import itertools

import numpy as np
import pytest
from onnx import helper

from lipcert.graph.ir import BatchStatus
from lipcert.importer.load import load_model
from tests.importer.models import model, saved, weights

node = helper.make_node
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
    nodes, names = [], []
    for name in inputs:
        if name == "x":
            names.append("x")
            continue
        nodes.append(node("Expand", [name, "shape"], [f"{name}e"]))
        names.append(f"{name}e")
    shape = [
        node("Shape", ["x"], ["full"]),
        node("Slice", ["full", "zero", "one"], ["n"]),
        node("Concat", ["n", "rest"], ["shape"], axis=0),
    ]
    tensors |= {"zero": np.array([0]), "one": np.array([1]), "rest": np.array([2, 3])}
    nodes = [*shape, *nodes, node("Concat", names, ["y"], axis=1)]
    imported = check(tmp_path, nodes, tensors, ("N", 4, 3))
    assert all(
        operand.gain == 1.0 for item in imported.graph.nodes for operand in item.operands.values()
    )


def test_double_precision(tmp_path):
    tensors = {"w": np.random.default_rng(0).standard_normal((4, 3))}
    product = node("MatMul", ["x", "w"], ["y"])
    imported = check(tmp_path, [product], tensors, ("N", 4), dtype=11)
    assert imported.verification.max_difference < 1e-12
