"""Every step in torch: the numbers of `evaluate`, the gradients of single examples, vmap."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from lipcert.core import kinds, program, token_kinds, window_kinds
from lipcert.graph.geometry import Window
from lipcert.graph.ir import Node, Operand
from lipcert.measure.lowering import lowered
from lipcert.measure.lowering.functions import FUNCTIONS
from lipcert.measure.lowering.network import obstacle
from tests.measure.lowering.cases import CASES
from tests.networks import chain
from tests.ops import (
    Activation,
    AveragePool,
    Conv,
    LpPool,
    MaxPool,
    ReduceLogSumExp,
    ReduceMean,
    ReduceNorm,
    ReduceSum,
    Sort,
    evaluated,
)

NO_AXES = [
    op((3, 2)) for op in (ReduceNorm(2, ()), ReduceLogSumExp(()), ReduceSum(()), ReduceMean(()))
]
"""nothing is reduced, whereas torch's own functions would reduce everything"""


KINDS = sorted({type(case.node.op).__name__ for case in CASES})


def each(kind: str, check: Callable[..., None]) -> None:
    """Check all cases of one kind of step; what fails names its case."""
    for case in CASES:
        if type(case.node.op).__name__ == kind:
            try:
                check(case)
            except AssertionError as error:
                error.add_note(case.name)
                raise


def values(shapes, box=(-2.0, 2.0), examples=3, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.uniform(*box, (examples, *shape)) for shape in shapes]


