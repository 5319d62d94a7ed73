"""Every loss bound against projected gradient ascent on the torch loss it speaks of."""

from __future__ import annotations

from dataclasses import dataclass

import mpmath
import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor
from torch.nn import functional

from lipcert.core.losses.base import Loss
from lipcert.core.program import FloatArray
from lipcert.core.rules.facts import Hull
from lipcert.losses import make_loss
from tests.core.losses.logits import Logits, TorchLoss, attack, ball, bounded, cube, unbounded

LABEL = 0


def labels(z: Tensor) -> Tensor:
    return torch.full((z.shape[0],), LABEL)


def cross_entropy(temperature: float = 1.0, smoothing: float = 0.0) -> TorchLoss:
    def loss(z: Tensor) -> Tensor:
        return functional.cross_entropy(
            z / temperature, labels(z), label_smoothing=smoothing, reduction="none"
        )

    return loss


def nll(z: Tensor) -> Tensor:
    return functional.nll_loss(z, labels(z), reduction="none")


def focal(gamma: float) -> TorchLoss:
    def loss(z: Tensor) -> Tensor:
        others = torch.logsumexp(z[:, 1:], 1) - torch.logsumexp(z, 1)
        return -torch.exp(gamma * others) * functional.log_softmax(z, 1)[:, LABEL]

    return loss


def bce(temperature: float, mean: bool) -> TorchLoss:
    def loss(z: Tensor) -> Tensor:
        targets = (z < 0).to(z.dtype).detach()  # the worst labels
        terms = functional.binary_cross_entropy_with_logits(
            z / temperature, targets, reduction="none"
        )
        return terms.mean(1) if mean else terms.sum(1)

    return loss


def elementwise(kind: str, label_norm: float, mean: bool, delta: float = 1.0) -> TorchLoss:
    def loss(z: Tensor) -> Tensor:
        y = (-label_norm * z / z.norm(dim=1, keepdim=True).clamp_min(1e-9)).detach()
        match kind:
            case "mse":
                terms = functional.mse_loss(z, y, reduction="none")
            case "half-mse":
                terms = functional.mse_loss(z, y, reduction="none") / 2
            case "mae":
                terms = functional.l1_loss(z, y, reduction="none")
            case _:
                terms = functional.huber_loss(z, y, reduction="none", delta=delta)
        return terms.mean(1) if mean else terms.sum(1)

    return loss


def hinge(margin: float, mean: bool) -> TorchLoss:
    def loss(z: Tensor) -> Tensor:
        if z.shape[1] == 1:
            return functional.relu(margin / 2 - z[:, 0])
        sign = -torch.ones_like(z)
        sign[:, LABEL] = 1.0
        terms = functional.relu(margin / 2 - sign * z)
        if not mean:
            return terms.sum(1)
        weight = torch.ones_like(z)
        weight[:, LABEL] = z.shape[1] - 1
        return (weight * terms).mean(1)

    return loss


def multi_margin(margin: float, mean: bool) -> TorchLoss:
    def loss(z: Tensor) -> Tensor:
        terms = functional.multi_margin_loss(z, labels(z), margin=margin, reduction="none")
        return terms if mean else terms * z.shape[1]

    return loss


def kr(z: Tensor) -> Tensor:
    return -z[:, 0] if z.shape[1] == 1 else z[:, 1:].mean(1) - z[:, LABEL]


def hkr(weight: float, margin: float) -> TorchLoss:
    def loss(z: Tensor) -> Tensor:
        return kr(z) + weight * hinge(margin, mean=True)(z)

    return loss


def cosine(floor: float) -> TorchLoss:
    def loss(z: Tensor) -> Tensor:
        return -z[:, LABEL] / z.norm(dim=1).clamp_min(floor)

    return loss


@dataclass(frozen=True)
class LossCase:
    """A loss, its torch twin, the logits, and how much above the attack it may be."""

    name: str
    loss: Loss
    reference: TorchLoss
    logits: Logits
    slack: float = 1e-3
    steps: int = 150


