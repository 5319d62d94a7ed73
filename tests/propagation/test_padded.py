"""Kernels behind a repeating padding: the layer as a whole against its trilinear form."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from lipcert.geometry import Window
from lipcert.ops.clip import ClipNorm, CotangentClip
from lipcert.ops.conv import Conv
from lipcert.ops.shape import Pad, PadMode
from lipcert.upper import Upper
from tests.mirror import apply
from tests.networks import ball, chain, norms, proved, trained, unit_loss

MODES = (PadMode.WRAP, PadMode.REFLECT, PadMode.EDGE)


def layer(mode: PadMode, size: int, taps: int, stride: int, dilation: int, channels: int = 2):
    reach = dilation * (taps - 1)
    before, after = reach // 2, reach - reach // 2
    pad = Pad((0, before), (0, after), mode)
    weight = trained("w", np.ones((channels, channels, taps)))
    window = Window(size + reach, taps, stride, dilation)
    return [pad, Conv(weight, None, (window,))]


def largest_gradient(ops, shape, *, by_sums: bool, seed: int) -> float:
    """Alternating ascent on ‖dW‖ over unit inputs and unit cotangents."""
    rng = np.random.default_rng(seed)
    best = 0.0
    for _ in range(6):
        x = torch.tensor(rng.standard_normal(shape))
        weight = torch.ones(ops[1].weight.shape, dtype=torch.float64, requires_grad=True)
        probe = apply(ops[1], [apply(ops[0], [x], {})], {"weight": weight})
        g = torch.tensor(rng.standard_normal(tuple(probe.shape)))
        for _ in range(40):
            leaves = [t.detach().requires_grad_() for t in (x, g)]
            out = apply(ops[1], [apply(ops[0], [leaves[0]], {})], {"weight": weight})
            size = leaves[1].abs().sum(1).norm() if by_sums else leaves[1].norm()
            (gradient,) = torch.autograd.grad(out, weight, leaves[1] / size, create_graph=True)
            score = gradient.norm() / leaves[0].norm()
            best = max(best, float(score.detach()))
            steps = torch.autograd.grad(score, leaves)
            x, g = (
                leaf.detach() / leaf.detach().norm() + 0.5 * step / step.norm().clamp_min(1e-12)
                for leaf, step in zip(leaves, steps, strict=True)
            )
    return best


GRID = list(
    itertools.product(MODES, [(4, 3, 1, 1), (5, 3, 2, 1), (6, 3, 1, 2), (3, 3, 1, 1), (4, 4, 1, 1)])
)


@pytest.mark.parametrize(("mode", "layout"), GRID)
@pytest.mark.parametrize("by_sums", [False, True])
def test_no_gradient_exceeds_the_bound_of_the_layer(mode, layout, by_sums) -> None:
    ops = layer(mode, *layout)
    shape = (2, layout[0])
    clip = CotangentClip(Upper(1.0), ClipNorm.L15 if by_sums else ClipNorm.L2)
    bounds = proved(chain(shape, *ops, clip), ball(shape, 1.0), unit_loss(1e6))
    attacked = largest_gradient(ops, shape, by_sums=by_sums, seed=1)
    assert attacked <= norms(bounds)["w"] * (1 + 1e-9)


def test_circular_padding_is_as_good_as_none() -> None:
    """βC for a kernel that is not larger than the image, and √taps for the Euclidean clip."""
    ops = layer(PadMode.WRAP, 4, 3, 1, 1)
    for norm, expected in ((ClipNorm.L15, 1.0), (ClipNorm.L2, 3**0.5)):
        clip = CotangentClip(Upper(1.0), norm)
        bounds = proved(chain((2, 4), *ops, clip), ball((2, 4), 1.0), unit_loss(1e6))
        assert norms(bounds)["w"] == pytest.approx(expected, rel=1e-12)


def test_a_constant_image_attains_the_circular_bound() -> None:
    ops = layer(PadMode.WRAP, 6, 3, 1, 1, channels=1)
    bounds = proved(chain((1, 6), *ops), ball((1, 6), 1.0))
    x = torch.ones((1, 6), dtype=torch.float64) / 6**0.5
    weight = torch.ones((1, 1, 3), dtype=torch.float64, requires_grad=True)
    out = apply(ops[1], [apply(ops[0], [x], {})], {"weight": weight})
    (gradient,) = torch.autograd.grad(out, weight, x)
    assert gradient.norm() == pytest.approx(norms(bounds)["w"], rel=1e-9)


def test_reflection_can_read_an_entry_twice_in_one_window() -> None:
    """x = e_1 under reflection: the window at 0 reads it through two taps."""
    ops = layer(PadMode.REFLECT, 4, 3, 1, 1, channels=1)
    clip = CotangentClip(Upper(1.0), ClipNorm.L15)
    bounds = proved(chain((1, 4), *ops, clip), ball((1, 4), 1.0), unit_loss(1e6))
    assert norms(bounds)["w"] == pytest.approx(2**0.5, rel=1e-12)
