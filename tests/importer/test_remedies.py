"""Remedies work: what a refusal or a note tells to do, done on a file that asks for it."""

import numpy as np
import pytest
from onnx import helper

from lipcert.analysis.certificate import certify
from lipcert.core.check import Choices, check
from lipcert.core.verdict import Verdict
from lipcert.errors import UnsupportedModelError, UsageError
from lipcert.graph.ir import BatchStatus
from lipcert.importer.load import load_model
from lipcert.settings.settings import Settings
from tests.importer.models import model, saved, weights
from tests.importer.test_parameters import with_metadata

ONE = np.array(1.0, np.float32)


def two_inputs(batch):
    proto = model("y = Add(x, z)", ("N", 4))
    proto.graph.input.append(helper.make_tensor_value_info("z", 1, [batch, 4]))
    return proto


def resized(*inputs, **tensors):
    nodes = f'y = Resize<mode="nearest">(x, , {", ".join(inputs)})'
    return model(nodes, ("N", 1, 4, 4), tensors)


def reshaped(*sizes, shape=("N", 4, 6)):
    nodes = "r = Reshape(x, s)  y = Relu(r)"
    return model(nodes, shape, {"s": np.array(sizes)})


def counted(batch):
    nodes = "n = Size(x)  f = Cast<to=1>(n)  y = Div(x, f)"
    return model(nodes, (batch, 4))


def masked(*hidden):
    mask = np.zeros((1, 3, 3), np.float32)
    for row in hidden:
        mask[:, row, :] = -np.inf
    mask[:, 0, 1] = -np.inf
    nodes = """t = Transpose<perm=[0, 2, 1]>(x)  s = MatMul(x, t)  m = Add(s, mask)
        p = Softmax<axis=-1>(m)  y = MatMul(p, x)"""
    return model(nodes, ("N", 3, 4), {"mask": mask})


def embedded(moved="Identity", axis=0):
    """Numbers x of rows, moved on before a row is chosen by each."""
    nodes = f"i = {moved}(x)  e = Gather<axis={axis}>(w, i)  y = Relu(e)"
    return model(nodes, ("N", 4), {"w": weights(9, 3)}, dtype=7)


def statistics(kind):
    tensors = {name: np.ones(4, np.float32) for name in "sbmv"}
    proto = model("y = BatchNormalization(x, s, b, m, v)", ("N", 4, 3), tensors)
    kinds = {"s": "PARAMETER", "b": "PARAMETER", "m": kind}
    listed = "".join(f"p_{name}: {word} target='{name}'\n" for name, word in kinds.items())
    return with_metadata(proto, listed)


def training(mode):
    tensors = {name: np.ones(4, np.float32) for name in "sbmv"}
    outputs = "y, m2, v2" if mode else "y"
    nodes = f"{outputs} = BatchNormalization<training_mode={mode}>(x, s, b, m, v)"
    return model(nodes, ("N", 4, 3), tensors)


REFUSALS = {
    "LC010 one batch axis, axis 0": (two_inputs(1), two_inputs("N")),
    "LC008 give scales, not sizes": (
        resized("", "sizes", sizes=np.array([11, 1, 8, 8])),
        resized("scales", scales=np.array([1, 1, 2, 2], np.float32)),
    ),
    "LC008 fixed sizes for all other axes": (
        model("y = Relu(x)", ("N", "T")),
        model("y = Relu(x)", ("N", 8)),
    ),
    "LC008 fixed batch size of 1": (counted("N"), counted(1)),
    "LC007 keep one axis for the batch only": (reshaped(-1, 2, 8), reshaped(0, 3, 8)),
    "LC007 use a layer that treats every example separately": (
        model("y = ReduceMean<axes=[0]>(x)", ("N", 4)),
        model("y = LayerNormalization(x, s)", ("N", 4), {"s": np.ones(4, "f4")}),
    ),
    "LC005 without its discrete head": (
        model("h = Tanh(x)  y = Round(h)", ("N", 4)),
        model("y = Tanh(x)", ("N", 4)),
    ),
    "LC006 choose rows": (
        embedded("Abs"),
        embedded(),
    ),
    "LC006 (axis 0)": (
        embedded(axis=1),
        embedded(axis=0),
    ),
    "LC006 cast them to floats": (
        model("y = Abs(x)", ("N", 4), dtype=7),
        model("f = Cast<to=1>(x)  y = Abs(f)", ("N", 4), dtype=7),
    ),
    "LC005 weigh all by a softmax": (
        model("v, i = TopK<k=2>(x)  y = Neg(i)", ("N", 4), opset=9),
        model("y = Softmax(x)", ("N", 4)),
    ),
    "LC011 evaluation mode": (training(1), training(0)),
    "LC003 freeze them: buffers": (statistics("PARAMETER"), statistics("BUFFER")),
    "LC014 let every query see a token": (masked(2), masked()),
    "LC003 supported operators, or opset 17-20": (
        model("y = Add<broadcast=1, axis=0>(x, c)", ("N", 4), {"c": ONE}, opset=5),
        model("y = Add(x, c)", ("N", 4), {"c": ONE}),
    ),
    "LC005 write soft shrinkage with Relu": (
        model("y = Shrink<lambd=0.5>(x)", ("N", 4)),
        model(
            "a = Sub(x, h)  p = Relu(a)  m = Neg(x)  b = Sub(m, h)  q = Relu(b)  y = Sub(p, q)",
            ("N", 4),
            {"h": np.array(0.5, np.float32)},
        ),
    ),
    "LC005 use Relu(x - alpha)": (
        model("y = ThresholdedRelu(x)", ("N", 4)),
        model("d = Sub(x, c)  y = Relu(d)", ("N", 4), {"c": ONE}),
    ),
}  # fmt: skip


