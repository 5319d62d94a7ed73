"""Parameters: which tensors count, under which name, and with which gain."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from onnx import helper

from lipcert.errors import NoVerdictError, UnsupportedModelError
from lipcert.gradient_stats.measure import Network
from lipcert.graph.ir import Parameter, parameters_of, viewed
from lipcert.importer.load import load_model
from lipcert.measure.gradient_norms import NormEngine
from tests.core.lower.cases import listed
from tests.importer.models import model, saved, weights
from tests.measure.gradient_norms.oracle import network_of

SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"


def operands(imported):
    return [operand for item in imported.graph.nodes for operand in item.operands.values()]


def with_metadata(proto, signature, notes=None):
    entry = proto.graph.metadata_props.add()
    entry.key, entry.value = SIGNATURE, signature
    for name, values in (notes or {}).items():
        target = next(item for item in proto.graph.node if item.output[0] == name)
        for key, value in values.items():
            entry = target.metadata_props.add()
            entry.key, entry.value = key, value
    return proto


VIEWS = [
    ("Transpose", {}, [], (4, 3), 1.0),
    ("Reshape", {}, [np.array([4, 3])], (2, 6), 1.0),
    ("Expand", {}, [np.array([4, 3])], (1, 3), 2.0),
    ("Tile", {}, [np.array([1, 3])], (4, 1), np.sqrt(3.0)),
    ("Slice", {}, [np.array([1]), np.array([5]), np.array([0])], (6, 3), 1.0),
    ("Gather", {"axis": 0}, [np.array([0, 0, 0, 2])], (3, 3), np.sqrt(3.0)),
    ("Neg", {}, [], (4, 3), 1.0),
    ("Squeeze", {}, [np.array([0])], (1, 4, 3), 1.0),
]


@pytest.mark.parametrize(("kind", "attributes", "control", "shape", "gain"), VIEWS, ids=str)
def test_gain_of_a_view(tmp_path, kind, attributes, control, shape, gain):
    shape = (3, 4) if kind == "Transpose" else shape
    tensors = {"w": weights(*shape)} | {f"c{i}": item for i, item in enumerate(control)}
    nodes = f"v = {kind}{listed(attributes)}({', '.join(tensors)})  y = MatMul(x, v)"
    (operand,) = operands(load_model(saved(model(nodes, ("N", 4), tensors), tmp_path)))
    assert operand.parameter == "w"
    assert operand.gain == pytest.approx(gain, rel=1e-15)
    assert operand.gain >= gain


def test_tied_weights_are_one_parameter(tmp_path):
    nodes = "h = MatMul(x, w)  t = Transpose(w)  y = MatMul(h, t)"
    imported = load_model(saved(model(nodes, ("N", 4), {"w": weights(4, 3)}), tmp_path))
    assert list(imported.graph.parameters) == ["w"]
    assert imported.graph.parameters["w"].shape == (4, 3)
    assert [operand.parameter for operand in operands(imported)] == ["w", "w"]


def test_what_a_weight_is_computed_from_is_trained(tmp_path):
    """w is used directly and inside w·w, where no operand shows it."""
    nodes = "s = Mul(w, w)  h = MatMul(x, w)  y = MatMul(h, s)"
    imported = load_model(saved(model(nodes, ("N", 4), {"w": weights(4, 4)}), tmp_path))
    assert imported.graph.parameters == {"w": Parameter("w", (4, 4), computed=True)}
    assert not imported.diagnostics
    with pytest.raises(NoVerdictError, match=r"LC319.*'w'.*not measured.*freeze"):
        Network.of(imported.graph)


@pytest.mark.parametrize(("a", "b"), [((1,), (2,)), ((3, 1), (1, 4))])
def test_a_sum_of_two_weights_of_other_shapes_shows_both(tmp_path, a, b):
    width = np.broadcast_shapes(a, b)[-1]
    tensors = {"a": weights(*a), "b": weights(*b), "w": weights(4, width)}
    nodes = "s = Add(a, b)  h = MatMul(x, w)  y = Add(h, s)"
    imported = load_model(saved(model(nodes, (3, 4), tensors), tmp_path))
    is_clear = len(a) > 1  # a single number may be one of a formula
    shown = ["w", "a", "b"] if is_clear else ["w", "s"]
    assert [item.parameter for item in operands(imported)] == shown
    assert imported.graph.parameters.keys() == ({"a", "b", "w"} if is_clear else {"w", "s"})


PLUS = [
    ("s = Add(w, c)", 3.0, 1.0),
    ("s = Add(c, w)", 3.0, 1.0),
    ("s = Sub(w, c)", -3.0, 1.0),
    ("s = Sub(c, w)", 3.0, -1.0),
    ("t = Add(w, c)  s = Mul(t, c)", 9.0, 3.0),
    ("t = Mul(w, c)  s = Add(t, c)", 3.0, 3.0),
    ("t = Add(w, c)  u = Neg(t)  s = Sub(u, c)", -6.0, -1.0),
    ("t = Slice(w, one, three)  u = Add(t, c)  s = Pad(u, pads)", [3.0, 3.0, 0.0, 0.0], 1.0),
]


def plus_graph(steps, tmp_path, w):
    nodes = f"c = Constant<value_float=3.0>()  {steps}  y = Mul(x, s)"
    tensors = {"w": w, "one": np.array([1]), "three": np.array([3]), "pads": np.array([0, 2])}
    return load_model(saved(model(nodes, ("N", 4), tensors), tmp_path))


@pytest.mark.parametrize(("steps", "plus", "scale"), PLUS, ids=str)
def test_a_number_beside_the_entries_is_no_part_of_the_parameter(tmp_path, steps, plus, scale):
    w = weights(4)
    imported = plus_graph(steps, tmp_path, w)
    assert not imported.diagnostics
    assert not imported.graph.parameters["w"].folded
    (operand,) = operands(imported)
    is_cut = operand.places is not None
    shown = np.array([*w[1:3], 0.0, 0.0]) if is_cut else w.astype(np.float64)
    np.testing.assert_array_equal(operand.array.reshape(-1), scale * shown + plus)
    assert (operand.scale, operand.gain) == (scale, abs(scale))
    other = weights(4).astype(np.float64) ** 2
    shown = np.array([*other[1:3], 0.0, 0.0]) if is_cut else other
    np.testing.assert_array_equal(viewed(operand, other).reshape(-1), scale * shown + plus)
    back = parameters_of(imported.graph)["w"][1:3]
    np.testing.assert_allclose(back, w[1:3], rtol=0.0, atol=4e-15)


@pytest.mark.parametrize(
    "last", ["Sqrt(t)", "Mul(t, w)", "Add(t, w)", "Reciprocal(t)", "Div(c, t)"]
)
def test_other_functions_of_such_a_sum_are_computed(tmp_path, last):
    imported = plus_graph(f"t = Add(w, c)  s = {last}", tmp_path, np.abs(weights(4)) + 1)
    assert imported.graph.parameters == {"w": Parameter("w", (4,), computed=True)}


def test_gradients_by_a_parameter_with_a_number_beside_it(tmp_path):
    w, x = torch.tensor(weights(4)).double().requires_grad_(), torch.randn(5, 4).double()
    graph = plus_graph("s = Add(w, c)", tmp_path, weights(4)).graph
    found = NormEngine(network_of(graph)).measure(x, lambda out: (out**3).sum(1))
    losses = ((x * (3.0 + w)) ** 3).sum(1)
    true = [torch.autograd.grad(one, w, retain_graph=True)[0].norm().item() for one in losses]
    np.testing.assert_allclose(found.parameters["w"].norm, true, rtol=1e-12)


SUMS = {
    "a + b": ("s = Add(a, b)", lambda a, b, c: a + b),
    "a - b": ("s = Sub(a, b)", lambda a, b, c: a - b),
    "a + a + c": ("t = Add(a, a)  s = Add(t, c)", lambda a, b, c: 2 * a + c),
    "[a, 0, b]": ("s = Concat<axis=0>(a, z, b)", lambda a, b, c: torch.cat([a, 0 * a, b])),
    "[0, a]": (
        "t = ConstantOfShape(four)  s = Concat<axis=0>(t, a)",
        lambda a, b, c: F.pad(a, (4, 0)),
    ),
    "[[a, b], [c, a]]": (
        "t = Concat<axis=0>(a, b)  u = Concat<axis=0>(c, a)  s = Concat<axis=0>(t, u)",
        lambda a, b, c: torch.cat([a, b, c, a]),
    ),
    "[3 - b, a][1:]": (
        "t = Sub(n, b)  u = Concat<axis=0>(t, a)  v = Slice(u, one, eight)  s = Add(v, d)",
        lambda a, b, c: torch.cat([3 - b, a])[1:] + 1,
    ),
    "-[a, b + c, b]": (
        "t = Add(b, c)  u = Concat<axis=0>(a, t, b)  s = Neg(u)",
        lambda a, b, c: -torch.cat([a, b + c, b]),
    ),
}


def sum_nodes(steps, last):
    use = "y = Gemm(x, w, s)" if last == "Gemm" else f"h = MatMul(x, w)  y = {last}(h, s)"
    return f"""z = Constant<value_floats={[0.0] * 4}>()  n = Constant<value_float=3.0>()
        c = Constant<value_floats=[1.0, 2.0, 3.0, 4.0]>()  d = Constant<value_floats={[1.0] * 7}>()
        {steps}  {use}"""


@pytest.mark.sample(13)
@pytest.mark.parametrize("last", ["Gemm", "Add", "Sub"])
@pytest.mark.parametrize("name", SUMS)
def test_a_bias_may_be_a_sum(tmp_path, name, last):
    """Its gradients are those of autograd, and so is what the network computes."""
    steps, bias = SUMS[name]
    tensors = {key: weights(4, seed=i) for i, key in enumerate("ab")}
    a, b = (torch.tensor(tensors[key]).double().requires_grad_() for key in "ab")
    c = torch.arange(1.0, 5.0, dtype=torch.float64)
    size = len(bias(a, b, c))
    tensors |= {"w": weights(4, size), "one": np.array([1]), "eight": np.array([8])}
    tensors["four"] = np.array([4])
    if "b" not in name:
        del tensors["b"]
    proto = model(sum_nodes(steps, last), ("N", 4), tensors)
    imported = load_model(saved(proto, tmp_path))
    assert not imported.diagnostics
    assert {key: item.folded for key, item in imported.graph.parameters.items()} == dict.fromkeys(
        tensors.keys() & {"a", "b", "w"}, False
    )
    x, sign = torch.randn(3, 4, dtype=torch.float64), -1 if last == "Sub" else 1
    found = NormEngine(network_of(imported.graph)).measure(x, lambda out: (out**3).sum(1))
    losses = ((x @ torch.tensor(tensors["w"]).double() + sign * bias(a, b, c)) ** 3).sum(1)
    for key, theta in {"a": a, "b": b}.items():
        if key in tensors:
            true = [torch.autograd.grad(z, theta, retain_graph=True)[0].norm() for z in losses]
            np.testing.assert_allclose(found.parameters[key].norm, np.array(true), rtol=1e-12)


@pytest.mark.parametrize("last", ["Mul", "Div"])
def test_a_sum_that_is_no_bias_is_computed(tmp_path, last):
    tensors = {"a": weights(4), "b": weights(4, seed=2) ** 2 + 9, "w": weights(4, 4)}
    proto = model(sum_nodes("s = Add(a, b)", last), ("N", 4), tensors)
    imported = load_model(saved(proto, tmp_path))
    assert imported.graph.computed == ["a", "b"]


@pytest.mark.parametrize("kind", ["Mul", "Div"])
@pytest.mark.parametrize("numbers", [[1.0], [1.0, 1.0, 1.0]])
def test_a_weight_of_ones_is_no_constant(tmp_path, kind, numbers):
    """Times or over a weight of ones, as it may be before training: not the other weight alone."""
    tensors = {"w": np.ones((4, 3), np.float32), "g": np.array(numbers, np.float32)}
    nodes = f"s = {kind}(w, g)  y = MatMul(x, s)"
    imported = load_model(saved(model(nodes, ("N", 4), tensors), tmp_path))
    parameters = imported.graph.parameters
    if len(numbers) == 1:  # which may be a number of a formula
        assert {name: item.folded for name, item in parameters.items()} == {"s": True}
        assert "LC009" in {item.code for item in imported.diagnostics}
    else:
        assert all(item.computed and not item.folded for item in parameters.values())
        assert parameters.keys() == {"w", "g"}


def test_constant_nodes_are_weights_only_in_slots_of_weights(tmp_path):
    nodes = """w = Constant<value=float[2, 3]{0.1, -2, 3, 0.4, 5, 6}>()
        half = Constant<value_float=0.5>()  h = MatMul(x, w)  y = Mul(h, half)"""
    imported = load_model(saved(model(nodes, ("N", 2)), tmp_path))
    assert [operand.parameter for operand in operands(imported)] == ["w", None]


def test_running_statistics_are_not_trained(tmp_path):
    tensors = {
        f"bn.{name}": np.ones(4, np.float32)
        for name in ("weight", "bias", "running_mean", "running_var")
    }
    names = '", "'.join(tensors)
    nodes = f'y = BatchNormalization(x, "{names}")'
    imported = load_model(saved(model(nodes, ("N", 4, 3), tensors), tmp_path))
    assert set(imported.graph.parameters) == {"bn.weight", "bn.bias"}


@pytest.mark.parametrize(
    "name", ["running_mean_head.weight", "net.running_various", "moving_meanness"]
)
def test_a_name_that_only_begins_like_a_statistic_is_a_parameter(tmp_path, name):
    proto = model(f'y = MatMul(x, "{name}")', ("N", 4), {name: weights(4, 3)})
    imported = load_model(saved(proto, tmp_path))
    assert set(imported.graph.parameters) == {name}


@pytest.mark.parametrize(
    "name", ["running_mean_1", "bn/moving_mean/read:0", "bn.moving_variance__7"]
)
def test_exporters_number_the_names_of_statistics(tmp_path, name):
    nodes = f'y = Add(x, "{name}")'
    imported = load_model(saved(model(nodes, ("N", 4), {name: weights(4)}), tmp_path))
    assert not imported.graph.parameters


def test_anonymous_names_are_noted(tmp_path):
    tensors = {"onnx::MatMul_7": weights(4, 3)}
    proto = model('y = MatMul(x, "onnx::MatMul_7")', ("N", 4), tensors)
    imported = load_model(saved(proto, tmp_path))
    assert [item.code for item in imported.diagnostics] == ["LC023"]
    assert not imported.graph.parameters["onnx::MatMul_7"].folded


LINEAR = "target=torch.ops.aten.linear.default](args = (%x, %p_w), kwargs = {})"


def test_transposed_copy_is_a_view_of_the_listed_parameter(tmp_path):
    proto = model("y = MatMul(x, val_1)", ("N", 4), {"val_1": weights(4, 3)})
    with_metadata(
        proto,
        "x: USER_INPUT\np_w: PARAMETER target='fc.weight'\n",
        {"y": {"pkg.torch.onnx.fx_node": LINEAR}},
    )
    imported = load_model(saved(proto, tmp_path))
    assert imported.graph.parameters["fc.weight"].shape == (3, 4)
    assert not imported.graph.parameters["fc.weight"].folded
    assert imported.diagnostics == ()


def test_shared_copies_of_two_parameters_are_told_apart(tmp_path):
    """An optimiser stores two equal LayerNorm weights once; training does not."""
    call = "target=torch.ops.aten.layer_norm.default](args = (%x, [4], %p_{0}), kwargs = {{}})"
    nodes = "h = LayerNormalization(x, n1)  y = LayerNormalization(h, n1)"
    proto = model(nodes, ("N", 4), {"n1": np.ones(4, np.float32)})
    signature = "p_n1: PARAMETER target='n1'\np_n2: PARAMETER target='n2'\n"
    with_metadata(
        proto,
        signature,
        {
            "h": {"pkg.torch.onnx.fx_node": call.format("n1")},
            "y": {"pkg.torch.onnx.fx_node": call.format("n2")},
        },
    )
    imported = load_model(saved(proto, tmp_path))
    assert [operand.parameter for operand in operands(imported)] == ["n1", "n2"]


@pytest.mark.parametrize("as_exported", [False, True])
def test_missing_parameters_mark_what_is_left(tmp_path, as_exported):
    proto = model("y = MatMul(x, w)", ("N", 4), {"w": weights(4, 3)})
    with_metadata(
        proto, "x: USER_INPUT\np_w: PARAMETER target='w'\np_g: PARAMETER target='bn.weight'\n"
    )
    imported = load_model(saved(proto, tmp_path), as_exported=as_exported)
    assert imported.graph.parameters["w"].folded is not as_exported
    (note,) = imported.diagnostics
    assert note.code == "LC009"
    assert "'bn.weight'" in note.message
    assert "lipcert.export" in note.remedy


def test_buffers_are_not_parameters(tmp_path):
    proto = model("y = MatMul(x, w)", ("N", 4), {"w": weights(4, 3)})
    with_metadata(proto, "b_w: BUFFER target='w' persistent=True\n")
    assert not load_model(saved(proto, tmp_path)).graph.parameters


def test_training_mode_is_read_from_the_metadata(tmp_path):
    proto = model("y = Relu(x)", ("N", 4))
    with_metadata(proto, "# outputs\ng: BUFFER_MUTATION target='bn.running_mean'\n")
    with pytest.raises(UnsupportedModelError, match="LC011"):
        load_model(saved(proto, tmp_path))


def test_initializers_that_are_inputs(tmp_path):
    proto = model("y = MatMul(x, w)", ("N", 4), {"w": weights(4, 3)})
    proto.graph.input.append(helper.make_tensor_value_info("w", 1, [4, 3]))
    imported = load_model(saved(proto, tmp_path))
    assert [item.code for item in imported.diagnostics] == ["LC020"]


def test_a_tensor_with_a_use_that_no_rule_follows(tmp_path):
    """The running mean of one layer is the shift of another: its gradient is not followed."""
    tensors = {name: np.ones(4, np.float32) for name in "sbmv"}
    nodes = "c = Unsqueeze(m, a)  h = BatchNormalization(x, s, b, m, v)  y = Add(h, c)"
    proto = model(nodes, ("N", 4, 3), tensors | {"a": np.array([1])})
    imported = load_model(saved(proto, tmp_path))
    assert imported.graph.parameters["m"].folded
    assert not imported.graph.parameters["s"].folded


def test_a_listed_parameter_used_as_a_statistic(tmp_path):
    tensors = {name: np.ones(4, np.float32) for name in "sbmv"}
    proto = model("y = BatchNormalization(x, s, b, m, v)", ("N", 4, 3), tensors)
    listed = "".join(f"p_{name}: PARAMETER target='{name}'\n" for name in "sbm")
    with pytest.raises(UnsupportedModelError, match="LC003"):
        load_model(saved(with_metadata(proto, listed), tmp_path))


def test_a_recurrent_start_from_zero_keeps_the_parameters(tmp_path):
    nodes = """"/Constant_output_0" = Constant<value=float[1, 3]{0, 0, 0}>()  i = MatMul(x, u)
        h = Gemm("/Constant_output_0", w, b)  a = Add(i, h)  h1 = Tanh(a)  y = Gemm(h1, w, b)"""
    tensors = {"w": weights(3, 3), "b": weights(3), "u": weights(2, 3)}
    proto = model(nodes, ("N", 2), tensors)
    graph = load_model(saved(proto, tmp_path), trusted=True).graph
    assert {name for name, item in graph.parameters.items() if not item.folded} == {"w", "b", "u"}


@pytest.mark.parametrize(
    ("rule", "folded"), [("FuseBatchNormIntoGemm", True), ("FuseSuccessiveCast", False)]
)
def test_a_note_of_a_folded_layer_holds_without_a_signature(rule, folded, tmp_path):
    """torch.onnx.export(opset_version=17) converts the file, and of its notes this one is left."""
    nodes = 'y = Gemm<transB=1>(x, "f.0.weight")'
    proto = model(nodes, ("N", 4), {"f.0.weight": weights(3, 4)})
    proto.producer_name = "pytorch"
    proto.graph.node[0].metadata_props.add(key="pkg.onnxscript.rewriter.rule_name", value=rule)
    graph = load_model(saved(proto, tmp_path)).graph
    assert graph.parameters["f.0.weight"].folded == folded
    assert [layer.kind for layer in graph.eval_layers] == ["BatchNormalization"] * folded
