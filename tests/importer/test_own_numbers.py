"""Macro layers compute with the numbers of the file: bounds hold where nothing else is left.

Every network here is a macro layer at one input, less what the layer of the textbook gives there,
times a large number. What is left is the difference between the numbers of the file and those of
the textbook, and the truth about it is found in torch at double precision, node by node.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from lipcert.analysis.bounded import bounded
from lipcert.analysis.certificate import certify
from lipcert.core.check import Choices, check
from lipcert.core.verdict import Verdict
from lipcert.importer.load import load_model
from lipcert.settings.settings import Settings
from tests.core import onnx_torch
from tests.core.lower.cases import listed, nodes_of
from tests.importer.models import model

node = helper.make_node
F32 = np.float32
LARGE = 2.0**21
POINT = np.array([[1.5, -0.7, 0.4], [0.9, 2.0, -1.25]], F32)
"""two tokens"""


def shifted(number: float, units: int) -> np.ndarray:
    """The float32 next to a number, and so many units of 2^-23 of it further."""
    return F32(F32(number) * F32(1.0 + units * 2.0**-23))


ERF = "g = Erf(u)  h = Add(g, one)"
HALVED = "p = Mul(z, h)  f = Mul(p, half)"
TANH = """c3 = Pow(z, three)  t3 = Mul(c3, b)  t = Add(z, t3)  u = Mul(t, a)  g = Tanh(u)
    h = Add(g, one)"""
VARIANCE = """m = ReduceMean<axes=[-1]>(z)  d = Sub(z, m)  q = Pow(d, two)
    v = ReduceMean<axes=[-1]>(q)  ve = Add(v, eps)  s = Sqrt(ve)  f = Div(d, s)"""
PLAIN = {"one": 1.0, "two": 2.0, "three": 3.0}
ROOT = math.sqrt(2.0)
MACROS = {
    "gelu": (f"u = Mul(z, a)  {ERF}  {HALVED}", {"a": 1 / ROOT, "half": 0.5}),
    "gelu, divided": (f"u = Div(z, a)  {ERF}  {HALVED}", {"a": ROOT, "half": 0.5}),
    "gelu, halved by a quotient": (
        f"u = Div(z, a)  {ERF}  p = Div(z, half)  f = Mul(p, h)",
        {"a": ROOT, "half": 2.0},
    ),
    "gelu by tanh": (
        f"{TANH}  {HALVED}",
        {"a": math.sqrt(2 / math.pi), "b": 0.044715, "half": 0.5},
    ),
    "quick gelu": ("u = Mul(z, a)  s = Sigmoid(u)  f = Mul(z, s)", {"a": 1.702}),
    "quick gelu, divided": ("u = Div(z, a)  s = Sigmoid(u)  f = Mul(s, z)", {"a": 0.6}),
    "hard swish": ("s = HardSigmoid<alpha={a}, beta=0.5>(z)  f = Mul(z, s)", {"a": 1 / 6}),
    "layer norm": (VARIANCE, {"eps": 0.3}),
    "divided by its norm": (
        "v = ReduceL2<axes=[-1]>(z)  t = Div(v, r)  s = Max(t, least)  f = Div(z, s)",
        {"r": 0.7, "least": 0.1},
    ),
    "attention": (
        """k = Transpose<perm=[0, 2, 1]>(z)  t = MatMul(z, k)  u = Div(t, a)
            s = Softmax<axis=-1>(u)  f = MatMul(s, z)""",
        {"a": math.sqrt(3.0)},
    ),
}


def values(nodes, numbers, x=POINT):
    """Every value of a macro layer, with its numbers, in torch at double precision."""
    found = {name: torch.tensor(np.asarray(number, np.float64)) for name, number in numbers.items()}
    found["z"] = torch.tensor(x.astype(np.float64))[None]
    for item in nodes_of(nodes.format(**numbers)):
        found.update(zip(item.output, onnx_torch.apply(item, found), strict=False))
    return found


def proto_of(nodes, numbers, at_point):
    """z = x + POINT, the layer, less a constant, times LARGE, and a trained matrix."""
    constants = {
        **numbers,
        "point": POINT,
        "at_point": np.asarray(at_point, F32),
        "large": F32(LARGE),
    }
    literals = [
        node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(value, F32)))
        for name, value in constants.items()
    ]
    weight = np.array([[0.5], [-0.25], [1.0]], F32)
    layers = f"""z = Add(x, point)  {nodes.format(**numbers)}  e = Sub(f, at_point)
        l = Mul(e, large)  y = MatMul(l, w)"""
    return model([*literals, *nodes_of(layers)], ("N", *POINT.shape), {"w": weight})


def truth(nodes, numbers, at_point):
    """The norm of the gradient of the mean square of the output, to the trained matrix."""
    left = values(nodes, {**PLAIN, **numbers})["f"] - torch.tensor(np.asarray(at_point, np.float64))
    weight = torch.tensor([[0.5], [-0.25], [1.0]], dtype=torch.float64, requires_grad=True)
    output = (left * LARGE) @ weight
    (gradient,) = torch.autograd.grad(output.square().mean(), weight)
    return gradient.norm().item(), output.norm().item()


def measured(name, units, path):
    """The truth about a gradient and an output of a macro layer, each with its bound."""
    nodes, ideal = MACROS[name]
    places = enumerate(ideal.items())
    numbers = PLAIN | {key: shifted(item, units + place) for place, (key, item) in places}
    at_point = values(nodes, {**PLAIN, **ideal})["f"][0].numpy().astype(F32)
    path.write_bytes(proto_of(nodes, numbers, at_point).SerializeToString())
    expected, reached = truth(nodes, numbers, at_point)
    imported = load_model(path, trusted=True, input_box=(0.0, 0.0))
    plan = Settings(loss="mse", label_norm=0.0, input_box=(0.0, 0.0))
    found = bounded(imported, plan)
    return ((expected, found.grad_norms["w"]), (reached, found.at_output.norm))


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", MACROS)
@settings(max_examples=8)
@given(units=st.integers(-8, 8))
def test_bounds_hold_for_the_numbers_of_the_file(name, tmp_path_factory, units):
    for true, bound in measured(name, units, tmp_path_factory.getbasetemp() / "own.onnx"):
        assert true <= bound * (1 + 1e-6)


KNOWN = ["gelu", "gelu", "gelu", "gelu_tanh", "quick_gelu", "sigmoid", "hard_swish"]


@pytest.mark.parametrize(("name", "kind"), list(zip(MACROS, KNOWN, strict=False)))
def test_the_layer_is_still_recognised(name, kind, tmp_path):
    nodes, ideal = MACROS[name]
    numbers = {**PLAIN, **{key: shifted(number, 3) for key, number in ideal.items()}}
    path = tmp_path / "own.onnx"
    path.write_bytes(proto_of(nodes, numbers, np.zeros_like(POINT)).SerializeToString())
    graph = load_model(path, trusted=True).graph
    assert kind in [getattr(item.op, "name", "") for item in graph.nodes]


def test_the_checker_certifies_a_gelu_by_tanh_with_numbers_of_its_own(tmp_path):
    nodes, ideal = MACROS["gelu by tanh"]
    numbers = {**PLAIN, **{key: shifted(number, 3) for key, number in ideal.items()}}
    at_point = values(nodes, {**PLAIN, **ideal})["f"][0].numpy().astype(F32)
    path = tmp_path / "own.onnx"
    path.write_bytes(proto_of(nodes, numbers, at_point).SerializeToString())
    expected, _ = truth(nodes, numbers, at_point)
    plan = Settings(loss="mse", label_norm=0.0, input_box=(0.0, 0.0), freeze=("*point",))
    issued = certify(load_model(path, trusted=True), plan)
    (claim,) = issued.certificate.parameters
    assert check(issued.data, path, Choices()).verdict is Verdict.CONDITIONAL
    assert expected <= claim.grad_norm * (1 + 1e-6) <= 2.0 * expected


def composite(op_type, **attributes):
    """An operator that is spelled out, of x + POINT, at opset 23."""
    literal = node("Constant", [], ["point"], value=numpy_helper.from_array(POINT[None]))
    inputs = "z, z, z" if op_type == "Attention" else "z"
    layers = f"z = Add(x, point)  f = {op_type}{listed(attributes)}({inputs})  y = MatMul(f, w)"
    return model(
        [literal, *nodes_of(layers)], ("N", 1, *POINT.shape), {"w": np.eye(3, dtype=F32)}, opset=23
    )


def test_irrational_numbers_of_definitions_are_not_rounded(tmp_path):
    """1/√3 of an attention over three features; 1/√6 of a standard deviation of six entries."""
    x = torch.tensor(POINT.astype(np.float64))
    attended = torch.softmax(x @ x.T / math.sqrt(3.0), dim=-1) @ x
    centred = x - x.mean()
    standard = centred / (centred.square().mean().sqrt() + float(F32(1e-9)))
    for proto, expected in (
        (composite("Attention"), attended),
        (composite("MeanVarianceNormalization", axes=[1, 2, 3]), standard),
    ):
        path = tmp_path / "composite.onnx"
        path.write_bytes(proto.SerializeToString())
        imported = load_model(path, trusted=True, input_box=(0.0, 0.0))
        plan = Settings(loss="mse", label_norm=0.0, input_box=(0.0, 0.0))
        found = bounded(imported, plan)
        box = found.at_output.box.broadcast(found.program.shapes[found.program.output])
        exact = expected.numpy().reshape(box.shape)
        assert np.all(box.lo <= exact + 1e-14)
        assert np.all(box.hi >= exact - 1e-14)
