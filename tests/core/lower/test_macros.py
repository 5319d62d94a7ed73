"""Layers put together again from their spellings, with the numbers of the file."""

import math

import numpy as np
import pytest

from tests.core.lower.cases import agrees, kinds, model, node

RNG = np.random.default_rng(3)
T = ["N", 3, 4]


def half_gelu(inner):
    return [*inner, node("Add", "g one", "h"), node("Mul", "x h", "p"), node("Mul", "p half")]


ONE = {"one": 1.0, "half": 0.5}
ERF = [node("Div", "x root", "d"), node("Erf", "d", "g")]
CUBE = [node("Pow", "x three", "c"), node("Mul", "c k", "m"), node("Add", "x m", "a"),
        node("Mul", "a s", "t"), node("Tanh", "t", "g")]  # fmt: skip
PRODUCTS = [node("Mul", "x k", "e"), node("Mul", "e x", "c"), node("Mul", "c x", "m"),
            node("Add", "x m", "a"), node("Mul", "s a", "t"), node("Tanh", "t", "g")]  # fmt: skip
CURVE = {"three": 3.0, "k": 0.044715, "s": math.sqrt(2 / math.pi), **ONE}
STANDARD = [node("ReduceMean", "x", "m", axes=[-1]), node("Sub", "x m", "d"),
            node("Pow", "d two", "q"), node("ReduceMean", "q", "v", axes=[-1]),
            node("Add", "v eps", "e"), node("Sqrt", "e", "s")]  # fmt: skip
EPS = {"two": 2.0, "eps": 1e-3}
HEADS = [node("Transpose", "x", "k", perm=[0, 2, 1]), node("MatMul", "x k", "a")]

