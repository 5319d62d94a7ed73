"""Numbers of formulas that an optimiser stored as tensors, and trained ones that look alike."""

import math

import numpy as np
import pytest

from lipcert.analysis.pipeline import analyze
from lipcert.errors import UnsupportedModelError
from lipcert.importer.load import load_model
from lipcert.settings.settings import Settings
from tests.importer.models import model, saved, weights
from tests.importer.test_parameters import with_metadata


def norm(centred=True, inverse=False):
    first = "m = ReduceMean<axes=[-1]>(x)  d = Sub(x, m)" if centred else ""
    value = "d" if centred else "x"
    last = f"i = Div(one, r)  n = Mul({value}, i)" if inverse else f"n = Div({value}, r)"
    nodes = f"""{first}  q = Pow({value}, two)  v = ReduceMean<axes=[-1]>(q)  e = Add(v, eps)
        r = Sqrt(e)  {last}  y = Mul(n, g)"""
    return nodes, {"two": 2.0, "eps": 1e-5, "one": 1.0}, {"g": weights(6)}


def attention(kind):
    nodes = f"""q = MatMul(x, wq)  k = MatMul(x, wk)  v = MatMul(x, wv)
        t = Transpose<perm=[0, 2, 1]>(k)  s = MatMul(q, t)  c = {kind}(s, scale)
        p = Softmax<axis=-1>(c)  y = MatMul(p, v)"""
    scale = math.sqrt(6.0) if kind == "Div" else 1.0 / math.sqrt(6.0)
    return nodes, {"scale": scale}, {f"w{name}": weights(6, 6) for name in "qkv"}


def gelu():
    nodes = """a = MatMul(x, w)  d = Div(a, root)  e = Erf(d)  p = Add(e, one)  m = Mul(a, p)
        y = Mul(m, half)"""
    return nodes, {"root": math.sqrt(2.0), "one": 1.0, "half": 0.5}, {"w": weights(6, 6)}


FORMULAS = {
    "LayerNormalization": norm(),
    "RMSNormalization": norm(centred=False),
    "RMSNormalization, inverse": norm(centred=False, inverse=True),
    "ScaledAttention": attention("Mul"),
    "ScaledAttention, divided": attention("Div"),
    "Gelu": gelu(),
}


def proto_of(case, shape, values=None):
    nodes, numbers, tensors = FORMULAS[case]
    numbers = {**numbers, **(values or {})}
    stored = {name: np.full(shape, number, np.float32) for name, number in numbers.items()}
    return model(nodes, ("N", 3, 6), {**tensors, **stored}, opset=13)


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("case", FORMULAS)
def test_the_layer_is_found(tmp_path, case, shape):
    imported = load_model(saved(proto_of(case, shape), tmp_path))
    kind, _, spelling = case.partition(",")
    assert [macro.kind for macro in imported.macros] == [kind]
    trained = set(FORMULAS[case][2]) | (
        {"one"} if "inverse" in spelling else set()
    )  # which may be a scale
    assert set(imported.graph.parameters) == trained


def test_a_scale_of_its_own_is_a_parameter(tmp_path):
    """A temperature that may be trained: not 1/√d."""
    proto = proto_of("ScaledAttention", (), {"scale": 0.7})
    imported = load_model(saved(proto, tmp_path))
    assert "scale" in imported.graph.parameters


@pytest.mark.parametrize("number", [6.0**-0.5, 5.0**-0.5])
@pytest.mark.parametrize("name", ["/Sqrt_1_output_0", "/Exp_output_0", "scale"])
def test_what_a_tool_folded_is_fixed_as_the_scale_of_an_attention(tmp_path, name, number):
    proto = proto_of("ScaledAttention", (), {"scale": number})
    proto.producer_name, proto.graph.node[5].input[1] = "pytorch", name
    next(item for item in proto.graph.initializer if item.name == "scale").name = name
    found = load_model(saved(proto, tmp_path))
    has_bound = analyze(found, Settings(input_norm=1.0)).network.grad_norm is not None
    assert has_bound is (
        ("Sqrt" in name and number == 6.0**-0.5) or "scale" in found.graph.parameters
    )


@pytest.mark.parametrize(
    ("case", "name"), [("LayerNormalization", "eps"), ("ScaledAttention", "scale")]
)
def test_what_is_listed_as_trained_is_no_number(tmp_path, case, name):
    proto = proto_of(case, ())
    tensors = FORMULAS[case][2]
    listed = "".join(f"p_{each}: PARAMETER target='{each}'\n" for each in (name, *tensors))
    with_metadata(proto, listed)
    try:
        imported = load_model(saved(proto, tmp_path))
    except UnsupportedModelError:
        return
    assert name in imported.graph.parameters


def test_a_learned_slope_of_a_gate_stays_one(tmp_path):
    """x·sigmoid(βx) with β = 0.5, which is also a number of GELU."""
    nodes = "b = Mul(x, beta)  s = Sigmoid(b)  y = Mul(x, s)"
    proto = model(nodes, ("N", 6), {"beta": np.array(0.5, np.float32)})
    assert set(load_model(saved(proto, tmp_path)).graph.parameters) == {"beta"}


def test_limits_of_a_clip(tmp_path):
    tensors = {"low": np.array(0.0, np.float32), "high": np.array(6.0, np.float32)}
    proto = model("y = Clip(x, low, high)", ("N", 6), tensors)
    assert not load_model(saved(proto, tmp_path)).graph.parameters


@pytest.mark.parametrize("kind", ["Div", "Mul"])
@pytest.mark.parametrize("also", ["", "added", "output"])
@pytest.mark.parametrize("name", ["floor", "norm.floor"])
def test_a_floor_is_one_below_a_divisor(tmp_path, kind, also, name):
    nodes = f'''s = ReduceL2<axes=[1]>(x)  m = Max(s, "{name}")  n = {kind}(x, m)
        y = Add(n, {"m" if also == "added" else "x"})'''
    outputs = ("y", "m") if also == "output" else ("y",)
    proto = model(nodes, ("N", 6), {name: np.array(1e-3, np.float32)}, outputs=outputs)
    found = set(load_model(saved(proto, tmp_path)).graph.parameters)
    assert found == ({name} - {"floor"} if (kind, also) == ("Div", "") else {name})


def test_the_sixth_of_a_hard_swish_is_no_parameter(tmp_path):
    nodes = "h = HardSwish(x)  y = Mul(h, sixth)"
    proto = model(nodes, ("N", 6), {"sixth": np.array(1 / 6, np.float32)})
    assert not load_model(saved(proto, tmp_path)).graph.parameters


@pytest.mark.parametrize(("name", "is_trained"), [("six", False), ("gate.limit", True)])
def test_a_number_that_one_node_takes_for_fixed(tmp_path, name, is_trained):
    """The 6 of relu6(x + 3)·x/6, stored once: the limit of a Clip is no weight."""
    numbers = {"three": 3.0, "low": 0.0, name: 6.0}
    nodes = f"""a = MatMul(x, w)  b = Add(a, three)  c = Clip(b, low, "{name}")  d = Mul(a, c)
        y = Div(d, "{name}")"""
    stored = {key: np.array(number, np.float32) for key, number in numbers.items()}
    imported = load_model(saved(model(nodes, ("N", 6), {"w": weights(6, 6), **stored}), tmp_path))
    assert (name in imported.graph.parameters) is is_trained
    found = analyze(imported, Settings(input_box=(0.0, 1.0))).network.grad_norm
    assert (found is None) is is_trained
    assert is_trained or any(name in item.message for item in imported.diagnostics)
