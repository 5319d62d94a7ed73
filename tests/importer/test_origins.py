"""Tensors that exporters computed from trained parameters: none of their bounds may be too small.

The truth is what autograd says of the module itself, before any exporter saw it.
"""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from onnx import helper
from torch import nn

from lipcert.analysis.certificate import certify
from lipcert.analysis.pipeline import analyze
from lipcert.core.digest import structural_digest
from lipcert.core.reader.model import read_model
from lipcert.diagnostics import EXPORT
from lipcert.importer.load import load_model, load_under
from lipcert.report.analysis import assumption_rows
from lipcert.report.inspection import inspection_of
from lipcert.settings.settings import Settings
from tests.importer.models import model, onnx, saved, weights
from tests.importer.test_calls import FX_NODE, noted
from tests.importer.test_parameters import with_metadata

pytestmark = pytest.mark.filterwarnings("ignore")
node = helper.make_node
LITERAL = '"/Constant_1_output_0"'
FOLDED = "pkg.onnxscript.optimizer.folded_from"


class Network(nn.Module):
    """Two layers, and between them what a test makes of the first one and of a parameter."""

    def __init__(self, between, **parameters):
        super().__init__()
        self.fc, self.out = nn.Linear(4, 4), nn.Linear(4, 3)
        for name, value in parameters.items():
            setattr(self, name, nn.Parameter(torch.tensor(value)))
        self.between = between

    def forward(self, x):
        return self.out(self.between(self, x))


def spelled_elu(x):
    return (x > 0).float() * x + (x <= 0).float() * (x.exp() - 1)


COMPUTED = {
    "divided": lambda s, x: s.fc(x) / (s.fc.bias + 5),
    "doubled": lambda s, x: s.fc(x) * (s.fc.bias * 2),
    "reciprocal": lambda s, x: s.fc(x) * (s.fc.bias + 2).reciprocal(),
    "norm": lambda s, x: s.fc(x) / s.fc.weight.norm(dim=1),
    "tied": lambda s, x: s.fc(x) @ s.fc.weight,
    "tied, scaled": lambda s, x: s.fc(x) @ (s.fc.weight * 2),
    "sum": lambda s, x: x @ (s.fc.weight + s.out.weight[0]) + s.fc(x),
    "product": lambda s, x: s.fc(x) + x @ (s.fc.weight @ s.fc.weight),
    "row": lambda s, x: s.fc(x) * s.fc.weight[0],
    "reshaped": lambda s, x: s.fc(x) * s.fc.bias.view(1, 4),
    "softmax": lambda s, x: s.fc(x) * s.fc.bias.softmax(0),
    "parts": lambda s, x: s.fc(x) * torch.cat([s.fc.bias[:2], s.out.bias[:2]]),
    "opposite": lambda s, x: s.fc(x) * (1 - s.fc.bias),
    "convolution": lambda s, x: F.conv1d(
        s.fc(x)[:, None], s.fc.weight[:, None] * s.fc.bias[:, None, None], padding=2
    ).mean(2),
}
WITH_NUMBER = {
    "temperature": (lambda s, x: s.fc(x) / s.t.exp() + s.t, 0.3),
    "temperature of 1": (lambda s, x: s.fc(x) / s.t.exp() - s.t * x, 0.0),
    "scale of an activation": (
        lambda s, x: torch.where(s.fc(x) > 0, s.fc(x), 0.1 * s.fc(x)) * s.t,
        0.3,
    ),
    "factor of 1": (lambda s, x: s.fc(x) * s.t + x.sum(1, keepdim=True) - s.t, 1.0),
    "no entries": (lambda s, x: s.fc(x) + s.t.sum(), []),
    "merged with a constant": (lambda s, x: s.fc(x) / torch.full((4,), 2.0) * (s.t + 1), [1.0] * 4),
    "merged with ones": (lambda s, x: (s.fc(x) + torch.ones(4)) * (s.t * s.t) + s.t, [1.0] * 4),
}
FIXED = {
    "literals": lambda s, x: s.fc(x) * 2.5 + 0.3,
    "positions": lambda s, x: s.fc(x) + torch.arange(4).float().mul(0.3).sin().view(1, 4),
    "list": lambda s, x: s.fc(x) * torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "python's sum": lambda s, x: sum([s.fc(x), x]),
    "dropout": lambda s, x: F.dropout(F.gelu(s.fc(x)), 0.5, s.training),
    "equal numbers": lambda s, x: spelled_elu(s.fc(x)) + spelled_elu(x),
    "mask": lambda s, x: s.fc(x).masked_fill(torch.ones(1, 4).triu(3).bool(), -3.0),
}
MODULES = {
    **{name: (between, {}) for name, between in {**COMPUTED, **FIXED}.items()},
    **{name: (between, {"t": value}) for name, (between, value) in WITH_NUMBER.items()},
}
EXPORTERS = {
    "default": {"dynamo": True, "external_data": False, "verbose": False},
    "torchscript": {"dynamo": False},
}