CASES = {
    "the input beside itself": ([node("Concat", "x x", axis=-1)], {}, ["Move"]),
    "gelu": (half_gelu(ERF), {"root": math.sqrt(2), **ONE}, ["Scale", "gelu", "Scale"]),
    "gelu, halved first": (
        [*ERF, node("Add", "one g", "h"), node("Mul", "x half", "p"), node("Mul", "p h")],
        {"root": math.sqrt(2), **ONE}, ["Scale", "gelu", "Scale"]),
    "gelu, halved gate": (
        [*ERF, node("Add", "one g", "h"), node("Mul", "h half", "p"), node("Mul", "p x")],
        {"root": math.sqrt(2), **ONE}, ["Scale", "gelu", "Scale"]),
    "gelu by a product": (
        half_gelu([node("Mul", "x root", "d"), node("Erf", "d", "g")]),
        {"root": math.sqrt(0.5), **ONE}, ["Scale", "gelu", "Scale"]),
    "erf of x itself": (
        half_gelu([node("Erf", "x", "g")]), ONE, ["Scale", "gelu", "Scale"]),
    "gelu by tanh": (half_gelu(CUBE), CURVE, ["gelu_tanh", "Scale"]),
    "gelu by tanh and products": (half_gelu(PRODUCTS), CURVE, ["gelu_tanh", "Scale"]),
    "silu": ([node("Sigmoid", "x", "s"), node("Mul", "s x")], {}, ["silu"]),
    "quick gelu": (
        [node("Mul", "x a", "z"), node("Sigmoid", "z", "s"), node("Mul", "x s")],
        {"a": 1.702}, ["quick_gelu"]),
    "mish": (
        [node("Softplus", "x", "p"), node("Tanh", "p", "t"), node("Mul", "x t")], {}, ["mish"]),
    "hard swish": (
        [node("HardSigmoid", "x", "s", alpha=1 / 6), node("Mul", "x s")],
        {}, ["Scale", "hard_swish", "Scale"]),
    "hard swish by clip": (
        [node("Add", "x three", "a"), node("Clip", "a zero six", "c"), node("Mul", "x c", "p"),
         node("Div", "p six")],
        {"three": 3.0, "zero": 0.0, "six": 6.0}, ["hard_swish", "Scale"]),
    "layer norm": (
        [*STANDARD, node("Div", "d s", "n"), node("Mul", "n g", "z"), node("Add", "z b")],
        {**EPS, "g": RNG.standard_normal(4), "b": RNG.standard_normal(4)},
        ["Normalize", "Scale", "Shift"]),
    "layer norm by reciprocal": (
        [*STANDARD, node("Reciprocal", "s", "r"), node("Mul", "d r")], EPS, ["Normalize"]),
    "layer norm by product": (
        [*STANDARD[:2], node("Mul", "d d", "q"), *STANDARD[3:], node("Div", "d s")],
        EPS, ["Normalize"]),
    "rms norm": (
        [node("Mul", "x x", "q"), *STANDARD[3:], node("Div", "x s")], EPS, ["Normalize"]),
    "norm": (
        [node("Mul", "x x", "q"), node("ReduceSum", "q ax", "v"), node("Sqrt", "v", "s"),
         node("Div", "x s")], {"ax": [2]}, ["ReduceNorm", "Divide"]),
    "standard deviation": (
        [*STANDARD[:3], node("ReduceMean", "q", "v", axes=[2], keepdims=0),
         node("Mul", "v share", "u"), node("Sqrt", "u")],
        {"two": 2.0, "share": 4.0 / 3.0}, ["Centre", "ReduceNorm", "Move", "Scale"]),
    "without its mean": (
        [node("ReduceMean", "x", "m", axes=[1]), node("Sub", "x m")], {}, ["Centre"]),
    "over its norm": (
        [node("ReduceL2", "x", "v", axes=[1, 2]), node("Clip", "v lo", "c"),
         node("Div", "x c")],
        {"lo": 0.5}, ["DivideByNorm"]),
    "over its norm, stretched": (
        [node("ReduceL2", "x", "v", axes=[2]), node("Max", "v lo", "c"), node("Shape", "x", "w"),
         node("Expand", "c w", "e"), node("Div", "x e")],
        {"lo": 0.5}, ["DivideByNorm"]),
    "clipped to a radius": (
        [node("ReduceL2", "x", "v", axes=[2]), node("Div", "v r", "s"), node("Clip", "s lo", "c"),
         node("Div", "x c")],
        {"lo": 1.0, "r": 0.3}, ["DivideByNorm"]),
    "standardised with a floor": (
        [*STANDARD[:2], node("ReduceL2", "d", "v", axes=[2]), node("Div", "v r", "s"),
         node("Clip", "s lo", "c"), node("Div", "d c")],
        {"lo": 0.1, "r": 2.0}, ["Centre", "DivideByNorm"]),
    "group norm": (
        [node("Reshape", "x m", "r"), node("InstanceNormalization", "r o z", "i"),
         node("Shape", "x", "w"), node("Reshape", "i w", "u"), node("Mul", "u g", "t"),
         node("Add", "t b")],
        {"m": [0, 1, -1], "o": [1.0], "z": [0.0], "g": RNG.standard_normal((3, 1)),
         "b": RNG.standard_normal((3, 1))},
        ["Move", "Normalize", "Scale", "Shift", "Move", "Scale", "Shift"]),
    "attention": (
        [*HEADS, node("Mul", "a c", "b"), node("Softmax", "b", "p"), node("MatMul", "p x")],
        {"c": 0.5}, ["Move", "Scale", "Attention"]),
    "masked attention": (
        [*HEADS, node("Div", "a c", "b"), node("Add", "b mask", "e"), node("Softmax", "e", "p"),
         node("MatMul", "p x")],
        {"c": 3.0, "mask": np.triu(np.full((3, 3), -np.inf), 1)},
        ["Move", "Scale", "Attention"]),
    "chosen attention": (
        [*HEADS, node("Where", "m a none", "e"), node("Softmax", "e", "p"), node("MatMul", "p x")],
        {"none": -np.inf, "m": np.tril(np.ones((3, 3))) > 0}, ["Move", "Attention"]),
    "max min": (
        [node("Split", "x", "a b", axis=2), node("Max", "a b", "u"), node("Min", "b a", "v"),
         node("Concat", "u v", axis=2)], {}, ["Move", "Sort", "Move"]),
    "min max": (
        [node("Split", "x", "a b", axis=2), node("Min", "a b", "u"), node("Max", "b a", "v"),
         node("Concat", "u v", axis=1)], {}, ["Move", "Sort", "Move"]),
    "max min by reductions": (
        [node("Reshape", "x pairs", "p"), node("ReduceMax", "p", "u", axes=[-1], keepdims=0),
         node("ReduceMin", "p", "v", axes=[-1], keepdims=0), node("Unsqueeze", "u last", "a"),
         node("Unsqueeze", "v last", "b"), node("Concat", "a b", "s", axis=-1),
         node("Reshape", "s back")],
        {"pairs": [-1, 3, 2, 2], "back": [-1, 3, 4], "last": [-1]}, ["Move", "Sort", "Move"]),
    "min max by reductions over a middle axis": (
        [node("Reshape", "x pairs", "p"), node("ReduceMin", "p", "u", axes=[2], keepdims=1),
         node("ReduceMax", "p", "v", axes=[2], keepdims=1), node("Concat", "u v", axis=2)],
        {"pairs": [-1, 3, 2, 2]}, ["Move", "Sort", "Move"]),
    "padded circularly": (
        [node("Slice", "x end big last", "a"), node("Slice", "x zero one last", "b"),
         node("Concat", "a x b", axis=2)],
        {"end": [-1], "big": [2**31], "zero": [0], "one": [1], "last": [2]}, ["Move"]),
    "dense": (
        [node("MatMul", "x w", "z"), node("Add", "z b")],
        {"w": RNG.standard_normal((4, 2)), "b": RNG.standard_normal((1, 1, 2))}, ["Dense"]),
    "a bias read twice": (
        [node("MatMul", "x w", "z"), node("Add", "z b", "u"), node("Mul", "u z")],
        {"w": RNG.standard_normal((4, 2)), "b": RNG.standard_normal(2)},
        ["Dense", "Shift", "Multiply"]),
    "an offset per token": (
        [node("MatMul", "x w", "z"), node("Add", "z b")],
        {"w": RNG.standard_normal((4, 2)), "b": RNG.standard_normal((3, 1))}, ["Dense", "Shift"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_layer_is_recognised_and_computes_the_same(name):
    nodes, constants, expected = CASES[name]
    found = agrees(model(nodes, T, constants))
    assert found.batch_proved
    assert kinds(found) == expected


NEAR = {
    "gelu of another value": (
        [node("Neg", "x", "o"), node("Div", "o root", "d"), node("Erf", "d", "g"),
         node("Add", "g one", "h"), node("Mul", "x h")], {"root": math.sqrt(2), **ONE}, "gelu"),
    "gate with a minus": (
        [node("Div", "x root", "d"), node("Erf", "d", "g"), node("Add", "g one", "h"),
         node("Mul", "x h")], {"root": -math.sqrt(2), **ONE}, "gelu"),
    "gate with another number": (
        [*ERF, node("Add", "g one", "h"), node("Mul", "x h")],
        {"root": math.sqrt(2), "one": 1.5}, "gelu"),
    "mean over another axis": (
        [node("ReduceMean", "x", "m", axes=[1]), *STANDARD[1:], node("Div", "d s")],
        EPS, "centred"),
    "sum instead of mean": (
        [node("ReduceSum", "x ax", "m"), *STANDARD[1:], node("Div", "d s")],
        {**EPS, "ax": [2]}, "centred"),
    "square of another value": (
        [*STANDARD, node("Div", "x s")], EPS, "Normalize"),
    "softmax over the keys": (
        [*HEADS, node("Softmax", "a", "p", axis=1), node("MatMul", "p x")], {}, "Attention"),
    "log-softmax": ([*HEADS, node("LogSoftmax", "a", "p"), node("MatMul", "p x")], {}, "Attention"),
    "mean of another value": (
        [node("Neg", "x", "o"), node("ReduceMean", "o", "m", axes=[2]), node("Sub", "x m")],
        {}, "Centre"),
    "mean less the value": (
        [node("ReduceMean", "x", "m", axes=[2]), node("Sub", "m x")], {}, "Centre"),
    "norm of another value": (
        [node("Sin", "x", "o"), node("ReduceL2", "o", "v", axes=[2]), node("Clip", "v lo", "c"),
         node("Div", "x c")], {"lo": 0.5}, "DivideByNorm"),
    "norm that may be 0": (
        [node("ReduceL2", "x", "v", axes=[2]), node("Clip", "v lo", "c"), node("Div", "x c")],
        {"lo": 0.0}, "DivideByNorm"),
    "norm clipped from above": (
        [node("ReduceL2", "x", "v", axes=[2]), node("Clip", "v lo hi", "c"), node("Div", "x c")],
        {"lo": 0.5, "hi": 0.8}, "DivideByNorm"),
    "sum of magnitudes": (
        [node("ReduceL1", "x", "v", axes=[2]), node("Clip", "v lo", "c"), node("Div", "x c")],
        {"lo": 0.5}, "DivideByNorm"),
    "norm that is repeated further than the value": (
        [node("Slice", "x zero one one", "o"), node("ReduceL2", "o", "v", axes=[2]),
         node("Clip", "v lo", "c"), node("Expand", "c k", "e"), node("Div", "o e")],
        {"lo": 0.5, "k": [1, 3, 1], "zero": [0], "one": [1]}, "DivideByNorm"),
    "minus a norm": (
        [node("ReduceL2", "x", "v", axes=[2]), node("Div", "v r", "s"), node("Clip", "s lo", "c"),
         node("Div", "x c")], {"lo": 1.0, "r": -0.3}, "DivideByNorm"),
    "two maxima": (
        [node("Split", "x", "a b", axis=2), node("Max", "a b", "u"), node("Max", "b a", "v"),
         node("Concat", "u v", axis=2)], {}, "Sort"),
    "maxima of other pairs": (
        [node("Split", "x", "a b", axis=2), node("Neg", "b", "c"), node("Max", "a b", "u"),
         node("Min", "a c", "v"), node("Concat", "u v", axis=2)], {}, "Sort"),
}  # fmt: skip


@pytest.mark.parametrize("name", NEAR)
def test_what_only_looks_like_a_layer_is_not_taken_for_it(name):
    nodes, constants, wrong = NEAR[name]
    found = agrees(model(nodes, T, constants))
    assert wrong not in kinds(found)
    assert wrong != "centred" or not any(getattr(s.op, "centred", False) for s in found.steps)


def test_the_scale_of_a_gelu_is_that_of_the_file():
    nodes = half_gelu([node("Mul", "x root", "d"), node("Erf", "d", "g")])
    found = agrees(model(nodes, T, {"root": 0.6, **ONE}))
    exact = math.sqrt(2) * float(np.float32(0.6))
    before, after = (found.steps[k].op.factor for k in (0, 2))
    assert before.lo.item() <= exact <= before.hi.item()
    assert after.lo.item() <= 1 / exact <= after.hi.item()
    assert before.hi.item() - before.lo.item() < 1e-15
    assert set(found.untracked) == {"root", "one"}
    assert dict(after.sources).keys() == {"half"}


def test_a_trained_scale_of_attention_stays_a_parameter():
    nodes = [*HEADS, node("Mul", "a c", "b"), node("Softmax", "b", "p"), node("MatMul", "p x")]
    found = agrees(model(nodes, T, {"c": 0.5}))
    assert dict(found.steps[1].op.factor.sources) == {"c": 1.0}
    assert not found.untracked


@pytest.mark.parametrize("ends", ["- zero", "one -", "zero one"])
def test_distances_between_positions_are_clipped(ends: str) -> None:
    """Of whole numbers, as those of ALiBi."""
    nodes = [node("Clip", f"places {ends}", "c"), node("Cast", "c", "b", to=1), node("Add", "x b")]
    assert kinds(agrees(model(nodes, T, {"places": np.arange(-2, 2), "zero": 0, "one": 1})))


@pytest.mark.parametrize("order", [("bias", "mask"), ("mask", "bias")])
def test_a_bias_beside_a_mask_is_part_of_it_and_no_parameter(order) -> None:
    first, second = order
    nodes = [
        *HEADS,
        node("Add", f"a {first}", "d"),
        node("Add", f"d {second}", "e"),
        node("Softmax", "e", "p"),
        node("MatMul", "p x"),
    ]
    bias = RNG.standard_normal((3, 3))
    hidden = {"mask": np.triu(np.full((3, 3), -np.inf), 1), "bias": bias}
    found = agrees(model(nodes, T, hidden))
    assert kinds(found) == ["Move", "Attention"]
    assert set(found.untracked) == {"mask", "bias"}
    shown = agrees(model(nodes, T, {"mask": np.zeros((3, 3)), "bias": bias}))
    assert not shown.untracked


def test_a_mask_over_a_whole_row_is_refused():
    mask = np.zeros((3, 3))
    mask[1] = -np.inf
    nodes = [*HEADS, node("Add", "a mask", "e"), node("Softmax", "e", "p"), node("MatMul", "p x")]
    with pytest.raises(ValueError, match="not finite"):
        agrees(model(nodes, T, {"mask": mask}))


def test_every_node_is_accounted_for():
    nodes = [
        *half_gelu(ERF),
        node("Shape", "x", "s"),
        node("Reshape", "y s", "z"),
        node("Neg", "z", "w"),
    ]
    found = agrees(model(nodes, T, {"root": math.sqrt(2), **ONE}))
    assert found.covered == ("part", "part", "part", "step", "step", "unused", "unused", "unused")
    found = agrees(model(nodes, T, {"root": math.sqrt(2), **ONE}, output="w"), "w")
    assert found.covered == ("part", "part", "part", "step", "step", "constant", "part", "step")
