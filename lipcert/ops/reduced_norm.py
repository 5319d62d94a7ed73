"""Norms and log-sum-exp over axes: reductions that are not linear, and division by a norm.

What enters: facts about x. What leaves: norm and box of the result, and Jacobian norms.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from lipcert.facts import Bound, Runs, Shape, ValueFacts, bound_of, product_of, sum_of
from lipcert.interval import Interval
from lipcert.ops.base import Op
from lipcert.ops.broadcasting import root_of
from lipcert.ops.scalar import constant
from lipcert.scope import Scope
from lipcert.upper import ONE, FloatArray, Lower, Upper


class _OverAxes(Op):
    """Reduces every slice along the axes, counted from the front, to one number."""

    __slots__ = ()
    axes: tuple[int, ...]
    keepdims: bool

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """Without the axes, or with length 1 there."""
        (shape,) = inputs
        if len(set(self.axes)) != len(self.axes) or any(
            not 0 <= axis < len(shape) for axis in self.axes
        ):
            raise ValueError(f"axes {self.axes} do not fit shape {shape}")
        kept = [1 if axis in self.axes else length for axis, length in enumerate(shape)]
        if self.keepdims:
            return tuple(kept)
        return tuple(length for axis, length in enumerate(kept) if axis not in self.axes)

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Plain float64."""
        (x,) = inputs
        return self._reduced(x, tuple(axis + 1 for axis in self.axes))

    @abstractmethod
    def _reduced(self, array: FloatArray, axes: tuple[int, ...]) -> FloatArray: ...

    def _count(self, shape: Shape) -> int:
        return math.prod(shape[axis] for axis in self.axes)


@final
@dataclass(frozen=True, slots=True)
class ReduceNorm(_OverAxes):
    """The 1-norm or 2-norm over axes."""

    p: int
    axes: tuple[int, ...]
    keepdims: bool = False

    def __post_init__(self) -> None:
        if self.p not in {1, 2}:
            raise ValueError(f"only the 1-norm and the 2-norm are reduced to, not p = {self.p}")

    @property
    def kind(self) -> str:
        """ONNX name."""
        return f"ReduceL{self.p}"

    @property
    def family(self) -> str:
        """Rule family."""
        return "reduce_norm"

    def output_facts(self, inputs: Sequence[ValueFacts], scope: Scope) -> ValueFacts:
        """Returns B ≥ sup ‖y‖ = L·X, since the norm of 0 is 0, and the norms of the box.

        Attained: the 2-norm always; the 1-norm by equal magnitudes.
        """
        (x,) = inputs
        slope = self.input_lipschitz(0, inputs, scope)
        norm = product_of("reduce_norm.output_norm", slope, x.norm)
        magnitude = x.box.broadcast(x.shape).absolute()
        if self.p == 1:
            image = magnitude.sum(self.axes, self.keepdims)
        else:
            squares = (magnitude * magnitude).clip(0.0, math.inf).sum(self.axes, self.keepdims)
            image = squares.clip(0.0, math.inf).monotone(np.sqrt, ulps=1)
        shape = self.output_shape([x.shape])
        return ValueFacts.of(shape, norm, image.clip(0.0, math.inf))

    def input_lipschitz(self, index: int, inputs: Sequence[ValueFacts], scope: Scope) -> Bound:
        """Returns 1 for the 2-norm, √m for the 1-norm of m entries.

        Proof: |‖a‖ − ‖b‖| ≤ ‖a − b‖ in either norm, ‖·‖₁ ≤ √m‖·‖₂, and slices are disjoint.
        Attained: always; for the 1-norm where no entry is 0.
        """
        del scope
        square = 1 if self.p == 2 else self._count(inputs[index].shape)
        return Bound(root_of(square), "reduce_norm.input_lipschitz")

    def _reduced(self, array: FloatArray, axes: tuple[int, ...]) -> FloatArray:
        powers = np.abs(array) if self.p == 1 else array * array
        summed: FloatArray = np.sum(powers, axis=axes, keepdims=self.keepdims)
        return summed if self.p == 1 else np.sqrt(summed)


