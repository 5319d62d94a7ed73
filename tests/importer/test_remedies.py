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

node = helper.make_node
ONE = np.array(1.0, np.float32)


def two_inputs(batch):
    proto = model([node("Add", ["x", "z"], ["y"])], ("N", 4))
    proto.graph.input.append(helper.make_tensor_value_info("z", 1, [batch, 4]))
    return proto


def resized(*inputs, **tensors):
    op = node("Resize", ["x", "", *inputs], ["y"], mode="nearest")
    return model([op], ("N", 1, 4, 4), tensors)


def reshaped(*sizes, shape=("N", 4, 6)):
    nodes = [node("Reshape", ["x", "s"], ["r"]), node("Relu", ["r"], ["y"])]
    return model(nodes, shape, {"s": np.array(sizes)})


def counted(batch):
    nodes = [
        node("Size", ["x"], ["n"]),
        node("Cast", ["n"], ["f"], to=1),
        node("Div", ["x", "f"], ["y"]),
    ]
    return model(nodes, (batch, 4))


def masked(*hidden):
    mask = np.zeros((1, 3, 3), np.float32)
    for row in hidden:
        mask[:, row, :] = -np.inf
    mask[:, 0, 1] = -np.inf
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["x", "t"], ["s"]),
        node("Add", ["s", "mask"], ["m"]),
        node("Softmax", ["m"], ["p"], axis=-1),
        node("MatMul", ["p", "x"], ["y"]),
    ]
    return model(nodes, ("N", 3, 4), {"mask": mask})


def embedded(*first, **attributes):
    """Numbers x of rows, moved on before a row is chosen by each."""
    nodes = [*first, node("Gather", ["w", "i"], ["e"], **attributes), node("Relu", ["e"], ["y"])]
    return model(nodes, ("N", 4), {"w": weights(9, 3)}, dtype=7)


def statistics(kind):
    tensors = {name: np.ones(4, np.float32) for name in "sbmv"}
    proto = model([node("BatchNormalization", ["x", *"sbmv"], ["y"])], ("N", 4, 3), tensors)
    kinds = {"s": "PARAMETER", "b": "PARAMETER", "m": kind}
    listed = "".join(f"p_{name}: {word} target='{name}'\n" for name, word in kinds.items())
    return with_metadata(proto, listed)


def training(*outputs, **attributes):
    tensors = {name: np.ones(4, np.float32) for name in "sbmv"}
    op = node("BatchNormalization", ["x", *"sbmv"], ["y", *outputs], **attributes)
    return model([op], ("N", 4, 3), tensors)