def exported(module, exporter, path):
    torch.onnx.export(module, (torch.rand(1, 4),), str(path), **EXPORTERS[exporter])
    return load_model(path, trusted=True)


def largest_gradients(module):
    """Of each parameter and of all, of cross-entropy over examples in [0, 1] and all labels."""
    torch.manual_seed(1)
    found = {}
    for x in (*torch.rand(12, 1, 4), *torch.eye(4)[:, None]):
        for label in range(3):
            module.zero_grad()
            F.cross_entropy(module(x), torch.tensor([label])).backward()
            named = dict(module.named_parameters())
            norms = {n: p.grad.norm().item() for n, p in named.items() if p.numel()}
            norms[""] = sum(norm**2 for norm in norms.values()) ** 0.5
            found = {name: max(norm, found.get(name, 0.0)) for name, norm in norms.items()}
    return found


@pytest.mark.sample(6)
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("kind", MODULES)
def test_no_bound_is_too_small(tmp_path, kind, exporter):
    torch.manual_seed(0)
    between, parameters = MODULES[kind]
    module = Network(between, **parameters).eval()
    analysis = analyze(exported(module, exporter, tmp_path / "m.onnx"), Settings())
    bounds = {item.name: item.grad_norm for item in analysis.parameters}
    bounds[""] = analysis.network.grad_norm
    truth = largest_gradients(module)
    for name, bound in bounds.items():
        assert bound is None or bound >= truth.get(name, 0.0) * (1 - 1e-6), name
    if bounds[""] is None:
        assert {"LC009", "LC102"} & {item.code for item in analysis.diagnostics}
    else:
        assert bounds.keys() >= truth.keys()
    if kind in FIXED:
        assert bounds[""] is not None


def computed(names, *, tensor="t", read="%linear, %exp", more=None):
    """x through a layer and a quotient, whose divisor an optimiser stored."""
    nodes = f'linear = Gemm<transB=1>(x, "fc.weight", "fc.bias")  y = Div(linear, "{tensor}")'
    stored = {"fc.weight": weights(4, 4), "fc.bias": weights(4), tensor: np.exp(weights(4))}
    proto = model(nodes, ("N", 4), stored)
    signature = (
        "x: USER_INPUT\np_w: PARAMETER target='fc.weight'\np_b: PARAMETER target='fc.bias'\n"
        "b_pe: BUFFER target='pe'\ndiv: USER_OUTPUT\n"
    )
    notes = {
        "linear": {FX_NODE: noted("linear", "linear", "%x, %p_w, %p_b")},
        "y": {FX_NODE: noted("div", "div", read)},
    }
    with_metadata(proto, signature, notes)
    for name, origins in {**({} if names is None else {tensor: names}), **(more or {})}.items():
        info = proto.graph.value_info.add()
        info.CopyFrom(helper.make_tensor_value_info(name, 1, [4]))
        entry = info.metadata_props.add()
        entry.key, entry.value = FOLDED, repr(sorted(origins))
    return proto


def folded(proto, tmp_path):
    imported = load_model(saved(proto, tmp_path), trusted=True)
    return {name for name, item in imported.graph.parameters.items() if item.folded}


