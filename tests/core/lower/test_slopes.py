"""Slopes of computed weights, attacked by the Jacobians that torch finds."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from lipcert.core.program import operands
from tests.core.lower.cases import model, program, used

FEW = [3, 4]
EPS = np.float32(1e-5)


def by_norm(w):
    return w / w.norm(dim=1, keepdim=True)


def standardised(w):
    return (w - w.mean(1, keepdim=True)) / (w.var(1, keepdim=True, unbiased=False) + EPS).sqrt()


def of_rows(w, axes):
    return w / w.square().sum(axes, keepdim=True).sqrt()


NORM = "n = ReduceL2<axes=[1]>(v)  w = Div(v, n)"
CASES = {
    "weight norm": ("n = ReduceL2<axes=[1]>(v)  s = Div(g, n)  w = Mul(v, s)",
        {"v": FEW, "g": [3, 1]}, lambda v, g: g * by_norm(v)),
    "weight norm, unit vectors first": ("n = ReduceL2<axes=[1]>(v)  u = Div(v, n)  w = Mul(u, g)",
        {"v": FEW, "g": [3, 1]}, lambda v, g: g * by_norm(v)),
    "weight norm of all entries": ("""f = Reshape(v, rest)  n = ReduceL2<keepdims=0>(f)
        s = Div(g, n)  w = Mul(v, s)""", {"v": FEW, "g": []}, lambda v, g: g * v / v.norm()),
    "of a kernel": ("""n = ReduceL2<axes=[1, 2]>(v)  s = Div(g, n)  k = Mul(v, s)
        w = Reshape(k, sizes)""", {"v": [3, 2, 2], "g": [3, 1, 1]},
        lambda v, g: (g * of_rows(v, (1, 2))).reshape(3, 4)),
    "of images": ("""n = ReduceL2<axes=[1, 2, 3]>(v)  u = Div(v, n)  k = Mul(u, g)
        w = Reshape(k, sizes)""", {"v": [3, 1, 2, 2], "g": [3, 1, 1, 1]},
        lambda v, g: (g * of_rows(v, (1, 2, 3))).reshape(3, 4)),
    "of a transposed kernel": ("""t = Transpose<perm=[1, 0, 2]>(v)  f = Reshape(t, flat)
        m = ReduceL2<axes=[1], keepdims=0>(f)  c = Reshape(m, column)
        n = Transpose<perm=[1, 0, 2]>(c)  s = Div(g, n)  k = Mul(v, s)  w = Reshape(k, sizes)""",
        {"v": [2, 3, 2], "g": [1, 3, 1]}, lambda v, g: (g * of_rows(v, (0, 2))).reshape(3, 4)),
    "over roots of sums": ("""q = Mul(v, v)  z = ReduceSum<keepdims=1>(q, axis)  n = Sqrt(z)
        w = Div(v, n)""", {"v": FEW}, by_norm),
    "over roots of sums and a number": ("""q = Pow(v, two)  z = ReduceSum<keepdims=1>(q, axis)
        ze = Add(z, one)  r = Sqrt(ze)  w = Div(v, r)""", {"v": FEW},
        lambda v: v / (v.square().sum(1, keepdim=True) + 1.0).sqrt()),
    "over norms of others": ("""q = Pow(v, two)  z = ReduceMean<axes=[0]>(q)  r = Sqrt(z)
        w = Div(u, r)""", {"v": FEW, "u": FEW},
        lambda v, u: u / v.square().mean(0, keepdim=True).sqrt()),
    "rows over minus the norms of columns": ("""n = ReduceL2<axes=[0]>(v)
        t = Transpose<perm=[1, 0]>(n)  m = Neg(t)  w = Div(v, m)""", {"v": [4, 4]},
        lambda v: -v / v.norm(dim=0)[:, None]),
    "over the norm of all but the first": ("""o = Slice(v, axis, four, first)  p = Pad(o, before)
        n = ReduceL2(p)  c = Div(v, n)  w = Unsqueeze(c, first)""", {"v": [4]},
        lambda v: v / v[1:].norm()),
    "times minus a norm": ("n = ReduceL2<axes=[1]>(v)  m = Neg(n)  w = Mul(v, m)", {"v": FEW},
        lambda v: -v * v.norm(dim=1, keepdim=True)),
    "cosine head": (NORM, {"v": FEW}, by_norm),
    "of all entries": ("n = ReduceL2<axes=[0, 1]>(v)  w = Div(v, n)", {"v": FEW},
        lambda v: v / v.norm()),
    "adapter": ("m = MatMul(b, a)  w = Add(v, m)", {"v": FEW, "b": [3, 2], "a": [2, 4]},
        lambda v, b, a: v + b @ a),
    "merged twice": ("m = Gemm<alpha=0.5>(b, a)  w = Mul(m, b2)",
        {"b": [3, 2], "a": [2, 4], "b2": [3, 1]}, lambda b, a, c: 0.5 * (b @ a) * c),
    "standardised": ("""m = ReduceMean<axes=[1]>(v)  d = Sub(v, m)  q = Mul(d, d)
        z = ReduceMean<axes=[1]>(q)  ze = Add(z, eps)  r = Sqrt(ze)  w = Div(d, r)""", {"v": FEW},
        standardised),
    "mixed by softmax": ("p = Softmax<axis=0>(a)  w = Mul(v, p)", {"v": FEW, "a": [3, 1]},
        lambda v, a: v * a.softmax(0)),
    "exponential": ("w = Exp(v)", {"v": FEW}, torch.exp),
    "softplus": ("w = Softplus(v)", {"v": FEW}, F.softplus),
    "softplus with a guard": ("c = Greater(v, two)  p = Softplus(v)  w = Where(c, v, p)",
        {"v": FEW}, lambda v: F.softplus(v, threshold=2.0)),
    "times a positive number": ("e = Exp(a)  w = Mul(v, e)", {"v": FEW, "a": []},
        lambda v, a: v * a.exp()),
    "magnitudes": ("w = Abs(v)", {"v": FEW}, torch.abs),
    "gate": ("p = Sigmoid(a)  q = Sub(one, p)  w = Mul(v, q)", {"v": FEW, "a": [1, 4]},
        lambda v, a: v * (1 - a.sigmoid())),
    "squares": ("w = Pow(v, two)", {"v": FEW}, torch.square),
    "largest": ("w = Max(v, u)", {"v": FEW, "u": [1, 4]}, torch.maximum),
    "chosen": ("w = Where(mask, v, u)", {"v": FEW, "u": [4]},
        lambda v, u: torch.where(torch.tensor([True, False, True, False]), v, u)),
    "sums": ("s = ReduceSum<keepdims=1>(v, axis)  w = Sub(v, s)", {"v": FEW},
        lambda v: v - v.sum(1, keepdim=True)),
    "sums of magnitudes": ("s = ReduceL1<axes=[0]>(v)  w = Add(v, s)", {"v": FEW},
        lambda v: v + v.abs().sum(0, keepdim=True)),
    "sums of squares": ("s = ReduceSumSquare<axes=[1]>(v)  w = Add(u, s)", {"v": FEW, "u": [4]},
        lambda v, u: u + v.square().sum(1, keepdim=True)),
    "largest entries": ("s = ReduceMax<axes=[1]>(v)  w = Sub(v, s)", {"v": FEW},
        lambda v: v - v.amax(1, keepdim=True)),
    "side by side": ("e = Exp(a)  w = Concat<axis=0>(v, e)", {"v": [2, 4], "a": [1, 4]},
        lambda v, a: torch.cat([v, a.exp()])),
    "turned and repeated": ("t = Tanh(a)  tt = Transpose<perm=[1, 0]>(t)  w = Expand(tt, sizes)",
        {"a": [4, 1]}, lambda a: a.tanh().T.expand(3, 4)),
    "stacked products": ("m = MatMul(b, a)  w = ReduceSum<keepdims=0>(m, first)",
        {"b": [2, 3, 2], "a": [2, 4]}, lambda b, a: (b @ a).sum(0)),
    "running sums": ("p = Softplus(v)  w = CumSum(p, last)", {"v": FEW},
        lambda v: F.softplus(v).cumsum(1)),
    "reciprocals": ("w = Reciprocal(v)", {"v": FEW}, torch.reciprocal),
    "quotients": ("e = Exp(u)  w = Div(v, e)", {"v": FEW, "u": [3, 1]}, lambda v, u: v / u.exp()),
}  # fmt: skip
NUMBERS = {
    "eps": EPS, "one": 1.0, "two": 2.0, "axis": [1], "first": [0], "last": 1, "sizes": FEW,
    "rest": [-1], "flat": [3, -1], "column": [3, 1, 1], "four": [4], "before": [1, 0],
    "mask": np.array([True, False, True, False]),
}  # fmt: skip
ATTAINED = {
    "cosine head", "of a kernel", "of a transposed kernel", "of all entries", "of images",
    "over roots of sums", "over roots of sums and a number", "weight norm",
    "weight norm of all entries", "weight norm, unit vectors first",
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@given(seed=st.integers(0, 1 << 32), scale=st.sampled_from([0.01, 1.0, 30.0]))
@settings(max_examples=3)
def test_slopes_bound_the_norms_of_jacobians(name, seed, scale) -> None:
    nodes, shapes, function = CASES[name]
    draw = np.random.default_rng(seed)
    tensors = {
        name: np.float32(scale * draw.standard_normal(shape) ** 3) for name, shape in shapes.items()
    }
    tensors = {name: np.where(item == 0, EPS, item) for name, item in tensors.items()}
    nodes = f"{nodes}  y = Gemm<transB=1>(x, w)"
    proto = model(nodes, ("N", 4), {**tensors, **used(nodes, NUMBERS)})
    (weight,) = [item for step in program(proto).steps for item in operands(step.op)]
    given = tuple(torch.from_numpy(item).double() for item in tensors.values())
    true = torch.autograd.functional.jacobian(function, given)
    for key, jacobian, item in zip(tensors, true, given, strict=True):
        least = float(torch.linalg.matrix_norm(jacobian.reshape(-1, item.numel()), 2))
        bound = min(weight.sources[key], weight.slopes.get(key, math.inf))
        assert least <= bound * (1.0 + 1e-9)
        assert name not in ATTAINED or bound <= least * (1.0 + 1e-6)
        if scale == 1.0 and name not in {"standardised", "quotients", "reciprocals"}:
            assert bound < math.inf


DECISIONS = [
    "k = Cast<to=1>(c)",
    "k = Where(d, one, two)",
    "k = Where(c, x, one)",
    "m = Where(c, i, j)  n = Add(m, i)  k = Cast<to=1>(n)",
]


@pytest.mark.parametrize("decided", DECISIONS)
def test_tensors_that_only_decide_have_no_bound(decided: str) -> None:
    nodes = f"c = Greater(v, two)  d = Not(c)  {decided}  y = Mul(x, k)"
    numbers = {"v": np.ones(4), "one": 1.0, "two": 2.0, "i": np.array([1]), "j": np.array([2])}
    assert "v" in program(model(nodes, ("N", 4), numbers)).untracked
