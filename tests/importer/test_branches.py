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
from tests.core.lower.cases import nodes_of
from tests.hostile.kinds import functions
from tests.importer.models import model, saved, weights
from tests.ops import evaluate

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
    "v": np.ones(4, np.float32),
}


def branch(nodes, *outputs, kind="float"):
    return f"b () => ({', '.join(f'{kind}[] {name}' for name in outputs)}) {{ {nodes} }}"


def choice(condition, then, other, *outputs, name="choice"):
    attributes = f"then_branch={then}, else_branch={other}"
    return f"[{name}] {', '.join(outputs)} = If<{attributes}>({condition})"


LOOP = """b (int64 step, bool go, float[] a) => (bool b0, float[] b1) {
    b0 = Identity(go)  b1 = Add(a, f) }"""
BAD = {
    "round": "bad = Round(f)",
    "random": "bad = RandomNormalLike(f)",
    "recurrence": """bad_a = Unsqueeze(f, axis)  bad_b = LSTM<hidden_size=4>(bad_a, lstm_w, lstm_w)
        bad = ReduceSum<keepdims=0>(bad_b)""",
    "loop": f"bad = Loop<body={LOOP}>(two, yes, f)",
    "sequence": "bad_a = SequenceConstruct(f)  bad = SequenceAt(bad_a, zero)",
    "mixing": "bad = ReduceMean<axes=[0]>(f)",
    "training": "bad, m, s = BatchNormalization<training_mode=1>(f, v, v, v, v)",
    "text": """bad_a = ai.onnx.ml.ArrayFeatureExtractor(names, axis)
        bad = ai.onnx.ml.LabelEncoder<keys_strings=["a"], values_floats=[1.0]>(bad_a)""",
    "nan": "bad = Add(f, none)",
    "foreign": "bad = somewhere.Unknown(f)",
    "data": f"""bad_s = ReduceSum<keepdims=0>(f)  bad_c = Cast<to=9>(bad_s)
        {
        choice(
            "bad_c",
            branch("bad_t = Neg(f)", "bad_t"),
            branch("bad_e = Abs(f)", "bad_e"),
            "bad",
            name="bad_if",
        )
    }""",
}


def relu(name="t"):
    return branch(f"{name} = Relu(f)", name)


def other(nodes=""):
    """A branch that needs what is not supported."""
    return branch(f"{nodes}  e = Add(f, bad)", "e")


NEGATIVE = branch("e = Neg(f)", "e")


def nested(bad):
    inner = choice("no", branch("u = Add(f, bad)", "u"), relu("r"), "i", name="inner")
    body = branch(f"{inner}  t = Identity(i)", "t")
    return f"{bad}  {choice('yes', body, NEGATIVE, 'y')}"


def by_size(axis, other):
    """A choice by the size of an axis."""
    nodes = f"shape = Shape(f)  size = Gather(shape, {axis})  c = Equal(size, four)"
    return f"{nodes}  {choice('c', relu(), other, 'y')}"


def conditions_of_conditions(bad):
    """A chain, each of which decides by the one before, too long for a recursion."""
    before, nodes = "yes", bad
    for number in range(600):
        then, after = (
            branch(f"{name}{number} = Identity({name})", f"{name}{number}", kind="bool")
            for name in ("yes", "no")
        )
        nodes += f"  {choice(before, then, after, f'c{number}', name=f'if{number}')}"
        before = f"c{number}"
    return f"{nodes}  {choice(before, relu(), other(), 'y')}"


DEAD = {
    "beside": lambda bad: f"{bad}  y = Relu(f)",
    "in the other branch": lambda bad: choice("yes", relu(), other(bad), "y"),
    "read by the other branch": lambda bad: f"{bad}  {choice('yes', relu(), other(), 'y')}",
    "read by the else of an else": nested,
    "beside in the branch": lambda bad: choice(
        "yes", branch(f"{bad}  t = Relu(f)", "t"), relu("e"), "y"
    ),
    "another output of the If": lambda bad: choice(
        "yes",
        branch(f"{bad}  t = Relu(f)", "t", "bad"),
        branch("e = Relu(f)  n = Neg(f)", "e", "n"),
        "y",
        "z",
    ),
    "behind a condition of shapes": lambda bad: f"{bad}  {by_size('one', other())}",
}
NOT_RUN = {
    ("another output of the If", "data"),
    ("another output of the If", "foreign"),
    ("beside in the branch", "data"),
}
"""graphs that onnxruntime does not load"""


