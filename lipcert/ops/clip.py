"""Clips that a private training run inserts: of a layer's input, and of its upstream cotangent.

What enters: facts about the clipped value, facts about its cotangent. What leaves: the same,
within the radius. A clip of the input changes the function; a clip of the cotangent leaves the
function alone and changes only what backpropagation sends further down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import final

import numpy as np

from lipcert.facts import Bound, CotangentFacts, Shape, ValueFacts
from lipcert.interval import Interval
from lipcert.ops.base import Op
from lipcert.scope import Scope
from lipcert.upper import INFINITE, ONE, FloatArray, Upper


class ClipNorm(Enum):
    """The norm that a cotangent clip keeps below its radius."""

    L2 = "l2"
    """Euclidean"""
    L15 = "l1.5"
    """√Σ_c (Σ_i |g_ci|)²: absolute values summed within a channel, squares over the channels"""


@final
@dataclass(frozen=True, slots=True)
class InputClip(Op):
    """y = x·min(1, radius/‖x‖₂), for the whole tensor of one example."""

    radius: Upper

    def __post_init__(self) -> None:
        if not (self.radius.is_finite and self.radius.value > 0.0):
            raise ValueError(f"an input clip needs a positive radius, not {self.radius.value}")

    @property
    def kind(self) -> str:
        """Own name: ONNX has none."""
        return "InputClip"

    @property
    def family(self) -> str:
        """Rule family."""
        return "input_clip"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """Unchanged."""
        (shape,) = inputs
        return shape

    def output_facts(self, inputs: Sequence[ValueFacts], scope: Scope) -> ValueFacts:
        """Returns the facts of x where ‖x‖ ≤ radius, otherwise radius and the box drawn to 0.

        Proof: y lies on the segment from 0 to x, which every interval that holds both contains;
        no run of entries grows.
        Attained: by every x with ‖x‖ ≥ radius.
        """
        del scope
        (x,) = inputs
        if not self.radius < x.norm.value:
            return x
        box = Interval(np.minimum(x.box.lo, 0.0), np.maximum(x.box.hi, 0.0))
        return ValueFacts.of(x.shape, Bound(self.radius, "input_clip.output_norm"), box, x.runs)

    def input_lipschitz(self, index: int, inputs: Sequence[ValueFacts], scope: Scope) -> Bound:
        """Returns 1. Proof: the projection onto a convex set, the ball, moves points no further
        apart. Attained: inside the ball."""
        del index, inputs, scope
        return Bound(ONE, "input_clip.input_lipschitz")

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Plain float64, example by example."""
        (x,) = inputs
        norms = np.linalg.norm(x.reshape(len(x), -1), axis=1)
        factors = self.radius.value / np.maximum(norms, self.radius.value)
        clipped: FloatArray = x * factors.reshape(-1, *[1] * (x.ndim - 1))
        return clipped


@final
@dataclass(frozen=True, slots=True)
class CotangentClip(Op):
    """y = x; backpropagation sends g·min(1, radius/|g|) in place of g, |·| the stated norm."""

    radius: Upper
    norm: ClipNorm = ClipNorm.L2

    def __post_init__(self) -> None:
        if not self.radius.value > 0.0:
            raise ValueError(f"a cotangent clip needs a positive radius, not {self.radius.value}")

    @property
    def kind(self) -> str:
        """Own name: ONNX has none."""
        return "CotangentClip"

    @property
    def family(self) -> str:
        """Rule family."""
        return "cotangent_clip"

    def unclipped(self) -> Op:
        """The identity: what is differentiated when nobody clips."""
        return replace(self, radius=INFINITE)

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """Unchanged."""
        (shape,) = inputs
        return shape

    def output_facts(self, inputs: Sequence[ValueFacts], scope: Scope) -> ValueFacts:
        """Returns the facts of x."""
        del scope
        return inputs[0]

    def input_lipschitz(self, index: int, inputs: Sequence[ValueFacts], scope: Scope) -> Bound:
        """Returns 1: the Jacobian of the identity."""
        del index, inputs, scope
        return Bound(ONE, "cotangent_clip.input_lipschitz")

    def input_cotangent(
        self,
        index: int,
        cotangent: CotangentFacts,
        inputs: Sequence[ValueFacts],
        scope: Scope,
    ) -> CotangentFacts:
        """Returns min(l, radius), and the same radius for the sums of channels under l1.5.

        Proof: the clip only shrinks g; afterwards its stated norm is at most the radius. For one
        channel the root of the sum of squares is at most the sum of the absolute values, so
        ‖g‖₂ ≤ |g|_l1.5. The hull holds t·g with g, see `CotangentFacts.capped`.
        Attained: by every g whose norm is at least the radius.
        """
        del index, inputs, scope
        if not self.radius.is_finite:
            return cotangent
        clipped = Bound(self.radius, "cotangent_clip.input_cotangent")
        sums = clipped if self.norm is ClipNorm.L15 else None
        return replace(cotangent.capped(clipped), channel_sums=sums)

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """The identity."""
        return inputs[0]
