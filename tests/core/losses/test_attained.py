"""Every loss bound against projected gradient ascent on the torch loss it speaks of."""

from dataclasses import dataclass

import mpmath
import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from lipcert.core.losses.base import Loss
from lipcert.core.losses.entries import AbsoluteError, BinaryCrossEntropy, Huber, SquaredError
from lipcert.core.rules.facts import Hull
from lipcert.losses import make_loss
from tests.core.losses.logits import Logits, TorchLoss, attack, ball, bounded, cube, unbounded
from tests.plain_losses import loss_value, one_hot


def worst_label(loss: Loss, z):
    """Of one example: a class, or a target that makes the gradient as long as can be."""
    match loss:
        case BinaryCrossEntropy():
            return (z < 0).to(z.dtype)
        case SquaredError() | AbsoluteError() | Huber():
            norm = getattr(loss, "label_norm", None)
            return -(9.0 if norm is None else norm) * z / z.norm().clamp_min(1e-9)
    return one_hot(0, z)


def reference(loss: Loss) -> TorchLoss:
    """The plain loss of each example, at its worst label."""

    def of_one(z):
        return loss_value(loss, z, worst_label(loss, z.detach()))

    return torch.vmap(of_one)


@dataclass(frozen=True)
class LossCase:
    """A loss, the logits, and how much above the attack it may be."""

    name: str
    loss: Loss
    logits: Logits
    slack: float = 1e-3
    steps: int = 80