REFUSALS = {
    "LC010 one batch axis, axis 0": (two_inputs(1), two_inputs("N")),
    "LC008 give scales, not sizes": (
        resized("", "sizes", sizes=np.array([11, 1, 8, 8])),
        resized("scales", scales=np.array([1, 1, 2, 2], np.float32)),
    ),
    "LC008 fixed sizes for all other axes": (
        model([node("Relu", ["x"], ["y"])], ("N", "T")),
        model([node("Relu", ["x"], ["y"])], ("N", 8)),
    ),
    "LC008 fixed batch size of 1": (counted("N"), counted(1)),
    "LC007 keep one axis for the batch only": (reshaped(-1, 2, 8), reshaped(0, 3, 8)),
    "LC007 use a layer that treats every example separately": (
        model([node("ReduceMean", ["x"], ["y"], axes=[0])], ("N", 4)),
        model([node("LayerNormalization", ["x", "s"], ["y"])], ("N", 4), {"s": np.ones(4, "f4")}),
    ),
    "LC005 without its discrete head": (
        model([node("Tanh", ["x"], ["h"]), node("Round", ["h"], ["y"])], ("N", 4)),
        model([node("Tanh", ["x"], ["y"])], ("N", 4)),
    ),
    "LC006 choose rows": (
        embedded(node("Abs", ["x"], ["i"])),
        embedded(node("Identity", ["x"], ["i"])),
    ),
    "LC006 (axis 0)": (
        embedded(node("Identity", ["x"], ["i"]), axis=1),
        embedded(node("Identity", ["x"], ["i"]), axis=0),
    ),
    "LC006 cast them to floats": (
        model([node("Abs", ["x"], ["y"])], ("N", 4), dtype=7),
        model([node("Cast", ["x"], ["f"], to=1), node("Abs", ["f"], ["y"])], ("N", 4), dtype=7),
    ),
    "LC005 weigh all by a softmax": (
        model([node("TopK", ["x"], ["v", "i"], k=2), node("Neg", ["i"], ["y"])], ("N", 4), opset=9),
        model([node("Softmax", ["x"], ["y"])], ("N", 4)),
    ),
    "LC011 evaluation mode": (training("m2", "v2", training_mode=1), training()),
    "LC003 freeze them: buffers": (statistics("PARAMETER"), statistics("BUFFER")),
    "LC014 let every query see a token": (masked(2), masked()),
    "LC003 supported operators, or opset 17-20": (
        model([node("Add", ["x", "c"], ["y"], broadcast=1, axis=0)], ("N", 4), {"c": ONE}, opset=5),
        model([node("Add", ["x", "c"], ["y"])], ("N", 4), {"c": ONE}),
    ),
    "LC005 write soft shrinkage with Relu": (
        model([node("Shrink", ["x"], ["y"], lambd=0.5)], ("N", 4)),
        model(
            [
                node("Sub", ["x", "h"], ["a"]), node("Relu", ["a"], ["p"]),
                node("Neg", ["x"], ["m"]), node("Sub", ["m", "h"], ["b"]),
                node("Relu", ["b"], ["q"]), node("Sub", ["p", "q"], ["y"]),
            ],
            ("N", 4),
            {"h": np.array(0.5, np.float32)},
        ),
    ),
    "LC005 use Relu(x - alpha)": (
        model([node("ThresholdedRelu", ["x"], ["y"])], ("N", 4)),
        model([node("Sub", ["x", "c"], ["d"]), node("Relu", ["d"], ["y"])], ("N", 4), {"c": ONE}),
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
    nodes = [node("Tanh", ["x"], ["h"]), node("ArgMax", ["h"], ["y"], axis=1)]
    proto = model(nodes, ("N", 4), outputs=("y",))
    proto.graph.output[0].type.tensor_type.elem_type = 7
    path = saved(proto, tmp_path)
    with pytest.raises(UnsupportedModelError, match="discrete head"):
        load_model(path)
    assert load_model(path, output="h").graph.output_name == "h"


@pytest.mark.parametrize("place", [0, 4])
def test_outputs_that_choose_or_copy_are_left_aside(tmp_path, place):
    nodes = [node("Tanh", ["x"], ["h"]), node("TopK", ["h", "k"], ["largest", "at"])]
    others = ["y", "at", "same", "version"]
    others.insert(place, "h")
    nodes += [node("Identity", ["x"], ["same"]), node("Identity", ["k"], ["version"])]
    nodes += [node("ArgMax", ["h"], ["c"], axis=1), node("Squeeze", ["c"], ["y"])]
    proto = model(nodes, ("N", 4), {"k": np.array([2])}, outputs=others)
    assert load_model(saved(proto, tmp_path)).graph.output_name == "h"
    proto.graph.output.append(helper.make_tensor_value_info("largest", 1, None))
    found = load_model(saved(proto, tmp_path))
    assert found.graph.output_name == "largest"
    assert [item.code for item in found.diagnostics] == ["LC012"]


def overridable(*, kept):
    proto = model([node("MatMul", ["x", "w"], ["y"])], ("N", 4), {"w": weights(4, 3)})
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
        model([node("Relu", ["x"], ["y"])], (5, 4)),
        model([node("Relu", ["x"], ["y"])], ("N", 4)),
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
    nodes = [
        node("MatMul", ["x", "w"], ["scores"]),
        node("Softmax", ["scores"], ["shares"]),
        node("ArgMax", ["shares"], ["class"], axis=1),
        node("ZipMap", ["shares"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[0, 1]),
    ]
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