CASES = [
    LossCase("ce", make_loss("cross-entropy"), cross_entropy(), unbounded(10)),
    LossCase("ce leading axes", make_loss("cross-entropy"), cross_entropy(), unbounded(1, 10)),
    LossCase(
        "ce τ", make_loss("cross-entropy", temperature=0.25), cross_entropy(0.25), unbounded(4)
    ),
    LossCase(
        "ce smoothed",
        make_loss("cross-entropy", label_smoothing=0.1),
        cross_entropy(1.0, 0.1),
        unbounded(10),
    ),
    LossCase("ce ball", make_loss("cross-entropy"), cross_entropy(), ball(2.0, 16)),
    LossCase(
        "ce ball τ smoothed",
        make_loss("cross-entropy", temperature=2.0, label_smoothing=0.2),
        cross_entropy(2.0, 0.2),
        ball(5.0, 6),
    ),
    LossCase("ce cube", make_loss("cross-entropy"), cross_entropy(), cube(0.0, 1.0, 10)),
    LossCase("nll", make_loss("nll"), nll, unbounded(10), steps=1),
    LossCase("nll leading axes", make_loss("nll"), nll, ball(1.0, 1, 4), steps=1),
    LossCase("focal 0", make_loss("focal", focal_gamma=0.0), focal(0.0), unbounded(5)),
    LossCase("focal ½", make_loss("focal", focal_gamma=0.5), focal(0.5), unbounded(5)),
    LossCase("focal 2", make_loss("focal"), focal(2.0), unbounded(10)),
    LossCase("focal 5", make_loss("focal", focal_gamma=5.0), focal(5.0), unbounded(3)),
    LossCase("focal ball", make_loss("focal"), focal(2.0), ball(0.5, 2)),
    LossCase("bce", make_loss("bce"), bce(1.0, True), unbounded(5)),
    LossCase("bce one", make_loss("bce"), bce(1.0, True), unbounded(1)),
    LossCase(
        "bce sum τ",
        make_loss("bce", temperature=2.0, output_reduction="sum"),
        bce(2.0, False),
        unbounded(4),
    ),
    LossCase("bce ball", make_loss("bce", output_reduction="sum"), bce(1.0, False), ball(3.0, 4)),
    LossCase(
        "bce cube", make_loss("bce", temperature=3.0), bce(3.0, True), cube(-2.0, 1.0, 3), 0.1
    ),
    LossCase("mse", make_loss("mse", label_norm=1.0), elementwise("mse", 1.0, True), ball(3.0, 4)),
    LossCase(
        "mse half sum",
        make_loss("mse", label_norm=0.5, output_reduction="sum", half=True),
        elementwise("half-mse", 0.5, False),
        ball(3.0, 4),
    ),
    LossCase("mae", make_loss("mae"), elementwise("mae", 9.0, True), unbounded(7)),
    LossCase(
        "mae sum",
        make_loss("mae", output_reduction="sum"),
        elementwise("mae", 9.0, False),
        unbounded(7),
    ),
    LossCase(
        "huber",
        make_loss("huber", huber_delta=0.5),
        elementwise("huber", 9.0, True, 0.5),
        unbounded(3),
    ),
    LossCase(
        "huber small",
        make_loss("huber", huber_delta=8.0, label_norm=1.0, output_reduction="sum"),
        elementwise("huber", 1.0, False, 8.0),
        ball(2.0, 3),
    ),
    LossCase("hinge", make_loss("multiclass-hinge", margin=5.0), hinge(5.0, True), unbounded(10)),
    LossCase(
        "hinge sum",
        make_loss("multiclass-hinge", margin=5.0, output_reduction="sum"),
        hinge(5.0, False),
        unbounded(10),
    ),
    LossCase("hinge one", make_loss("multiclass-hinge"), hinge(1.0, True), unbounded(1)),
    LossCase(
        "multi margin", make_loss("multi-margin"), multi_margin(1.0, True), unbounded(10), steps=1
    ),
    LossCase(
        "multi margin sum",
        make_loss("multi-margin", margin=3.0, output_reduction="sum"),
        multi_margin(3.0, False),
        unbounded(4),
        steps=1,
    ),
    LossCase("kr", make_loss("kr"), kr, unbounded(10)),
    LossCase("kr one", make_loss("kr"), kr, unbounded(1)),
    LossCase("hkr", make_loss("hkr", hkr_weight=4.0, margin=2.0), hkr(4.0, 2.0), unbounded(10)),
    LossCase("hkr one", make_loss("hkr", hkr_weight=4.0), hkr(4.0, 1.0), unbounded(1)),
    LossCase(
        "cosine below floor", make_loss("cosine", cosine_floor=0.5), cosine(0.5), unbounded(4)
    ),
    LossCase(
        "cosine large floor", make_loss("cosine", cosine_floor=20.0), cosine(20.0), unbounded(4)
    ),
    LossCase("cosine box", make_loss("cosine"), cosine(0.0), cube(1.0, 2.0, 4), 0.2),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_gradient_norm_is_bounded_and_attained(case: LossCase) -> None:
    bound = bounded(case.loss, case.logits).norm
    found = attack(case.reference, case.logits, steps=case.steps)
    assert found <= bound * (1 + 1e-12)
    assert bound <= found * (1 + case.slack)


def in_hull(gradient: FloatArray, hull: Hull) -> bool:
    """Membership in scale · conv{e_j − t_y}, by a linear program."""
    classes = hull.classes
    targets = (1 - hull.smoothing) * np.eye(classes) + hull.smoothing / classes
    vertices = np.concatenate([np.eye(classes) - target for target in targets])
    equations = np.concatenate([hull.scale * vertices.T, np.ones((1, len(vertices)))])
    sides = np.append(gradient, 1.0)
    result = linprog(np.zeros(len(vertices)), A_eq=equations, b_eq=sides, bounds=(0, None))
    return bool(result.status == 0)


HULL_CASES = [
    LossCase("ce", make_loss("cross-entropy", temperature=0.5), cross_entropy(0.5), unbounded(4)),
    LossCase(
        "smoothed",
        make_loss("cross-entropy", label_smoothing=0.3),
        cross_entropy(1.0, 0.3),
        ball(1.0, 4),
    ),
    LossCase("ball", make_loss("cross-entropy"), cross_entropy(), ball(1.0, 4)),
    LossCase(
        "cube", make_loss("cross-entropy", temperature=2.0), cross_entropy(2.0), cube(-1.0, 1.0, 4)
    ),
    LossCase("focal", make_loss("focal", focal_gamma=1.5), focal(1.5), unbounded(4)),
    LossCase("focal ball", make_loss("focal", focal_gamma=1.5), focal(1.5), ball(1.0, 4)),
    LossCase("multi margin", make_loss("multi-margin"), multi_margin(1.0, True), unbounded(4)),
    LossCase(
        "multi margin sum",
        make_loss("multi-margin", output_reduction="sum"),
        multi_margin(1.0, False),
        unbounded(4),
    ),
    LossCase("kr", make_loss("kr"), kr, unbounded(4)),
]


@pytest.mark.parametrize("case", HULL_CASES, ids=lambda case: case.name)
def test_gradients_lie_in_the_hull(case: LossCase) -> None:
    hull = bounded(case.loss, case.logits).hull
    assert hull is not None
    radius = min(case.logits.radius, 30.0)
    rng = np.random.default_rng(1)
    z = rng.normal(size=(20, 4))
    z[0] = [-3.0, 1.0, 1.0, 1.0]
    z *= radius * rng.uniform(0.5, 1.0, (20, 1)) / np.linalg.norm(z, axis=1, keepdims=True)
    z = np.clip(z, case.logits.low, case.logits.high)
    tensor = torch.from_numpy(z).requires_grad_(True)
    (gradients,) = torch.autograd.grad(case.reference(tensor).sum(), tensor)
    for gradient in gradients.numpy():
        assert in_hull(gradient, hull)


def test_the_hull_scale_is_not_generous() -> None:
    """A smaller scale than sup (1 − p_y) would lose the worst gradient."""
    hull = bounded(make_loss("cross-entropy"), ball(2.0, 2)).hull
    assert hull is not None
    p = 1.0 / (1.0 + np.exp(2.0 * np.sqrt(2.0)))
    assert in_hull(np.array([p - 1.0, 1.0 - p]), hull)
    smaller = Hull(2, hull.scale * 0.999)
    assert not in_hull(np.array([p - 1.0, 1.0 - p]), smaller)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0, 3.0, 5.0])
def test_focal_norm_against_high_precision(gamma: float) -> None:
    """√2·sup in the literature's table: 1.42688, 1.47832, 1.59662, 1.69925, 1.85913."""
    with mpmath.workdps(40):

        def value(p: mpmath.mpf) -> mpmath.mpf:
            return (1 - p) ** (gamma + 1) - gamma * p * (1 - p) ** gamma * mpmath.log(p)

        grid = [mpmath.mpf(i) / 400 for i in range(1, 400)]
        start = max(grid, key=value)
        best = mpmath.findroot(lambda p: mpmath.diff(value, p), start)
        exact = value(best)
        norm = bounded(make_loss("focal", focal_gamma=gamma), unbounded(10)).norm
        assert mpmath.sqrt(2) * exact <= norm <= mpmath.sqrt(2) * exact * (1 + mpmath.mpf("5e-5"))


def test_extreme_parameters_stay_sound() -> None:
    for temperature in (1e-100, 1e100):
        loss = make_loss("cross-entropy", temperature=temperature)
        for logits in (unbounded(3), ball(1.0, 3), ball(0.0, 3), ball(1.7e308, 3)):
            norm = bounded(loss, logits).norm
            assert 0.81 <= norm * temperature <= 1.4143
