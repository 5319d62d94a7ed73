"""Clips that a training run enforces: of the gradient of each example, or inside backpropagation.

What enters: what was bounded of a network, and its live module. What leaves: sums of clipped
gradients, and hooks that clip what each layer reads and receives.
"""

from __future__ import annotations

from lipcert.training.clipping.backprop import install_clips
from lipcert.training.clipping.factors import ClipRule
from lipcert.training.clipping.gradients import ClippedGradients, ClippedSum
from lipcert.training.clipping.live import LiveNetwork
from lipcert.training.clipping.probe import check_clips
from lipcert.training.clipping.single import SingleGradients

__all__ = [
    "ClipRule",
    "ClippedGradients",
    "ClippedSum",
    "LiveNetwork",
    "SingleGradients",
    "check_clips",
    "install_clips",
]
