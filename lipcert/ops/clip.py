"""Clips that a private training run inserts: of a layer's input, and of its upstream cotangent.

A clip of the input changes the function; a clip of the cotangent leaves the function alone and
changes only what backpropagation sends further down.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import final

import numpy as np

from lipcert.ops.base import Entrywise
from lipcert.upper import FloatArray, Upper


class ClipNorm(Enum):
    """The norm that a cotangent clip keeps below its radius."""

    L2 = "l2"
    """Euclidean"""
    L15 = "l1.5"
    """√Σ_c (Σ_i |g_ci|)²: absolute values summed within a channel, squares over the channels"""


@final
@dataclass(frozen=True, slots=True)
class InputClip(Entrywise):
    """y = x·min(1, radius/‖x‖₂), for the whole tensor of one example."""

    radius: Upper

    def __post_init__(self) -> None:
        if not (self.radius.is_finite and self.radius.value > 0.0):
            raise ValueError(f"an input clip needs a positive radius, not {self.radius.value}")

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Plain float64, example by example."""
        (x,) = inputs
        norms = np.linalg.norm(x.reshape(len(x), -1), axis=1)
        factors = self.radius.value / np.maximum(norms, self.radius.value)
        clipped: FloatArray = x * factors.reshape(-1, *[1] * (x.ndim - 1))
        return clipped


@final
@dataclass(frozen=True, slots=True)
class CotangentClip(Entrywise):
    """y = x; backpropagation sends g·min(1, radius/|g|) in place of g, |·| the stated norm."""

    radius: Upper
    norm: ClipNorm = ClipNorm.L2

    def __post_init__(self) -> None:
        if not self.radius.value > 0.0:
            raise ValueError(f"a cotangent clip needs a positive radius, not {self.radius.value}")

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """The identity."""
        return inputs[0]
