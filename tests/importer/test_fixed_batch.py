"""Files of a fixed batch: its size is that of the batch, wherever the file writes it."""

import numpy as np
import pytest

from lipcert.errors import ModelFileError, UnsupportedModelError
from lipcert.graph.ir import BatchStatus
from lipcert.importer.load import load_model
from tests.importer.models import NodeProto, model, onnx, saved, weights

node = onnx.helper.make_node
BATCH = 6
CONV = node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1])
W = weights(4, 3, 3, 3)


def shape(*sizes: int) -> np.ndarray:
    return np.array(sizes, dtype=np.int64)


def reshaped(*sizes: int) -> tuple[list[NodeProto], np.ndarray]:
    return [CONV, node("Reshape", ["c", "s"], ["y"])], shape(*sizes)


WRITTEN = {
    "all but one size": reshaped(BATCH, 4, -1),
    "all sizes": reshaped(BATCH, 4, 25),
    "what is left behind it": reshaped(BATCH, -1),
    "with the rows": reshaped(BATCH * 4, 25),
    "with all": reshaped(BATCH * 100),
    "as one of more axes": reshaped(BATCH, 2, 2, 25),
    "an expansion": ([CONV, node("Expand", ["c", "s"], ["y"])], shape(BATCH, 4, 5, 5)),
    "an expansion with more axes": (
        [CONV, node("Expand", ["c", "s"], ["y"])],
        shape(2, BATCH, 4, 5, 5),
    ),
    "the batch behind the channels": (
        [
            CONV,
            node("Transpose", ["c"], ["t"], perm=[1, 0, 2, 3]),
            node("Reshape", ["t", "s"], ["r"]),
            node("Transpose", ["r"], ["y"], perm=[1, 0, 2]),
        ],
        shape(4, BATCH, 25),
    ),
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_sizes_of_the_batch_are_followed(tmp_path, kind):
    """Agreement with onnxruntime, for one batch of this size, is part of the import."""
    nodes, sizes = WRITTEN[kind]
    proto = model(nodes, (BATCH, 3, 5, 5), {"w": W, "s": sizes})
    imported = load_model(saved(proto, tmp_path), trusted=True)
    assert imported.batch.status is BatchStatus.PROVED
    assert imported.reading.program.shapes["x"] == (1, 3, 5, 5)
    assert [item.code for item in imported.diagnostics] == ["LC022"]


def beside(kind: str, stored: np.ndarray, **attributes: int):
    """A constant with a part for each example of the batch, beside what is computed of it."""
    nodes = [CONV, node("Reshape", ["c", "s"], ["r"]), node(kind, ["k", "r"], ["y"], **attributes)]
    return model(nodes, (BATCH, 3, 5, 5), {"w": W, "s": shape(BATCH, 4, 25), "k": stored})


@pytest.mark.parametrize("kind", ["Add", "Concat", "Mul", "Sub"])
def test_a_constant_that_is_repeated_for_each_example(tmp_path, kind):
    """A class token, say, or a state of zeros."""
    attributes = {"axis": 1} if kind == "Concat" else {}
    one = weights(1, 4, 25, seed=3)
    proto = beside(kind, np.repeat(one, BATCH, axis=0), **attributes)
    imported = load_model(saved(proto, tmp_path), trusted=True)
    assert imported.batch.status is BatchStatus.PROVED
    assert imported.reading.program.shapes["x"] == (1, 3, 5, 5)
    other = weights(BATCH, 4, 25, seed=4)
    with pytest.raises(UnsupportedModelError, match="LC008"):
        load_model(saved(beside(kind, other, **attributes), tmp_path), trusted=True)


def test_a_class_token_is_trained(tmp_path):
    nodes = [
        CONV,
        node("Reshape", ["c", "s"], ["r"]),
        node("Expand", ["token", "e"], ["t"]),
        node("Concat", ["t", "r"], ["y"], axis=1),
    ]
    tensors = {"w": W, "s": shape(BATCH, 4, 25), "e": shape(BATCH, -1, 25), "token": weights(25)}
    tensors["e"][1] = 1
    proto = model(nodes, (BATCH, 3, 5, 5), tensors)
    imported = load_model(saved(proto, tmp_path), trusted=True)
    assert set(imported.graph.parameters) == {"w", "token"}


@pytest.mark.parametrize("kind", ["Expand", "ConstantOfShape"])
def test_a_constant_that_is_large_for_a_batch_only(tmp_path, monkeypatch, kind):
    """Positions, say, that a file repeats for every example before it adds them."""
    monkeypatch.setattr("lipcert.core.lower.values.MAX_SIZE", 300)
    inputs = ["one", "e"] if kind == "Expand" else ["e"]
    nodes = [node(kind, inputs, ["k"]), node("Mul", ["x", "k"], ["y"])]
    proto = model(nodes, (BATCH, 100), {"e": shape(BATCH, 100), "one": weights(1, 100)})
    if kind == "ConstantOfShape":
        nodes[0].attribute.append(
            onnx.helper.make_attribute("value", onnx.helper.make_tensor("v", 1, [1], [2.0]))
        )
        proto = model(nodes, (BATCH, 100), {"e": shape(BATCH, 100)})
    imported = load_model(saved(proto, tmp_path), trusted=True)
    assert imported.batch.status is BatchStatus.PROVED


def test_outputs_that_nobody_chose_refuse_nothing(tmp_path):
    """Where one has to be named, what stands against another one is no reason."""
    nodes = [node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["z"]), node("ArgMax", ["x"], ["a"])]
    proto = model(nodes, (BATCH, 3), outputs=("y", "z", "a"))
    with pytest.raises(UnsupportedModelError) as refused:
        load_model(saved(proto, tmp_path), trusted=True)
    assert [item.code for item in refused.value.refusals] == ["LC012"]


