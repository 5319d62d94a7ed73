"""Local errors of losses: gradients in short formats against float64 at the same logits."""

from __future__ import annotations

import pytest
import torch

from lipcert.audit.drift.losses import loss_error
from lipcert.audit.drift.rounding import Rounding
from lipcert.audit.losses import per_example_loss
from lipcert.audit.precision import Precision
from lipcert.losses.base import Loss
from lipcert.losses.factory import make_loss
from lipcert.upper import Upper
from tests.networks import ball

CLASSES = 10
BY_CLASS = [
    make_loss("cross-entropy"),
    make_loss("cross-entropy", temperature=0.3),
    make_loss("cross-entropy", temperature=7.0, label_smoothing=0.2),
    make_loss("nll"),
    make_loss("focal", focal_gamma=0.0),
    make_loss("focal", focal_gamma=0.5),
    make_loss("focal", focal_gamma=2.0),
    make_loss("multiclass-hinge", margin=1.0),
    make_loss("multi-margin", margin=0.5, output_reduction="sum"),
    make_loss("kr"),
    make_loss("hkr", hkr_weight=2.0),
]
BY_TARGET = [
    make_loss("bce"),
    make_loss("bce", temperature=0.3, output_reduction="sum"),
    make_loss("mse", label_norm=1.0),
    make_loss("mse", label_norm=1.0, half=True, output_reduction="sum"),
    make_loss("mae"),
    make_loss("huber", huber_delta=0.5, label_norm=1.0),
    make_loss("cosine", cosine_floor=0.1),
]


def logits(radius: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    z = torch.randn(200, CLASSES, generator=generator, dtype=torch.float64)
    z[:40] *= torch.eye(CLASSES, dtype=torch.float64).repeat(4, 1)  # one large score
    z[40:60] = 1.0 + 1e-3 * z[40:60]
    sizes = torch.logspace(-3, 0, 200, dtype=torch.float64).roll(57)[:, None]
    return radius * sizes * z / z.norm(dim=1, keepdim=True)


def gradients(loss: Loss, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    leaf = z.detach().clone().requires_grad_()
    (found,) = torch.autograd.grad(per_example_loss(loss, leaf, y).sum(), leaf)
    return found.double()


@pytest.mark.parametrize("precision", [Precision.FLOAT32, Precision.BFLOAT16])
@pytest.mark.parametrize("radius", [0.5, 8.0, 100.0])
@pytest.mark.parametrize("loss", [*BY_CLASS, *BY_TARGET], ids=lambda loss: loss.kind)
def test_gradients_of_a_loss_err_by_no_more(
    loss: Loss, radius: float, precision: Precision
) -> None:
    dtype = torch.bfloat16 if precision is Precision.BFLOAT16 else torch.float32
    z = logits(radius).to(dtype)
    if loss in BY_CLASS:
        y = torch.arange(len(z)) % CLASSES
    else:
        y = torch.rand(len(z), CLASSES, generator=torch.Generator().manual_seed(5))
        y = (0.999 * y / y.norm(dim=1, keepdim=True)).to(dtype)
    longest = float(z.double().norm(dim=1).max())
    facts = ball((CLASSES,), longest * (1 + 1e-9))
    off = (gradients(loss, z, y) - gradients(loss, z.double(), y)).norm(dim=1)
    assert float(off.max()) <= loss_error(loss, facts, Rounding.of(precision)).value


@pytest.mark.parametrize("loss", [*BY_CLASS, *BY_TARGET], ids=lambda loss: loss.kind)
def test_the_error_is_a_small_part_of_the_gradient_in_float32(loss: Loss) -> None:
    facts = ball((CLASSES,), 8.0)
    error = loss_error(loss, facts, Rounding.of(Precision.FLOAT32))
    assert error < Upper(1e-3) * loss.cotangent(facts).norm.value
