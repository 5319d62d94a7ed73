"""Operators written down in others, and those that take entries in blocks, beside onnxruntime."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipcert.core.lower.errors import Unsupported
from lipcert.graph.evaluate import evaluate
from lipcert.measure.lowering.functions import reduction
from tests.core.lower.cases import agrees, kinds, model, node, program

RNG = np.random.default_rng(5)


def r(*shape: int):
    return RNG.standard_normal(shape)


I4 = ["N", 4, 6, 6]
MASK = r(6, 6) > -0.5
MASK[:, 0] = True
QKV = [node("MatMul", "x wq", "q"), node("MatMul", "x wk", "k"), node("MatMul", "x wv", "v")]
HEADS = {"wq": r(8, 12), "wk": r(8, 12), "wv": r(8, 20)}
FEW = {"wq": r(8, 12), "wk": r(8, 6), "wv": r(8, 4)}
CASES = {
    # name: (nodes, shape, constants, opset)
    "lp normalization 1": ([node("LpNormalization", "x", p=1, axis=1)], I4, {}, 22),
    "mean variance": (
        [node("MeanVarianceNormalization", "x", axes=[1, -1])], I4, {}, 13),
    "log sum": (
        [node("Sigmoid", "x", "s"), node("ReduceLogSum", "s", axes=[1], keepdims=0)], I4, {}, 13),
    "depth to space": ([node("DepthToSpace", "x", blocksize=2)], I4, {}, 13),
    "depth to space by rows": (
        [node("DepthToSpace", "x", blocksize=2, mode="CRD")], I4, {}, 13),
    "space to depth": ([node("SpaceToDepth", "x", blocksize=3)], I4, {}, 13),
    "elements for every example": (
        [node("Shape", "x", "s", end=1), node("Concat", "s three two", "t", axis=0),
         node("Expand", "i t", "e"), node("GatherElements", "x e", axis=2)],
        ["N", 3, 4], {"three": [3], "two": [2], "i": [[[1, -2]]]}, 17),
    "stack from the right": ([node("MatMul", "x w")], ["N", 3, 2, 4], {"w": r(3, 4, 5)}, 13),
    "stack of stacks": (
        [node("MatMul", "x w")], ["N", 2, 3, 2, 4], {"w": r(2, 1, 4, 5)}, 13),
    "sum of old products": (
        [node("Einsum", "x w", equation="bij,jk->bik")], ["N", 3, 4], {"w": r(4, 5)}, 13),
    "trace of products": ([node("Einsum", "x x", equation="bij,bij->b")], ["N", 3, 4], {}, 13),
    "heads": (
        [node("Einsum", "x w", "q", equation="bnd,hde->bhne"),
         node("Einsum", "q x", equation="bhne,bme->bhnm")],
        ["N", 3, 4], {"w": r(2, 4, 4)}, 13),
    "rows of a stack": (
        [node("Einsum", "x w", equation="bthd,hde->bthe")], ["N", 3, 2, 4], {"w": r(2, 4, 5)}, 13),
    "stack beside joint rows": (
        [node("Transpose", "x", "t", perm=[1, 0, 2]), node("Reshape", "t s", "u"),
         node("MatMul", "u w")], ["N", 3, 4], {"s": [1, -1, 4], "w": r(2, 4, 5)}, 13),
    "ellipsis": ([node("Einsum", "x w", equation="...ij,jk")], ["N", 2, 3, 4], {"w": r(4, 5)}, 13),
    "three": (
        [node("Einsum", "x w v", equation="bij,jk,kl->bil")], ["N", 3, 4],
        {"w": r(4, 5), "v": r(5, 2)}, 13),
    "attention of heads": (
        [*QKV, node("Attention", "q k v", q_num_heads=2, kv_num_heads=2)], ["N", 6, 8], HEADS, 23),
    "attention with a mask": (
        [*QKV, node("Attention", "q k v m", q_num_heads=4, kv_num_heads=4, scale=0.3)],
        ["N", 6, 8], {**HEADS, "m": MASK}, 23),
    "attention with numbers in a mask": (
        [*QKV, node("Attention", "q k v m", q_num_heads=2, kv_num_heads=2)],
        ["N", 6, 8], {**HEADS, "m": r(1, 2, 6, 6)}, 23),
    "causal attention": (
        [*QKV, node("Attention", "q k v", q_num_heads=2, kv_num_heads=2, is_causal=1)],
        ["N", 6, 8], HEADS, 23),
    "shared keys": (
        [*QKV, node("Attention", "q k v", q_num_heads=4, kv_num_heads=2)], ["N", 6, 8], FEW, 23),
    "capped attention": (
        [*QKV, node("Attention", "q k v", q_num_heads=2, kv_num_heads=2, softcap=2.0)],
        ["N", 6, 8], HEADS, 23),
    "attention of four axes": (
        [node("MatMul", "x w", "k"), node("Attention", "x k x")], ["N", 2, 5, 3],
        {"w": r(3, 3)}, 23),
    # constants
    "product of constants": (
        [node("MatMul", "u v", "w"), node("MatMul", "x w")], ["N", 4],
        {"u": r(4, 2), "v": r(2, 3)}, 13),
    "gemm of constants": (
        [node("Gemm", "u v c", "w", transB=1, alpha=0.3, beta=2.0), node("MatMul", "x w")],
        ["N", 4], {"u": r(4, 2), "v": r(3, 2), "c": r(3)}, 13),
    "weight norm": (
        [node("ReduceL2", "v", "n", axes=[1]), node("Div", "v n", "u"), node("Mul", "u g", "w"),
         node("Gemm", "x w", transB=1)], ["N", 4], {"v": r(3, 4), "g": r(3, 1)}, 13),
    "positions": (
        [node("Range", "zero six one", "p"), node("Mul", "p c", "q"), node("Sin", "q", "s"),
         node("Add", "x s")], ["N", 6], {"zero": 0.0, "six": 6.0, "one": 1.0, "c": 0.7}, 13),
    "functions of constants": (
        [node("Softplus", "c", "s"), node("Exp", "d", "e"), node("Mul", "s e", "w"),
         node("Max", "w d", "m"), node("ReduceMean", "m", "a", axes=[0]), node("Pow", "a two", "p"),
         node("Mul", "x p")], ["N", 4], {"c": r(3, 4), "d": r(3, 4), "two": 2.0}, 13),
    "one of several": (
        [node("OneHot", "i d v", "h"), node("MatMul", "x h")], ["N", 3],
        {"i": [0, -1, 2], "d": 4, "v": [0.25, 1.0]}, 13),
    "diagonal": (
        [node("EyeLike", "w", "e", k=1, dtype=1), node("MatMul", "x e")], ["N", 3],
        {"w": r(3, 4)}, 13),
    "sizes": (
        [node("Shape", "x", "s"), node("Gather", "s two", "h"), node("Cast", "h", "f", to=1),
         node("Mul", "f half", "g"), node("Floor", "g", "l"), node("Cast", "l", "i", to=7),
         node("Mod", "i three", "j"), node("Unsqueeze", "j zero", "k"),
         node("Slice", "x zero k zero_one")],
        ["N", 5, 7], {"two": 2, "half": 0.5, "three": 2, "zero": [0], "zero_one": [1]}, 13),
    "product of sizes": (
        [node("Shape", "x", "s"), node("Slice", "s a b", "t"), node("ReduceProd", "t", "p"),
         node("Concat", "p last", "z", axis=0), node("Reshape", "x z")],
        ["N", 5, 7], {"a": [0], "b": [2], "last": [7]}, 13),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_onnxruntime(name):
    nodes, shape, constants, opset = CASES[name]
    found = agrees(model(nodes, shape, constants, opset))
    assert found.batch_proved or shape[0] != "N"


@pytest.mark.parametrize("order", [1, 2])
def test_what_is_0_stays_0_when_it_is_normalised(order):
    """As ONNX says; a quotient by the norm has no value there, and no bound."""
    found = program(model([node("LpNormalization", "x", p=order)], ["N", 2, 3]))
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
    nodes = [node("Transpose", "x", "t", perm=order)]
    constants = {"w": r(*(sizes[label] for label in right)) if right else 0.7}
    shape = ["N", *(sizes[label] for label in left)]
    if with_data:
        count = int(np.prod([sizes[label] for label in left], dtype=int))
        wide = int(np.prod([sizes[label] for label in right], dtype=int))
        constants = {"flat": [-1, count], "m": r(count, wide),
                     "shape": [-1, *(sizes[label] for label in right)]}  # fmt: skip
        nodes += [node("Reshape", "x flat", "f"), node("MatMul", "f m", "g"),
                  node("Reshape", "g shape", "w")]  # fmt: skip
    nodes.append(node("Einsum", "t w", equation=equation))
    assert agrees(model(nodes, shape, constants)).batch_proved


def quotient(numbers, divisor):
    """Parts of x at places floor(number / divisor), as torch exports them."""
    nodes = [
        node("Div", "c d", "q"), node("Abs", "q", "a"), node("Floor", "a", "f"),
        node("Sign", "q", "s"), node("Mul", "f s", "p"), node("Cast", "p", "i", to=7),
        node("Gather", "x i", axis=1),
    ]  # fmt: skip
    return model(nodes, ["N", 17], {"c": numbers, "d": divisor})


def test_a_quotient_rounded_once_has_one_whole_part():
    agrees(quotient([0.0, 16.0, 32.0, 48.0], 3.0))


@given(st.lists(st.integers(0, 16), min_size=1, max_size=4), st.integers(1, 64))
def test_whole_parts_are_those_of_fractions(numbers, divisor):
    found = agrees(quotient([float(item) for item in numbers], float(divisor)))
    assert found.steps[-1].op.sources.tolist() == [[item // divisor for item in numbers]]


REFUSED = {
    "a quotient that float32 rounds up": (
        [node("Div", "c d", "q"), node("Floor", "q", "f"), node("Mul", "x f")], ["N", 3],
        {"c": 1.0, "d": 0.1}, 13),
    "squares that wrap around in int32": (
        [*(node("Cast", name, f"{name}_", to=6) for name in "cde"), node("Range", "c_ d_ e_", "r"),
         node("Mul", "r r", "q"), node("Cast", "q", "f", to=1), node("Mul", "x f")], ["N", 3],
        {"c": 46341, "d": 46344, "e": 1}, 13),
    "two quotients": (
        [node("Div", "c d", "q"), node("Div", "q d", "r"), node("Floor", "r", "f"),
         node("Mul", "x f")], ["N", 3], {"c": 16.0, "d": 3.0}, 13),
    "mean variance over the batch": ([node("MeanVarianceNormalization", "x")], I4, {}, 13),
    "sum over the batch": ([node("Einsum", "x", equation="bi->i")], ["N", 3], {}, 13),
    "product over the batch": (
        [node("Einsum", "x x", equation="bi,bj->ij")], ["N", 3], {}, 13),
    "diagonal of an operand": ([node("Einsum", "x", equation="bii->bi")], ["N", 3, 3], {}, 13),
    "weights of examples": (
        [node("Einsum", "x w", equation="bi,bi->bi")], ["N", 3], {"w": r(2, 3)}, 13),
    "elements of examples": (
        [node("GatherElements", "x i", axis=1)], ["N", 3], {"i": [[0]]}, 13),
    "a stack for examples": ([node("MatMul", "x w")], ["N", 2, 3], {"w": r(2, 3, 3)}, 13),
    "rounding in a size": (
        [node("Mul", "c d", "e"), node("Floor", "e", "f"), node("Mul", "x f")], ["N", 3],
        {"c": 0.7, "d": 10.0}, 13),
    "a huge cumulation": ([node("CumSum", "x a")], ["N", 2**14], {"a": 1}, 14),
    "a logit cap and a mask": (
        [*QKV, node("Attention", "q k v m", q_num_heads=2, kv_num_heads=2, softcap=2.0)],
        ["N", 6, 8], {**HEADS, "m": MASK}, 23),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_understood_exactly_is_refused(name):
    nodes, shape, constants, opset = REFUSED[name]
    with pytest.raises(Unsupported):
        program(model(nodes, shape, constants, opset))
