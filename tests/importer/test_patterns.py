"""Macro layers: found in each spelling, and not found where a constant or a value differs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from onnx import helper

from lipcert.errors import UnsupportedModelError
from lipcert.importer.load import load_model
from tests.importer.models import model, saved, weights

node = helper.make_node
ROOT = math.sqrt(2.0)


def number(name, value):
    return node("Constant", [], [name], value_float=float(np.float32(value)))


def kinds(tmp_path, nodes, shape=("N", 6), tensors=None, opset=17):
    imported = load_model(saved(model(nodes, shape, tensors, opset=opset), tmp_path), trusted=True)
    functions = []
    for item in imported.graph.nodes:
        function = getattr(item.op, "function", None)
        functions.append(type(function or item.op).__name__)
    return functions, imported


def erf_gelu(spelling, root=ROOT):
    head = [number("r", root), number("one", 1.0), number("half", 0.5), number("q", 1 / root)]
    inner = node("Mul", ["x", "q"], ["u"]) if spelling == 2 else node("Div", ["x", "r"], ["u"])
    gate = [inner, node("Erf", ["u"], ["e"]), node("Add", ["e", "one"], ["g"])]
    tail = {
        0: [node("Mul", ["x", "g"], ["p"]), node("Mul", ["p", "half"], ["y"])],
        1: [node("Mul", ["x", "half"], ["p"]), node("Mul", ["p", "g"], ["y"])],
        2: [node("Mul", ["half", "g"], ["p"]), node("Mul", ["x", "p"], ["y"])],
    }
    return head + gate + tail[spelling]


@pytest.mark.parametrize("spelling", [0, 1, 2])
def test_gelu_by_erf(tmp_path, spelling):
    assert kinds(tmp_path, erf_gelu(spelling))[0] == ["ErfGate"]
    assert kinds(tmp_path, erf_gelu(spelling, root=1.5))[0] == ["ErfGate"]
    assert "ErfGate" not in kinds(tmp_path, erf_gelu(spelling, root=-1.5))[0]


@pytest.mark.parametrize("cube", ["pow", "mul"])
def test_gelu_by_tanh(tmp_path, cube):
    nodes = [
        number("c", 0.044715),
        number("k", math.sqrt(2 / math.pi)),
        number("one", 1.0),
        number("half", 0.5),
        number("three", 3.0),
    ]
    if cube == "pow":
        nodes.append(node("Pow", ["x", "three"], ["x3"]))
    else:
        nodes += [node("Mul", ["x", "x"], ["x2"]), node("Mul", ["x2", "x"], ["x3"])]
    nodes += [
        node("Mul", ["c", "x3"], ["t"]),
        node("Add", ["x", "t"], ["s"]),
        node("Mul", ["k", "s"], ["u"]),
        node("Tanh", ["u"], ["e"]),
        node("Add", ["one", "e"], ["g"]),
        node("Mul", ["half", "x"], ["h"]),
        node("Mul", ["h", "g"], ["y"]),
    ]
    assert kinds(tmp_path, nodes)[0] == ["TanhGate"]


def test_gates(tmp_path):
    silu = [node("Sigmoid", ["x"], ["s"]), node("Mul", ["x", "s"], ["y"])]
    assert kinds(tmp_path, silu)[0] == ["Silu"]
    mish = [
        node("Softplus", ["x"], ["s"]),
        node("Tanh", ["s"], ["t"]),
        node("Mul", ["t", "x"], ["y"]),
    ]
    assert kinds(tmp_path, mish)[0] == ["Mish"]
    quick = [
        number("k", 1.702),
        node("Mul", ["x", "k"], ["u"]),
        node("Sigmoid", ["u"], ["s"]),
        node("Mul", ["x", "s"], ["y"]),
    ]
    assert kinds(tmp_path, quick)[0] == ["QuickGelu"]
    other = [
        node("Abs", ["x"], ["a"]),
        node("Sigmoid", ["x"], ["s"]),
        node("Mul", ["a", "s"], ["y"]),
    ]
    assert "Silu" not in kinds(tmp_path, other)[0]


def layer_norm(affine):
    nodes = [
        number("two", 2.0),
        number("eps", 1e-5),
        node("ReduceMean", ["x"], ["m"], axes=[-1]),
        node("Sub", ["x", "m"], ["d"]),
        node("Pow", ["d", "two"], ["q"]),
        node("ReduceMean", ["q"], ["v"], axes=[-1]),
        node("Add", ["v", "eps"], ["ve"]),
        node("Sqrt", ["ve"], ["r"]),
        node("Div", ["d", "r"], ["n" if affine else "y"]),
    ]
    if affine:
        nodes += [node("Mul", ["n", "g"], ["ng"]), node("Add", ["ng", "b"], ["y"])]
    return nodes


@pytest.mark.parametrize("affine", [False, True])
def test_layer_norm(tmp_path, affine):
    tensors = {"g": weights(6), "b": weights(6, seed=1)} if affine else {}
    found, imported = kinds(tmp_path, layer_norm(affine), ("N", 5, 6), tensors)
    assert found == ["LayerNorm"]
    assert set(imported.graph.parameters) == set(tensors)


def test_group_norm_by_instance_norm(tmp_path):
    tensors = {
        "one": np.ones(2, np.float32),
        "zero": np.zeros(2, np.float32),
        "split": np.array([0, 2, -1]),
        "g": weights(4, 1, 1),
        "b": weights(4, 1, 1, seed=1),
    }
    constants = [
        node("Constant", [], [name], value=numpy_tensor(tensors.pop(name)))
        for name in ("one", "zero")
    ]
    nodes = [
        *constants,
        node("Reshape", ["x", "split"], ["r"]),
        node("InstanceNormalization", ["r", "one", "zero"], ["i"]),
        node("Shape", ["x"], ["full"]),
        node("Reshape", ["i", "full"], ["n"]),
        node("Mul", ["n", "g"], ["s"]),
        node("Add", ["s", "b"], ["y"]),
    ]
    found, imported = kinds(tmp_path, nodes, ("N", 4, 3, 3), tensors)
    assert found == ["GroupNorm"]
    assert imported.graph.parameters["g"].shape == (4, 1, 1)


def centred(axes=(-1,), of="x"):
    return [node("ReduceMean", [of], ["m"], axes=list(axes)), node("Sub", ["x", "m"], ["y"])]


def test_a_value_without_its_mean(tmp_path):
    found, imported = kinds(tmp_path, centred((1, -1)), ("N", 3, 2, 4))
    assert found == ["Centre"]
    assert imported.graph.nodes[0].op.axes == (0, 2)
    assert [macro.kind for macro in imported.macros] == ["Centre"]
    other = [node("Neg", ["x"], ["o"]), *centred(of="o")]
    assert "Centre" not in kinds(tmp_path, other)[0]
    reversed_sign = [centred()[0], node("Sub", ["m", "x"], ["y"])]
    assert "Centre" not in kinds(tmp_path, reversed_sign)[0]


def test_a_mean_over_the_batch_is_refused(tmp_path):
    with pytest.raises(UnsupportedModelError, match="LC0"):
        kinds(tmp_path, centred((0,)))


def over_norm(*, floor=0.5, radius=None, reduce="ReduceL2", of="x", high=None, limit="Clip"):
    nodes = [number("low", floor), node(reduce, [of], ["n"], axes=[1, 2])]
    value = "n"
    if radius is not None:
        nodes += [number("r", radius), node("Div", ["n", "r"], ["s"])]
        value = "s"
    limits = ["low"]
    if high is not None:
        nodes.append(number("high", high))
        limits.append("high")
    nodes.append(node(limit, [value, *limits], ["c"]))
    return [*nodes, node("Div", ["x", "c"], ["y"])]


@pytest.mark.parametrize("limit", ["Clip", "Max"])
@pytest.mark.parametrize("radius", [None, 0.3])
def test_division_by_a_norm(tmp_path, radius, limit):
    nodes = over_norm(radius=radius, limit=limit)
    found, imported = kinds(tmp_path, nodes, ("N", 3, 2))
    assert found == ["DivideByNorm"]
    op = imported.graph.nodes[0].op
    assert (op.axes, op.floor) == ((0, 1), 0.5)
    assert op.radius == (1.0 if radius is None else float(np.float32(radius)))


@pytest.mark.parametrize(
    "options",
    [
        {"floor": 0.0},
        {"radius": -2.0},
        {"high": 0.9},
        {"reduce": "ReduceL1"},
        {"of": "o"},
    ],
)
def test_what_only_looks_like_division_by_a_norm(tmp_path, options):
    nodes = [node("Sin", ["x"], ["o"]), *over_norm(**options)]
    assert "DivideByNorm" not in kinds(tmp_path, nodes, ("N", 3, 2))[0]


def numpy_tensor(array):
    from onnx import numpy_helper

    return numpy_helper.from_array(array)


@pytest.mark.parametrize("first", ["Max", "Min"])
def test_max_min(tmp_path, first):
    second = "Min" if first == "Max" else "Max"
    nodes = [
        node("Split", ["x", "s"], ["a", "b"], axis=1),
        node(first, ["a", "b"], ["u"]),
        node(second, ["b", "a"], ["l"]),
        node("Concat", ["u", "l"], ["y"], axis=1),
    ]
    found, _ = kinds(tmp_path, nodes, tensors={"s": np.array([3, 3])})
    assert found == ["Reshape", "Sort", "Reshape"]


def test_group_sort(tmp_path):
    nodes = [
        node("Reshape", ["x", "g"], ["r"]),
        node("TopK", ["r", "k"], ["t", "i"]),
        node("Reshape", ["t", "f"], ["y"]),
    ]
    tensors = {"g": np.array([-1, 2, 3]), "k": np.array([3]), "f": np.array([-1, 6])}
    assert kinds(tmp_path, nodes, tensors=tensors)[0] == ["Reshape", "Sort", "Reshape"]


def attention(scale_first, mask, dropout):
    """Attention of heads [N, 2, 4, 3] as exporters spell it."""
    nodes = [
        number("c", 0.5),
        node("Tanh", ["x"], ["q"]),
        node("Sin", ["x"], ["k"]),
        node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
    ]
    if scale_first:
        nodes += [node("Mul", ["q", "c"], ["qs"]), node("MatMul", ["qs", "kt"], ["s"])]
    else:
        nodes += [node("MatMul", ["q", "kt"], ["r"]), node("Mul", ["r", "c"], ["s"])]
    scores = "s"
    if mask:
        nodes.append(node("Add", ["s", "m"], ["sm"]))
        scores = "sm"
    nodes.append(node("Softmax", [scores], ["p"], axis=-1))
    if dropout:
        nodes.append(node("Dropout", ["p"], ["pd"]))
    return [*nodes, node("MatMul", ["pd" if dropout else "p", "x"], ["y"])]


@pytest.mark.parametrize("scale_first", [False, True])
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("dropout", [False, True])
def test_attention(tmp_path, scale_first, mask, dropout):
    nodes = attention(scale_first, mask, dropout)
    if mask:
        causal = np.where(np.tril(np.ones((4, 4))) > 0, 0.0, -1e9).astype(np.float32)
        nodes.insert(0, node("Constant", [], ["m"], value=numpy_tensor(causal)))
    found, imported = kinds(tmp_path, nodes, ("N", 2, 4, 3))
    assert found[-1] == "Attention"
    assert imported.graph.nodes[-1].op.operands() == {}


def test_attention_over_another_axis_is_none(tmp_path):
    nodes = attention(scale_first=False, mask=False, dropout=False)
    nodes[-2] = node("Softmax", ["s"], ["p"], axis=2)
    assert "Attention" not in kinds(tmp_path, nodes, ("N", 2, 4, 3))[0]


def test_attention_with_a_trained_bias_is_none(tmp_path):
    nodes = attention(scale_first=False, mask=True, dropout=False)
    found, imported = kinds(tmp_path, nodes, ("N", 2, 4, 3), {"m": weights(2, 4, 4)})
    assert "Attention" not in found
    assert set(imported.graph.parameters) == {"m"}


def masked(spelling, mask):
    """softmax(x·xᵀ + mask)·x."""
    hidden = np.isneginf(mask)
    head = [
        node("Transpose", ["x"], ["k"], perm=[0, 2, 1]),
        node("MatMul", ["x", "k"], ["s"]),
    ]
    minus = node("Constant", [], ["low"], value_float=float("-inf"))
    inner = {
        "add": [node("Add", ["s", "m"], ["a"])],
        "where": [minus, node("Where", ["h", "low", "s"], ["a"])],
        "not": [minus, node("Where", ["v", "s", "low"], ["a"])],
    }
    tail = [node("Softmax", ["a"], ["p"], axis=-1), node("MatMul", ["p", "x"], ["y"])]
    used = {"add": {"m": mask}, "where": {"h": hidden}, "not": {"v": ~hidden}}
    return [*head, *inner[spelling], *tail], used[spelling]


@pytest.mark.parametrize("spelling", ["add", "where", "not"])
def test_attention_with_hidden_tokens(tmp_path, spelling):
    mask = np.where(np.tril(np.ones((3, 3))) > 0, 0.0, -np.inf).astype(np.float32)
    nodes, tensors = masked(spelling, mask)
    assert kinds(tmp_path, nodes, ("N", 3, 4), tensors)[0][-1] == "Attention"
    mask[1] = -np.inf
    nodes, tensors = masked(spelling, mask)
    with pytest.raises(UnsupportedModelError, match="hides every token"):
        kinds(tmp_path, nodes, ("N", 3, 4), tensors)


def test_infinity_outside_of_an_attention(tmp_path):
    mask = np.array([0.0, -np.inf], np.float32)
    with pytest.raises(UnsupportedModelError, match="LC014"):
        kinds(tmp_path, [node("Add", ["x", "m"], ["y"])], ("N", 2), {"m": mask})


def spelled_norm(axes, *, mean=True, inverse=False):
    kept = {"axes": axes, "keepdims": 1}
    root = [node("Sqrt", ["t"], ["r"])]
    last = [node("Div", ["c", "r"], ["y"])]
    if inverse:
        last = [node("Reciprocal", ["r"], ["i"]), node("Mul", ["c", "i"], ["y"])]
    centred = [node("ReduceMean", ["x"], ["u"], **kept), node("Sub", ["x", "u"], ["c"])]
    return [
        number("e", 1e-5),
        *(centred if mean else [node("Identity", ["x"], ["c"])]),
        node("Mul", ["c", "c"], ["q"]),
        node("ReduceMean", ["q"], ["v"], **kept),
        node("Add", ["v", "e"], ["t"]),
        *root,
        *last,
    ]


@pytest.mark.parametrize("inverse", [False, True])
def test_normalizations_by_hand(tmp_path, inverse):
    shape = ("N", 3, 4, 5)
    over_channels = spelled_norm([1], inverse=inverse)
    assert kinds(tmp_path, over_channels, shape)[0] == ["Transpose", "LayerNorm", "Transpose"]
    assert kinds(tmp_path, spelled_norm([-1], inverse=inverse), shape)[0] == ["LayerNorm"]
    without_mean = spelled_norm([-1], mean=False, inverse=inverse)
    assert kinds(tmp_path, without_mean, shape)[0] == ["RmsNorm"]


def test_macro_layers_name_the_nodes_they_stand_for(tmp_path):
    _, imported = kinds(tmp_path, spelled_norm([-1]), ("N", 4))
    (macro,) = imported.macros
    assert macro.kind == "LayerNormalization"
    assert len(macro.nodes) == 7
    assert macro.nodes[-1] == macro.node
