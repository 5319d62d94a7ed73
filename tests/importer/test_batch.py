"""Independence of examples: proved, assumed or refused, and never wrongly proved."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from lipcert.errors import UnsupportedModelError
from lipcert.graph.ir import BatchStatus
from lipcert.importer.load import load_model
from tests.importer.models import model, saved, weights

node = helper.make_node

MIXING = {
    "mean over the batch": ([node("ReduceMean", ["x"], ["y"], axes=[0])], {}),
    "centred by the batch": (
        [node("ReduceMean", ["x"], ["m"], axes=[0]), node("Sub", ["x", "m"], ["y"])],
        {},
    ),
    "mean over everything": ([node("ReduceMean", ["x"], ["y"])], {}),
    "softmax over the batch": ([node("Softmax", ["x"], ["y"], axis=0)], {}),
    "gram matrix": ([node("Transpose", ["x"], ["t"]), node("MatMul", ["x", "t"], ["y"])], {}),
    "covariance": ([node("Transpose", ["x"], ["t"]), node("MatMul", ["t", "x"], ["y"])], {}),
    "sum by a constant": ([node("ReduceSum", ["x", "a"], ["y"], keepdims=0)], {"a": np.array([0])}),
    "sorting the batch": ([node("TopK", ["x", "k"], ["y", "i"], axis=0)], {"k": np.array([1])}),
    "reversing the batch": (
        [node("Slice", ["x", "s", "e", "a", "t"], ["y"])],
        {"s": np.array([-1]), "e": np.array([-(2**62)]), "a": np.array([0]), "t": np.array([-1])},
    ),
    "first example only": (
        [node("Gather", ["x", "i"], ["f"], axis=0), node("Add", ["x", "f"], ["y"])],
        {"i": np.array([0])},
    ),
    "first example by slicing": (
        [node("Slice", ["x", "s", "e"], ["f"]), node("Add", ["x", "f"], ["y"])],
        {"s": np.array([0]), "e": np.array([1])},
    ),
    "pairs of examples": (
        [node("Reshape", ["x", "r"], ["f"]), node("ReduceMean", ["f"], ["y"], axes=[0])],
        {"r": np.array([-1, 1])},
    ),
    "joined to itself": ([node("Concat", ["x", "x"], ["y"], axis=0)], {}),
    "layer norm over all": (
        [node("LayerNormalization", ["x", "s"], ["y"], axis=0)],
        {"s": np.ones((1, 6), "f4")},
    ),
}


MOVES = {
    "reversing the batch",
    "first example only",
    "first example by slicing",
    "joined to itself",
}
"""what only moves entries: of one example, it is a function like any other"""


@pytest.mark.parametrize(
    ("case", "batch"),
    [(case, batch) for batch in ("N", 1) for case in MIXING if batch == "N" or case not in MOVES],
)
def test_mixing_is_refused_with_its_node(tmp_path, case, batch):
    nodes, tensors = MIXING[case]
    with pytest.raises(UnsupportedModelError) as caught:
        load_model(saved(model(nodes, (batch, 6), tensors), tmp_path))
    codes = {refusal.code for refusal in caught.value.refusals}
    assert codes <= ({"LC007", "LC008", "LC028"} if case in MOVES else {"LC007", "LC008"})
    if batch == "N":
        assert all(refusal.node for refusal in caught.value.refusals if refusal.code == "LC007")


@pytest.mark.parametrize("case", sorted(MOVES))
def test_moves_in_a_fixed_batch_of_one(tmp_path, case):
    nodes, tensors = MIXING[case]
    imported = load_model(saved(model(nodes, (1, 6), tensors), tmp_path))
    assert imported.batch.status is BatchStatus.PER_EXAMPLE
    assert "LC021" in {item.code for item in imported.diagnostics}


def test_training_batch_norm(tmp_path):
    tensors = {name: np.ones(4, np.float32) for name in "sbmv"}
    op = node("BatchNormalization", ["x", *"sbmv"], ["y", "m2", "v2"], training_mode=1)
    with pytest.raises(UnsupportedModelError, match="LC011"):
        load_model(saved(model([op], ("N", 4, 3), tensors), tmp_path))


def test_merged_batch_axis_is_understood(tmp_path):
    """Tokens of all examples on one axis, as some exporters write a linear layer."""
    nodes = [
        node("Reshape", ["x", "flat"], ["f"]),
        node("Gemm", ["f", "w"], ["g"], transB=1),
        node("Reshape", ["g", "back"], ["y"]),
    ]
    tensors = {"flat": np.array([-1, 4]), "back": np.array([-1, 5, 3]), "w": weights(3, 4)}
    imported = load_model(saved(model(nodes, ("N", 5, 4), tensors), tmp_path))
    assert imported.batch.status is BatchStatus.PROVED
    assert imported.graph.output_shape == (5, 3)


def test_batch_axis_may_wander(tmp_path):
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[1, 2, 0]),
        node("MatMul", ["w", "t"], ["m"]),
        node("Softmax", ["m"], ["s"], axis=1),
        node("Transpose", ["s"], ["y"], perm=[2, 0, 1]),
    ]
    imported = load_model(saved(model(nodes, ("N", 5, 4), {"w": weights(3, 4)}), tmp_path))
    assert imported.batch.status is BatchStatus.PROVED


def test_hard_coded_batch_is_an_assumption(tmp_path):
    nodes = [node("Reshape", ["x", "r"], ["f"]), node("Gemm", ["f", "w"], ["y"])]
    tensors = {"r": np.array([1, 20]), "w": weights(20, 3)}
    imported = load_model(saved(model(nodes, (1, 5, 4), tensors), tmp_path))
    assert imported.batch.status is BatchStatus.PER_EXAMPLE
    assert {item.code for item in imported.diagnostics} == {"LC021"}


def test_hard_coded_batch_does_not_hide_mixing(tmp_path):
    nodes = [
        node("Reshape", ["x", "r"], ["f"]),
        node("Gemm", ["f", "w"], ["g"]),
        node("ReduceMean", ["g"], ["m"], axes=[0]),
        node("Sub", ["g", "m"], ["y"]),
    ]
    tensors = {"r": np.array([1, 20]), "w": weights(20, 3)}
    with pytest.raises(UnsupportedModelError, match="LC007"):
        load_model(saved(model(nodes, (1, 5, 4), tensors), tmp_path))


def test_fixed_batch_above_one_is_noted(tmp_path):
    proto = model([node("MatMul", ["x", "w"], ["y"])], (8, 4), {"w": weights(4, 3)})
    imported = load_model(saved(proto, tmp_path), trusted=True)
    assert imported.graph.input_shape == (4,)
    assert {item.code for item in imported.diagnostics} == {"LC022"}


def test_a_parameter_per_example_is_no_parameter_of_one_example(tmp_path):
    proto = model([node("Add", ["x", "b"], ["y"])], (8, 4), {"b": weights(8, 4)})
    imported = load_model(saved(proto, tmp_path), trusted=True)
    assert imported.batch.status is BatchStatus.PER_EXAMPLE
    assert imported.graph.input_shape == (8, 4)


@pytest.mark.parametrize("shape", [("N", "T", 4), (None,), ()])
def test_unknown_shapes(tmp_path, shape):
    proto = model([node("Relu", ["x"], ["y"])], shape)
    if shape == (None,):
        proto.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(UnsupportedModelError, match="LC008"):
        load_model(saved(proto, tmp_path), trusted=True)