CASES = [
    LossCase("ce", make_loss("cross-entropy"), unbounded(10)),
    LossCase("ce leading axes", make_loss("cross-entropy"), unbounded(1, 10)),
    LossCase("ce τ", make_loss("cross-entropy", temperature=0.25), unbounded(4)),
    LossCase("ce smoothed", make_loss("cross-entropy", label_smoothing=0.1), unbounded(10)),
    LossCase("ce ball", make_loss("cross-entropy"), ball(2.0, 16)),
    LossCase(
        "ce ball τ smoothed",
        make_loss("cross-entropy", temperature=2.0, label_smoothing=0.2),
        ball(5.0, 6),
    ),
    LossCase("ce cube", make_loss("cross-entropy"), cube(0.0, 1.0, 10)),
    LossCase("nll", make_loss("nll"), unbounded(10), steps=1),
    LossCase("nll leading axes", make_loss("nll"), ball(1.0, 1, 4), steps=1),
    LossCase("focal 0", make_loss("focal", focal_gamma=0.0), unbounded(5)),
    LossCase("focal ½", make_loss("focal", focal_gamma=0.5), unbounded(5)),
    LossCase("focal 2", make_loss("focal"), unbounded(10)),
    LossCase("focal 5", make_loss("focal", focal_gamma=5.0), unbounded(3)),
    LossCase("focal ball", make_loss("focal"), ball(0.5, 2)),
    LossCase("bce", make_loss("bce"), unbounded(5)),
    LossCase("bce one", make_loss("bce"), unbounded(1)),
    LossCase("bce sum τ", make_loss("bce", temperature=2.0, output_reduction="sum"), unbounded(4)),
    LossCase("bce ball", make_loss("bce", output_reduction="sum"), ball(3.0, 4)),
    LossCase("bce cube", make_loss("bce", temperature=3.0), cube(-2.0, 1.0, 3), 0.1),
    LossCase("mse", make_loss("mse", label_norm=1.0), ball(3.0, 4)),
    LossCase(
        "mse half sum",
        make_loss("mse", label_norm=0.5, output_reduction="sum", half=True),
        ball(3.0, 4),
    ),
    LossCase("mae", make_loss("mae"), unbounded(7)),
    LossCase("mae sum", make_loss("mae", output_reduction="sum"), unbounded(7)),
    LossCase("huber", make_loss("huber", huber_delta=0.5), unbounded(3)),
    LossCase(
        "huber small",
        make_loss("huber", huber_delta=8.0, label_norm=1.0, output_reduction="sum"),
        ball(2.0, 3),
    ),
    LossCase("hinge", make_loss("multiclass-hinge", margin=5.0), unbounded(10)),
    LossCase(
        "hinge sum",
        make_loss("multiclass-hinge", margin=5.0, output_reduction="sum"),
        unbounded(10),
    ),
    LossCase("hinge one", make_loss("multiclass-hinge"), unbounded(1)),
    LossCase("multi margin", make_loss("multi-margin"), unbounded(10), steps=1),
    LossCase(
        "multi margin sum",
        make_loss("multi-margin", margin=3.0, output_reduction="sum"),
        unbounded(4),
        steps=1,
    ),
    LossCase("kr", make_loss("kr"), unbounded(10)),
    LossCase("kr one", make_loss("kr"), unbounded(1)),
    LossCase("hkr", make_loss("hkr", hkr_weight=4.0, margin=2.0), unbounded(10)),
    LossCase("hkr one", make_loss("hkr", hkr_weight=4.0), unbounded(1)),
    LossCase("cosine below floor", make_loss("cosine", cosine_floor=0.5), unbounded(4)),
    LossCase("cosine large floor", make_loss("cosine", cosine_floor=20.0), unbounded(4)),
    LossCase("cosine box", make_loss("cosine"), cube(1.0, 2.0, 4), 0.2),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_gradient_norm_is_bounded_and_attained(case: LossCase) -> None:
    bound = bounded(case.loss, case.logits).norm
    found = attack(reference(case.loss), case.logits, steps=case.steps)
    assert found <= bound * (1 + 1e-12)
    assert bound <= found * (1 + case.slack)


def in_hull(gradient, hull: Hull) -> bool:
    """Membership in scale · conv{e_j − t_y}, by a linear program."""
    classes = hull.classes
    targets = (1 - hull.smoothing) * np.eye(classes) + hull.smoothing / classes
    vertices = np.concatenate([np.eye(classes) - target for target in targets])
    equations = np.concatenate([hull.scale * vertices.T, np.ones((1, len(vertices)))])
    sides = np.append(gradient, 1.0)
    result = linprog(np.zeros(len(vertices)), A_eq=equations, b_eq=sides, bounds=(0, None))
    return bool(result.status == 0)


HULL_CASES = [
    LossCase("ce", make_loss("cross-entropy", temperature=0.5), unbounded(4)),
    LossCase("smoothed", make_loss("cross-entropy", label_smoothing=0.3), ball(1.0, 4)),
    LossCase("ball", make_loss("cross-entropy"), ball(1.0, 4)),
    LossCase("cube", make_loss("cross-entropy", temperature=2.0), cube(-1.0, 1.0, 4)),
    LossCase("focal", make_loss("focal", focal_gamma=1.5), unbounded(4)),
    LossCase("focal ball", make_loss("focal", focal_gamma=1.5), ball(1.0, 4)),
    LossCase("multi margin", make_loss("multi-margin"), unbounded(4)),
    LossCase("multi margin sum", make_loss("multi-margin", output_reduction="sum"), unbounded(4)),
    LossCase("kr", make_loss("kr"), unbounded(4)),
]


@pytest.mark.parametrize("case", HULL_CASES, ids=lambda case: case.name)
def test_gradients_lie_in_the_hull(case: LossCase) -> None:
    hull = bounded(case.loss, case.logits).hull
    radius = min(case.logits.radius, 30.0)
    rng = np.random.default_rng(1)
    z = rng.normal(size=(20, 4))
    z[0] = [-3.0, 1.0, 1.0, 1.0]
    z *= radius * rng.uniform(0.5, 1.0, (20, 1)) / np.linalg.norm(z, axis=1, keepdims=True)
    z = np.clip(z, case.logits.low, case.logits.high)
    tensor = torch.from_numpy(z).requires_grad_(True)
    (gradients,) = torch.autograd.grad(reference(case.loss)(tensor).sum(), tensor)
    for gradient in gradients.numpy():
        assert in_hull(gradient, hull)


def test_the_hull_scale_is_not_generous() -> None:
    """A smaller scale than sup (1 − p_y) would lose the worst gradient."""
    hull = bounded(make_loss("cross-entropy"), ball(2.0, 2)).hull
    p = 1.0 / (1.0 + np.exp(2.0 * np.sqrt(2.0)))
    assert in_hull(np.array([p - 1.0, 1.0 - p]), hull)
    smaller = Hull(2, hull.scale * 0.999)
    assert not in_hull(np.array([p - 1.0, 1.0 - p]), smaller)


@pytest.mark.sample(3)
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
