"""Clips of cotangents, which the generic attack on Jacobians cannot see."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipcert.facts import Bound, CotangentFacts, PairHull
from lipcert.geometry import Window
from lipcert.norms.operator_norm import Tier
from lipcert.operand import Operand
from lipcert.ops.clip import ClipNorm, CotangentClip, InputClip
from lipcert.ops.conv import Conv, ConvTranspose
from lipcert.ops.linear import Dense
from lipcert.scope import PointScope
from lipcert.upper import INFINITE, Upper
from tests.mirror import apply
from tests.networks import ball, chain, norms, proved, trained, unit_loss

POINT = PointScope(Tier.FAST)


def clipped(cotangent: CotangentFacts, radius: float, norm: ClipNorm) -> CotangentFacts:
    op = CotangentClip(Upper(radius), norm)
    return op.input_cotangent(0, cotangent, [ball((2, 2), 1.0)], POINT)


def test_a_small_cotangent_passes_and_a_large_one_is_capped() -> None:
    small = CotangentFacts(Bound(Upper(0.5), "test"))
    large = CotangentFacts(Bound(Upper(7.0), "test"))
    assert clipped(small, 2.0, ClipNorm.L2).norm == small.norm
    assert clipped(large, 2.0, ClipNorm.L2).norm.value == Upper(2.0)
    assert clipped(large, 2.0, ClipNorm.L2).channel_sums is None


def test_the_l15_clip_bounds_the_sums_of_channels_too() -> None:
    found = clipped(CotangentFacts(Bound(Upper(0.5), "test")), 2.0, ClipNorm.L15)
    assert found.norm.value == Upper(0.5)
    assert found.channel_sums is not None
    assert found.channel_sums.value == Upper(2.0)


def test_a_hull_survives_because_it_holds_zero() -> None:
    hull = PairHull(3, Upper(1.0), smoothing=0.3)
    found = clipped(CotangentFacts(Bound(Upper(1.5), "test"), hull), 0.1, ClipNorm.L2)
    assert found.hull == hull
    targets = 0.7 * np.eye(3) + 0.1
    assert np.allclose(np.mean(np.eye(3) - targets, axis=0), 0.0)


@pytest.mark.parametrize("radius", [0.0, float("inf")])
def test_an_input_clip_needs_a_finite_positive_radius(radius: float) -> None:
    with pytest.raises(ValueError, match="positive radius"):
        InputClip(Upper(radius))


def test_the_lipschitz_constant_ignores_clips_of_the_backward_pass() -> None:
    clip = CotangentClip(Upper(1e-3))
    bounds = proved(chain((2,), Dense(trained("w", 3.0 * np.eye(2)), None), clip), ball((2,), 1.0))
    assert bounds.lipschitz.value.value == pytest.approx(3.0, rel=1e-6)
    assert norms(bounds)["w"] == 1e-3
    assert clip.unclipped() == CotangentClip(INFINITE)


@st.composite
def windows(draw, dimensions: int) -> tuple[Window, ...]:
    found = []
    for _ in range(dimensions):
        taps, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 2))
        pads = draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
        reach = dilation * (taps - 1) + 1
        size = draw(st.integers(max(1, reach - sum(pads)), 6))
        found.append(Window(size, taps, draw(st.integers(1, 3)), dilation, *pads))
    return tuple(found)


@given(st.data(), st.integers(1, 2), st.integers(1, 2), st.booleans())
def test_conv_gradients_obey_the_channel_sums(data, dimensions, groups, transposed) -> None:
    """G_W ≤ X·S and G_b ≤ S with equality of the norms by hand: autograd, random directions and
    directions aligned with the patches."""
    geometry = data.draw(windows(dimensions))
    taps = tuple(w.taps for w in geometry)
    inside, outside = 2 * groups, 3 * groups
    shape = (inside, outside // groups, *taps) if transposed else (outside, inside // groups, *taps)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**20)))
    weight = Operand(rng.standard_normal(shape), "w")
    bias = Operand(rng.standard_normal(outside), "b")
    op = (ConvTranspose if transposed else Conv)(weight, bias, geometry, groups)
    before = tuple(w.outputs if transposed else w.size for w in geometry)
    facts = CotangentFacts(Bound(Upper(1e9), "test"), channel_sums=Bound(Upper(1.0), "test"))
    limits = op.param_grad_norms([ball((inside, *before), 1.0)], facts, POINT)
    x = torch.tensor(rng.standard_normal((inside, *before)))
    theta = {
        "weight": torch.tensor(weight.array).requires_grad_(),
        "bias": torch.tensor(bias.array).requires_grad_(),
    }
    peak = torch.zeros_like(x)
    peak.reshape(-1)[rng.integers(x.numel())] = 1.0
    for point in (x / x.norm(), peak, torch.ones_like(x) / x.numel() ** 0.5):
        out = apply(op, [point], theta)
        spike = torch.zeros_like(out)
        spike.reshape(-1)[rng.integers(out.numel())] = 1.0
        for cotangent in (torch.tensor(rng.standard_normal(out.shape)), spike):
            sums = cotangent.flatten(1).abs().sum(1).norm()
            found = torch.autograd.grad(
                out, [theta["weight"], theta["bias"]], cotangent / sums, retain_graph=True
            )
            assert found[0].norm() <= limits["weight"].value.value * (1 + 1e-9)
            assert found[1].norm() <= limits["bias"].value.value * (1 + 1e-9)
    assert limits["bias"].value == Upper(1.0)
    assert limits["weight"].value.value <= 1.0


def test_the_bound_by_channel_sums_is_attained_at_one_position() -> None:
    weight = trained("w", np.ones((1, 1, 2, 2)))
    geometry = (Window(2, 2), Window(2, 2))
    graph = chain(
        (1, 2, 2),
        InputClip(Upper(2.0)),
        Conv(weight, None, geometry),
        CotangentClip(Upper(0.5), ClipNorm.L15),
    )
    bounds = proved(graph, ball((1, 2, 2), 9.0), unit_loss(100.0))
    assert norms(bounds)["w"] == 1.0  # x of norm 2 all in the window, cotangent 0.5
