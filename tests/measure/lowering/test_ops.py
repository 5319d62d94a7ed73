"""Every step in torch: the numbers of `evaluate`, gradients of single examples, views, clips."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from lipcert.core import kinds, program, token_kinds, window_kinds
from lipcert.graph.geometry import Window
from lipcert.graph.ir import Node, Operand, Padding, is_arrangement, padding_of
from lipcert.measure.lowering import lowered
from lipcert.measure.lowering.functions import FUNCTIONS
from lipcert.measure.lowering.move import Grid
from lipcert.measure.lowering.network import obstacle
from tests.measure.lowering.cases import CASES
from tests.networks import chain, padded
from tests.ops import (
    Activation,
    AveragePool,
    Conv,
    ConvTranspose,
    CotangentClip,
    InputClip,
    LpPool,
    MaxPool,
    Move,
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


def each(kind: str, check) -> None:
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


RNG = np.random.default_rng(3)
COTANGENTS = np.array([0.01, 1.0, 30.0])[:, None, None] * RNG.standard_normal((3, 2, 4))


def stated(g, by_channel):
    if not by_channel:
        return float(np.sqrt(np.sum(g**2)))
    return float(np.sqrt(np.sum(np.sum(np.abs(g.reshape(len(g), -1)), axis=1) ** 2)))


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("shape", [(2, 4), (8,), (2, 2, 2)])
def test_cotangents(by_channel, shape):
    g = COTANGENTS.reshape(3, *shape)
    x = torch.tensor(RNG.standard_normal(g.shape), requires_grad=True)
    y = lowered(CotangentClip(1.5, by_channel)(shape), [x], {})
    assert torch.equal(y, x)
    assert y is not x
    (found,) = torch.autograd.grad(y, x, torch.tensor(g))
    for mine, own in zip(found.numpy(), g, strict=True):
        expected = own * min(1.0, 1.5 / stated(own, by_channel))
        np.testing.assert_allclose(mine, expected, rtol=1e-14)
    assert np.array_equal(found[0].numpy(), g[0])  # within the radius: untouched


NAN = float("nan")
CLIPPED = {
    "scalars": (1.0, (), [4.0, 4.0], [1.0, 1.0], torch.float64),
    "no radius": (np.inf, (), [4.0, 4.0], [4.0, 4.0], torch.float64),
    "NaN": (0.5, (3,), [[1, NAN, 0], [1, 0, 0]], [[NAN] * 3, [0.5, 0, 0]], torch.float64),
    "what half precision cannot hold": (1.0, (4,), [[4e4] * 4], [[0.5] * 4], torch.float16),
}


@pytest.mark.parametrize("name", CLIPPED)
def test_cotangents_are_clipped_to(name):
    radius, shape, given_, expected, dtype = CLIPPED[name]
    g = torch.tensor(given_, dtype=dtype)
    x = torch.zeros_like(g, requires_grad=True)
    (found,) = torch.autograd.grad(lowered(CotangentClip(radius)(shape), [x], {}), x, g)
    np.testing.assert_array_equal(found, expected)


def test_input_clip_is_differentiated():
    """The Jacobian of the projection: outside the ball radius/‖x‖·(I − uuᵀ), inside I."""
    x = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    t = torch.tensor(x, requires_grad=True)
    found = torch.autograd.functional.jacobian(
        lambda v: lowered(InputClip(2.0)((2,)), [v], {}), t
    ).numpy()
    u = x[0] / 5.0
    np.testing.assert_allclose(found[0, :, 0], 0.4 * (np.eye(2) - np.outer(u, u)), atol=1e-15)
    np.testing.assert_array_equal(found[1, :, 1], np.eye(2))
    np.testing.assert_array_equal(found[2, :, 2], np.eye(2))
    assert not found[0, :, 1].any()  # examples do not meet


OWN = np.arange(24).reshape(2, 3, 4)


def test_random_grids_are_found_and_read():
    """Axes cut, permuted, sliced, repeated, joined and padded: always a grid, and the right one."""
    draw = np.random.default_rng(0)
    for _ in range(300):
        shape = tuple(draw.integers(1, 5, draw.integers(1, 5)))
        places = np.arange(np.prod(shape)).reshape(shape)
        places = places.transpose(draw.permutation(len(shape)))
        axis = int(draw.integers(places.ndim))
        first = int(draw.integers(places.shape[axis]))
        cut = (slice(None),) * axis + (slice(first, None, int(draw.integers(1, 3))),)
        places = places[cut]
        if draw.random() < 0.3:
            places = np.flip(places, int(draw.integers(places.ndim)))
        if draw.random() < 0.3:
            places = np.broadcast_to(places, (2, *places.shape))
        if draw.random() < 0.5:
            places = places.reshape(places.shape[0], -1)
        if draw.random() < 0.3:
            widths = [tuple(draw.integers(0, 3, 2)) for _ in places.shape]
            places = np.pad(places, widths, constant_values=-1)
        node = Move(shape, np.ascontiguousarray(places))()
        assert Grid.of(places) is not None
        x = draw.standard_normal((2, *shape))
        found = lowered(node, [torch.tensor(x)], {})
        np.testing.assert_array_equal(found.numpy(), evaluated(node, x))


def test_what_is_no_grid_is_read_entry_by_entry():
    draw = np.random.default_rng(1)
    for _ in range(50):
        node = Move((3, 4), draw.integers(-1, 12, (2, 5)))()
        x = draw.standard_normal((2, 3, 4))
        np.testing.assert_array_equal(
            lowered(node, [torch.tensor(x)], {}).numpy(), evaluated(node, x)
        )


def test_views_share_memory():
    x = torch.zeros(2, 2, 3, 4)
    for sources in (OWN.reshape(6, 4), OWN.transpose(2, 0, 1), OWN[:, 1:, ::2], OWN[1]):
        found = lowered(Move((2, 3, 4), sources)(), [x], {})
        assert found.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    ("sources", "padding"),
    [
        (np.pad(OWN, ((0, 0), (1, 2), (0, 1)), constant_values=-1), Padding.ZEROS),
        (np.pad(OWN, ((0, 0), (1, 2), (2, 1)), mode="wrap"), Padding.WRAPPED),
        (np.pad(OWN, ((0, 0), (1, 2), (0, 1)), mode="reflect"), Padding.REPEATED),
        (np.pad(OWN, ((0, 0), (0, 0), (1, 0)), mode="edge"), Padding.REPEATED),
        (OWN, None),
        (OWN.reshape(6, 4), None),
        (OWN.repeat(2, axis=1), None),
        (OWN[:, ::-1], None),
        (OWN[:, 1:], None),
    ],
)
def test_padding(sources, padding):
    assert padding_of(Move((2, 3, 4), sources)()) is padding


def test_arrangements():
    moves = [OWN.reshape(4, 6), OWN.transpose(2, 0, 1), OWN[:, ::-1], OWN[:, 1:], OWN - 1]
    found = [is_arrangement(Move((2, 3, 4), sources)()) for sources in moves]
    assert found == [True, True, True, False, False]


@st.composite
def windows(draw, longest=7):
    size, taps = draw(st.integers(1, longest)), draw(st.integers(1, 4))
    stride, dilation = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    begin, end = draw(st.integers(0, 4)), draw(st.integers(0, 4))
    assume(size + begin + end >= dilation * (taps - 1) + 1)
    return Window(size, taps, stride, dilation, begin, end)


@st.composite
def geometries(draw):
    rank = draw(st.integers(1, 3))
    return tuple(draw(windows(longest=7 if rank < 3 else 4)) for _ in range(rank))


def agree(op, *inputs):
    node = op(*(x.shape[1:] for x in inputs))
    tensors = [torch.tensor(x) for x in inputs]
    operands = {s: torch.tensor(o.array) for s, o in node.operands.items()}
    found = lowered(node, tensors, operands)
    np.testing.assert_allclose(found.numpy(), evaluated(node, *inputs), rtol=1e-11, atol=1e-11)
    none = [tensor[:0] for tensor in tensors]
    assert lowered(node, none, operands).shape == (0, *found.shape[1:])


def operand(rng, *shape):
    return Operand(rng.standard_normal(shape))


@given(geometries(), st.integers(1, 3), st.integers(1, 2), st.booleans(), st.integers(0, 99))
def test_conv(geometry, groups, width, biased, seed):
    rng = np.random.default_rng(seed)
    channels = groups * width
    kernel = operand(rng, groups * 2, width, *(w.taps for w in geometry))
    bias = operand(rng, groups * 2) if biased else None
    x = rng.standard_normal((2, channels, *(w.size for w in geometry)))
    agree(Conv(kernel, bias, geometry, groups), x)


@given(geometries(), st.integers(1, 3), st.integers(1, 2), st.booleans(), st.integers(0, 99))
def test_conv_transpose(geometry, groups, width, biased, seed):
    rng = np.random.default_rng(seed)
    kernel = operand(rng, groups * 2, width, *(w.taps for w in geometry))
    bias = operand(rng, groups * width) if biased else None
    x = rng.standard_normal((2, groups * 2, *(w.outputs for w in geometry)))
    agree(ConvTranspose(kernel, bias, geometry, groups), x)


@given(geometries(), st.integers(1, 2), st.booleans(), st.integers(0, 99))
def test_pooling(geometry, p, counts_padding, seed):
    assume(all(min(window.reads()) > 0 for window in geometry))
    x = np.random.default_rng(seed).standard_normal((2, 2, *(w.size for w in geometry)))
    agree(AveragePool(geometry, counts_padding), x)
    agree(MaxPool(geometry), x)
    agree(LpPool(geometry, p), x)


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9), st.integers(0, 9)), max_size=3),
    st.sampled_from(["constant", "reflect", "edge", "wrap"]),
    st.integers(0, 99),
)
def test_pad(axes, mode, seed):
    """Also wider than the value itself, where reflections and copies repeat."""
    x = np.random.default_rng(seed).standard_normal((2, *(size for size, _, _ in axes)))
    begin, end = (tuple(axis[i] for axis in axes) for i in (1, 2))
    op = padded(begin, end, mode)
    widths = ((0, 0), *zip(begin, end, strict=True))
    np.testing.assert_array_equal(evaluated(op(x.shape[1:]), x), np.pad(x, widths, mode))
    agree(op, x)
