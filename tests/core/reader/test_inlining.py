"""Model-local functions and branches: read as the nodes that they stand for."""

import numpy as np
import pytest
from onnx import parser

from lipcert.core.coverage import eval_layers, tensors_read
from lipcert.core.digest import structural_digest
from lipcert.core.reader.records import MAX_NODES, ModelReadError
from tests.core.lower.cases import agrees, kinds, model, program, read

PREFIX = '<domain: "f", opset_import: ["": 17, "f": 1]> '


def made(nodes, *functions, constants=None):
    """A model with functions of the domain f."""
    proto = model(nodes, ["N", 4], constants)
    proto.opset_import.add(domain="f", version=1)
    proto.functions.extend(parser.parse_function(PREFIX + function) for function in functions)
    return proto


def test_functions_in_functions_compute_what_onnxruntime_computes():
    twice = "twice (a) => (c) { b = f.leak(a)  c = f.leak(b) }"
    leak = "leak <alpha> (a) => (b) { t = LeakyRelu<alpha: float = @alpha>(a)  b = Neg(t) }"
    proto = made("u = f.twice(x)  y = f.leak<alpha=0.3>(u)", twice, leak)
    assert kinds(agrees(proto)).count("leaky_relu") == 3


def test_defaults_of_attributes_and_inputs_that_are_left_out():
    body = "e = Elu<alpha: float = @alpha>(a)  b = Clip(e, low)"
    agrees(made("y = f.f(x)", f"f <alpha: float = 0.25> (a, low) => (b) {{ {body} }}"))


def test_an_input_may_be_an_output(tmp_path):
    """onnxruntime refuses such a function, so the reading is looked at."""
    proto = made("u, v = f.f(x)  y = Add(u, v)", "f (a) => (a, b) { b = Relu(a) }")
    found = [(item.op_type, item.inputs) for item in read(proto, tmp_path).nodes]
    assert found == [("Identity", ("x",)), ("Relu", ("x",)), ("Add", ("u", "v"))]


def test_a_parameter_keeps_its_name_and_every_node_its_place(tmp_path):
    layer = "f (a, w) => (b) { m = MatMul(a, w)  b = Relu(m) }"
    weight = {"w": np.eye(4)}
    proto = made("u = f.f(x, w)  y = f.f(u, w)", layer, constants=weight)
    found = read(proto, tmp_path)
    assert [item.op_type for item in found.nodes] == ["MatMul", "Relu"] * 2
    assert len({name for item in found.nodes for name in item.outputs}) == 4
    assert [tensors_read([step]) for step in program(proto).steps] == [{"w"}, set()] * 2
    plain = made("a = MatMul(x, w)  b = Relu(a)  c = MatMul(b, w)  y = Relu(c)", constants=weight)
    assert structural_digest(found) == structural_digest(read(plain, tmp_path))


RELU = "f (a) => (b) { b = Relu(a) }"
MANY = "  ".join(f"t{k} = f.g(a)" for k in range(20000))
REFUSED = {
    "itself": ["f (a) => (b) { b = f.f(a) }"],
    "a bomb": [
        *(f"f{k or ''} (a) => (b) {{ t = f.f{k + 1}(a)  b = f.f{k + 1}(t) }}" for k in range(31)),
        "f31 (a) => (b) { b = Relu(a) }",
    ],
    "long names": [
        f"f (a) => (b) {{ {MANY}  b = f.g(a) }}",
        f"g (a) => (b) {{ {'t' * 50000} = Relu(a)  b = Relu(a) }}",
    ],
    "a name from around": ["f (a) => (b) { b = Add(a, x) }"],
    "twice": [RELU, RELU],
    "an unknown attribute": [RELU],
    "an attribute of another kind": ["f <alpha> (a) => (b) { b = Elu<alpha: int = @alpha>(a) }"],
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused(kind, tmp_path):
    more = "<alpha=0.5>" if "attribute" in kind else ""
    proto = made(f"y = f.f{more}(x)", *REFUSED[kind])
    with pytest.raises(ModelReadError) as caught:
        read(proto, tmp_path)
    assert str(caught.value).isprintable()


def test_another_operator_set_is_refused(tmp_path):
    proto = made("y = f.f(x)", RELU)
    proto.functions[0].opset_import[0].version = 11
    with pytest.raises(ModelReadError, match="operator set"):
        read(proto, tmp_path)


# branches -------------------------------------------------------------------------------------


def choosing(condition, then, other):
    nodes = f"c = {condition}  i = If<then_branch={then}, else_branch={other}>(c)  y = Tanh(i)"
    return model(nodes, ["N", 4], {"one": 1, "two": 2, "w": np.arange(4.0)})


def two_branches(condition):
    return choosing(
        condition,
        "b () => (float[] u) { t = Add(x, w)  u = Relu(t) }",
        "b () => (float[] u) <float[4] v = {3, 3, 3, 3}> { t = Mul(x, v)  u = Identity(t) }",
    )


@pytest.mark.parametrize("names", ["one, two", "two, one"])
def test_a_constant_condition_chooses_a_branch(names, tmp_path):
    proto = two_branches(f"Less({names})")
    found = agrees(proto)
    assert ("relu" in kinds(found)) is (names == "one, two")
    assert found.covered[1] in {"step", "part"}
    structural_digest(read(proto, tmp_path))


def test_the_digest_sees_what_is_in_a_branch(tmp_path):
    proto, other = (two_branches("Less(one, two)") for _ in range(2))
    other.graph.node[1].attribute[1].g.node[0].op_type = "Sub"
    digests = {structural_digest(read(item, tmp_path)) for item in (proto, other)}
    assert len(digests) == 2


def test_a_layer_in_a_branch_has_to_stay_in_eval_mode(tmp_path):
    body = "b () => (float[] u) { u = Dropout(x) }"
    proto = choosing("Less(one, two)", body, body)
    layers = eval_layers(read(proto, tmp_path), program(proto), clipped=False)
    assert [layer.kind for layer in layers] == ["Dropout"] * 2


def test_nodes_are_counted_before_they_are_inlined(tmp_path):
    body = "  ".join(f"t{k} = Relu(a)" for k in range(MAX_NODES // 2))
    proto = made("u = f.f(x)  y = f.f(u)", f"f (a) => (b) {{ {body}  b = Relu(a) }}")
    with pytest.raises(ModelReadError, match="inlined"):
        read(proto, tmp_path)
