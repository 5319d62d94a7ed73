"""Operators written down in others, and those that take entries in blocks, beside onnxruntime."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipcert.core.lower.errors import Unsupported
from lipcert.graph.evaluate import evaluate
from lipcert.measure.lowering.functions import reduction
from tests.core.lower.cases import agrees, kinds, model, program

RNG = np.random.default_rng(5)


def r(*shape: int):
    return RNG.standard_normal(shape)


I4 = ["N", 4, 6, 6]
MASK = r(6, 6) > -0.5
MASK[:, 0] = True
QKV = "q = MatMul(x, wq)  k = MatMul(x, wk)  v = MatMul(x, wv)"
HEADS = {"wq": r(8, 12), "wk": r(8, 12), "wv": r(8, 20)}
FEW = {"wq": r(8, 12), "wk": r(8, 6), "wv": r(8, 4)}
CASES = {
    # name: (nodes, shape, constants, opset)
    "lp normalization 1": ("y = LpNormalization<p=1, axis=1>(x)", I4, {}, 22),
    "mean variance": ("y = MeanVarianceNormalization<axes=[1, -1]>(x)", I4, {}, 13),
    "log sum": ("s = Sigmoid(x)  y = ReduceLogSum<axes=[1], keepdims=0>(s)", I4, {}, 13),
    "depth to space": ("y = DepthToSpace<blocksize=2>(x)", I4, {}, 13),
    "depth to space by rows": ('y = DepthToSpace<blocksize=2, mode="CRD">(x)', I4, {}, 13),
    "space to depth": ("y = SpaceToDepth<blocksize=3>(x)", I4, {}, 13),
    "elements for every example": ("""s = Shape<end=1>(x)  t = Concat<axis=0>(s, three, two)
        e = Expand(i, t)  y = GatherElements<axis=2>(x, e)""", ["N", 3, 4],
        {"three": [3], "two": [2], "i": [[[1, -2]]]}, 17),
    "stack from the right": ("y = MatMul(x, w)", ["N", 3, 2, 4], {"w": r(3, 4, 5)}, 13),
    "stack of stacks": ("y = MatMul(x, w)", ["N", 2, 3, 2, 4], {"w": r(2, 1, 4, 5)}, 13),
    "sum of old products": ('y = Einsum<equation="bij,jk->bik">(x, w)', ["N", 3, 4], {"w": r(4, 5)},
        13),
    "trace of products": ('y = Einsum<equation="bij,bij->b">(x, x)', ["N", 3, 4], {}, 13),
    "heads": ("""q = Einsum<equation="bnd,hde->bhne">(x, w)
        y = Einsum<equation="bhne,bme->bhnm">(q, x)""", ["N", 3, 4], {"w": r(2, 4, 4)}, 13),
    "rows of a stack": ('y = Einsum<equation="bthd,hde->bthe">(x, w)', ["N", 3, 2, 4],
        {"w": r(2, 4, 5)}, 13),
    "stack beside joint rows": ("""t = Transpose<perm=[1, 0, 2]>(x)  u = Reshape(t, s)
        y = MatMul(u, w)""", ["N", 3, 4], {"s": [1, -1, 4], "w": r(2, 4, 5)}, 13),
    "ellipsis": ('y = Einsum<equation="...ij,jk">(x, w)', ["N", 2, 3, 4], {"w": r(4, 5)}, 13),
    "three": ('y = Einsum<equation="bij,jk,kl->bil">(x, w, v)', ["N", 3, 4],
        {"w": r(4, 5), "v": r(5, 2)}, 13),
    "attention of heads": (f"{QKV}  y = Attention<q_num_heads=2, kv_num_heads=2>(q, k, v)",
        ["N", 6, 8], HEADS, 23),
    "attention with a mask": (f"""{QKV}
        y = Attention<q_num_heads=4, kv_num_heads=4, scale=0.3>(q, k, v, m)""", ["N", 6, 8],
        {**HEADS, "m": MASK}, 23),
    "attention with numbers in a mask": (f"""{QKV}
        y = Attention<q_num_heads=2, kv_num_heads=2>(q, k, v, m)""", ["N", 6, 8],
        {**HEADS, "m": r(1, 2, 6, 6)}, 23),
    "causal attention": (f"""{QKV}
        y = Attention<q_num_heads=2, kv_num_heads=2, is_causal=1>(q, k, v)""", ["N", 6, 8], HEADS,
        23),
    "shared keys": (f"{QKV}  y = Attention<q_num_heads=4, kv_num_heads=2>(q, k, v)", ["N", 6, 8],
        FEW, 23),
    "capped attention": (f"""{QKV}
        y = Attention<q_num_heads=2, kv_num_heads=2, softcap=2.0>(q, k, v)""", ["N", 6, 8], HEADS,
        23),
    "attention of four axes": ("k = MatMul(x, w)  y = Attention(x, k, x)", ["N", 2, 5, 3],
        {"w": r(3, 3)}, 23),
    # constants
    "product of constants": ("w = MatMul(u, v)  y = MatMul(x, w)", ["N", 4],
        {"u": r(4, 2), "v": r(2, 3)}, 13),
    "gemm of constants": ("w = Gemm<transB=1, alpha=0.3, beta=2.0>(u, v, c)  y = MatMul(x, w)",
        ["N", 4], {"u": r(4, 2), "v": r(3, 2), "c": r(3)}, 13),
    "weight norm": ("""n = ReduceL2<axes=[1]>(v)  u = Div(v, n)  w = Mul(u, g)
        y = Gemm<transB=1>(x, w)""", ["N", 4], {"v": r(3, 4), "g": r(3, 1)}, 13),
    "positions": ("p = Range(zero, six, one)  q = Mul(p, c)  s = Sin(q)  y = Add(x, s)", ["N", 6],
        {"zero": 0.0, "six": 6.0, "one": 1.0, "c": 0.7}, 13),
    "functions of constants": ("""s = Softplus(c)  e = Exp(d)  w = Mul(s, e)  m = Max(w, d)
        a = ReduceMean<axes=[0]>(m)  p = Pow(a, two)  y = Mul(x, p)""", ["N", 4],
        {"c": r(3, 4), "d": r(3, 4), "two": 2.0}, 13),
    "one of several": ("h = OneHot(i, d, v)  y = MatMul(x, h)", ["N", 3],
        {"i": [0, -1, 2], "d": 4, "v": [0.25, 1.0]}, 13),
    "diagonal": ("e = EyeLike<k=1, dtype=1>(w)  y = MatMul(x, e)", ["N", 3], {"w": r(3, 4)}, 13),
    "sizes": (
        """s = Shape(x)  h = Gather(s, two)  f = Cast<to=1>(h)  g = Mul(f, half)  l = Floor(g)
        i = Cast<to=7>(l)  j = Mod(i, three)  k = Unsqueeze(j, zero)
        y = Slice(x, zero, k, zero_one)""", ["N", 5, 7],
        {"two": 2, "half": 0.5, "three": 2, "zero": [0], "zero_one": [1]}, 13),
    "unsigned signs": ("k = Cast<to=2>(c)  s = Sign(k)  f = Cast<to=1>(s)  y = Mul(x, f)", ["N", 3],
        {"c": [0.0, 1.0, 255.0]}, 13),
    "product of sizes": ("""s = Shape(x)  t = Slice(s, a, b)  p = ReduceProd(t)
        z = Concat<axis=0>(p, last)  y = Reshape(x, z)""", ["N", 5, 7],
        {"a": [0], "b": [2], "last": [7]}, 13),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_onnxruntime(name):
    nodes, shape, constants, opset = CASES[name]
    found = agrees(model(nodes, shape, constants, opset))
    assert found.batch_proved or shape[0] != "N"


@pytest.mark.parametrize("order", [1, 2])
def test_what_is_0_stays_0_when_it_is_normalised(order):
    """As ONNX says; a quotient by the norm has no value there, and no bound."""
    found = program(model(f"y = LpNormalization<p={order}>(x)", ["N", 2, 3]))
    examples = np.array([[[0.0, 0.0, 0.0], [3.0, 0.0, -4.0]]])
    sums = [7.0, 5.0]
    expected = examples / sums[order - 1]
    np.testing.assert_allclose(evaluate(found, examples)[found.output], expected)
    x = torch.tensor(examples, requires_grad=True)
    value = reduction(found.steps[0].op)([x], {})
    np.testing.assert_allclose(value.detach().numpy(), examples / 5.0)
    value.sum().backward()
    assert x.grad.isfinite().all()


def test_attention_is_one_step():
    for name in ("attention of heads", "attention with a mask", "causal attention"):
        nodes, shape, constants, opset = CASES[name]
        assert "Attention" in kinds(program(model(nodes, shape, constants, opset)))


@given(st.data())
def test_sums_of_products(data):
    """Equations of labels in any order, with sizes of 1 among them."""
    sizes = {label: data.draw(st.sampled_from([1, 2, 3])) for label in "ijkl"}
    left = data.draw(st.lists(st.sampled_from("ijkl"), unique=True, max_size=3))
    right = data.draw(st.lists(st.sampled_from("ijkl"), unique=True, max_size=3))
    place = data.draw(st.integers(0, len(left)))
    kept = sorted({*left, *right} - set(data.draw(st.lists(st.sampled_from("ijkl")))))
    out = data.draw(st.permutations(["b", *kept]))
    first = [*left[:place], "b", *left[place:]]
    with_data = data.draw(st.booleans())
    second = ["b", *right] if with_data else right
    equation = f"{''.join(first)},{''.join(second)}->{''.join(out)}"
    order = [0, *range(1, len(first))]
    order.remove(0)
    order.insert(place, 0)
    nodes = f"t = Transpose<perm={order}>(x)"
    constants = {"w": r(*(sizes[label] for label in right)) if right else 0.7}
    shape = ["N", *(sizes[label] for label in left)]
    if with_data:
        count = int(np.prod([sizes[label] for label in left], dtype=int))
        wide = int(np.prod([sizes[label] for label in right], dtype=int))
        constants = {"flat": [-1, count], "m": r(count, wide),
                     "shape": [-1, *(sizes[label] for label in right)]}  # fmt: skip
        nodes += "  f = Reshape(x, flat)  g = MatMul(f, m)  w = Reshape(g, shape)"
    nodes += f'  y = Einsum<equation="{equation}">(t, w)'
    assert agrees(model(nodes, shape, constants)).batch_proved


def quotient(numbers, divisor):
    """Parts of x at places floor(number / divisor), as torch exports them."""
    nodes = """q = Div(c, d)  a = Abs(q)  f = Floor(a)  s = Sign(q)  p = Mul(f, s)
        i = Cast<to=7>(p)  y = Gather<axis=1>(x, i)"""
    return model(nodes, ["N", 17], {"c": numbers, "d": divisor})


def test_a_quotient_rounded_once_has_one_whole_part():
    agrees(quotient([0.0, 16.0, 32.0, 48.0], 3.0))


@given(st.lists(st.integers(0, 16), min_size=1, max_size=4), st.integers(1, 64))
def test_whole_parts_are_those_of_fractions(numbers, divisor):
    found = agrees(quotient([float(item) for item in numbers], float(divisor)))
    assert found.steps[-1].op.sources.tolist() == [[item // divisor for item in numbers]]


REFUSED = {
    "a quotient that float32 rounds up": ("q = Div(c, d)  f = Floor(q)  y = Mul(x, f)", ["N", 3],
        {"c": 1.0, "d": 0.1}, 13),
    "squares that wrap around in int32": (
        """c_ = Cast<to=6>(c)  d_ = Cast<to=6>(d)  e_ = Cast<to=6>(e)  r = Range(c_, d_, e_)
        q = Mul(r, r)  f = Cast<to=1>(q)  y = Mul(x, f)""", ["N", 3], {"c": 46341, "d": 46344,
        "e": 1}, 13),
    "two quotients": ("q = Div(c, d)  r = Div(q, d)  f = Floor(r)  y = Mul(x, f)", ["N", 3],
        {"c": 16.0, "d": 3.0}, 13),
    "mean variance over the batch": ("y = MeanVarianceNormalization(x)", I4, {}, 13),
    "sum over the batch": ('y = Einsum<equation="bi->i">(x)', ["N", 3], {}, 13),
    "product over the batch": ('y = Einsum<equation="bi,bj->ij">(x, x)', ["N", 3], {}, 13),
    "diagonal of an operand": ('y = Einsum<equation="bii->bi">(x)', ["N", 3, 3], {}, 13),
    "weights of examples": ('y = Einsum<equation="bi,bi->bi">(x, w)', ["N", 3], {"w": r(2, 3)}, 13),
    "elements of examples": ("y = GatherElements<axis=1>(x, i)", ["N", 3], {"i": [[0]]}, 13),
    "a stack for examples": ("y = MatMul(x, w)", ["N", 2, 3], {"w": r(2, 3, 3)}, 13),
    "rounding in a size": ("e = Mul(c, d)  f = Floor(e)  y = Mul(x, f)", ["N", 3],
        {"c": 0.7, "d": 10.0}, 13),
    "a huge cumulation": ("y = CumSum(x, a)", ["N", 2**14], {"a": 1}, 14),
    "a logit cap and a mask": (f"""{QKV}
        y = Attention<q_num_heads=2, kv_num_heads=2, softcap=2.0>(q, k, v, m)""", ["N", 6, 8],
        {**HEADS, "m": MASK}, 23),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_understood_exactly_is_refused(name):
    nodes, shape, constants, opset = REFUSED[name]
    with pytest.raises(Unsupported):
        program(model(nodes, shape, constants, opset))
