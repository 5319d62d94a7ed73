"""Every layer against its definition, and its constants under attack."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.func import jacrev, vmap

from lipcert.errors import UsageError
from lipcert.measure.lowering import lowered
from lipcert.training import layers
from tests.ops import Sort
from tests.training.layers.cases import CASES, IDS, Case

ISOMETRIES = [case for case in CASES if case.keeps_norm]
NORMS = (0.0, 1e-3, 0.3, 1.0, 4.0, 50.0)


def examples(case: Case, norm: float, count: int = 12) -> torch.Tensor:
    """Of exactly this norm; some nearly constant, some with a single large entry."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(count, *case.shape, generator=generator, dtype=torch.float64)
    flat = x.reshape(count, -1)
    flat[0] = 1.0
    flat[1] = 1.0 + 1e-3 * flat[1]
    flat[2] = 0.0
    flat[2, 0] = 1.0
    return (norm * flat / flat.norm(dim=1, keepdim=True)).reshape(x.shape)


def jacobians(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """[examples, outputs, inputs]."""
    found = vmap(jacrev(lambda example: layer(example.unsqueeze(0)).squeeze(0)))(x)
    inputs = int(np.prod(x.shape[1:]))
    return found.reshape(len(x), -1, inputs)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_values(case):
    layer = case.layer()
    for norm in NORMS:
        x = examples(case, norm)
        found = layer(x).detach().numpy()
        for here, example in zip(found, x.numpy(), strict=True):
            expected = case.reference(example)
            np.testing.assert_allclose(here, expected, rtol=1e-6, atol=1e-7 * (1.0 + norm))


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_output_norms(case):
    layer = case.layer()
    for norm in NORMS:
        reached = layer(examples(case, norm)).detach().flatten(1).norm(dim=1)
        assert float(reached.max()) <= case.reach(norm) * (1 + 1e-6)
        if case.keeps_norm:
            torch.testing.assert_close(reached, torch.full_like(reached, norm), rtol=1e-6, atol=0.0)


@pytest.mark.sample(12)
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_no_jacobian_is_steeper_than_stated(case):
    """From many starts, and from where an ascent of the Jacobian norm leads."""
    layer, steepest = case.layer(), 0.0
    for norm in NORMS:
        x = examples(case, norm)
        for _ in range(4):
            x = x.detach().requires_grad_()
            norms = torch.linalg.matrix_norm(jacobians(layer, x), 2)
            steepest = max(steepest, float(norms.detach().max()))
            if not norms.requires_grad:
                break
            (slope,) = torch.autograd.grad(norms.sum(), x, allow_unused=True)
            if slope is None or not bool(torch.isfinite(slope).all()):
                break
            x = x + 0.1 * (norm + 1e-3) * slope / slope.norm().clamp(min=1e-9)
    assert steepest <= case.lipschitz * (1 + 1e-6)
    assert steepest >= case.lipschitz * 0.999  # the stated constant is attained


@pytest.mark.parametrize("case", ISOMETRIES, ids=lambda case: case.name)
def test_jacobians_of_layers_that_keep_norms_are_orthogonal(case):
    found = jacobians(case.layer(), examples(case, 1.0)[3:])  # where no entries are equal
    size = found.shape[-1]
    eye = torch.eye(size, dtype=found.dtype).expand(len(found), size, size)
    torch.testing.assert_close(found @ found.mT, eye, rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_zero_has_a_value_and_a_finite_gradient(case):
    x = torch.zeros(2, *case.shape, dtype=torch.float64, requires_grad=True)
    y = case.layer()(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert bool(torch.isfinite(gradient).all())
    assert float(y.detach().flatten(1).norm(dim=1).max()) <= case.reach(0.0) + 1e-12


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_batch_of_no_examples(case):
    layer = case.layer()
    x = torch.zeros(0, *case.shape, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    one = layer(torch.zeros(1, *case.shape, dtype=torch.float64))
    assert y.shape == (0, *one.shape[1:])
    y.sum().backward()
    assert x.grad.shape == x.shape


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_no_example_sees_another(case):
    layer, x = case.layer(), examples(case, 1.0, 5)
    other = x.clone()
    other[1:] = 7.0 * torch.randn_like(other[1:])
    alone = layer(x[:1])
    torch.testing.assert_close(layer(x)[:1], alone)
    torch.testing.assert_close(layer(other)[:1], alone)
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(layer(x)[0].square().sum(), x)
    assert not bool(gradient[1:].any())


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_half_precision_and_float32(case):
    x = examples(case, 1.0)
    exact = case.layer()(x)
    for dtype in (torch.float32, torch.bfloat16):
        found = case.layer().to(dtype)(x.to(dtype))
        assert found.dtype is dtype
        unit = 60.0 * torch.finfo(dtype).eps
        torch.testing.assert_close(found.to(exact), exact, rtol=unit, atol=unit * case.lipschitz)


@given(
    groups=st.integers(1, 4),
    size=st.integers(1, 5),
    rest=st.lists(st.integers(1, 3), max_size=2),
    data=st.data(),
)
def test_group_sort_of_any_shape(groups, size, rest, data):
    axis = data.draw(st.integers(0, len(rest)))
    shape = [*rest[:axis], groups * size, *rest[axis:]]
    x = torch.randn(2, *shape, dtype=torch.float64)
    y = layers.GroupSort(size, axis + 1)(x)
    lines = [v.movedim(axis + 1, -1).reshape(-1, groups, size) for v in (x, y)]
    torch.testing.assert_close(torch.sort(lines[0], dim=-1).values, lines[1])
    torch.testing.assert_close(layers.GroupSort(size, axis - len(shape))(x), y)


@given(direction=st.lists(st.floats(-3.0, 3.0), min_size=1, max_size=5), groups=st.integers(1, 3))
def test_householder_of_any_direction(direction, groups):
    v = np.array(direction)
    length = np.linalg.norm(v)
    if length < 1e-3:
        return
    x = torch.randn(3, len(v) * groups, dtype=torch.float64)
    y = layers.Householder(direction).double()(x)
    z = x.unflatten(1, (len(v), groups)).numpy()
    side = np.einsum("i,nij->nj", v / length, z)
    expected = z - 2.0 * np.minimum(side, 0.0)[:, None] * (v / length)[None, :, None]
    np.testing.assert_allclose(y.unflatten(1, (len(v), groups)).numpy(), expected, atol=1e-5)


def test_ties_are_no_steeper():
    x = torch.ones(1, 6, dtype=torch.float64)
    for layer in (layers.GroupSort(3), layers.MaxMin(), layers.Householder().double()):
        norm = torch.linalg.matrix_norm(jacobians(layer, x), 2)
        assert float(norm) <= 1.0 + 1e-6


def test_equal_entries_of_a_pair_share_their_cotangents():
    """As of torch.maximum and torch.minimum, and of the graph that is exported."""
    x = torch.ones(1, 2, dtype=torch.float64)
    half = torch.full((1, 2, 2), 0.5, dtype=torch.float64)
    for layer in (layers.GroupSort(2), layers.MaxMin(), lambda v: lowered(Sort(0)((2,)), (v,), {})):
        torch.testing.assert_close(jacobians(layer, x), half)


@pytest.mark.parametrize("size", [1e-30, 1e-22, 1e-19, 1e-16, 1e-10])
def test_tiny_values_in_float32_have_no_steep_gradients(size):
    """Squares that underflow would give a norm that is too small to divide by."""
    generator = torch.Generator().manual_seed(0)
    for layer, shape in (
        (layers.ScaledL2NormPool2d(2), (1, 2, 2)),
        (layers.BoundedGroupNorm(1, 1, 1.0), (1, 2, 2)),
        (layers.InputClip(1.0), (1, 2, 2)),
    ):
        x = size * torch.randn(200, *shape, generator=generator)
        found = jacobians(layer, x)
        assert float(torch.linalg.matrix_norm(found.double(), 2).max()) <= 1.0 + 1e-3


def test_pooling_zero_gives_zero():
    """ε inside the root gives √(Σ ε): 0.316 with ε = 1e-3 and 100 windows."""
    x = torch.zeros(1, 1, 20, 20)
    published = torch.sqrt(nn.functional.avg_pool2d(x**2, 2) * 4 + 1e-3)
    assert float(published.norm()) == pytest.approx(0.316, abs=1e-3)
    assert float(layers.ScaledL2NormPool2d(2)(x).norm()) == 0.0


def test_centering_does_not_read_the_batch():
    """With the mean over the batch, replacing one example moves the sum of all gradients."""
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    other = x.clone()
    other[0] += 100.0
    published = [(v - v.mean(dim=(0, 1), keepdim=True))[1:] for v in (x, other)]
    assert float((published[0] - published[1]).norm()) > 1.0
    here = [layers.LayerCentering()(v)[1:] for v in (x, other)]
    assert torch.equal(here[0], here[1])
    with pytest.raises(UsageError, match="not an axis of one example"):
        layers.LayerCentering((0,))(x)
    with pytest.raises(UsageError, match="not an axis of one example"):
        layers.LayerCentering((-2,))(x)


def test_a_channel_bias_counts_for_every_position():
    """Published: √2·l for the gradient, X + ‖b‖ for the value. True: √(H·W) times as much."""
    layer = layers.AddBias(1)
    nn.init.constant_(layer.bias, 1.0)
    x = torch.zeros(1, 1, 31, 31, requires_grad=True)
    y = layer(x)
    assert float(y.detach().norm()) == pytest.approx(31.0)
    unit = torch.ones_like(y) / y.detach().norm()
    y.backward(unit)
    assert float(layer.bias.grad) == pytest.approx(31.0)


def test_normalisation_with_a_floor_has_the_slope_of_the_floor():
    """√(s² + ε) with the usual ε = 1e-5 is 316 at constant inputs; the maximum is 1/floor there."""
    x = torch.full((1, 4), 3.0, dtype=torch.float64)
    usual = torch.autograd.functional.jacobian(lambda v: nn.functional.layer_norm(v, (4,)), x)
    here = torch.autograd.functional.jacobian(layers.BoundedLayerNorm(4, 0.5).double(), x)
    assert float(torch.linalg.matrix_norm(usual.reshape(4, 4), 2)) > 300.0
    assert float(torch.linalg.matrix_norm(here.reshape(4, 4), 2)) == pytest.approx(2.0)
    large = 100.0 * torch.randn(1, 4, dtype=torch.float64)
    deviation = large.std(correction=0)
    expected = (large - large.mean()) / deviation
    torch.testing.assert_close(layers.BoundedLayerNorm(4, 0.5).double()(large), expected)


class Wider(nn.Module):
    def forward(self, x):
        return x.repeat(1, 2)


class Scalar(nn.Module):
    def forward(self, x):
        return x.sum(dim=1, keepdim=True)


REFUSED = {
    "groups of none": lambda: layers.GroupSort(0),
    "sorting the batch": lambda: layers.GroupSort(1, axis=0)(torch.zeros(2, 3)),
    "sorting beyond": lambda: layers.GroupSort(1, axis=2)(torch.zeros(2, 3)),
    "groups that do not fit": lambda: layers.GroupSort(2)(torch.zeros(2, 3)),
    "an odd half": lambda: layers.MaxMin()(torch.zeros(2, 3)),
    "no direction": lambda: layers.Householder((0.0, 0.0)),
    "no entries": lambda: layers.Householder(()),
    "not a direction": lambda: layers.Householder((float("nan"), 1.0)),
    "reflecting beyond": lambda: layers.Householder((1.0, 2.0, 3.0))(torch.zeros(2, 4)),
    "no window": lambda: layers.ScaledL2NormPool2d(0),
    "vectors in a pool": lambda: layers.ScaledL2NormPool2d(2)(torch.zeros(2, 4)),
    "too small for a window": lambda: layers.ScaledL2NormPool2d(3)(torch.zeros(2, 1, 4, 2)),
    "floor 0": lambda: layers.BoundedLayerNorm(4, 0.0),
    "negative floor": lambda: layers.BoundedGroupNorm(2, 4, -1.0),
    "groups of channels": lambda: layers.BoundedGroupNorm(3, 4, 1.0),
    "other channels": lambda: layers.BoundedGroupNorm(2, 4, 1.0)(torch.zeros(2, 6)),
    "other features": lambda: layers.BoundedLayerNorm(4, 1.0)(torch.zeros(2, 5)),
    "the batch as a feature": lambda: layers.BoundedLayerNorm((2, 4), 1.0)(torch.zeros(2, 4)),
    "radius 0": lambda: layers.InputClip(0.0),
    "infinite radius": lambda: layers.InputNormalization(float("inf")),
    "no floor": lambda: layers.InputNormalization(1.0, 0.0),
    "a wider branch": lambda: layers.Residual(Wider())(torch.zeros(2, 3)),
    "a branch that would be repeated": lambda: layers.HalfResidual(Scalar())(torch.zeros(2, 3)),
    "other channels of a bias": lambda: layers.AddBias(3)(torch.zeros(2, 4)),
    "other tokens of a bias": lambda: layers.AddBias(3, 4)(torch.zeros(2, 4, 4)),
    "fewer axes than a bias": lambda: layers.AddBias(3, 4)(torch.zeros(2, 3)),
    "a bias without axes": layers.AddBias,
    "hue": lambda: layers.ColourSpace("hsv"),
    "one channel": lambda: layers.ColourSpace("yiq")(torch.zeros(2, 1, 4, 4)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name):
    with pytest.raises(UsageError):
        REFUSED[name]()
