"""Clips that a training run enforces: of the gradient of each example, or inside backpropagation.

Input: the bounded part of a network, and its live module. Output: sums of clipped gradients, and
hooks that clip the input and the cotangent of each layer.
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
