"""Windows of every kind: pads, strides, dilations, groups, one to three dimensions."""

import numpy as np
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from lipcert.graph.geometry import Window
from lipcert.graph.ir import Operand
from lipcert.measure.lowering import lowered
from tests.networks import padded
from tests.ops import AveragePool, Conv, ConvTranspose, LpPool, MaxPool, evaluated


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