def operands(node: Node):
    return {slot: torch.tensor(operand.array) for slot, operand in node.operands.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_values(kind):
    each(kind, lambda case: check_values(case.node, case.inputs, case.box))


@pytest.mark.parametrize("op", NO_AXES)
def test_values_without_axes(op):
    check_values(op, ((3, 2),))


def check_values(op, shapes, box=(-2.0, 2.0)):
    xs = values(shapes, box)
    tensors = [torch.tensor(x) for x in xs]
    found = lowered(op, tensors, operands(op))
    np.testing.assert_allclose(found.numpy(), evaluated(op, *xs), rtol=1e-12, atol=1e-13)
    assert all(
        found is not x for x in tensors
    )  # a value and its input have cotangents of their own
    assert all(np.array_equal(x, t.numpy()) for x, t in zip(xs, tensors, strict=True))
    nobody = lowered(op, [x[:0] for x in tensors], operands(op))
    assert nobody.shape == (0, *found.shape[1:])


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_and_vmap(kind):
    each(kind, check_gradients_and_vmap)


def check_gradients_and_vmap(case):
    """Against plain torch code of one example each, differentiated by autograd."""
    op = case.node
    tensors = [torch.tensor(x) for x in values(case.inputs, case.box, examples=2, seed=1)]
    weights = operands(op)
    found, ours = gradients(lambda *x: lowered(op, x, weights), tensors)
    for example in range(2):
        single = [x[example : example + 1] for x in tensors]
        value, theirs = gradients(lambda *x: case.of_one(list(x)), single, example)
        torch.testing.assert_close(found[example], value[0], rtol=1e-10, atol=1e-11)
        if isinstance(op.op, kinds.CotangentClip):
            theirs = []  # tests of clips look at those
        for mine, other in zip(ours, theirs, strict=False):
            torch.testing.assert_close(mine[example], other[0], rtol=1e-9, atol=1e-10)
            if isinstance(op.op, kinds.MaskedMean):
                break  # the mask has no slope in the words of the core

    def one(*x):
        return lowered(op, [item.unsqueeze(0) for item in x], weights).squeeze(0)

    torch.testing.assert_close(torch.func.vmap(one)(*tensors), found, rtol=1e-10, atol=1e-11)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_gpu_computes_the_same_in_float64():
    """Also where kernels of torch keep constants in float32."""

    def on(device, case):
        tensors = [
            torch.tensor(x, device=device) for x in values(case.inputs, case.box, examples=2)
        ]
        weights = {slot: item.to(device) for slot, item in operands(case.node).items()}
        found, slopes = gradients(lambda *x: lowered(case.node, x, weights), tensors)
        return [item.cpu() for item in (found, *slopes)]

    for case in CASES:
        for here, there in zip(on("cpu", case), on("cuda", case), strict=True):
            torch.testing.assert_close(there, here, rtol=1e-11, atol=1e-12, msg=case.name)


def gradients(function, inputs, example=None):
    """The value, and the gradients of its product with fixed random numbers."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    value = function(*leaves)
    factors = torch.tensor(np.random.default_rng(7).standard_normal((2, *value.shape[1:]))).to(
        value
    )
    factors = factors if example is None else factors[example : example + 1]
    if not (value.numel() and value.requires_grad):  # an embedding has no slope
        return value.detach(), [torch.zeros_like(x) for x in leaves]
    found = torch.autograd.grad(value, leaves, factors, allow_unused=True)
    zeros = [torch.zeros_like(x) for x in leaves]
    return value.detach(), [z if g is None else g for g, z in zip(found, zeros, strict=True)]


def test_every_kind_of_step_is_tried():
    defined = {**vars(program), **vars(kinds), **vars(window_kinds), **vars(token_kinds)}.values()
    steps = {x for x in defined if isinstance(x, type) and issubclass(x, program.Op) and x.is_final}
    assert {type(case.node.op) for case in CASES} == steps - {program.Op}
    assert {c.node.op.name for c in CASES if isinstance(c.node.op, program.Activation)} == set(
        FUNCTIONS
    )


@pytest.mark.parametrize("function", [Activation("softplus"), Activation("mish")])
def test_far_arguments(function):
    x = np.array([[-800.0, -60.0, -36.0, 14.0, 20.5, 39.0, 41.0, 100.0, 1e4]])
    t = torch.tensor(x, requires_grad=True)
    node = function(x.shape[1:])
    found = lowered(node, [t], {})
    expected = evaluated(node, x)
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-15, atol=1e-14)
    (slope,) = torch.autograd.grad(found.sum(), t)
    assert torch.isfinite(slope).all()


def test_kinks_have_a_slope():
    """Where the 2-norm has no gradient, 0 is one of its derivatives; never NaN."""
    x = torch.zeros(1, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    window = Window(4, 2, 2)
    for op in (LpPool((window, window), 2), ReduceNorm(2, (0, 1))):
        (slope,) = torch.autograd.grad(lowered(op((2, 4, 4)), [x], {}).sum(), x)
        assert torch.equal(slope, torch.zeros_like(x))


def test_low_precision():
    for case in CASES:
        inputs = [torch.tensor(x, dtype=torch.bfloat16) for x in values(case.inputs, case.box)]
        tensors = {slot: t.to(torch.bfloat16) for slot, t in operands(case.node).items()}
        found = lowered(case.node, inputs, tensors)
        assert found.dtype is torch.bfloat16, case.name


def test_too_many_dimensions():
    windows = (Window(1, 1),) * 4
    kernel = Operand(np.ones((1, 1, 1, 1, 1, 1)))
    ops = [Conv(kernel, None, windows), MaxPool(windows), LpPool(windows)]
    for op in [*ops, AveragePool(windows)]:
        assert "4 spatial dimensions" in (obstacle(op((1, 1, 1, 1, 1))) or "")


def test_powers_of_negative_numbers():
    x = np.array([[-2.0, -0.5, 3.0]])
    for exponent in (0.0, 1.0, 2.0, 3.0, -1.0, -2.0):
        node = Activation("power", (exponent,))((3,))
        found = lowered(node, [torch.tensor(x)], {}).numpy()
        np.testing.assert_allclose(found, evaluated(node, x), rtol=1e-14)
    assert math.isnan(lowered(Activation("power", (0.5,))((3,)), [torch.tensor(x)], {})[0, 0])


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_pairs_in_order_have_the_gradients_of_maximum_and_minimum(order) -> None:
    """Equal entries get half of both cotangents each."""
    x = torch.randn(3, 2, 4, 5, generator=torch.Generator().manual_seed(0)).double()
    x[:, 1, :2] = x[:, 0, :2]
    x = x.to(memory_format=order).requires_grad_()
    node = chain((2, 4, 5), Sort(0)).nodes[0]
    found = lowered(node, [x], {})
    expected = torch.stack((torch.minimum(*x.unbind(1)), torch.maximum(*x.unbind(1))), 1)
    assert torch.equal(found, expected)
    cotangent = torch.randn_like(expected)
    pairs = (torch.autograd.grad(item, x, cotangent)[0] for item in (found, expected))
    torch.testing.assert_close(*pairs)
