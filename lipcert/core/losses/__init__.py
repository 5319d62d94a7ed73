"""Losses: how long the gradient is that the loss of one example sends into the network."""

from typing import Final

from lipcert.core.registry import Registry

KINDS: Final = Registry("losses", {
    "softmax.CrossEntropy": "cross-entropy",
    "entries.BinaryCrossEntropy": "bce",
    "entries.SquaredError": "mse",
    "entries.AbsoluteError": "mae",
    "entries.Huber": "huber",
    "focal.Focal": "focal",
    "margins.NegativeLogLikelihood": "nll",
    "margins.MulticlassHinge": "multiclass-hinge",
    "margins.MultiMargin": "multi-margin",
    "margins.KantorovichRubinstein": "kr",
    "margins.HingeKantorovichRubinstein": "hkr",
    "entries.Cosine": "cosine",
})  # fmt: skip
"""the class of each, by the name that users and certificates give it"""
