"""Model-local functions and branches: read as the nodes that they stand for."""

import numpy as np
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from lipcert.core.coverage import eval_layers, tensors_read
from lipcert.core.digest import structural_digest
from lipcert.core.reader.records import MAX_NODES, ModelReadError
from tests.core.lower.cases import agrees, kinds, model, node, program
from tests.core.models import read

IMPORTS = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]


def made(nodes, functions, shape=("N", 4), constants=None):
    """A model with functions of the domain f: name, inputs, outputs, nodes, attributes."""
    proto = model(nodes, list(shape), constants)
    proto.opset_import.append(helper.make_opsetid("f", 1))
    for name, inputs, outputs, body, *more in functions:
        proto.functions.append(
            helper.make_function("f", name, inputs, outputs, body, IMPORTS, *more)
        )
    return proto


def called(op, inputs, outputs="y", **attributes):
    return node(op, inputs, outputs, domain="f", **attributes)


def referring(op, inputs, outputs, name, kind):
    """A node whose attribute of this name is that of the call."""
    found = node(op, inputs, outputs)
    item = found.attribute.add()
    item.name = item.ref_attr_name = name
    item.type = kind
    return found


def test_functions_in_functions_compute_what_onnxruntime_computes():
    twice = ("twice", ["a"], ["c"], [called("leak", "a", "b"), called("leak", "b", "c")])
    body = [referring("LeakyRelu", "a", "t", "alpha", AttributeProto.FLOAT), node("Neg", "t", "b")]
    leak = ("leak", ["a"], ["b"], body, ["alpha"])
    proto = made([called("twice", "x", "u"), called("leak", "u", alpha=0.3)], [twice, leak])
    assert kinds(agrees(proto)).count("leaky_relu") == 3


def test_defaults_of_attributes_and_inputs_that_are_left_out():
    body = [referring("Elu", "a", "e", "alpha", AttributeProto.FLOAT), node("Clip", "e low", "b")]
    defaults = [helper.make_attribute("alpha", 0.25)]
    proto = made([called("f", "x")], [("f", ["a", "low"], ["b"], body)])
    proto.functions[0].attribute_proto.extend(defaults)
    agrees(proto)


def test_an_input_may_be_an_output(tmp_path):
    """onnxruntime refuses such a function, so the reading is looked at."""
    functions = [("f", ["a"], ["a", "b"], [node("Relu", "a", "b")])]
    proto = made([called("f", "x", "u v"), node("Add", "u v")], functions)
    found = [(item.op_type, item.inputs) for item in read(proto, tmp_path).nodes]
    assert found == [("Identity", ("x",)), ("Relu", ("x",)), ("Add", ("u", "v"))]


def test_a_parameter_keeps_its_name_and_every_node_its_place(tmp_path):
    body = [node("MatMul", "a w", "m"), node("Relu", "m", "b")]
    weight = {"w": np.eye(4)}
    proto = made([called("f", "x w", "u"), called("f", "u w")], [("f", ["a", "w"], ["b"], body)],
                 constants=weight)  # fmt: skip
    found = read(proto, tmp_path)
    assert [item.op_type for item in found.nodes] == ["MatMul", "Relu"] * 2
    assert len({name for item in found.nodes for name in item.outputs}) == 4
    assert [tensors_read([step]) for step in program(proto).steps] == [{"w"}, set()] * 2
    plain = model([node("MatMul", "x w", "a"), node("Relu", "a", "b"), node("MatMul", "b w", "c"),
                   node("Relu", "c")], ["N", 4], weight)  # fmt: skip
    plain.opset_import.append(helper.make_opsetid("f", 1))
    assert structural_digest(found) == structural_digest(read(plain, tmp_path))


