"""Private training whose noise is set from certified sensitivity bounds.

    private = make_private(model, optimizer, loader, Clipless(input_norm=1.0),
                           target_epsilon=3.0, delta=1e-5, epochs=20, folder="run/")
    for x, y in private.loader:
        optimizer.zero_grad()
        private.criterion(model(x), y).backward()
        optimizer.step()

The mechanism that runs is the one that is certified. Mechanisms are plain records; `make_private`
and the modules that it needs are loaded on first use.
"""

import importlib
from typing import TYPE_CHECKING, Final

from lipcert.training.mechanisms import (
    BackpropClipping,
    Clipless,
    FixedWeightNorm,
    GradientClipping,
    Loss,
    PlannedRun,
    TrainingMechanism,
    WeightClipping,
)

if TYPE_CHECKING:
    from lipcert.training.assembly import make_private
    from lipcert.training.loader import BallsInBinsSampler
    from lipcert.training.private import Private
    from lipcert.training.replacing import Trainable, make_trainable

__all__ = [
    "BackpropClipping",
    "BallsInBinsSampler",
    "Clipless",
    "FixedWeightNorm",
    "GradientClipping",
    "Loss",
    "PlannedRun",
    "Private",
    "Trainable",
    "TrainingMechanism",
    "WeightClipping",
    "make_private",
    "make_trainable",
]

_HOMES: Final = {
    "BallsInBinsSampler": "lipcert.training.loader",
    "Private": "lipcert.training.private",
    "Trainable": "lipcert.training.replacing",
    "make_private": "lipcert.training.assembly",
    "make_trainable": "lipcert.training.replacing",
}


def __getattr__(name: str) -> object:
    """Import the module that defines a name when the name is first used (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'lipcert.training' has no attribute {name!r}")
    found: object = getattr(importlib.import_module(_HOMES[name]), name)
    return found
