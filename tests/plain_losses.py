"""Losses of one example in plain torch, and losses of every kind that these are the truth of."""

from itertools import product

import torch

from lipcert.core.losses import entries, margins
from lipcert.core.losses.focal import Focal
from lipcert.core.losses.softmax import CrossEntropy

BOTH = ["mean", "sum"]
CLASS_LOSSES = [
    CrossEntropy(),
    CrossEntropy(0.3, 0.2),
    CrossEntropy(4.0),
    margins.NegativeLogLikelihood(),
    Focal(),
    Focal(0.0),
    Focal(0.5),
    *(margins.MulticlassHinge(m, r) for m, r in product((0.0, 1.0, 7.0), BOTH)),
    *(margins.MultiMargin(m, r) for m, r in product((0.0, 1.0, 7.0), BOTH)),
    margins.KantorovichRubinstein(),
    margins.HingeKantorovichRubinstein(2.5, 3.0),
]
TARGET_LOSSES = [
    *(entries.BinaryCrossEntropy(t, r) for t, r in product((1.0, 0.25), BOTH)),
    *(entries.SquaredError(1.0, r, half) for r, half in product(BOTH, (False, True))),
    *(entries.AbsoluteError(r) for r in BOTH),
    *(entries.Huber(d, r) for d, r in product((0.5, 1.0, 100.0), BOTH)),
    entries.Cosine(),
    entries.Cosine(20.0),
]


def loss_value(loss, output, label):
    """The loss of one example. label: [outputs]; class losses take one-hot labels, or −1 or 1 of a
    single score."""
    z, y = output.reshape(-1), label
    match loss:
        case CrossEntropy():
            a = loss.label_smoothing
            target = (1.0 - a) * y + a / len(z)
            return -(target * torch.log_softmax(z / loss.temperature, 0)).sum()
        case margins.NegativeLogLikelihood():
            return -(z * y).sum()
        case Focal():
            log_p = (torch.log_softmax(z, 0) * y).sum()
            return -((1.0 - log_p.exp()).clamp_min(1e-15) ** loss.focal_gamma) * log_p
        case entries.BinaryCrossEntropy():
            scaled = z / loss.temperature
            return _reduced(loss, torch.logaddexp(scaled, torch.zeros_like(scaled)) - y * scaled)
        case entries.SquaredError():
            return (0.5 if loss.half else 1.0) * _reduced(loss, (z - y) ** 2)
        case entries.AbsoluteError():
            return _reduced(loss, (z - y).abs())
        case entries.Huber():
            d, delta = (z - y).abs(), loss.huber_delta
            return _reduced(loss, torch.where(d <= delta, 0.5 * d**2, delta * (d - 0.5 * delta)))
        case margins.MulticlassHinge():
            return _hinge(loss.margin, loss.output_reduction, z, y)
        case margins.MultiMargin():
            gaps = torch.relu(loss.margin - (z * y).sum() + z) * (1.0 - y)
            return _reduced(loss, gaps)
        case margins.KantorovichRubinstein():
            return _kr(z, y)
        case margins.HingeKantorovichRubinstein():
            hinge = _hinge(loss.margin, "mean", z, y)
            return _kr(z, y) + loss.hkr_weight * hinge
        case entries.Cosine():
            return -(z * y).sum() / z.norm().clamp_min(loss.cosine_floor or 1e-300)
    raise NotImplementedError(type(loss).__name__)


def one_hot(label, like):
    """A class as a label of these scores."""
    return (torch.arange(len(like)) == label).to(like.dtype)


def _reduced(loss, terms):
    return terms.mean() if loss.output_reduction == "mean" else terms.sum()


def _hinge(margin: float, reduction: str, z, y):
    if len(z) == 1:
        return torch.relu(0.5 * margin - y * z).sum()
    hinges = torch.relu(0.5 * margin - (2.0 * y - 1.0) * z)
    if reduction == "sum":
        return hinges.sum()
    weights = y * (len(z) - 1) + (1.0 - y)
    return (weights * hinges).sum() / len(z)


def _kr(z, y):
    if len(z) == 1:
        return -(z * y).sum()
    return (z * (1.0 - y)).sum() / (len(z) - 1) - (z * y).sum()