@pytest.mark.sample(8)
@pytest.mark.parametrize("case", REFUSALS)
def test_the_remedy_of_a_refusal(tmp_path, case):
    code, _, remedy = case.partition(" ")
    broken, repaired = REFUSALS[case]
    with pytest.raises(UnsupportedModelError) as caught:
        load_model(saved(broken, tmp_path))
    told = [item.remedy for item in caught.value.refusals if item.code == code]
    assert any(remedy in item for item in told), caught.value.refusals
    load_model(saved(repaired, tmp_path))


def test_the_remedy_for_an_output_behind_a_step(tmp_path):
    nodes = "h = Tanh(x)  y = ArgMax<axis=1>(h)"
    proto = model(nodes, ("N", 4), outputs=("y",))
    proto.graph.output[0].type.tensor_type.elem_type = 7
    path = saved(proto, tmp_path)
    with pytest.raises(UnsupportedModelError, match="discrete head"):
        load_model(path)
    assert load_model(path, output="h").graph.output_name == "h"


@pytest.mark.parametrize("place", [0, 4])
def test_outputs_that_choose_or_copy_are_left_aside(tmp_path, place):
    nodes = """h = Tanh(x)  largest, at = TopK(h, k)  same = Identity(x)  version = Identity(k)
        c = ArgMax<axis=1>(h)  y = Squeeze(c)"""
    others = ["y", "at", "same", "version"]
    others.insert(place, "h")
    proto = model(nodes, ("N", 4), {"k": np.array([2])}, outputs=others)
    assert load_model(saved(proto, tmp_path)).graph.output_name == "h"
    proto.graph.output.append(helper.make_tensor_value_info("largest", 1, None))
    found = load_model(saved(proto, tmp_path))
    assert found.graph.output_name == "largest"
    assert [item.code for item in found.diagnostics] == ["LC012"]


def overridable(*, kept):
    proto = model("y = MatMul(x, w)", ("N", 4), {"w": weights(4, 3)})
    if kept:  # keep_initializers_as_inputs
        proto.graph.input.append(helper.make_tensor_value_info("w", 1, [4, 3]))
    return proto


NOTES = {
    "LC020 without keep_initializers_as_inputs": (overridable(kept=True), overridable(kept=False)),
    "LC021 symbolic batch axis": (
        reshaped(1, 24, shape=(1, 4, 6)),
        reshaped(-1, 24, shape=("N", 4, 6)),
    ),
    "LC022 symbolic batch axis": (
        model("y = Relu(x)", (5, 4)),
        model("y = Relu(x)", ("N", 4)),
    ),
}


@pytest.mark.parametrize("case", NOTES)
def test_the_remedy_of_a_note(tmp_path, case):
    code, _, remedy = case.partition(" ")
    noted, repaired = NOTES[case]
    found = load_model(saved(noted, tmp_path)).diagnostics
    assert any(item.code == code and remedy in item.remedy for item in found)
    imported = load_model(saved(repaired, tmp_path))
    assert code not in {item.code for item in imported.diagnostics}
    assert imported.batch.status is BatchStatus.PROVED


def test_a_network_ends_before_a_tail_without_weights(tmp_path):
    """As classifiers of scikit-learn are written: the class, and a list of numbers by class."""
    nodes = """scores = MatMul(x, w)  shares = Softmax(scores)  class = ArgMax<axis=1>(shares)
        y = ai.onnx.ml.ZipMap<classlabels_int64s=[0, 1]>(shares)"""
    proto = model(nodes, ("N", 3), {"w": weights(3, 2)})
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    proto.graph.output.append(helper.make_tensor_value_info("class", 7, None))
    path = saved(proto, tmp_path)
    assert load_model(path).graph.output_name == "shares"
    del proto.graph.output[0]
    alone = saved(proto, tmp_path, "alone.onnx")
    with pytest.raises(UnsupportedModelError, match=r"LC012.*'shares'.*--output shares"):
        load_model(alone)
    for name in ("shares", "scores"):
        stated = Settings(output=name, loss="mse", label_norm=1.0, input_norm=1.0)
        issued = certify(load_model(path, output=name), stated)
        assert check(issued.data, path, Choices()).verdict is not Verdict.INVALID
    with pytest.raises(UsageError, match="no output 'w'"):
        load_model(path, output="w")
    with pytest.raises(UnsupportedModelError, match=r"jumps|whole numbers"):
        load_model(path, output="class")