def test_a_noted_tensor_is_computed_from_what_its_note_names(tmp_path):
    assert folded(computed(["fc.bias", "val_0"], tensor="exp"), tmp_path) == {"fc.bias", "exp"}
    assert folded(computed(["p_b", "val_0"], tensor="exp"), tmp_path) == {"fc.bias", "exp"}
    assert folded(computed(["pe", "val_0"], tensor="exp"), tmp_path) == set()


def test_what_is_taken_for_fixed_is_told(tmp_path):
    proto = computed(["pe", "val_0"], tensor="exp")
    imported = load_model(saved(proto, tmp_path), trusted=True)
    rows = assumption_rows(analyze(imported, Settings()))
    assert ("fixed", "exp: computed by the exporter, from no trained parameter") in rows
    assert inspection_of(imported).fixed == imported.graph.fixed


@pytest.mark.parametrize(
    ("target", "free"),
    [
        ("operator.eq", True),
        ("operator.mul", True),
        ("operator.getitem", False),
        ("aten.mul.Tensor", False),
    ],
)
def test_an_arithmetic_of_sizes_reads_no_tensor(tmp_path, target, free):
    """The exporter leaves out a remainder of the size of the batch, and notes where it is read."""
    nodes = "h = Gemm<transB=1>(x, w, b)  y = Identity(h)"
    proto = model(nodes, ("N", 4), {"w": weights(4, 4), "b": np.zeros(4, np.float32)})
    left_out = (
        f"%eq : [num_users=0] = call_function[target={target}](args = (%mod_3, 0), kwargs = {{}})"
    )
    with_metadata(
        proto,
        "x: USER_INPUT\np_w: PARAMETER target='w'\np_b: PARAMETER target='b'\nh: USER_OUTPUT\n",
        {"h": {FX_NODE: noted("h", "linear", "%x, %p_w, %p_b")}, "y": {FX_NODE: left_out}},
    )
    assert folded(proto, tmp_path) == (set() if free else {"b"})


def test_a_tensor_of_another_call_may_come_from_anything(tmp_path):
    """The results of two calls had equal numbers, and are stored once, under one's name."""
    assert folded(computed(["pe"], tensor="sin"), tmp_path) == {"fc.weight", "fc.bias", "sin"}


def test_a_literal_is_one_where_computed_tensors_are_noted(tmp_path):
    proto = computed(None, tensor="val_0", read="%linear, 2.0", more={"shape": ["val_9"]})
    assert folded(proto, tmp_path) == set()


@pytest.mark.parametrize("tensor", ["exp", "val_0"])
def test_without_notes_the_result_of_a_call_may_come_from_anything(tmp_path, tensor):
    assert folded(computed(None, tensor=tensor), tmp_path) == {"fc.weight", "fc.bias", tensor}


def test_without_notes_a_tensor_may_come_from_the_parameters_of_its_call(tmp_path):
    proto = computed(None, tensor="val_0", read="%linear, %p_b")
    assert folded(proto, tmp_path) == {"fc.bias", "val_0"}


def test_a_file_whose_notes_were_dropped(tmp_path):
    """A tool that rewrites files keeps names alone: those of calls are no names of parameters.

    Others give their own name as the producer's, and prefixes to names.
    """
    proto = computed(["fc.bias"], tensor="exp")
    for item in proto.graph.node:
        item.name = f"node_{item.output[0]}"
    for entries in (proto.graph, *proto.graph.node, *proto.graph.value_info):
        del entries.metadata_props[:]
    proto.producer_name = "onnx.utils.extract_model"
    assert folded(proto, tmp_path) == {"fc.weight", "fc.bias", "exp"}


def test_as_exported_the_tensor_itself_is_trained(tmp_path):
    proto = computed(["fc.bias", "val_0"], tensor="exp")
    imported = load_model(saved(proto, tmp_path), trusted=True, as_exported=True)
    assert set(imported.graph.parameters) == {"fc.weight", "fc.bias", "exp"}
    assert not any(item.folded for item in imported.graph.parameters.values())


