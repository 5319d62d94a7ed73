"""Clips: the input as a function of its own, the cotangent in the backward pass only."""

import numpy as np
import pytest
import torch

from lipcert.measure.lowering import lowered
from tests.ops import CotangentClip, InputClip

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


def test_scalars_and_no_radius():
    x = torch.tensor([2.0, -3.0], dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(lowered(CotangentClip(1.0)(()), [x], {}).sum() * 4.0, x)
    assert found.tolist() == [1.0, 1.0]
    free = lowered(CotangentClip(np.inf)(()), [x], {})
    (found,) = torch.autograd.grad(free.sum() * 4.0, x)
    assert found.tolist() == [4.0, 4.0]


def test_nan_is_not_hidden():
    x = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    g = torch.tensor([[1.0, float("nan"), 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    (found,) = torch.autograd.grad(lowered(CotangentClip(0.5)((3,)), [x], {}), x, g)
    assert torch.isnan(found[0]).all()
    assert found[1].tolist() == [0.5, 0.0, 0.0]


def test_half_precision_does_not_overflow():
    g = torch.full((1, 4), 40000.0, dtype=torch.float16)
    x = torch.zeros(1, 4, dtype=torch.float16, requires_grad=True)
    (found,) = torch.autograd.grad(lowered(CotangentClip(1.0)((4,)), [x], {}), x, g)
    assert found.tolist() == [[0.5, 0.5, 0.5, 0.5]]


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
