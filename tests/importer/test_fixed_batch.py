"""Files of a fixed batch: its size is that of the batch, wherever the file writes it."""

import numpy as np
import pytest

from lipcert.errors import ModelFileError, UnsupportedModelError
from lipcert.graph.ir import BatchStatus
from lipcert.importer.load import load_model
from tests.core.lower.cases import listed, used
from tests.importer.models import model, onnx, saved, weights

BATCH = 6
CONV = "c = Conv<pads=[1, 1, 1, 1]>(x, w)"
W = weights(4, 3, 3, 3)


def shape(*sizes: int) -> np.ndarray:
    return np.array(sizes, dtype=np.int64)


def reshaped(*sizes: int) -> tuple[str, np.ndarray]:
    return f"{CONV}  y = Reshape(c, s)", shape(*sizes)


WRITTEN = {
    "all but one size": reshaped(BATCH, 4, -1),
    "all sizes": reshaped(BATCH, 4, 25),
    "what is left behind it": reshaped(BATCH, -1),
    "with the rows": reshaped(BATCH * 4, 25),
    "with all": reshaped(BATCH * 100),
    "as one of more axes": reshaped(BATCH, 2, 2, 25),
    "an expansion": (f"{CONV}  y = Expand(c, s)", shape(BATCH, 4, 5, 5)),
    "an expansion with more axes": (f"{CONV}  y = Expand(c, s)", shape(2, BATCH, 4, 5, 5)),
    "the batch behind the channels": (
        f"""{CONV}  t = Transpose<perm=[1, 0, 2, 3]>(c)  r = Reshape(t, s)
            y = Transpose<perm=[1, 0, 2]>(r)""",
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
    nodes = f"{CONV}  r = Reshape(c, s)  y = {kind}{listed(attributes)}(k, r)"
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
    nodes = f"{CONV}  r = Reshape(c, s)  t = Expand(token, e)  y = Concat<axis=1>(t, r)"
    tensors = {"w": W, "s": shape(BATCH, 4, 25), "e": shape(BATCH, -1, 25), "token": weights(25)}
    tensors["e"][1] = 1
    proto = model(nodes, (BATCH, 3, 5, 5), tensors)
    imported = load_model(saved(proto, tmp_path), trusted=True)
    assert set(imported.graph.parameters) == {"w", "token"}


@pytest.mark.parametrize("kind", ["Expand(one, e)", "ConstantOfShape<value=float[1]{2}>(e)"])
def test_a_constant_that_is_large_for_a_batch_only(tmp_path, monkeypatch, kind):
    """Positions, say, that a file repeats for every example before it adds them."""
    monkeypatch.setattr("lipcert.core.lower.values.MAX_SIZE", 300)
    tensors = {"e": shape(BATCH, 100), "one": weights(1, 100)}
    proto = model(f"k = {kind}  y = Mul(x, k)", (BATCH, 100), used(f"k = {kind}", tensors))
    imported = load_model(saved(proto, tmp_path), trusted=True)
    assert imported.batch.status is BatchStatus.PROVED


def test_outputs_that_nobody_chose_refuse_nothing(tmp_path):
    """Where one has to be named, what stands against another one is no reason."""
    nodes = "y = Relu(x)  z = Neg(x)  a = ArgMax(x)"
    proto = model(nodes, (BATCH, 3), outputs=("y", "z", "a"))
    with pytest.raises(UnsupportedModelError) as refused:
        load_model(saved(proto, tmp_path), trusted=True)
    assert [item.code for item in refused.value.refusals] == ["LC012"]


MIXING = {
    "rows of several examples": reshaped(BATCH // 2, 8, 25),
    "columns of several examples": (f"{CONV}  r = Reshape(c, s)  y = Softmax<axis=0>(r)",
        shape(BATCH, 100)),
    "channels in place of examples": (f"{CONV}  r = Reshape(c, s)  y = Softmax<axis=1>(r)",
        shape(4, BATCH, 25)),
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
    nodes = f"{CONV}  r = Reshape(c, s)  [round] y = Round(r)"
    tensors = {"w": W, "s": shape(batch, -1)}
    proto = model(nodes, (batch, 3, 64, 64), tensors)
    with pytest.raises(UnsupportedModelError) as refused:
        load_model(saved(proto, tmp_path), trusted=True)
    assert [(item.code, item.node) for item in refused.value.refusals] == [("LC005", "round")]


INVALID = {
    "matrices": ("[odd] y = MatMul(x, k)", (4, 3)),
    "channels": ("[odd] y = Conv(x, k)", (4, 5, 3, 3)),
    "axes": ("[odd] y = Transpose<perm=[0, 5, 1, 2]>(x)", (1,)),
    "attributes": ("[odd] y = Relu<slope=3>(x)", (1,)),
    "windows": ("[odd] y = MaxPool<kernel_shape=[9, 9]>(x)", (1,)),
    "scales": ("[odd] y = LayerNormalization(x, k)", (4,)),
    "places": ("[odd] y = Gather<axis=1>(x, n)", (1,)),
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
    proto = model("y = MatMul(x, k)", (-1, 3), {"k": weights(3, 2)})
    imported = load_model(saved(proto, tmp_path), trusted=True)
    assert imported.batch.status is BatchStatus.PROVED
    assert not imported.diagnostics


def test_what_onnxruntime_lacks_is_no_fault_of_the_file(tmp_path):
    proto = model("[odd] y = other.Unknown(x)", ("N", 3))
    proto.opset_import.append(onnx.helper.make_opsetid("other", 1))
    with pytest.raises(UnsupportedModelError, match="LC003"):
        load_model(saved(proto, tmp_path), trusted=True)