def unnamed(scope, op_type, shape, names=()):
    """A tensor with a made-up name, read by a node of a module."""
    tensor = f"{scope.partition('/')[0]}onnx::{op_type}_9"
    nodes = f'''["/first/MatMul"] h = MatMul(x, "first.weight")
        ["{scope}/{op_type}"] y = {op_type}(h, "{tensor}")'''
    stored = {"first.weight": weights(4, 4), tensor: weights(*shape)}
    proto = model(nodes, ("N", 3, 4), stored | {name: weights(4) for name in names})
    proto.producer_name = "pytorch"
    return proto


@pytest.mark.parametrize(
    ("scope", "op_type", "shape", "names", "is_copy"),
    [
        ("/fc", "MatMul", (4, 2), (), True),
        ("/fc", "MatMul", (4, 2), ("fc.bias",), True),
        ("/fc_1", "MatMul", (4, 2), ("fc.bias",), True),
        ("/blocks/blocks.0/fc", "MatMul", (4, 2), ("blocks.0.fc.bias",), True),
        ("/attention", "MatMul", (4, 2), ("attention.in_proj_bias",), True),
        ("/norm", "Mul", (3, 1), (), True),
        ("", "MatMul", (4, 2), (), False),
        ("/fc", "MatMul", (4, 2), ("fc.weight",), False),
        ("/block", "MatMul", (4, 2), ("block.fc.weight",), False),
        ("p_/fc", "MatMul", (4, 2), ("p_fc.weight",), False),
        ("/fc", "Mul", (4,), ("fc.weight",), False),
        ("/fc", "Mul", (4,), (), False),
        ("", "Div", (4,), (), False),
    ],
)
def test_made_up_names(tmp_path, scope, op_type, shape, names, is_copy):
    proto = unnamed(scope, op_type, shape, names)
    found = folded(proto, tmp_path)
    assert ("first.weight" in found) is not is_copy
    tensor = proto.graph.initializer.pop(1)  # a tool may have moved it into a node
    proto.graph.node.insert(0, node("Constant", [], [tensor.name], value=tensor))
    assert folded(proto, tmp_path) == found


def test_two_layers_of_equal_numbers_that_became_one(tmp_path):
    """An optimiser stores their weights once, and has one node for both."""

    class Copied(Network):
        def __init__(self):
            super().__init__(lambda s, x: s.twin(x) * s.fc(x) + s.twin(2 * x))
            self.twin = copy.deepcopy(self.fc)

    torch.manual_seed(0)
    analysis = analyze(exported(Copied().eval(), "default", tmp_path / "m.onnx"), Settings())
    assert analysis.network.grad_norm is None
    assert "LC009" in {item.code for item in analysis.diagnostics}


def test_a_literal_that_was_merged_with_the_copy_of_a_parameter(tmp_path):
    """Ones of a normalization without a weight, stored once with the weight of another."""
    proto = computed(["fc.bias", "val_0"], tensor="val_9", read="%linear, None")
    assert folded(proto, tmp_path) == set()


@pytest.mark.parametrize("more", ["", "Mul", "Add"])
@pytest.mark.parametrize("slope", [False, True])
def test_a_number_of_a_spelled_activation_may_be_trained(tmp_path, slope, more):
    """Exporters without notes name what a module holds, and no literal of its code."""
    nodes = f"""h = MatMul(x, w)  "/Constant_output_0" = Constant<value_float=0.0>()
        "/Constant_1_output_0" = Constant<value_float=0.1>()
        c = Greater(h, "/Constant_output_0")  s = Mul(h, {"t" if slope else LITERAL})
        r = Where(c, h, s)  last = {f"{more}(r, t)" if more else "Identity(r)"}
        y = MatMul(last, v)"""
    stored = {"w": weights(4, 4), "v": weights(4, 3), "t": np.float32(0.3)}
    if not slope and not more:
        del stored["t"]
    proto = model(nodes, ("N", 4), stored)
    proto.producer_name = "pytorch"
    analysis = analyze(load_model(saved(proto, tmp_path), trusted=True), Settings())
    bounds = {item.name: item.grad_norm for item in analysis.parameters}
    assert bounds.keys() == stored.keys()
    assert (bounds.get("t", 0.0) is None) == slope == (analysis.network.grad_norm is None)
    assert bounds["w"] is not None


