"""Convolutions: geometry, kernels' Jacobians, channel boxes, constraints, known answers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn import functional

from lipcert.facts import Bound, ValueFacts
from lipcert.interval import Interval
from lipcert.geometry import Geometry, Window
from lipcert.norms.operator_norm import Tier
from lipcert.operand import Operand
from lipcert.ops.conv import Conv, ConvTranspose
from lipcert.scope import Constraint, ConstraintKind, ConstraintScope, PointScope
from lipcert.upper import Upper
from tests.ops.cases_conv import adjoint, correlate

POINT = PointScope(Tier.FAST)


def ball(shape: tuple[int, ...], radius: float) -> ValueFacts:
    return ValueFacts.of(shape, Bound(Upper(radius), "test"))


def boxed(shape: tuple[int, ...], low: np.ndarray, high: np.ndarray) -> ValueFacts:
    """One range per channel."""
    spread = (slice(None), *[None] * (len(shape) - 1))
    box = Interval(low[spread], high[spread]).broadcast(shape)
    return ValueFacts.of(shape, Bound(box.norm(), "test"), box)


@st.composite
def windows(draw) -> Window:
    size, taps = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    stride, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    begin, end = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    assume(size + begin + end >= dilation * (taps - 1) + 1)
    return Window(size, taps, stride, dilation, begin, end)


@st.composite
def convolutions(draw) -> tuple[Conv | ConvTranspose, tuple[int, ...], int]:
    """An op with random geometry, the shape of its input, and a seed."""
    geometry: Geometry = tuple(draw(st.lists(windows(), min_size=1, max_size=2)))
    groups, seed = draw(st.integers(1, 2)), draw(st.integers(0, 2**32))
    first, second = groups * draw(st.integers(1, 2)), draw(st.integers(1, 2))
    rng = np.random.default_rng(seed)
    kernel = rng.normal(size=(first, second, *(window.taps for window in geometry)))
    bias = draw(st.booleans())
    if draw(st.booleans()):
        shift = Operand(rng.normal(size=first), "b") if bias else None
        conv = Conv(Operand(kernel, "w"), shift, geometry, groups)
        return conv, (second * groups, *(window.size for window in geometry)), seed
    shift = Operand(rng.normal(size=second * groups), "b") if bias else None
    transposed = ConvTranspose(Operand(kernel, "w"), shift, geometry, groups)
    return transposed, (first, *(window.outputs for window in geometry)), seed


def linear_matrix(op: Conv | ConvTranspose, shape: tuple[int, ...]) -> np.ndarray:
    """T as a matrix [outputs, inputs], built by torch."""
    size = math.prod(shape)
    units = torch.eye(size, dtype=torch.float64).reshape(size, *shape)
    run = correlate if isinstance(op, Conv) else adjoint
    images = run(units, torch.tensor(op.weight.array.copy()), op.geometry, op.groups)
    return images.reshape(size, -1).numpy().T


def bias_image(op: Conv | ConvTranspose, shape: tuple[int, ...]) -> np.ndarray:
    out = op.output_shape([shape])
    bias = np.zeros(out[0]) if op.bias is None else op.bias.array
    return np.broadcast_to(bias.reshape(-1, *[1] * (len(out) - 1)), out).ravel()


@settings(max_examples=80, deadline=None)
@given(convolutions())
def test_any_geometry_agrees_with_torch_and_its_bounds_hold(found) -> None:
    op, shape, seed = found
    rng = np.random.default_rng(seed)
    matrix, bias = linear_matrix(op, shape), bias_image(op, shape)
    x = rng.normal(size=(3, *shape))
    expected = x.reshape(3, -1) @ matrix.T + bias
    np.testing.assert_allclose(op.evaluate(x).reshape(3, -1), expected, rtol=1e-9, atol=1e-9)
    assert op.evaluate(x).shape[1:] == op.output_shape([shape])
    truth = np.linalg.norm(matrix, 2)
    assert op.input_lipschitz(0, [ball(shape, 1.0)], POINT).value.value >= truth * (1 - 1e-12)
    claimed = op.output_facts([ball(shape, 2.0)], POINT).norm.value.value
    _, _, right = np.linalg.svd(matrix)
    for direction in (right[0], -right[0], *rng.normal(size=(20, right.shape[1]))):
        point = 2.0 * direction / np.linalg.norm(direction)
        assert np.linalg.norm(matrix @ point + bias) <= claimed * (1 + 1e-12)


@settings(max_examples=60, deadline=None)
@given(convolutions())
def test_channel_box_is_the_exact_range(found) -> None:
    """Each end is reached at some position, because the ranges are constant on channels."""
    op, shape, seed = found
    rng = np.random.default_rng(seed)
    low, high = np.sort(rng.normal(size=(2, shape[0])), axis=0)
    facts = op.output_facts([boxed(shape, low, high)], POINT)
    matrix, bias = linear_matrix(op, shape), bias_image(op, shape)
    repeat = math.prod(shape[1:])
    low, high = np.repeat(low, repeat), np.repeat(high, repeat)
    plus, minus = np.maximum(matrix, 0.0), np.minimum(matrix, 0.0)
    top = (plus @ high + minus @ low + bias).reshape(facts.shape[0], -1)
    bottom = (plus @ low + minus @ high + bias).reshape(facts.shape[0], -1)
    box = facts.box.broadcast(facts.shape)
    ends = box.lo.reshape(facts.shape[0], -1), box.hi.reshape(facts.shape[0], -1)
    assert np.all(ends[0] <= bottom + 1e-12)
    assert np.all(ends[1] >= top - 1e-12)
    tight = facts.norm.value.value > max(np.abs(top).max(), np.abs(bottom).max()) + 1e-9
    if tight:
        np.testing.assert_allclose(ends[1].max(axis=1), top.max(axis=1), atol=1e-9)
        np.testing.assert_allclose(ends[0].min(axis=1), bottom.min(axis=1), atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(convolutions(), st.booleans())
def test_kernel_jacobian_stays_below_the_claim(found, in_box: bool) -> None:
    op, shape, seed = found
    rng = np.random.default_rng(seed)
    x = rng.uniform(0.0, 1.0, size=shape) if in_box else rng.normal(size=shape)
    ones = np.ones(shape[0])
    facts = boxed(shape, 0.0 * ones, ones) if in_box else ball(shape, float(np.linalg.norm(x)))
    run = correlate if isinstance(op, Conv) else adjoint

    def image(kernel: torch.Tensor) -> torch.Tensor:
        return run(torch.tensor(x[None]), kernel, op.geometry, op.groups)

    jacobian = torch.func.jacrev(image)(torch.tensor(op.weight.array.copy()))
    flat = jacobian.reshape(-1, op.weight.array.size).numpy()
    claimed = op.param_lipschitz([facts], POINT)
    assert np.linalg.norm(flat, 2) <= claimed["weight"].value.value * (1 + 1e-12)
    if op.bias is not None:
        positions = math.prod(op.output_shape([shape])[1:])
        assert claimed["bias"].value.value == pytest.approx(math.sqrt(positions), rel=1e-14)


@pytest.mark.parametrize(
    ("size", "taps", "stride", "pad", "kappa", "reached"),
    [(28, 3, 1, 1, 3.0, 2.9), (64, 7, 2, 3, 4.0, 3.8), (16, 4, 4, 0, 1.0, 0.999)],
)
def test_known_kernel_factors(size, taps, stride, pad, kappa, reached) -> None:
    """One channel; smooth images and cotangents are nearly the worst."""
    window = Window(size, taps, stride, 1, pad, pad)
    op = Conv(Operand(np.zeros((1, 1, taps, taps)), "w"), None, (window, window))
    claimed = op.param_lipschitz([ball((1, size, size), 1.0)], POINT)["weight"].value.value
    assert claimed == pytest.approx(kappa, rel=1e-12)
    image = torch.ones(1, 1, size, size, dtype=torch.float64)
    cotangent = torch.ones(1, 1, window.outputs, window.outputs, dtype=torch.float64)
    for _ in range(10):
        image, cotangent = image / image.norm(), cotangent / cotangent.norm()
        kernel = torch.zeros(1, 1, taps, taps, dtype=torch.float64, requires_grad=True)
        out = functional.conv2d(image, kernel, stride=stride, padding=pad)
        (gradient,) = torch.autograd.grad(out, kernel, cotangent)
        best = float(gradient.norm())
        kernel = gradient / gradient.norm()
        image.requires_grad_()
        out = functional.conv2d(image, kernel, stride=stride, padding=pad)
        cotangent = out.detach()
        (image,) = torch.autograd.grad(out, image, cotangent)
    assert reached <= best <= claimed


def test_channel_bias_counts_every_position() -> None:
    window = Window(10, 1)
    op = Conv(Operand(np.zeros((2, 1, 1, 1)), "w"), Operand(np.ones(2), "b"), (window, window))
    facts = ball((1, 10, 10), 1.0)
    assert op.param_lipschitz([facts], POINT)["bias"].value.value == pytest.approx(10.0)
    norm = op.output_facts([facts], POINT).norm.value.value
    assert norm == pytest.approx(10.0 * math.sqrt(2.0), rel=1e-9)


def test_padding_is_part_of_the_box() -> None:
    """Interior outputs are 9·x ≥ 9; a corner of the padded image only sees 4 pixels."""
    window = Window(5, 3, 1, 1, 1, 1)
    op = Conv(Operand(np.ones((1, 1, 3, 3)), "w"), None, (window, window))
    box = op.output_facts([boxed((1, 5, 5), np.ones(1), 2 * np.ones(1))], POINT).box
    assert float(box.lo.min()) == pytest.approx(4.0)
    assert float(box.hi.max()) == pytest.approx(18.0)


def test_positions_that_no_tap_reaches_are_zero() -> None:
    op = ConvTranspose(Operand(np.ones((1, 1, 1)), "w"), None, (Window(7, 1, 3),))
    box = op.output_facts([boxed((1, 3), np.ones(1), 2 * np.ones(1))], POINT).box
    assert float(box.lo.min()) == pytest.approx(0.0, abs=1e-300)
    assert float(box.hi.max()) == pytest.approx(2.0)


def test_bias_orthogonal_to_the_image_adds_in_squares() -> None:
    """The kernel reaches channel 0 only, the bias channel 1 only."""
    kernel = np.array([3.0, 0.0]).reshape(2, 1, 1)
    op = Conv(Operand(kernel, "w"), Operand(np.array([0.0, 2.0]), "b"), (Window(4, 1),))
    found = op.output_facts([ball((1, 4), 1.0)], POINT).norm
    assert found.rule == "conv.output_norm.expanded"
    assert found.value.value == pytest.approx(5.0, rel=1e-6)


def test_centre_of_the_box_is_used() -> None:
    """A differencing kernel without padding maps constant images to 0."""
    op = Conv(Operand(np.array([[[1.0, 1.0, -1.0, -1.0]]]), "w"), None, (Window(64, 4),))
    half = boxed((1, 64), np.zeros(1), np.ones(1))
    found = op.output_facts([half], POINT).norm
    assert found.rule == "conv.output_norm.centred"
    assert found.value.value == pytest.approx(4.0 * op.operator_norm(POINT).value.value)


@settings(max_examples=30, deadline=None)
@given(convolutions(), st.sampled_from(list(ConstraintKind)))
def test_constraint_scope_covers_every_admissible_kernel(found, kind: ConstraintKind) -> None:
    op, shape, seed = found
    rng = np.random.default_rng(seed)
    constraints = {
        "w": Constraint(kind, Upper(1.5)),
        "b": Constraint(ConstraintKind.FROBENIUS, Upper(0.5)),
    }
    scope = ConstraintScope(constraints, frozenset(constraints), Tier.FAST)
    ones = np.ones(shape[0])
    facts = op.output_facts([boxed(shape, -0.5 * ones, ones)], scope)
    if kind is ConstraintKind.FROBENIUS:
        size = np.linalg.norm(op.weight.array)
    else:
        size = np.linalg.norm(linear_matrix(op, shape), 2)
    kernel = Operand(op.weight.array * (1.5 / max(float(size), 1e-9)), "w")
    if float(size) < 1e-9:
        return
    bias = op.bias and Operand(op.bias.array * (0.5 / np.linalg.norm(op.bias.array)), "b")
    member = type(op)(kernel, bias, op.geometry, op.groups)
    y = member.evaluate(rng.uniform(-0.5, 1.0, size=(20, *shape)))
    assert np.linalg.norm(y.reshape(20, -1), axis=1).max() <= facts.norm.value.value * (1 + 1e-12)
    box = facts.box.broadcast(facts.shape)
    assert np.all((y >= box.lo - 1e-12) & (y <= box.hi + 1e-12))


def test_transposed_convolution_is_the_adjoint() -> None:
    rng = np.random.default_rng(3)
    for groups, stride in itertools.product((1, 2), (1, 2, 3)):
        geometry = (Window(7, 3, stride, 1, 1, 2), Window(6, 2, stride, 2, 0, 1))
        kernel = Operand(rng.normal(size=(4, 3, 3, 2)), "w")
        there = Conv(kernel, None, geometry, groups)
        back = ConvTranspose(kernel, None, geometry, groups)
        x = rng.normal(size=(1, 3 * groups, 7, 6))
        y = rng.normal(size=there.evaluate(x).shape)
        assert np.sum(there.evaluate(x) * y) == pytest.approx(np.sum(x * back.evaluate(y)))


def test_wrong_shapes_are_refused() -> None:
    window = Window(5, 3)
    with pytest.raises(ValueError, match="taps"):
        Conv(Operand(np.ones((1, 1, 2))), None, (window,))
    with pytest.raises(ValueError, match="groups"):
        Conv(Operand(np.ones((3, 1, 3))), None, (window,), 2)
    with pytest.raises(ValueError, match="bias"):
        Conv(Operand(np.ones((3, 1, 3))), Operand(np.ones(2)), (window,))
    with pytest.raises(ValueError, match="fit input"):
        Conv(Operand(np.ones((3, 1, 3))), None, (window,)).output_shape([(2, 5)])
    with pytest.raises(ValueError, match="fit input"):
        ConvTranspose(Operand(np.ones((3, 1, 3))), None, (window,)).output_shape([(3, 5)])