def graph(nodes, opset=17):
    rare = {name for name in ("names", "none") if name not in nodes}
    tensors = {name: array for name, array in TENSORS.items() if name not in rare}
    proto = model(f"f = MatMul(x, w)  {nodes}", ("N", 4), tensors, opset)
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
    proto = graph(f"{BAD[bad]}  {choice(condition, *branches, 'y')}")
    with pytest.raises(UnsupportedModelError):
        load_model(saved(proto, tmp_path), output="y", trusted=True)


def test_a_long_chain_of_conditions(tmp_path):
    proto = graph(conditions_of_conditions(BAD["round"]))
    imported = load_model(saved(proto, tmp_path), output="y", trusted=True)
    assert imported.reading.program.steps[-1].op == Activation("relu")


def test_a_condition_on_the_data_or_the_batch_is_refused(tmp_path):
    with pytest.raises(UnsupportedModelError) as refused:
        load_model(saved(graph(by_size("zero", NEGATIVE)), tmp_path), trusted=True)
    assert {item.code for item in refused.value.refusals} <= {"LC004", "LC008"}


@pytest.mark.parametrize(("axis", "is_known"), [("zero", False), ("one", True)])
def test_conditions_that_hold_for_any_batch_are_known(tmp_path, axis, is_known):
    """A number of the file stands for the nodes that compute one; the program is the same."""
    proto = graph(f"{BAD['round']}  {by_size(axis, other())}")
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
    then = branch("o = ReduceMean<keepdims=0>(other)  e = Add(f, o)", "e")
    proto = graph(choice("no", then, relu(), "y"))
    given = helper.make_tensor_value_info("other", TensorProto.FLOAT, ["N", "M", 3])
    proto.graph.input.append(given)
    imported = load_model(saved(proto, tmp_path), trusted=True)
    assert imported.reading.program.inputs == ("x",)


def test_digests_tell_dead_bodies_and_texts_apart(tmp_path):
    """The digest speaks of all that a file holds."""
    digests = set()
    for value, texts in (("yes", "ab"), ("no", "ab"), ("yes", "ac")):
        looped = f"bad_l = Loop<body={LOOP}>(two, {value}, f)"
        proto = graph(f"{looped}  {BAD['text']}  y = Relu(f)")
        for item in proto.graph.initializer:
            if item.name == "names":
                item.string_data[:] = [text.encode() for text in texts]
        digests.add(structural_digest(read_model(saved(proto, tmp_path))))
    assert len(digests) == 3


def test_the_digest_knows_what_the_body_of_a_loop_reads(tmp_path):
    """Two tensors change their names, so that the same bytes of a body read the other one."""
    digests = set()
    for names in ("pq", "qp"):
        proto = graph(f"{BAD['loop'].replace('Add(a, f)', 'Add(a, p)')}  y = Relu(f)")
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
    nodes = [f"{b} = Relu({a})" for a, b in zip(["x", *names], names, strict=False)]
    imported = load_model(saved(model("  ".join(nodes), ("N", 2), outputs=names), tmp_path))
    assert imported.graph.output_name == "y499"


def test_a_function_that_reads_what_a_call_leaves_out_is_refused(tmp_path):
    """An output that nobody asks for, computed from an input that nobody gives."""
    body = nodes_of("o = Relu(a)  u = Dropout(b)")
    imports = [helper.make_opsetid("", 17)]
    proto = model('y, "" = f.pair(x, "")', ("N", 4))
    proto.opset_import.append(helper.make_opsetid("f", 1))
    function = helper.make_function("f", "pair", ["a", "b"], ["o", "u"], body, imports)
    proto.functions.append(function)
    with pytest.raises(ModelFileError, match=r"LC016.*onnxruntime rejects it.*Dropout"):
        load_model(saved(proto, tmp_path))


def test_a_branch_with_inputs_is_refused_with_its_node_and_a_remedy(tmp_path):
    proto = graph(choice("yes", relu(), relu("e"), "y"))
    proto.graph.node[-1].name = ""
    proto.graph.node[-1].attribute[0].g.input.add(name="i")
    with pytest.raises(UnsupportedModelError, match=r"LC016.*'y' \('If'\).*Remedy: export"):
        load_model(saved(proto, tmp_path))
