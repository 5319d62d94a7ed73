"""Layers put together again from their spellings, with the numbers of the file."""

import math

import numpy as np
import pytest

from tests.core.lower.cases import agrees, kinds, model

RNG = np.random.default_rng(3)
T = ["N", 3, 4]


def half_gelu(inner):
    return f"{inner}  h = Add(g, one)  p = Mul(x, h)  y = Mul(p, half)"


ONE = {"one": 1.0, "half": 0.5}
ERF = "d = Div(x, root)  g = Erf(d)"
CUBE = "c = Pow(x, three)  m = Mul(c, k)  a = Add(x, m)  t = Mul(a, s)  g = Tanh(t)"
PRODUCTS = "e = Mul(x, k)  c = Mul(e, x)  m = Mul(c, x)  a = Add(x, m)  t = Mul(s, a)  g = Tanh(t)"
CURVE = {"three": 3.0, "k": 0.044715, "s": math.sqrt(2 / math.pi), **ONE}
CENTRED = "m = ReduceMean<axes=[-1]>(x)  d = Sub(x, m)"
ROOT = "v = ReduceMean<axes=[-1]>(q)  e = Add(v, eps)  s = Sqrt(e)"
STANDARD = f"{CENTRED}  q = Pow(d, two)  {ROOT}"
OFF = f"d = Sub(x, m)  q = Pow(d, two)  {ROOT}  y = Div(d, s)"
EPS = {"two": 2.0, "eps": 1e-3}
HEADS = "k = Transpose<perm=[0, 2, 1]>(x)  a = MatMul(x, k)"