@pytest.mark.parametrize("name", ["/f/MatMul", "/Constant_2", "p_/Exp", "/Reciprocal", "/Pow_1"])
@pytest.mark.parametrize("number", [4.0**-0.5, 1 / 0.7, 1.0])
@pytest.mark.parametrize("as_node", [False, True])
def test_what_a_tool_computed_from_parameters_has_no_bound(tmp_path, name, number, as_node):
    """It stores constant results of nodes under their names: U @ V, e^s or 1/s of a scale s.

    With a literal that it stores, a parameter of the same number may be merged.
    """
    name, value = f"{name}_output_0", np.full(4 if "M" in name else 1, number, np.float32)
    made = f'"{name}" = Constant<value = float[{value.size}] {{{str(value.tolist())[1:-1]}}}>()'
    stored = {"w": weights(4, 3), **({} if as_node else {name: value})}
    proto = model(f'{made * as_node} h = Mul(x, "{name}")  y = MatMul(h, w)', ("N", 4), stored)
    proto.producer_name = "pytorch" if as_node else "onnx.compose.merge_models"
    analysis = analyze(load_model(saved(proto, tmp_path), trusted=True), Settings())
    assert (analysis.network.grad_norm is None) is ("C" not in name)
    assert as_node or name in {item.name for item in analysis.parameters}


@pytest.mark.parametrize(
    ("name", "is_own"),
    [
        ("m/d/mul/ReadVariableOp:0", True),
        ("m/e/embedding_lookup/1046:0", True),  # a table
        ("m/d/Reshape_1:0", True),  # an own parameter, moved
        ("m/d/mul/y:0", True),
        ("m/d/Exp:0", False),
        ("ConstantFolding/m/d/truediv_recip:0", False),
        ("const_fold_opt__3", False),
    ],
)
def test_what_tensorflow_computed_from_parameters_has_no_bound(tmp_path, name, is_own):
    weight = "m/d/Cast/ReadVariableOp:0"
    nodes = f'h = Mul(x, "{name}")  a = MatMul(h, "{weight}")  b = MatMul(a, "m/d/transpose:0")'
    stored = {name: weights(4), weight: weights(4, 3), "W__7": weights(4, 4, seed=1)}
    nodes += '  y = MatMul(b, "W__7")'  # joined by the tool
    proto = model(nodes, ("N", 4), {**stored, "m/d/transpose:0": stored[weight].T})
    proto.producer_name = "tf2onnx"
    analysis = analyze(load_model(saved(proto, tmp_path), trusted=True), Settings())
    assert (analysis.network.grad_norm is not None) is is_own
    assert {item.name for item in analysis.parameters} == stored.keys()  # the transpose is tied
    assert "LC027" in {item.code for item in analysis.diagnostics}  # for biases of zeros


def test_a_table_of_keras_is_read_at_ids_from_the_end(tmp_path):
    """tf2onnx compares ids as numbers with a 0 of its own, through which no gradient goes."""
    stored = {"t/ReadVariableOp:0": weights(5, 3), "n": np.int32(5), "z": np.float32(0)}
    nodes = """r = Cast<to=1>(x)  c = Less(r, z)  f = Cast<to=6>(c)  m = Mul(f, n)  i = Add(x, m)
        h = Gather("t/ReadVariableOp:0", i)  y = ReduceMean<axes=[1], keepdims=0>(h)"""
    proto = model(nodes, ("N", 4), stored, dtype=onnx.TensorProto.INT32)
    assert analyze(load_model(saved(proto, tmp_path), trusted=True), Settings()).network.grad_norm


