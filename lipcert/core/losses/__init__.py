"""Losses: how long the gradient is that the loss of one example sends into the network."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

KINDS: Final[Mapping[str, str]] = MappingProxyType({
    "cross-entropy": "softmax.CrossEntropy",
    "bce": "entries.BinaryCrossEntropy",
    "mse": "entries.SquaredError",
    "mae": "entries.AbsoluteError",
    "huber": "entries.Huber",
    "focal": "focal.Focal",
    "nll": "margins.NegativeLogLikelihood",
    "multiclass-hinge": "margins.MulticlassHinge",
    "multi-margin": "margins.MultiMargin",
    "kr": "margins.KantorovichRubinstein",
    "hkr": "margins.HingeKantorovichRubinstein",
    "cosine": "entries.Cosine",
})  # fmt: skip
"""by the name that users and certificates give it: module and class"""
