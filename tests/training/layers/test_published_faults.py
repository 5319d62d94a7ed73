"""Where published versions of these layers break their own bounds, and these do not."""

import pytest
import torch
from torch import nn

from lipcert.errors import UsageError
from lipcert.training.layers import (
    AddBias,
    BoundedGroupNorm,
    BoundedLayerNorm,
    ColourSpace,
    GroupSort,
    HalfResidual,
    Householder,
    InputClip,
    InputNormalization,
    LayerCentering,
    MaxMin,
    Residual,
    ScaledL2NormPool2d,
)


def test_pooling_zero_gives_zero():
    """ε inside the root gives √(Σ ε): 0.316 with ε = 1e-3 and 100 windows."""
    x = torch.zeros(1, 1, 20, 20)
    published = torch.sqrt(nn.functional.avg_pool2d(x**2, 2) * 4 + 1e-3)
    assert float(published.norm()) == pytest.approx(0.316, abs=1e-3)
    assert float(ScaledL2NormPool2d(2)(x).norm()) == 0.0


def test_centering_does_not_read_the_batch():
    """With the mean over the batch, replacing one example moves the sum of all gradients."""
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    other = x.clone()
    other[0] += 100.0
    published = [(v - v.mean(dim=(0, 1), keepdim=True))[1:] for v in (x, other)]
    assert float((published[0] - published[1]).norm()) > 1.0
    here = [LayerCentering()(v)[1:] for v in (x, other)]
    assert torch.equal(here[0], here[1])
    with pytest.raises(UsageError, match="not an axis of one example"):
        LayerCentering((0,))(x)
    with pytest.raises(UsageError, match="not an axis of one example"):
        LayerCentering((-2,))(x)


def test_a_channel_bias_counts_for_every_position():
    """Published: √2·l for the gradient, X + ‖b‖ for the value. True: √(H·W) times as much."""
    layer = AddBias(1)
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
    here = torch.autograd.functional.jacobian(BoundedLayerNorm(4, 0.5).double(), x)
    assert float(torch.linalg.matrix_norm(usual.reshape(4, 4), 2)) > 300.0
    assert float(torch.linalg.matrix_norm(here.reshape(4, 4), 2)) == pytest.approx(2.0)
    large = 100.0 * torch.randn(1, 4, dtype=torch.float64)
    deviation = large.std(correction=0)
    expected = (large - large.mean()) / deviation
    torch.testing.assert_close(BoundedLayerNorm(4, 0.5).double()(large), expected)


def test_the_sphere_and_the_ball():
    x = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [3e-9, 4e-9]])
    lengths = InputNormalization(2.0)(x).norm(dim=1)
    torch.testing.assert_close(lengths, torch.tensor([2.0, 2.0, 0.0, 0.01]))
    lengths = InputClip(2.0)(x).norm(dim=1)
    torch.testing.assert_close(lengths, torch.tensor([2.0, 0.5, 0.0, 5e-9]))


class Wider(nn.Module):
    def forward(self, x):
        return x.repeat(1, 2)


class Scalar(nn.Module):
    def forward(self, x):
        return x.sum(dim=1, keepdim=True)


REFUSED = {
    "groups of none": lambda: GroupSort(0),
    "sorting the batch": lambda: GroupSort(1, axis=0)(torch.zeros(2, 3)),
    "sorting beyond": lambda: GroupSort(1, axis=2)(torch.zeros(2, 3)),
    "groups that do not fit": lambda: GroupSort(2)(torch.zeros(2, 3)),
    "an odd half": lambda: MaxMin()(torch.zeros(2, 3)),
    "no direction": lambda: Householder((0.0, 0.0)),
    "no entries": lambda: Householder(()),
    "not a direction": lambda: Householder((float("nan"), 1.0)),
    "reflecting beyond": lambda: Householder((1.0, 2.0, 3.0))(torch.zeros(2, 4)),
    "no window": lambda: ScaledL2NormPool2d(0),
    "vectors in a pool": lambda: ScaledL2NormPool2d(2)(torch.zeros(2, 4)),
    "too small for a window": lambda: ScaledL2NormPool2d(3)(torch.zeros(2, 1, 4, 2)),
    "floor 0": lambda: BoundedLayerNorm(4, 0.0),
    "negative floor": lambda: BoundedGroupNorm(2, 4, -1.0),
    "groups of channels": lambda: BoundedGroupNorm(3, 4, 1.0),
    "other channels": lambda: BoundedGroupNorm(2, 4, 1.0)(torch.zeros(2, 6)),
    "other features": lambda: BoundedLayerNorm(4, 1.0)(torch.zeros(2, 5)),
    "the batch as a feature": lambda: BoundedLayerNorm((2, 4), 1.0)(torch.zeros(2, 4)),
    "radius 0": lambda: InputClip(0.0),
    "infinite radius": lambda: InputNormalization(float("inf")),
    "no floor": lambda: InputNormalization(1.0, 0.0),
    "a wider branch": lambda: Residual(Wider())(torch.zeros(2, 3)),
    "a branch that would be repeated": lambda: HalfResidual(Scalar())(torch.zeros(2, 3)),
    "other channels of a bias": lambda: AddBias(3)(torch.zeros(2, 4)),
    "other tokens of a bias": lambda: AddBias(3, 4)(torch.zeros(2, 4, 4)),
    "fewer axes than a bias": lambda: AddBias(3, 4)(torch.zeros(2, 3)),
    "a bias without axes": AddBias,
    "hue": lambda: ColourSpace("hsv"),
    "one channel": lambda: ColourSpace("yiq")(torch.zeros(2, 1, 4, 4)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name):
    with pytest.raises(UsageError):
        REFUSED[name]()