def test_what_the_user_freezes_is_not_computed_from_trained_parameters(tmp_path):
    made, weight = "ConstantFolding/m/truediv_recip:0", "m/d/MatMul/ReadVariableOp:0"
    stored = {made: weights(4), weight: weights(4, 3)}
    proto = model(f'h = Mul(x, "{made}")  y = MatMul(h, "{weight}")', ("N", 4), stored)
    path = saved(proto, tmp_path)
    fixed, freely = Settings(freeze=("Constant*",)), Settings(as_exported=True)
    imported = load_under(path, fixed, trusted=True)
    assert not imported.graph.parameters[made].trainable  # under any later settings, too
    exported = analyze(load_under(path, freely, trusted=True), freely)
    bounds = {item.name: item.grad_norm for item in exported.parameters}
    assert analyze(imported, fixed).network.grad_norm == bounds[weight]
    for settings in (Settings(freeze=("m/*",)), Settings(trainable=("m/*",))):
        found = analyze(load_under(path, settings, trusted=True), settings)
        assert found.network.grad_norm is None
        (said,) = (item for item in found.diagnostics if item.code == "LC009")
        assert (said.message.rpartition(": ")[2], "--freeze" in said.remedy) == (repr(made), True)


@pytest.mark.parametrize(
    "behind", ["s = Add(n, b)", "s = Mul(n, g)", "a = Mul(n, g)  s = Add(a, b)"]
)
def test_a_factor_or_a_shift_that_tf2onnx_may_have_left_out_is_named(tmp_path, behind):
    stored = {"g": weights(3), "b": weights(3), "w": weights(3, 3), "o": np.float32(1.0)}
    nodes = f"""m = ReduceMean<axes=[1]>(x)  d = Sub(x, m)  q = Mul(d, d)
        v = ReduceMean<axes=[1]>(q)  e = Add(v, o)  r = Sqrt(e)  n = Div(d, r)  {behind}"""
    proto = model(f"{nodes}  y = Gemm(s, w, b)", ("N", 3), stored)
    proto.producer_name = "tf2onnx"
    said = str(load_model(saved(proto, tmp_path), trusted=True).diagnostics)
    assert ("leaves out" in said) is ("a =" not in behind)


@pytest.mark.parametrize(
    "nodes",
    [
        'm = Mul(x, "22")  h = Add(m, v)',
        "e = Exp(v)  h = Mul(x, e)",
        "h = LayerNormalization<epsilon=1.0>(x, v, u)",
    ],
)
def test_a_constant_is_as_trained_as_an_initializer(tmp_path, nodes):
    stored = {"v": weights(4), "u": weights(4, seed=1), "w": weights(4, 3), "22": weights(4)}
    tail = 'a = PRelu(h, "p.a")  y = MatMul(a, w)'
    plain = model(f"{nodes}  {tail}", ("N", 4), stored | {"p.a": weights(1)})
    other = copy.deepcopy(plain)
    for item in plain.graph.initializer:
        other.graph.node.insert(0, node("Constant", [], [item.name], value=item))
    del other.graph.initializer[:]
    settings = Settings(input_box=(-1.0, 1.0))
    paths = [saved(proto, tmp_path, name) for proto, name in ((plain, "a.onnx"), (other, "b.onnx"))]
    both = [analyze(load_model(path, trusted=True), settings) for path in paths]
    bounds = [{item.name: item.grad_norm for item in found.parameters} for found in both]
    assert bounds[0] == bounds[1]
    assert None not in bounds[0].values()
    identity = certify(load_model(paths[1], trusted=True), settings).certificate.model
    assert identity.structure == structural_digest(read_model(paths[1]))


