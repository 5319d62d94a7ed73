"""Clips that a training run enforces: on per-example gradients, or inside backpropagation.

From the bounded graph of a network and its live module, this package computes sums of clipped
gradients, and installs hooks that clip the input and the cotangent of each layer.
"""

from lipcert.training.clipping.backprop import install_clips
from lipcert.training.clipping.gradients import (
    Asked,
    ClippedGradients,
    ClippedSum,
    ClipRule,
    LiveNetwork,
)
from lipcert.training.clipping.probe import check_clips
from lipcert.training.clipping.single import SingleGradients

__all__ = [
    "Asked",
    "ClipRule",
    "ClippedGradients",
    "ClippedSum",
    "LiveNetwork",
    "SingleGradients",
    "check_clips",
    "install_clips",
]