MIXING = {
    "rows of several examples": reshaped(BATCH // 2, 8, 25),
    "columns of several examples": ([CONV, node("Reshape", ["c", "s"], ["r"]),
        node("Softmax", ["r"], ["y"], axis=0)], shape(BATCH, 100)),
    "channels in place of examples": ([CONV, node("Reshape", ["c", "s"], ["r"]),
        node("Softmax", ["r"], ["y"], axis=1)], shape(4, BATCH, 25)),
}  # fmt: skip


@pytest.mark.parametrize("kind", MIXING)
def test_what_mixes_examples_is_refused(tmp_path, kind):
    nodes, sizes = MIXING[kind]
    proto = model(nodes, (BATCH, 3, 5, 5), {"w": W, "s": sizes})
    with pytest.raises(UnsupportedModelError, match=r"LC00[78]"):
        load_model(saved(proto, tmp_path), trusted=True)


@pytest.mark.parametrize("batch", [2, 4096])
def test_the_batch_does_not_count_towards_the_size_of_a_tensor(tmp_path, batch):
    """The one cause is named, not how large a batch of such tensors is."""
    nodes = [CONV, node("Reshape", ["c", "s"], ["r"]), node("Round", ["r"], ["y"], "round")]
    tensors = {"w": W, "s": shape(batch, -1)}
    proto = model(nodes, (batch, 3, 64, 64), tensors)
    with pytest.raises(UnsupportedModelError) as refused:
        load_model(saved(proto, tmp_path), trusted=True)
    assert [(item.code, item.node) for item in refused.value.refusals] == [("LC005", "round")]


INVALID = {
    "matrices": ([node("MatMul", ["x", "k"], ["y"], "odd")], (4, 3)),
    "channels": ([node("Conv", ["x", "k"], ["y"], "odd")], (4, 5, 3, 3)),
    "axes": ([node("Transpose", ["x"], ["y"], "odd", perm=[0, 5, 1, 2])], (1,)),
    "attributes": ([node("Relu", ["x"], ["y"], "odd", slope=3)], (1,)),
    "windows": ([node("MaxPool", ["x"], ["y"], "odd", kernel_shape=[9, 9])], (1,)),
    "scales": ([node("LayerNormalization", ["x", "k"], ["y"], "odd")], (4,)),
    "places": ([node("Gather", ["x", "n"], ["y"], "odd", axis=1)], (1,)),
}


@pytest.mark.parametrize("kind", INVALID)
@pytest.mark.parametrize("trusted", [True, False])
def test_what_onnxruntime_rejects_too_is_not_a_valid_model(tmp_path, kind, trusted):
    nodes, sizes = INVALID[kind]
    proto = model(nodes, ("N", 3, 7, 7), {"k": weights(*sizes), "n": np.array([9])})
    with pytest.raises(ModelFileError) as refused:
        load_model(saved(proto, tmp_path), trusted=trusted)
    (refusal,) = refused.value.refusals
    assert refusal.code == "LC016"
    assert "is not a valid model: node 'odd'" in refusal.reason
    assert "report" not in str(refusal)


def test_a_batch_of_any_size_may_be_written_as_minus_1(tmp_path):
    proto = model([node("MatMul", ["x", "k"], ["y"])], (-1, 3), {"k": weights(3, 2)})
    imported = load_model(saved(proto, tmp_path), trusted=True)
    assert imported.batch.status is BatchStatus.PROVED
    assert not imported.diagnostics


def test_what_onnxruntime_lacks_is_no_fault_of_the_file(tmp_path):
    proto = model([node("Unknown", ["x"], ["y"], "odd", domain="other")], ("N", 3))
    proto.opset_import.append(onnx.helper.make_opsetid("other", 1))
    with pytest.raises(UnsupportedModelError, match="LC003"):
        load_model(saved(proto, tmp_path), trusted=True)