REFUSED = {
    "itself": [("f", ["a"], ["b"], [called("f", "a", "b")])],
    "a bomb": [(f"f{k or ''}", ["a"], ["b"], [called(f"f{k + 1}", "a", "t"),
                called(f"f{k + 1}", "t", "b")]) for k in range(31)]
              + [("f31", ["a"], ["b"], [node("Relu", "a", "b")])],
    "long names": [("f", ["a"], ["b"], [called("g", "a", f"t{k}") for k in range(20000)]
                    + [called("g", "a", "b")]),
                   ("g", ["a"], ["b"], [node("Relu", "a", "t" * 50000), node("Relu", "a", "b")])],
    "a name from around": [("f", ["a"], ["b"], [node("Add", "a x", "b")])],
    "twice": [("f", ["a"], ["b"], [node("Relu", "a", "b")])] * 2,
    "an unknown attribute": [("f", ["a"], ["b"], [node("Relu", "a", "b")])],
    "an attribute of another kind": [
        ("f", ["a"], ["b"], [referring("Elu", "a", "b", "alpha", AttributeProto.INT)], ["alpha"])],
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_refused(kind, tmp_path):
    more = {"alpha": 0.5} if "attribute" in kind else {}
    proto = made([called("f", "x", **more)], REFUSED[kind])
    with pytest.raises(ModelReadError) as caught:
        read(proto, tmp_path)
    assert str(caught.value).isprintable()


def test_another_operator_set_is_refused(tmp_path):
    proto = made([called("f", "x")], [("f", ["a"], ["b"], [node("Relu", "a", "b")])])
    proto.functions[0].opset_import[0].version = 11
    with pytest.raises(ModelReadError, match="operator set"):
        read(proto, tmp_path)


# branches -------------------------------------------------------------------------------------


def branch(nodes, output, tensors=()):
    out = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
    return helper.make_graph(nodes, "branch", [], [out], tensors)


def choosing(condition, then, other):
    chosen = node("If", "c", "i", then_branch=then, else_branch=other)
    return model([*condition, chosen, node("Tanh", "i")], ["N", 4],
                 {"one": 1, "two": 2, "w": np.arange(4.0)})  # fmt: skip


def two_branches(condition):
    weight = numpy_helper.from_array(np.full(4, 3.0, np.float32), "v")
    return choosing(
        condition,
        branch([node("Add", "x w", "t"), node("Relu", "t", "u")], "u"),
        branch([node("Mul", "x v", "t"), node("Identity", "t", "u")], "u", [weight]),
    )


@pytest.mark.parametrize("names", ["one two", "two one"])
def test_a_constant_condition_chooses_a_branch(names, tmp_path):
    proto = two_branches([node("Less", names, "c")])
    found = agrees(proto)
    assert ("relu" in kinds(found)) is (names == "one two")
    assert found.covered[1] in {"step", "part"}
    structural_digest(read(proto, tmp_path))


def test_the_digest_sees_what_is_in_a_branch(tmp_path):
    proto, other = (two_branches([node("Less", "one two", "c")]) for _ in range(2))
    other.graph.node[1].attribute[1].g.node[0].op_type = "Sub"
    digests = {structural_digest(read(item, tmp_path)) for item in (proto, other)}
    assert len(digests) == 2


def test_a_layer_in_a_branch_has_to_stay_in_eval_mode(tmp_path):
    body = branch([node("Dropout", "x", "u")], "u")
    proto = choosing([node("Less", "one two", "c")], body, body)
    found = read(proto, tmp_path)
    assert [kind for kind, _ in eval_layers(found, program(proto), clipped=False)] == [
        "Dropout"
    ] * 2


def test_nodes_are_counted_before_they_are_inlined(tmp_path):
    body = [node("Relu", "a", f"t{k}") for k in range(MAX_NODES // 2)] + [node("Relu", "a", "b")]
    proto = made([called("f", "x", "u"), called("f", "u")], [("f", ["a"], ["b"], body)])
    with pytest.raises(ModelReadError, match="inlined"):
        read(proto, tmp_path)
