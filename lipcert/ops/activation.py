"""Activations: a scalar function applied entry by entry, and PRelu with its trained slope.

What enters: facts about x. What leaves: norm and box of f(x), and the largest slope of f on the
box. Invariant: slopes include every Clarke derivative at a kink that the box touches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from lipcert.facts import Bound, Runs, Shape, ValueFacts, product_of, sum_of
from lipcert.interval import Interval
from lipcert.links import Link, Slopes
from lipcert.operand import Operand
from lipcert.ops.base import Op
from lipcert.ops.broadcasting import aligned, root_of, slice_norm
from lipcert.ops.functions import ScalarFunction
from lipcert.ops.scalar import constant, joined_at_zero
from lipcert.scope import Scope
from lipcert.upper import ONE, FloatArray, Upper


@final
@dataclass(frozen=True, slots=True)
class Activation(Op):
    """y = f(x), entry by entry."""

    function: ScalarFunction

    @property
    def kind(self) -> str:
        """Name of the function."""
        return self.function.name

    @property
    def family(self) -> str:
        """Rule family."""
        return "activation"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """That of the input."""
        (shape,) = inputs
        return shape

    def output_facts(self, inputs: Sequence[ValueFacts], scope: Scope) -> ValueFacts:
        """Returns B ≥ sup ‖f(x)‖ over ‖x‖ ≤ X, and the image of the box.

        Proof: ‖f(x)‖ ≤ ‖f(0)‖ + ‖f(x) − f(0)‖ ≤ √n·|f(0)| + c·X, where c bounds the slopes of
        the chords from 0: over the whole line, or |f'| over a box that holds x and 0.
        Attained: f(0) = 0 and |f(x)| = c|x| on one entry; at X = 0 always.
        """
        del scope
        (x,) = inputs
        box = _shared_ends(x.box)
        around = box.hull(constant(0.0))
        chord = min(self.function.chord, self.function.derivative(around).max_abs())
        at_zero = Bound(self.function.origin * root_of(x.size), "activation.output_norm")
        growth = product_of("activation.output_norm", x.norm, Bound(chord, "activation.chord"))
        norm = sum_of("activation.output_norm", at_zero, growth)
        runs = x.runs
        if runs is not None:
            added = self.function.origin * root_of(x.shape[runs.axis])
            runs = Runs(runs.axis, added + runs.norm * chord)
        return ValueFacts.of(x.shape, norm, self.function.image(box), runs)

    def input_lipschitz(self, index: int, inputs: Sequence[ValueFacts], scope: Scope) -> Bound:
        """Returns B ≥ sup |f'| over the box, and at most that over the real line.

        Proof: the Jacobian is diagonal; a Clarke Jacobian has Clarke derivatives on its diagonal.
        Attained: where the supremum of |f'| over the box is.
        """
        del index, scope
        (x,) = inputs
        everywhere = Bound(self.function.lipschitz, "activation.input_lipschitz")
        slope = self.function.derivative(_shared_ends(x.box)).max_abs()
        if not slope < everywhere.value:
            return everywhere
        return Bound(slope, "activation.input_lipschitz.box")

    def link(self, inputs: Sequence[ValueFacts], scope: Scope) -> Link | None:
        """f' on the box, between ∓ the Lipschitz constant."""
        del scope
        (x,) = inputs
        slopes = self.function.derivative(_shared_ends(x.box))
        return Slopes(slopes.intersect(Interval.symmetric(self.function.lipschitz, ())))

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """f(x)."""
        (x,) = inputs
        return self.function.value(x)


@final
@dataclass(frozen=True, slots=True, eq=False)
class PRelu(Op):
    """y = x for x ≥ 0, slope·x below; the trained slope broadcasts to the value."""

    slope: Operand

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "PRelu"

    @property
    def family(self) -> str:
        """Rule family."""
        return "prelu"

    def operands(self) -> Mapping[str, Operand]:
        """The slope."""
        return {"slope": self.slope}

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """That of the input, to which the slope must broadcast."""
        (shape,) = inputs
        if np.broadcast_shapes(shape, self.slope.shape) != shape:
            raise ValueError(f"slope {self.slope.shape} does not broadcast to input {shape}")
        return shape

    def output_facts(self, inputs: Sequence[ValueFacts], scope: Scope) -> ValueFacts:
        """Returns B ≥ sup ‖y‖ = max(1, |s|)·X, entries known to be ≥ 0 counting 1.

        Proof: |y_i| ≤ max(1, |s_i|)·|x_i|, and y_i = x_i where x_i ≥ 0.
        Attained: on one negative entry with the largest |s| ≥ 1, or on a positive one.
        """
        (x,) = inputs
        slopes = scope.entries(self.slope)
        image = joined_at_zero(x.box, x.box.clip(-math.inf, 0.0) * slopes, x.box.clip(0, math.inf))
        growth = self._steepest(x.box.lo < 0.0, scope)
        return ValueFacts.of(x.shape, product_of("prelu.output_norm", x.norm, growth), image)

    def input_lipschitz(self, index: int, inputs: Sequence[ValueFacts], scope: Scope) -> Bound:
        """Returns B ≥ max(1, |s|), over the entries whose box touches (−∞, 0].

        Proof: the Jacobian is diagonal, with entries 1, s_i, or anything between at the kink.
        Attained: at any point with such signs.
        """
        del index
        (x,) = inputs
        return self._steepest(x.box.lo <= 0.0, scope)

    def param_lipschitz(self, inputs: Sequence[ValueFacts], scope: Scope) -> Mapping[str, Bound]:
        """Returns B ≥ the norm of the negative part of x on the entries that share a slope.

        Proof: ∂y_i/∂s = min(x_i, 0) for the slope that entry i uses and 0 for all others, so the
        columns of the Jacobian are orthogonal: its norm is that of the longest column.
        Attained: x negative on one such slice and 0 elsewhere.
        """
        del scope
        (x,) = inputs
        negative = ValueFacts.of(x.shape, x.norm, x.box.clip(-math.inf, 0.0))
        longest = slice_norm(negative, self.slope.shape, x.shape)
        return {"slope": product_of("prelu.param_lipschitz", longest)}

    def link(self, inputs: Sequence[ValueFacts], scope: Scope) -> Link | None:
        """1 where x > 0, the slope where x < 0, anything between at 0."""
        (x,) = inputs
        return Slopes(joined_at_zero(x.box, scope.entries(self.slope), constant(1.0)))

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Either branch."""
        (x,) = inputs
        slope = aligned(self.slope.array[np.newaxis], x.ndim - 1)
        return np.where(x >= 0.0, x, slope * x)

    def _steepest(self, bent: npt.NDArray[np.bool_], scope: Scope) -> Bound:
        """max(1, |s_i|) over the entries marked as possibly negative."""
        slopes = scope.entries(self.slope).magnitude()
        steepest = Upper(float(np.max(np.where(bent, slopes, 1.0), initial=1.0)))
        if not steepest.is_finite:
            return sum_of("prelu.input_lipschitz", Bound(ONE, "prelu"), scope.max_abs(self.slope))
        return Bound(steepest, "prelu.input_lipschitz")


def _shared_ends(box: Interval) -> Interval:
    """One interval for all entries where all have the same: spares work on uniform boxes."""
    lo, hi = box.lo, box.hi
    if lo.size and lo.min() == lo.max() and hi.min() == hi.max():
        return Interval(lo.reshape(-1)[:1].reshape(()), hi.reshape(-1)[:1].reshape(()))
    return box
