"""Slopes of computed weights, attacked by the Jacobians that torch finds."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from lipcert.core.program import operands
from tests.core.lower.cases import model, node, program

FEW = [3, 4]
EPS = np.float32(1e-5)


def by_norm(w):
    return w / w.norm(dim=1, keepdim=True)


def standardised(w):
    return (w - w.mean(1, keepdim=True)) / (w.var(1, keepdim=True, unbiased=False) + EPS).sqrt()


def of_rows(w, axes):
    return w / w.square().sum(axes, keepdim=True).sqrt()


NORM = [node("ReduceL2", "v", "n", axes=[1]), node("Div", "v n", "w")]
CASES = {
    "weight norm": ([NORM[0], node("Div", "g n", "s"), node("Mul", "v s", "w")],
                    {"v": FEW, "g": [3, 1]}, lambda v, g: g * by_norm(v)),
    "weight norm, unit vectors first": (
        [*NORM[:1], node("Div", "v n", "u"), node("Mul", "u g", "w")],
        {"v": FEW, "g": [3, 1]}, lambda v, g: g * by_norm(v)),
    "weight norm of all entries": (
        [node("Reshape", "v rest", "f"), node("ReduceL2", "f", "n", keepdims=0),
         node("Div", "g n", "s"), node("Mul", "v s", "w")],
        {"v": FEW, "g": []}, lambda v, g: g * v / v.norm()),
    "of a kernel": (
        [node("ReduceL2", "v", "n", axes=[1, 2]), node("Div", "g n", "s"),
         node("Mul", "v s", "k"), node("Reshape", "k sizes", "w")],
        {"v": [3, 2, 2], "g": [3, 1, 1]}, lambda v, g: (g * of_rows(v, (1, 2))).reshape(3, 4)),
    "of images": (
        [node("ReduceL2", "v", "n", axes=[1, 2, 3]), node("Div", "v n", "u"),
         node("Mul", "u g", "k"), node("Reshape", "k sizes", "w")],
        {"v": [3, 1, 2, 2], "g": [3, 1, 1, 1]},
        lambda v, g: (g * of_rows(v, (1, 2, 3))).reshape(3, 4)),
    "of a transposed kernel": (
        [node("Transpose", "v", "t", perm=[1, 0, 2]), node("Reshape", "t flat", "f"),
         node("ReduceL2", "f", "m", axes=[1], keepdims=0), node("Reshape", "m column", "c"),
         node("Transpose", "c", "n", perm=[1, 0, 2]), node("Div", "g n", "s"),
         node("Mul", "v s", "k"), node("Reshape", "k sizes", "w")],
        {"v": [2, 3, 2], "g": [1, 3, 1]}, lambda v, g: (g * of_rows(v, (0, 2))).reshape(3, 4)),
    "over roots of sums": (
        [node("Mul", "v v", "q"), node("ReduceSum", "q axis", "z", keepdims=1),
         node("Sqrt", "z", "n"), node("Div", "v n", "w")], {"v": FEW}, by_norm),
    "over roots of sums and a number": (
        [node("Pow", "v two", "q"), node("ReduceSum", "q axis", "z", keepdims=1),
         node("Add", "z one", "ze"), node("Sqrt", "ze", "r"), node("Div", "v r", "w")],
        {"v": FEW}, lambda v: v / (v.square().sum(1, keepdim=True) + 1.0).sqrt()),
    "over norms of others": (
        [node("Pow", "v two", "q"), node("ReduceMean", "q", "z", axes=[0]),
         node("Sqrt", "z", "r"), node("Div", "u r", "w")],
        {"v": FEW, "u": FEW}, lambda v, u: u / v.square().mean(0, keepdim=True).sqrt()),
    "rows over minus the norms of columns": (
        [node("ReduceL2", "v", "n", axes=[0]), node("Transpose", "n", "t", perm=[1, 0]),
         node("Neg", "t", "m"), node("Div", "v m", "w")],
        {"v": [4, 4]}, lambda v: -v / v.norm(dim=0)[:, None]),
    "over the norm of all but the first": (
        [node("Slice", "v axis four first", "o"), node("Pad", "o before", "p"),
         node("ReduceL2", "p", "n"), node("Div", "v n", "c"), node("Unsqueeze", "c first", "w")],
        {"v": [4]}, lambda v: v / v[1:].norm()),
    "times minus a norm": (
        [node("ReduceL2", "v", "n", axes=[1]), node("Neg", "n", "m"), node("Mul", "v m", "w")],
        {"v": FEW}, lambda v: -v * v.norm(dim=1, keepdim=True)),
    "cosine head": (NORM, {"v": FEW}, by_norm),
    "of all entries": ([node("ReduceL2", "v", "n", axes=[0, 1]), node("Div", "v n", "w")],
                       {"v": FEW}, lambda v: v / v.norm()),
    "adapter": ([node("MatMul", "b a", "m"), node("Add", "v m", "w")],
                {"v": FEW, "b": [3, 2], "a": [2, 4]}, lambda v, b, a: v + b @ a),
    "merged twice": ([node("Gemm", "b a", "m", alpha=0.5), node("Mul", "m b2", "w")],
                     {"b": [3, 2], "a": [2, 4], "b2": [3, 1]}, lambda b, a, c: 0.5 * (b @ a) * c),
    "standardised": ([node("ReduceMean", "v", "m", axes=[1]), node("Sub", "v m", "d"),
                      node("Mul", "d d", "q"), node("ReduceMean", "q", "z", axes=[1]),
                      node("Add", "z eps", "ze"), node("Sqrt", "ze", "r"), node("Div", "d r", "w")],
                     {"v": FEW}, standardised),
    "mixed by softmax": ([node("Softmax", "a", "p", axis=0), node("Mul", "v p", "w")],
                         {"v": FEW, "a": [3, 1]}, lambda v, a: v * a.softmax(0)),
    "exponential": ([node("Exp", "v", "w")], {"v": FEW}, torch.exp),
    "softplus": ([node("Softplus", "v", "w")], {"v": FEW}, F.softplus),
    "magnitudes": ([node("Abs", "v", "w")], {"v": FEW}, torch.abs),
    "gate": ([node("Sigmoid", "a", "p"), node("Sub", "one p", "q"), node("Mul", "v q", "w")],
             {"v": FEW, "a": [1, 4]}, lambda v, a: v * (1 - a.sigmoid())),
    "squares": ([node("Pow", "v two", "w")], {"v": FEW}, torch.square),
    "largest": ([node("Max", "v u", "w")], {"v": FEW, "u": [1, 4]}, torch.maximum),
    "chosen": ([node("Where", "mask v u", "w")], {"v": FEW, "u": [4]},
               lambda v, u: torch.where(torch.tensor([True, False, True, False]), v, u)),
    "sums": ([node("ReduceSum", "v axis", "s", keepdims=1), node("Sub", "v s", "w")],
             {"v": FEW}, lambda v: v - v.sum(1, keepdim=True)),
    "sums of magnitudes": ([node("ReduceL1", "v", "s", axes=[0]), node("Add", "v s", "w")],
                           {"v": FEW}, lambda v: v + v.abs().sum(0, keepdim=True)),
    "sums of squares": ([node("ReduceSumSquare", "v", "s", axes=[1]), node("Add", "u s", "w")],
                        {"v": FEW, "u": [4]}, lambda v, u: u + v.square().sum(1, keepdim=True)),
    "largest entries": ([node("ReduceMax", "v", "s", axes=[1]), node("Sub", "v s", "w")],
                        {"v": FEW}, lambda v: v - v.amax(1, keepdim=True)),
    "side by side": ([node("Exp", "a", "e"), node("Concat", "v e", "w", axis=0)],
                     {"v": [2, 4], "a": [1, 4]}, lambda v, a: torch.cat([v, a.exp()])),
    "turned and repeated": ([node("Tanh", "a", "t"), node("Transpose", "t", "tt", perm=[1, 0]),
                             node("Expand", "tt sizes", "w")],
                            {"a": [4, 1]}, lambda a: a.tanh().T.expand(3, 4)),
    "stacked products": ([node("MatMul", "b a", "m"),
                          node("ReduceSum", "m first", "w", keepdims=0)],
                         {"b": [2, 3, 2], "a": [2, 4]}, lambda b, a: (b @ a).sum(0)),
    "running sums": ([node("Softplus", "v", "p"), node("CumSum", "p last", "w")],
                     {"v": FEW}, lambda v: F.softplus(v).cumsum(1)),
    "reciprocals": ([node("Reciprocal", "v", "w")], {"v": FEW}, torch.reciprocal),
    "quotients": ([node("Exp", "u", "e"), node("Div", "v e", "w")],
                  {"v": FEW, "u": [3, 1]}, lambda v, u: v / u.exp()),
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
    used = {given for item in nodes for given in item.input} & NUMBERS.keys()
    proto = model(
        [*nodes, node("Gemm", "x w", transB=1)],
        ("N", 4),
        {**tensors, **{k: NUMBERS[k] for k in used}},
    )
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
