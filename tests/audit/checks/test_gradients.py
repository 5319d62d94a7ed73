"""Gradients of a batch under every mechanism, against a loop over single examples in float64."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lipcert.audit.bounds import Claims, claims_of_analysis
from lipcert.audit.checks.gradients import Gradients
from lipcert.audit.checks.units import Scale
from lipcert.settings import Settings
from tests.audit.checks.runs import Network, array_of, model_of

COUNT = 6
WEIGHTS = ("first.weight", "last.weight")


class _Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, radius: float) -> Tensor:
        ctx.radius = radius
        return x.clone()

    @staticmethod
    def backward(ctx, g: Tensor):
        return g * min(1.0, ctx.radius / float(g.norm())), None


def single(weights: Mapping[str, Tensor], x: Tensor, y: int, inner: float, s: Settings):
    """The gradient of inner · ℓ of one example, clips of the backward pass applied by hand."""
    leaves = {name: item.clone().requires_grad_() for name, item in weights.items()}
    h = x
    for name in WEIGHTS:
        if s.input_clip is not None:
            h = h * torch.clamp(s.input_clip / h.norm(), max=1.0)
        h = leaves[name] @ h
        if s.cotangent_clip is not None:
            h = _Clipped.apply(h, s.cotangent_clip)
        if name == "first.weight":
            h = torch.relu(h)
    if s.loss_clip is not None:
        h = _Clipped.apply(h, s.loss_clip)
    loss = inner * functional.cross_entropy(h[None], torch.tensor([y]))
    found = torch.autograd.grad(loss, [leaves[name] for name in WEIGHTS])
    parts = [part.numpy() for part in found]
    norms = [np.linalg.norm(part) for part in parts]
    if s.clip_norm is not None and s.clip_scope != "group":
        whole = np.hypot(*norms)
        parts = [part * min(1.0, s.clip_norm / whole) for part in parts]
    elif s.clip_norm is not None:
        clip = s.clip_norm / np.sqrt(2.0)
        parts = [part * min(1.0, clip / n) for part, n in zip(parts, norms, strict=True)]
    return parts


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        (Settings(), Scale(1.0, 0.25)),
        (Settings(loss_clip=0.2), Scale(1.0 / COUNT, 1.0)),
        (Settings(mechanism="gradient-clipping", clip_norm=0.5), Scale(1.0, 1.0)),
        (
            Settings(mechanism="gradient-clipping", clip_norm=0.5, clip_scope="group"),
            Scale(1.0, 0.1),
        ),
        (
            Settings(mechanism="backprop-clipping", input_clip=0.8, cotangent_clip=0.05),
            Scale(1.0 / COUNT, 0.5),
        ),
    ],
    ids=["plain", "loss-clip", "flat", "group", "backprop"],
)
def test_sums_and_contributions(settings: Settings, scale: Scale) -> None:
    torch.manual_seed(3)
    network = Network()
    weights = {name: 4.0 * p.detach().double() for name, p in network.named_parameters()}
    claims = claims_of_analysis(model_of(network.graph()), settings)
    x, y = torch.randn(COUNT, 8, dtype=torch.float64), torch.randint(3, (COUNT,))
    given = {name: array_of(item) for name, item in weights.items()}
    gradients = Gradients(claims, given, "cpu")
    found = gradients.total(x.numpy(), y.numpy(), scale)
    norms = gradients.contributions(x.numpy(), y.numpy(), scale)
    singles = [single(weights, x[i], int(y[i]), scale.inner, settings) for i in range(COUNT)]
    for place, name in enumerate(WEIGHTS):
        expected = scale.outer * sum(parts[place] for parts in singles)
        np.testing.assert_allclose(found[name], expected, rtol=1e-11, atol=1e-14)
    for name, measured in norms.items():
        places = [WEIGHTS.index(p) for p in members(claims, name)]
        truth = [
            scale.outer * np.sqrt(sum(np.sum(parts[p] ** 2) for p in places)) for parts in singles
        ]
        assert np.all(np.abs(measured.norm - truth) <= measured.error + 1e-12 * np.array(truth))
        assert np.isfinite(gradients.drift(name, scale))


def members(claims: Claims, group: str) -> tuple[str, ...]:
    return next(item.parameters for item in claims.groups if item.name == group)