@pytest.mark.parametrize("is_cast", [False, True])
@pytest.mark.parametrize(
    ("weight", "bias", "output", "is_own"),
    [
        ("c.weight", "c.bias", "/c/Conv_output_0", True),
        ("c.weight", "c.weight_bias", "getitem_3", False),  # torch.export, and a tool after it
        ("ConvBnFusion_W_c.weight", "ConvBnFusion_BN_B_n.bias", "/c/Conv_output_0", False),
        ("c.weight", "c.bias", "/n/BatchNormalization_output_0", False),  # onnxruntime, onnxslim
        ("_v_20", "_v_21", "/c/Conv_output_0", False),  # onnxsim
    ],
)
def test_a_batch_normalisation_that_a_tool_folded_is_known_by_names(
    tmp_path, weight, bias, output, is_own, is_cast
):
    stored = {weight: weights(3, 2, 1, 1), bias: weights(3), "w": weights(12, 3)}
    read = "v, b" if is_cast else f"{weight!r}, {bias!r}"
    nodes = f"""v = Cast<to=1>({weight!r})  b = Cast<to=1>({bias!r})
        {output!r} = Conv(x, {read})  f = Flatten({output!r})  y = MatMul(f, w)"""
    proto = model(nodes.replace("'", '"'), ("N", 2, 2, 2), stored)
    proto.graph.node[-3].name = "/c/Conv"
    proto.producer_name = "pytorch"
    path = saved(proto, tmp_path)
    for freeze, is_known in ((), is_own), ((weight, bias), True):
        settings = Settings(freeze=freeze)
        found = analyze(load_under(path, settings, trusted=True), settings)
        assert (found.network.grad_norm is not None) is is_known


def test_copies_with_made_up_names_stay_copies_in_narrow_types(tmp_path):
    """Weights of half precision and scales of quantised ones are no results of other parameters."""
    stored = {
        "onnx::MatMul_1": weights(4, 4).astype(np.float16),
        "onnx::MatMul_2_q": np.arange(12, dtype=np.int8).reshape(4, 3),
        "onnx::MatMul_2_scale": np.float32(0.1),
    }
    nodes = """a = Cast<to=1>("onnx::MatMul_1")  h = MatMul(x, a)
        c = DequantizeLinear("onnx::MatMul_2_q", "onnx::MatMul_2_scale")  y = MatMul(h, c)"""
    proto = model(nodes, ("N", 4), stored)
    proto.producer_name = "pytorch"
    found = analyze(load_model(saved(proto, tmp_path), trusted=True), Settings())
    assert {item.name for item in found.parameters} == {"onnx::MatMul_1"}
    assert found.network.grad_norm is not None


@pytest.mark.parametrize("producer", ["pytorch", ""])
@pytest.mark.parametrize(
    "number",
    [f"Gather(v, {LITERAL})", "ReduceMax<keepdims=0>(v)", "ReduceMin<keepdims=0>(v)"],
)
def test_a_number_computed_from_a_trained_tensor_is_none_of_a_formula(tmp_path, number, producer):
    nodes = f"""h = MatMul(x, w)  "/Constant_output_0" = Constant<value_float=0.0>()
        "/Constant_1_output_0" = Constant<value_int=2>()  t = {number}
        c = Greater(h, "/Constant_output_0")  s = Mul(h, t)  y = Where(c, h, s)"""
    proto = model(nodes, ("N", 4), {"w": weights(4, 3), "v": np.float32([0.25, 0.5, 1.5, 0.25])})
    proto.producer_name = producer
    analysis = analyze(load_model(saved(proto, tmp_path), trusted=True), Settings())
    assert analysis.network.grad_norm is None
    assert {"LC102", "LC009"} & {item.code for item in analysis.diagnostics}
    if number.startswith("Gather"):
        bounds = {item.name: item.grad_norm for item in analysis.parameters}
        assert bounds.keys() == {"w", "v"}
        assert bounds["v"] is None


NORMALIZED = {
    "tabular": lambda: nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3, bias=False)
    ),
    "convolutions": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 2), nn.BatchNorm1d(3), nn.Flatten()
    ),
    "without a scale": lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, affine=False)),
    "before a layer": lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("kind", NORMALIZED)
def test_a_report_on_batch_normalization_ends_in_a_number_or_in_the_line_to_write(
    tmp_path, kind, exporter
):
    torch.manual_seed(0)
    path = tmp_path / "m.onnx"
    exported(NORMALIZED[kind]().eval(), exporter, path)
    for as_exported in (False, True):
        settings = Settings(as_exported=as_exported)
        analysis = analyze(load_under(path, settings, trusted=True), settings)
        if analysis.network.grad_norm is None:
            remedies = [item.remedy for item in analysis.diagnostics if item.code == "LC102"]
            assert all(EXPORT in remedy for remedy in remedies)
            assert remedies
            assert not as_exported or kind == "before a layer" or exporter == "torchscript"