CASES = {
    "the input beside itself": ("y = Concat<axis=-1>(x, x)", {}, ["Move"]),
    "gelu": (half_gelu(ERF), {"root": math.sqrt(2), **ONE}, ["Scale", "gelu", "Scale"]),
    "gelu, halved first": (f"{ERF}  h = Add(one, g)  p = Mul(x, half)  y = Mul(p, h)",
        {"root": math.sqrt(2), **ONE}, ["Scale", "gelu", "Scale"]),
    "gelu, halved gate": (f"{ERF}  h = Add(one, g)  p = Mul(h, half)  y = Mul(p, x)",
        {"root": math.sqrt(2), **ONE}, ["Scale", "gelu", "Scale"]),
    "gelu by a product": (
        half_gelu("d = Mul(x, root)  g = Erf(d)"),
        {"root": math.sqrt(0.5), **ONE}, ["Scale", "gelu", "Scale"]),
    "erf of x itself": (
        half_gelu("g = Erf(x)"), ONE, ["Scale", "gelu", "Scale"]),
    "gelu by tanh": (half_gelu(CUBE), CURVE, ["gelu_tanh", "Scale"]),
    "gelu by tanh and products": (half_gelu(PRODUCTS), CURVE, ["gelu_tanh", "Scale"]),
    "silu": ("s = Sigmoid(x)  y = Mul(s, x)", {}, ["silu"]),
    "quick gelu": ("z = Mul(x, a)  s = Sigmoid(z)  y = Mul(x, s)", {"a": 1.702}, ["quick_gelu"]),
    "mish": ("p = Softplus(x)  t = Tanh(p)  y = Mul(x, t)", {}, ["mish"]),
    "hard swish": (f"s = HardSigmoid<alpha={1 / 6}>(x)  y = Mul(x, s)", {},
        ["Scale", "hard_swish", "Scale"]),
    "hard swish by clip": ("""a = Add(x, three)  c = Clip(a, zero, six)  p = Mul(x, c)
        y = Div(p, six)""", {"three": 3.0, "zero": 0.0, "six": 6.0}, ["hard_swish", "Scale"]),
    "layer norm": (f"{STANDARD}  n = Div(d, s)  z = Mul(n, g)  y = Add(z, b)",
        {**EPS, "g": RNG.standard_normal(4), "b": RNG.standard_normal(4)},
        ["Normalize", "Scale", "Shift"]),
    "layer norm by reciprocal": (f"{STANDARD}  r = Reciprocal(s)  y = Mul(d, r)", EPS,
        ["Normalize"]),
    "layer norm by product": (f"{CENTRED}  q = Mul(d, d)  {ROOT}  y = Div(d, s)", EPS,
        ["Normalize"]),
    "rms norm": (f"q = Mul(x, x)  {ROOT}  y = Div(x, s)", EPS, ["Normalize"]),
    "norm": ("q = Mul(x, x)  v = ReduceSum(q, ax)  s = Sqrt(v)  y = Div(x, s)", {"ax": [2]},
        ["ReduceNorm", "Divide"]),
    "standard deviation": (f"""{CENTRED}  q = Pow(d, two)  v = ReduceMean<axes=[2], keepdims=0>(q)
        u = Mul(v, share)  y = Sqrt(u)""",
        {"two": 2.0, "share": 4.0 / 3.0}, ["Centre", "ReduceNorm", "Move", "Scale"]),
    "without its mean": ("m = ReduceMean<axes=[1]>(x)  y = Sub(x, m)", {}, ["Centre"]),
    "over its norm": ("v = ReduceL2<axes=[1, 2]>(x)  c = Clip(v, lo)  y = Div(x, c)", {"lo": 0.5},
        ["DivideByNorm"]),
    "over its norm, stretched": ("""v = ReduceL2<axes=[2]>(x)  c = Max(v, lo)  w = Shape(x)
        e = Expand(c, w)  y = Div(x, e)""", {"lo": 0.5}, ["DivideByNorm"]),
    "clipped to a radius": ("""v = ReduceL2<axes=[2]>(x)  s = Div(v, r)  c = Clip(s, lo)
        y = Div(x, c)""", {"lo": 1.0, "r": 0.3}, ["DivideByNorm"]),
    "standardised with a floor": (f"""{CENTRED}  v = ReduceL2<axes=[2]>(d)  s = Div(v, r)
        c = Clip(s, lo)  y = Div(d, c)""", {"lo": 0.1, "r": 2.0}, ["Centre", "DivideByNorm"]),
    "standardised with a floor below the root": (f"""{CENTRED}  q = Pow(d, two)
        v = ReduceMean<axes=[-1]>(q)  e = Max(v, eps)  s = Sqrt(e)  y = Div(d, s)""",
        EPS, ["Centre", "DivideByNorm"]),
    "over a deviation and a number": (f"""{CENTRED}  q = Pow(d, two)  o = ReduceMean<axes=[-1]>(x)
        f = Sub(x, o)  n = Mul(f, g)  v = ReduceMean<axes=[-1], keepdims=0>(q)  u = Mul(v, four)
        w = Div(u, three)  z = Unsqueeze(w, last)  t = Sqrt(z)  e = Add(t, eps)  y = Div(n, e)""",
        {**EPS, "four": 4.0, "three": 3.0, "last": [-1], "g": RNG.standard_normal(4)},
        ["Centre", "DivideByNorm", "Scale"]),
    "over the root of a scaled variance": (f"""{CENTRED}  q = Pow(d, two)
        v = ReduceMean<axes=[-1]>(q)  u = Mul(v, share)  e = Add(u, eps)  s = Sqrt(e)
        r = Reciprocal(s)  y = Mul(r, d)""",
        {**EPS, "share": 4.0 / 3.0}, ["Centre", "DivideByNorm"]),
    "times the inverse root of a square with a floor": ("""q = Mul(x, x)  v = ReduceSum(q, ax)
        e = Max(v, eps)  s = Sqrt(e)  r = Div(k, s)  y = Mul(x, r)""",
        {**EPS, "ax": [2], "k": 3.0}, ["DivideByNorm", "Scale"]),
    "over the root of a square and a number": ("""q = Mul(x, x)  v = ReduceSum(q, ax)
        e = Add(v, eps)  s = Sqrt(e)  y = Div(x, s)""", {**EPS, "ax": [2]}, ["DivideByNorm"]),
    "times a power of a square and a number": ("""q = Mul(x, x)  v = ReduceSum(q, ax)
        e = Add(v, eps)  r = Pow(e, p)  y = Mul(x, r)""", {**EPS, "ax": [2], "p": -0.5},
        ["DivideByNorm"]),
    "group norm": ("""r = Reshape(x, m)  i = InstanceNormalization(r, o, z)  w = Shape(x)
        u = Reshape(i, w)  t = Mul(u, g)  y = Add(t, b)""",
        {"m": [0, 1, -1], "o": [1.0], "z": [0.0], "g": RNG.standard_normal((3, 1)),
        "b": RNG.standard_normal((3, 1))},
        ["Move", "Normalize", "Scale", "Shift", "Move", "Scale", "Shift"]),
    "attention": (f"{HEADS}  b = Mul(a, c)  p = Softmax(b)  y = MatMul(p, x)", {"c": 0.5},
        ["Move", "Scale", "Attention"]),
    "masked attention": (f"""{HEADS}  b = Div(a, c)  e = Add(b, mask)  p = Softmax(e)
        y = MatMul(p, x)""", {"c": 3.0, "mask": np.triu(np.full((3, 3), -np.inf), 1)},
        ["Move", "Scale", "Attention"]),
    "chosen attention": (f"{HEADS}  e = Where(m, a, none)  p = Softmax(e)  y = MatMul(p, x)",
        {"none": -np.inf, "m": np.tril(np.ones((3, 3))) > 0}, ["Move", "Attention"]),
    "log of softmax": ("p = Softmax<axis=1>(x)  l = Log(p)  y = Add(l, p)", {},
        ["Softmax", "Softmax", "Add"]),
    "max min": ("a, b = Split<axis=2>(x)  u = Max(a, b)  v = Min(b, a)  y = Concat<axis=2>(u, v)",
        {}, ["Move", "Sort", "Move"]),
    "min max": ("a, b = Split<axis=2>(x)  u = Min(a, b)  v = Max(b, a)  y = Concat<axis=1>(u, v)",
        {}, ["Move", "Sort", "Move"]),
    "max min by reductions": ("""p = Reshape(x, pairs)  u = ReduceMax<axes=[-1], keepdims=0>(p)
        v = ReduceMin<axes=[-1], keepdims=0>(p)  a = Unsqueeze(u, last)  b = Unsqueeze(v, last)
        s = Concat<axis=-1>(a, b)  y = Reshape(s, back)""",
        {"pairs": [-1, 3, 2, 2], "back": [-1, 3, 4], "last": [-1]}, ["Move", "Sort", "Move"]),
    "min max by reductions over a middle axis": ("""p = Reshape(x, pairs)
        u = ReduceMin<axes=[2], keepdims=1>(p)  v = ReduceMax<axes=[2], keepdims=1>(p)
        y = Concat<axis=2>(u, v)""", {"pairs": [-1, 3, 2, 2]}, ["Move", "Sort", "Move"]),
    "padded circularly": ("""a = Slice(x, end, big, last)  b = Slice(x, zero, one, last)
        y = Concat<axis=2>(a, x, b)""",
        {"end": [-1], "big": [2**31], "zero": [0], "one": [1], "last": [2]}, ["Move"]),
    "dense": ("z = MatMul(x, w)  y = Add(z, b)",
        {"w": RNG.standard_normal((4, 2)), "b": RNG.standard_normal((1, 1, 2))}, ["Dense"]),
    "a bias read twice": ("z = MatMul(x, w)  u = Add(z, b)  y = Mul(u, z)",
        {"w": RNG.standard_normal((4, 2)), "b": RNG.standard_normal(2)},
        ["Dense", "Shift", "Multiply"]),
    "an offset per token": ("z = MatMul(x, w)  y = Add(z, b)",
        {"w": RNG.standard_normal((4, 2)), "b": RNG.standard_normal((3, 1))}, ["Dense", "Shift"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_layer_is_recognised_and_computes_the_same(name):
    nodes, constants, expected = CASES[name]
    found = agrees(model(nodes, T, constants))
    assert found.batch_proved
    assert kinds(found) == expected


NEAR = {
    "gelu of another value": ("""o = Neg(x)  d = Div(o, root)  g = Erf(d)  h = Add(g, one)
        y = Mul(x, h)""", {"root": math.sqrt(2), **ONE}, "gelu"),
    "gate with a minus": ("d = Div(x, root)  g = Erf(d)  h = Add(g, one)  y = Mul(x, h)",
        {"root": -math.sqrt(2), **ONE}, "gelu"),
    "gate with another number": (f"{ERF}  h = Add(g, one)  y = Mul(x, h)",
        {"root": math.sqrt(2), "one": 1.5}, "gelu"),
    "mean over another axis": (f"m = ReduceMean<axes=[1]>(x)  {OFF}",
        EPS, "centred"),
    "sum instead of mean": (f"m = ReduceSum(x, ax)  {OFF}",
        {**EPS, "ax": [2]}, "centred"),
    "square of another value": (f"{STANDARD}  y = Div(x, s)", EPS, "Normalize"),
    "softmax over the keys": (f"{HEADS}  p = Softmax<axis=1>(a)  y = MatMul(p, x)", {},
        "Attention"),
    "log-softmax": (f"{HEADS}  p = LogSoftmax(a)  y = MatMul(p, x)", {}, "Attention"),
    "mean of another value": ("o = Neg(x)  m = ReduceMean<axes=[2]>(o)  y = Sub(x, m)", {},
        "Centre"),
    "mean less the value": ("m = ReduceMean<axes=[2]>(x)  y = Sub(m, x)", {}, "Centre"),
    "norm of another value": ("""o = Sin(x)  v = ReduceL2<axes=[2]>(o)  c = Clip(v, lo)
        y = Div(x, c)""", {"lo": 0.5}, "DivideByNorm"),
    "norm that may be 0": ("v = ReduceL2<axes=[2]>(x)  c = Clip(v, lo)  y = Div(x, c)", {"lo": 0.0},
        "DivideByNorm"),
    "norm clipped from above": ("v = ReduceL2<axes=[2]>(x)  c = Clip(v, lo, hi)  y = Div(x, c)",
        {"lo": 0.5, "hi": 0.8}, "DivideByNorm"),
    "sum of magnitudes": ("v = ReduceL1<axes=[2]>(x)  c = Clip(v, lo)  y = Div(x, c)", {"lo": 0.5},
        "DivideByNorm"),
    "norm that is repeated further than the value": ("""o = Slice(x, zero, one, one)
        v = ReduceL2<axes=[2]>(o)  c = Clip(v, lo)  e = Expand(c, k)  y = Div(o, e)""",
        {"lo": 0.5, "k": [1, 3, 1], "zero": [0], "one": [1]}, "DivideByNorm"),
    "norms of other blocks": ("""v = ReduceL2<axes=[2]>(x)  t = Gather<axis=1>(v, turned)
        c = Add(t, lo)  y = Div(x, c)""", {"lo": 0.5, "turned": [1, 2, 0]}, "DivideByNorm"),
    "a norm less a number": ("v = ReduceL2<axes=[2]>(x)  c = Sub(v, lo)  y = Div(x, c)",
        {"lo": 0.5}, "DivideByNorm"),
    "mean over another axis than the norm's": (f"""o = ReduceMean<axes=[1]>(x)  f = Sub(x, o)
        {CENTRED}  q = Pow(d, two)  v = ReduceMean<axes=[-1]>(q)  t = Sqrt(v)  e = Add(t, eps)
        y = Div(f, e)""", EPS, "DivideByNorm"),
    "a norm with a number, and another one": ("""q = Mul(x, x)  v = ReduceSum(q, ax)
        e = Add(v, eps)  s = Sqrt(e)  t = Add(s, eps)  a = Div(x, t)  m = Max(s, zero)
        b = Div(x, m)  y = Add(a, b)""", {**EPS, "ax": [2], "zero": 0.0}, "DivideByNorm"),
    "minus a norm": ("v = ReduceL2<axes=[2]>(x)  s = Div(v, r)  c = Clip(s, lo)  y = Div(x, c)",
        {"lo": 1.0, "r": -0.3}, "DivideByNorm"),
    "two maxima": ("""a, b = Split<axis=2>(x)  u = Max(a, b)  v = Max(b, a)
        y = Concat<axis=2>(u, v)""", {}, "Sort"),
    "maxima of other pairs": ("""a, b = Split<axis=2>(x)  c = Neg(b)  u = Max(a, b)  v = Min(a, c)
        y = Concat<axis=2>(u, v)""", {}, "Sort"),
}  # fmt: skip


@pytest.mark.parametrize("name", NEAR)
def test_what_only_looks_like_a_layer_is_not_taken_for_it(name):
    nodes, constants, wrong = NEAR[name]
    found = agrees(model(nodes, T, constants))
    assert wrong not in kinds(found)
    assert wrong != "centred" or not any(getattr(s.op, "centred", False) for s in found.steps)


def test_the_scale_of_a_gelu_is_that_of_the_file():
    nodes = half_gelu("d = Mul(x, root)  g = Erf(d)")
    found = agrees(model(nodes, T, {"root": 0.6, **ONE}))
    exact = math.sqrt(2) * float(np.float32(0.6))
    before, after = (found.steps[k].op.factor for k in (0, 2))
    assert before.lo.item() <= exact <= before.hi.item()
    assert after.lo.item() <= 1 / exact <= after.hi.item()
    assert before.hi.item() - before.lo.item() < 1e-15
    assert set(found.untracked) == {"root", "one"}
    assert dict(after.sources).keys() == {"half"}


def test_a_trained_scale_of_attention_stays_a_parameter():
    nodes = f"{HEADS}  b = Mul(a, c)  p = Softmax(b)  y = MatMul(p, x)"
    found = agrees(model(nodes, T, {"c": 0.5}))
    assert dict(found.steps[1].op.factor.sources) == {"c": 1.0}
    assert not found.untracked


@pytest.mark.parametrize("ends", [", zero", 'one, ""', "zero, one"])
def test_distances_between_positions_are_clipped(ends: str) -> None:
    """Of whole numbers, as those of ALiBi."""
    nodes = f"c = Clip(places, {ends})  b = Cast<to=1>(c)  y = Add(x, b)"
    assert kinds(agrees(model(nodes, T, {"places": np.arange(-2, 2), "zero": 0, "one": 1})))


@pytest.mark.parametrize("order", [("bias", "mask"), ("mask", "bias")])
def test_a_bias_beside_a_mask_is_part_of_it_and_no_parameter(order) -> None:
    first, second = order
    nodes = f"{HEADS}  d = Add(a, {first})  e = Add(d, {second})  p = Softmax(e)  y = MatMul(p, x)"
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
    nodes = f"{HEADS}  e = Add(a, mask)  p = Softmax(e)  y = MatMul(p, x)"
    with pytest.raises(ValueError, match="not finite"):
        agrees(model(nodes, T, {"mask": mask}))


def test_every_node_is_accounted_for():
    nodes = f"{half_gelu(ERF)}  s = Shape(x)  z = Reshape(y, s)  w = Neg(z)"
    found = agrees(model(nodes, T, {"root": math.sqrt(2), **ONE}))
    assert found.covered == ("part", "part", "part", "step", "step", "unused", "unused", "unused")
    found = agrees(model(nodes, T, {"root": math.sqrt(2), **ONE}, output="w"), "w")
    assert found.covered == ("part", "part", "part", "step", "step", "constant", "part", "step")