@final
@dataclass(frozen=True, slots=True)
class ReduceLogSumExp(_OverAxes):
    """ln Σ e^x over axes."""

    axes: tuple[int, ...]
    keepdims: bool = False

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "ReduceLogSumExp"

    @property
    def family(self) -> str:
        """Rule family."""
        return "log_sum_exp"

    def output_facts(self, inputs: Sequence[ValueFacts], scope: Scope) -> ValueFacts:
        """Returns B ≥ sup ‖y‖ = √slices·ln m + X, and max x ≤ y ≤ max x + ln m.

        Proof: y = ln m at x = 0, and the map has Lipschitz constant 1; Σ e^x holds m terms.
        Attained: at X = 0.
        """
        del scope
        (x,) = inputs
        shape = self.output_shape([x.shape])
        rule = "log_sum_exp.output_norm"
        spread = constant(float(self._count(x.shape))).monotone(np.log).clip(0.0, math.inf)
        at_zero = Bound(spread.max_abs() * root_of(math.prod(shape)), rule)
        largest = x.box.broadcast(x.shape).map(
            lambda ends: np.max(ends, axis=self.axes, keepdims=self.keepdims)
        )
        raised = largest + spread
        box = Interval(largest.lo, np.maximum(largest.hi, raised.hi))
        return ValueFacts.of(shape, sum_of(rule, at_zero, x.norm), box)

    def input_lipschitz(self, index: int, inputs: Sequence[ValueFacts], scope: Scope) -> Bound:
        """Returns 1: the gradient of a slice is its softmax p, and ‖p‖₂ ≤ ‖p‖₁ = 1.

        Attained: approached where one entry exceeds all others; by m = 1.
        """
        del index, inputs, scope
        return Bound(ONE, "log_sum_exp.input_lipschitz")

    def _reduced(self, array: FloatArray, axes: tuple[int, ...]) -> FloatArray:
        peak = np.max(array, axis=axes, keepdims=True)
        powers = np.sum(np.exp(array - peak), axis=axes, keepdims=True)
        summed: FloatArray = np.log(powers) + peak
        return summed if self.keepdims else np.squeeze(summed, axis=axes)


@final
@dataclass(frozen=True, slots=True)
class DivideByNorm(Op):
    """y = x / max(‖x‖₂/radius, floor), the norm over axes, for every slice.

    floor = 1: a clip to norm radius. radius = 1: normalised, as torch's `normalize` does. radius =
    √n for n entries: division by their root mean square, but at least by floor.
    """

    axes: tuple[int, ...]
    radius: float
    floor: float

    def __post_init__(self) -> None:
        if not (0.0 < self.radius < math.inf and 0.0 < self.floor < math.inf):
            raise ValueError(f"radius {self.radius} and floor {self.floor} need to be positive")

    @property
    def kind(self) -> str:
        """ONNX name of the division without a floor."""
        return "LpNormalization"

    @property
    def family(self) -> str:
        """Rule family."""
        return "divide_by_norm"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """Unchanged."""
        (shape,) = inputs
        within = all(0 <= axis < len(shape) for axis in self.axes)
        if not self.axes or len(set(self.axes)) != len(self.axes) or not within:
            raise ValueError(f"axes {self.axes} do not fit shape {shape}")
        return shape

    def output_facts(self, inputs: Sequence[ValueFacts], scope: Scope) -> ValueFacts:
        """Returns B ≥ sup ‖y‖ = min(√τ·radius, X/floor) for τ slices, and a box.

        Proof: ‖y‖ of a slice is at most radius, and at most ‖x‖/floor; squares add up. An entry is
        at most as large as its slice, and is t·x with 0 ≤ t ≤ 1/floor.
        Attained: where the norm is shared equally between slices.
        """
        (x,) = inputs
        rule = "divide_by_norm.output_norm"
        entries = math.prod(x.shape[axis] for axis in self.axes)
        by_radius = root_of(x.size // max(entries, 1)) * Upper(self.radius)
        by_floor = product_of(rule, x.norm, self.input_lipschitz(0, inputs, scope))
        steep = Interval(np.zeros(()), constant(self.floor).reciprocal().hi)
        box = (x.box * steep).intersect(Interval.symmetric(Upper(self.radius), x.shape))
        if x.is_nonnegative:
            box = box.clip(0.0, math.inf)
        norm = bound_of(min(by_radius, by_floor.value), rule)
        return ValueFacts.of(x.shape, norm, box, self._runs(x))

    def input_lipschitz(self, index: int, inputs: Sequence[ValueFacts], scope: Scope) -> Bound:
        """Returns 1/floor.

        Proof: with d = ‖x‖/radius, u = x/‖x‖ of a slice, the Jacobian is I/floor where d < floor,
        (I − uuᵀ)/d where d > floor; where both meet, it is between them. Slices are independent.
        Attained: at x = 0.
        """
        del index, inputs, scope
        return bound_of(ONE.over(Lower(self.floor)), "divide_by_norm.input_lipschitz")

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Plain float64."""
        (x,) = inputs
        axes = tuple(axis + 1 for axis in self.axes)
        norms = np.sqrt(np.sum(x * x, axis=axes, keepdims=True))
        divided: FloatArray = x / np.maximum(norms / self.radius, self.floor)
        return divided

    def _runs(self, x: ValueFacts) -> Runs | None:
        """One slice per run, where there is a single axis."""
        if len(self.axes) != 1:
            return None
        (axis,) = self.axes
        divided = x.run_norm(axis) * ONE.over(Lower(self.floor))
        return Runs(axis, min(Upper(self.radius), divided))
