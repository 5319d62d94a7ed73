"""Shapes that a file states of its results, held against those that its nodes have."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.lower import lower
from tests.core.lower.cases import model, program, read
from tests.core.lower.odd_graphs import odd_graph

NODES = "t = Transpose<perm=[0, 2, 1]>(x)  a = Add(t, c)  y = Flatten(a)"
CONSTANTS = {"c": np.ones((1, 3, 2))}


def case(stated, batch="N", where="value_info"):
    """The model with shapes stated of some of its results."""
    proto = model(NODES, [batch, 2, 3], CONSTANTS)
    for name, dims in stated.items():
        info = helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
        if where == "output":
            proto.graph.output[0].CopyFrom(info)
        else:
            proto.graph.value_info.append(info)
    return proto


@pytest.mark.parametrize(
    ("stated", "batch"),
    [
        ({}, "N"),
        ({"t": ["N", 3, 2], "a": ["M", 3, None], "y": ["N", 6]}, "N"),
        ({"t": [1, 3, 2]}, "N"),
        ({"t": [4, 3, 2], "y": [4, 6]}, 4),
        ({"other": [7]}, "N"),
        ({"t": None}, "N"),
    ],
)
def test_shapes_that_fit_are_accepted(stated, batch):
    assert program(case(stated, batch)).batch_proved


@pytest.mark.parametrize("where", ["value_info", "output"])
@pytest.mark.parametrize(
    ("dims", "batch"),
    [(["N", 5], "N"), (["N", 6, 1], "N"), (["N"], "N"), ([], "N"), ([3, 6], 4), ([4, 3], 4)],
)
def test_shapes_that_contradict_the_nodes_are_refused(dims, batch, where):
    with pytest.raises(Unsupported, match=r"'y' has the shape \[.*the file states"):
        program(case({"y": dims}, batch, where))


def test_shapes_of_constants_are_compared():
    nodes = "k = Neg(c)  y = Mul(x, k)"
    proto = model(nodes, ["N", 3], {"c": np.ones(3)})
    proto.graph.value_info.append(helper.make_tensor_value_info("k", TensorProto.FLOAT, [1, 3]))
    with pytest.raises(Unsupported, match="'k' has the shape"):
        program(proto)


@pytest.mark.parametrize("dims", [[-1, 6], [-5, -5]])
def test_negative_sizes_are_no_sizes(dims):
    assert program(case({"y": dims})).batch_proved


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_shapes_that_onnx_infers_are_not_contradicted(tmp_path):
    """Of odd graphs; the inference of onnx knows nothing of the checker.

    It keeps all axes where a Squeeze names none in an empty list, which onnxruntime drops, and
    forgets an axis that an old Unsqueeze counts from the end.
    """
    compared = 0
    for seed in range(150):
        proto = odd_graph(np.random.default_rng([11, seed]))
        output = proto.graph.output[0].name
        if any(item.op_type in {"Squeeze", "Unsqueeze"} for item in proto.graph.node):
            continue
        try:
            expected = lower(read(proto, tmp_path), output)
            inferred = onnx.shape_inference.infer_shapes(proto)
        except (Unsupported, onnx.shape_inference.InferenceError):
            continue
        compared += len(inferred.graph.value_info) > 0
        assert lower(read(inferred, tmp_path), output).shapes == expected.shapes
    assert compared >= 30
