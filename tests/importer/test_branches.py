"""What no output depends on refuses nothing: dead nodes, branches and functions out of use."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from lipcert.analysis.certificate import certify
from lipcert.core.check import Choices, check
from lipcert.core.digest import structural_digest
from lipcert.core.lower.lower import lower
from lipcert.core.program import Activation
from lipcert.core.reader.model import read_model
from lipcert.errors import ModelFileError, UnsupportedModelError
from lipcert.importer.load import load_model
from lipcert.importer.nodes import Branches
from lipcert.settings.settings import Settings
from tests.hostile.kinds import functions
from tests.importer.models import model, saved, weights
from tests.ops import evaluate

node = helper.make_node
WEIGHT = weights(4, 4)
TENSORS = {
    "w": WEIGHT,
    "yes": np.array(True),
    "no": np.array(False),
    "zero": np.array(0),
    "one": np.array(1),
    "two": np.array(2),
    "four": np.array(4),
    "axis": np.array([0]),
    "lstm_w": np.zeros((1, 16, 4), np.float32),
    "names": np.array(["a", "b"], dtype=object),
    "none": np.array([np.nan], np.float32),
}
LAYER = node("MatMul", ["x", "w"], ["f"])


def branch(nodes, *outputs, kind=TensorProto.FLOAT):
    results = [helper.make_tensor_value_info(name, kind, None) for name in outputs]
    return helper.make_graph(nodes, "branch", [], results)


def choice(condition, then, other, *outputs, name="choice"):
    return node("If", [condition], outputs, name=name, then_branch=then, else_branch=other)


def loop():
    state = [
        helper.make_tensor_value_info("step", TensorProto.INT64, []),
        helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        helper.make_tensor_value_info("a", TensorProto.FLOAT, None),
    ]
    results = [helper.make_tensor_value_info("b0", TensorProto.BOOL, [])]
    results.append(helper.make_tensor_value_info("b1", TensorProto.FLOAT, None))
    body = [node("Identity", ["go"], ["b0"]), node("Add", ["a", "f"], ["b1"])]
    return helper.make_graph(body, "loop", state, results)


CODE = {"keys_strings": ["a"], "values_floats": [1.0]}
BAD = {
    "round": [node("Round", ["f"], ["bad"])],
    "random": [node("RandomNormalLike", ["f"], ["bad"])],
    "recurrence": [
        node("Unsqueeze", ["f", "axis"], ["bad_a"]),
        node("LSTM", ["bad_a", "lstm_w", "lstm_w"], ["bad_b"], hidden_size=4),
        node("ReduceSum", ["bad_b"], ["bad"], keepdims=0),
    ],
    "loop": [node("Loop", ["two", "yes", "f"], ["bad"], body=loop())],
    "sequence": [
        node("SequenceConstruct", ["f"], ["bad_a"]),
        node("SequenceAt", ["bad_a", "zero"], ["bad"]),
    ],
    "mixing": [node("ReduceMean", ["f"], ["bad"], axes=[0])],
    "training": [node("BatchNormalization", ["f", *["v"] * 4], ["bad", "m", "s"], training_mode=1)],
    "text": [
        node("ArrayFeatureExtractor", ["names", "axis"], ["bad_a"], domain="ai.onnx.ml"),
        node("LabelEncoder", ["bad_a"], ["bad"], domain="ai.onnx.ml", **CODE),
    ],
    "nan": [node("Add", ["f", "none"], ["bad"])],
    "foreign": [node("Unknown", ["f"], ["bad"], domain="somewhere")],
    "data": [
        node("ReduceSum", ["f"], ["bad_s"], keepdims=0),
        node("Cast", ["bad_s"], ["bad_c"], to=TensorProto.BOOL),
        choice(
            "bad_c",
            branch([node("Neg", ["f"], ["bad_t"])], "bad_t"),
            branch([node("Abs", ["f"], ["bad_e"])], "bad_e"),
            "bad",
            name="bad_if",
        ),
    ],
}


def relu(name="t"):
    return branch([node("Relu", ["f"], [name])], name)


def other(nodes=()):
    """A branch that needs what is not supported."""
    return branch([*nodes, node("Add", ["f", "bad"], ["e"])], "e")


def nested(bad):
    then = branch([node("Add", ["f", "bad"], ["u"])], "u")
    inner = choice("no", then, relu("r"), "i", name="inner")
    body = branch([inner, node("Identity", ["i"], ["t"])], "t")
    return [*bad, choice("yes", body, branch([node("Neg", ["f"], ["e"])], "e"), "y")]


def computed(bad):
    nodes = [
        node("Shape", ["f"], ["shape"]),
        node("Gather", ["shape", "one"], ["width"]),
        node("Equal", ["width", "four"], ["c"]),
    ]
    return [*bad, *nodes, choice("c", relu(), other(), "y")]


def conditions_of_conditions(bad):
    """A chain, each of which decides by the one before, too long for a recursion."""
    before, nodes = "yes", []
    for number in range(600):
        then, after = (
            branch([node("Identity", [name], [result])], result, kind=TensorProto.BOOL)
            for name, result in (("yes", f"t{number}"), ("no", f"e{number}"))
        )
        nodes.append(choice(before, then, after, f"c{number}", name=f"if{number}"))
        before = f"c{number}"
    return [*bad, *nodes, choice(before, relu(), other(), "y")]


DEAD = {
    "beside": lambda bad: [*bad, node("Relu", ["f"], ["y"])],
    "in the other branch": lambda bad: [choice("yes", relu(), other(bad), "y")],
    "read by the other branch": lambda bad: [*bad, choice("yes", relu(), other(), "y")],
    "read by the else of an else": nested,
    "beside in the branch": lambda bad: [
        choice("yes", branch([*bad, node("Relu", ["f"], ["t"])], "t"), relu("e"), "y")
    ],
    "another output of the If": lambda bad: [
        choice(
            "yes",
            branch([*bad, node("Relu", ["f"], ["t"])], "t", "bad"),
            branch([node("Relu", ["f"], ["e"]), node("Neg", ["f"], ["n"])], "e", "n"),
            "y",
            "z",
        )
    ],
    "behind a condition of shapes": computed,
}
NOT_RUN = {
    ("another output of the If", "data"),
    ("another output of the If", "foreign"),
    ("beside in the branch", "data"),
}
"""graphs that onnxruntime does not load"""


def graph(nodes, opset=17):
    tensors = {
        name: array
        for name, array in TENSORS.items()
        if name not in {"names", "none"} or f'"{name}"' in str(nodes)
    }
    tensors["v"] = np.ones(4, np.float32)
    proto = model([LAYER, *nodes], ("N", 4), tensors, opset)
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    proto.opset_import.append(helper.make_opsetid("somewhere", 1))
    return proto


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("place", DEAD)
def test_what_no_output_depends_on_refuses_nothing(tmp_path, place, bad):
    if (place, bad) in NOT_RUN:
        pytest.skip("onnxruntime does not load it")
    imported = load_model(saved(graph(DEAD[place](BAD[bad])), tmp_path), output="y", trusted=True)
    example = np.array([[-1.0, 2.0, -3.0, 4.0]])
    np.testing.assert_allclose(
        evaluate(imported.graph, example)[imported.graph.output_name],
        np.maximum(example @ WEIGHT.astype(float), 0.0),
        rtol=1e-12,
    )


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("condition", ["yes", "no"])
def test_what_the_output_depends_on_is_refused(tmp_path, bad, condition):
    """The same operators in the branch that is taken."""
    branches = [other(), relu()] if condition == "yes" else [relu(), other()]
    proto = graph([*BAD[bad], choice(condition, *branches, "y")])
    with pytest.raises(UnsupportedModelError):
        load_model(saved(proto, tmp_path), output="y", trusted=True)


def test_a_long_chain_of_conditions(tmp_path):
    proto = graph(conditions_of_conditions(BAD["round"]))
    imported = load_model(saved(proto, tmp_path), output="y", trusted=True)
    assert imported.reading.program.steps[-1].op == Activation("relu")


def test_a_condition_on_the_data_or_the_batch_is_refused(tmp_path):
    nodes = [
        node("Shape", ["f"], ["shape"]),
        node("Gather", ["shape", "zero"], ["count"]),
        node("Equal", ["count", "four"], ["c"]),
        choice("c", relu(), branch([node("Neg", ["f"], ["e"])], "e"), "y"),
    ]
    with pytest.raises(UnsupportedModelError) as refused:
        load_model(saved(graph(nodes), tmp_path), trusted=True)
    assert {item.code for item in refused.value.refusals} <= {"LC004", "LC008"}


@pytest.mark.parametrize(("axis", "is_known"), [("zero", False), ("one", True)])
def test_conditions_that_hold_for_any_batch_are_known(tmp_path, axis, is_known):
    """A number of the file stands for the nodes that compute one; the program is the same."""
    nodes = [
        node("Shape", ["f"], ["shape"]),
        node("Gather", ["shape", axis], ["size"]),
        node("Equal", ["size", "four"], ["c"]),
        choice("c", relu(), other(), "y"),
    ]
    proto = graph([*BAD["round"], *nodes])
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    stored = read_model(saved(proto, tmp_path))
    branches = Branches.of(stored)
    decided = branches.decided(stored)
    assert branches.taken.keys() == {"y"}
    assert ("c" not in decided.computed) == is_known == ("c" in decided.initializers)
    read, again = (lower(model, "y") for model in (stored, decided))
    assert [step.op for step in read.steps[1:]] == [step.op for step in again.steps[1:]]
    assert (read.place, read.shapes) == (again.place, again.shapes)


def test_an_input_that_only_the_other_branch_reads_is_none(tmp_path):
    """It may be of any shape."""
    pooled = node("ReduceMean", ["other"], ["o"], keepdims=0)
    then = branch([pooled, node("Add", ["f", "o"], ["e"])], "e")
    proto = graph([choice("no", then, relu(), "y")])
    given = helper.make_tensor_value_info("other", TensorProto.FLOAT, ["N", "M", 3])
    proto.graph.input.append(given)
    imported = load_model(saved(proto, tmp_path), trusted=True)
    assert imported.reading.program.inputs == ("x",)


def test_digests_tell_dead_bodies_and_texts_apart(tmp_path):
    """The digest speaks of all that a file holds."""
    digests = set()
    for value, texts in (("yes", "ab"), ("no", "ab"), ("yes", "ac")):
        looped = node("Loop", ["two", value, "f"], ["bad_l"], body=loop())
        proto = graph([looped, *BAD["text"], node("Relu", ["f"], ["y"])])
        for item in proto.graph.initializer:
            if item.name == "names":
                item.string_data[:] = [text.encode() for text in texts]
        digests.add(structural_digest(read_model(saved(proto, tmp_path))))
    assert len(digests) == 3


def test_the_digest_knows_what_the_body_of_a_loop_reads(tmp_path):
    """Two tensors change their names, so that the same bytes of a body read the other one."""
    digests = set()
    for names in ("pq", "qp"):
        body = loop()
        body.node[1].input[1] = "p"
        nodes = [node("Loop", ["two", "yes", "f"], ["bad"], body=body), node("Relu", ["f"], ["y"])]
        proto = graph(nodes)
        for name, number in zip(names, (1.0, 2.0), strict=True):
            tensor = numpy_helper.from_array(np.float32([[number]]), name)
            proto.graph.initializer.append(tensor)
        digests.add(structural_digest(read_model(saved(proto, tmp_path))))
    assert len(digests) == 2


def test_a_certificate_of_such_a_file_is_valid(tmp_path):
    path = saved(graph(nested(BAD["loop"])), tmp_path)
    issued = certify(load_model(path), Settings(input_norm=1.0))
    assert check(issued.data, path, Choices()).verdict.name == "CONDITIONAL"


def test_an_unused_function_bomb_is_harmless(tmp_path):
    """What is never called is never expanded, nor counted."""
    proto = functions({f"f{i}": [f"f{i + 1}"] * 2 for i in range(31)} | {"f31": ["Relu"]})
    proto.graph.node[0].op_type = "f31"
    assert len(load_model(saved(proto, tmp_path)).graph.nodes) == 1


def test_many_outputs_are_sorted_out_in_one_pass(tmp_path):
    names = [f"y{i}" for i in range(500)]
    nodes = [node("Relu", [a], [b]) for a, b in zip(["x", *names], names, strict=False)]
    imported = load_model(saved(model(nodes, ("N", 2), outputs=names), tmp_path))
    assert imported.graph.output_name == "y499"


def test_a_function_that_reads_what_a_call_leaves_out_is_refused(tmp_path):
    """An output that nobody asks for, computed from an input that nobody gives."""
    body = [node("Relu", ["a"], ["o"]), node("Dropout", ["b"], ["u"])]
    imports = [helper.make_opsetid("", 17)]
    proto = model([node("pair", ["x", ""], ["y", ""], domain="f")], ("N", 4))
    proto.opset_import.append(helper.make_opsetid("f", 1))
    function = helper.make_function("f", "pair", ["a", "b"], ["o", "u"], body, imports)
    proto.functions.append(function)
    with pytest.raises(ModelFileError, match=r"LC016.*onnxruntime rejects it.*Dropout"):
        load_model(saved(proto, tmp_path))


def test_a_branch_with_inputs_is_refused_with_its_node_and_a_remedy(tmp_path):
    proto = graph([choice("yes", relu(), relu("e"), "y", name="")])
    proto.graph.node[-1].attribute[0].g.input.add(name="i")
    with pytest.raises(UnsupportedModelError, match=r"LC016.*'y' \('If'\).*Remedy: export"):
        load_model(saved(proto, tmp_path))
