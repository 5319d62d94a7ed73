"""Gradients of a batch under every mechanism, against a loop over single examples in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from lipcert.audit.bounds import Claims, claims_of_analysis
from lipcert.audit.checks.gradients import Clip, Gradients, Pass
from lipcert.audit.checks.run_check import Scale
from lipcert.graph.ir import parameters_of
from lipcert.importer.load import load_model
from lipcert.measure.measured import Measured
from lipcert.settings.settings import Settings
from tests.audit.checks.runs import Network, array_of
from tests.models.shipped import digits, path_of
from tests.written import model_of

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


def single(weights, x: Tensor, y: int, inner: float, s: Settings, decay: float):
    """The gradient of inner · ℓ (+ λθ) of one example, all clips applied by hand."""
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
    parts = [
        part.numpy() + decay * weights[name].numpy()
        for part, name in zip(found, WEIGHTS, strict=True)
    ]
    norms = [np.linalg.norm(part) for part in parts]
    if s.clip_norm is not None and s.clip_scope != "group":
        whole = np.hypot(*norms)
        parts = [part * min(1.0, s.clip_norm / whole) for part in parts]
    elif s.clip_norm is not None:
        clip = s.clip_norm / np.sqrt(2.0)
        parts = [part * min(1.0, clip / n) for part, n in zip(parts, norms, strict=True)]
    return parts


CLIPPED = {"mechanism": "gradient-clipping", "clip_norm": 0.5}
CASES = {
    "plain": (Settings(), Scale(1.0, 0.25), 0.0),
    "loss-clip": (Settings(loss_clip=0.2), Scale(1.0 / COUNT, 1.0), 0.0),
    "flat": (Settings(**CLIPPED), Scale(1.0, 1.0), 0.0),
    "flat-loss-clip": (Settings(**CLIPPED, loss_clip=0.3), Scale(1.0, 1.0), 0.0),
    "group": (Settings(**CLIPPED, clip_scope="group"), Scale(1.0, 0.1), 0.0),
    "backprop": (
        Settings(mechanism="backprop-clipping", input_clip=0.8, cotangent_clip=0.05),
        Scale(1.0 / COUNT, 0.5),
        0.0,
    ),
}
CASES |= {
    f"decay {decay}, {scope}": (
        Settings(**CLIPPED, clip_scope=scope, decay="inside"),
        Scale(1.0, 0.25),
        decay,
    )
    for scope in ("flat", "group")
    for decay in (0.01, 0.7, 30.0)
}


@pytest.mark.parametrize(("settings", "scale", "decay"), CASES.values(), ids=CASES)
def test_sums_and_contributions(settings: Settings, scale: Scale, decay: float) -> None:
    torch.manual_seed(3)
    network = Network()
    weights = {name: 4.0 * p.detach().double() for name, p in network.named_parameters()}
    claims = claims_of_analysis(model_of(network.graph()), settings)
    x, y = torch.randn(COUNT, 8, dtype=torch.float64), torch.randint(3, (COUNT,))
    given = {name: array_of(item) for name, item in weights.items()}
    gradients = Gradients(claims, given, "cpu", decay=decay)
    examples = Pass(gradients, x.numpy(), y.numpy(), scale)
    found, norms = examples.total(), examples.contributions()
    singles = [single(weights, x[i], int(y[i]), scale.inner, settings, decay) for i in range(COUNT)]
    for place, name in enumerate(WEIGHTS):
        expected = scale.outer * sum(parts[place] for parts in singles)
        np.testing.assert_allclose(found[name], expected, rtol=1e-11, atol=1e-14)
    for name, measured in norms.items():
        places = [WEIGHTS.index(p) for p in members(claims, name)]
        truth = [
            scale.outer * np.sqrt(sum(np.sum(parts[p] ** 2) for p in places)) for parts in singles
        ]
        assert np.all(np.abs(measured.norm - truth) <= measured.error + 1e-12 * np.array(truth))


@pytest.mark.parametrize("name", ["digits_vit", "digits_mixer", "digits_resnet_groupnorm"])
def test_products_with_the_weights_for_every_kind_of_layer(name: str) -> None:
    """⟨∇ℓ, θ⟩ by forward differentiation is what backpropagation of one example gives."""
    wanted = Settings(mechanism="gradient-clipping", clip_norm=1e9, decay="inside")
    claims = claims_of_analysis(load_model(path_of(name), trusted=True), wanted)
    graph = claims.engine.graph
    split = digits(tuple(graph.input_shape))
    x, y = split.images.numpy()[:2], split.labels.numpy()[:2]
    weights = parameters_of(graph)
    plain = Gradients(claims, weights, "cpu")
    decayed = Gradients(claims, weights, "cpu", decay=0.5)
    (group,) = claims.groups
    scale = Scale(1.0, 1.0)
    norms = Pass(decayed, x, y, scale).contributions()[group.name]
    for i in range(2):
        one = Pass(plain, x[i : i + 1], y[i : i + 1], scale).total()
        whole = [one[part] + 0.5 * weights[part] for part in group.parameters]
        expected = np.sqrt(sum(np.sum(part**2) for part in whole))
        assert norms.norm[i] == pytest.approx(expected, rel=1e-9)


def members(claims: Claims, group: str) -> tuple[str, ...]:
    return next(item.parameters for item in claims.groups if item.name == group)


@given(
    st.floats(0.0, 1e3),
    st.floats(0.0, 1.0),
    st.floats(-1.0, 1.0),
    st.floats(1e-3, 10.0),
    st.none() | st.floats(0.0, 1.0),
)
def test_norms_after_a_clip_are_off_by_their_error_at_most(
    norm: float, error: float, place: float, radius: float, stability: float | None
) -> None:
    """The norm is within its error of the true one, and both go through the clip."""
    clip, true = Clip(radius, stability), max(0.0, norm + place * error)
    found = clip.measured(Measured(np.array([norm]), np.array([error])))
    exact = true * clip.factors(np.array([true]))[0]
    assert exact <= radius * (1.0 + 1e-12)
    assert abs(found.norm[0] - exact) <= found.error[0] * (1.0 + 1e-9) + 1e-12 * radius
