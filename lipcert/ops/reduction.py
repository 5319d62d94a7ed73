"""Sums and means over axes, and what remains of x without its mean.

What enters: facts about x. What leaves: norm and box of the result, and the exact norm of the map.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np

from lipcert.facts import Bound, Shape, ValueFacts, bound_of, product_of, tightest
from lipcert.interval import Interval
from lipcert.links import Link, matrix_of
from lipcert.ops.base import Op
from lipcert.ops.scalar import constant
from lipcert.scope import Scope
from lipcert.upper import ONE, ZERO, FloatArray, Upper


class _Reduction(Op):
    """Σ over the axes, times a weight that depends on their length only."""

    __slots__ = ()
    axes: tuple[int, ...]
    keepdims: bool

    @property
    def family(self) -> str:
        """Rule family."""
        return "reduce"

    @abstractmethod
    def _square(self, count: int) -> Fraction:
        """Squared norm of the map that reduces `count` entries to one."""

    @abstractmethod
    def _weight(self, count: int) -> Interval:
        """The weight of each entry."""

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """Without the axes, or with length 1 there."""
        (shape,) = inputs
        axes = self._axes(len(shape))
        kept = [1 if axis in axes else length for axis, length in enumerate(shape)]
        if self.keepdims:
            return tuple(kept)
        return tuple(length for axis, length in enumerate(kept) if axis not in axes)

    def output_facts(self, inputs: Sequence[ValueFacts], scope: Scope) -> ValueFacts:
        """Returns B ≥ sup ‖y‖ = L·X, and the interval sum. Attained: x constant along the axes."""
        del scope
        (x,) = inputs
        axes = self._axes(len(x.shape))
        norm = product_of("reduce.output_norm", x.norm, self._norm(x.shape))
        summed = x.box.broadcast(x.shape).sum(axes, self.keepdims)
        if x.is_nonnegative:
            summed = summed.clip(0.0, np.inf)
        image = summed * self._weight(self._count(x.shape))
        return ValueFacts.of(self.output_shape([x.shape]), norm, image)

    def link(self, inputs: Sequence[ValueFacts], scope: Scope) -> Link | None:
        """The sums or means as a matrix, where it is small."""
        del scope
        shape = inputs[0].shape
        return matrix_of(self.evaluate, shape, self.output_shape([shape]))

    def input_lipschitz(self, index: int, inputs: Sequence[ValueFacts], scope: Scope) -> Bound:
        """Returns the norm √m of a sum of m entries, 1/√m of their mean.

        Proof: the rows of the map have disjoint supports, m equal weights each; the norm is the
        length of one row (Cauchy–Schwarz). Attained: by inputs constant along the axes.
        """
        del scope
        return self._norm(inputs[index].shape)

    def _norm(self, shape: Shape) -> Bound:
        square = self._square(self._count(shape))
        return Bound(Upper.of_fraction(square).sqrt(), "reduce.input_lipschitz")

    def _count(self, shape: Shape) -> int:
        return math.prod(shape[axis] for axis in self._axes(len(shape)))

    def _axes(self, rank: int) -> tuple[int, ...]:
        axes = tuple(axis + rank if axis < 0 else axis for axis in self.axes)
        if len(set(axes)) != len(axes) or any(not 0 <= axis < rank for axis in axes):
            raise ValueError(f"axes {self.axes} do not fit a value with {rank} axes")
        return axes


@final
@dataclass(frozen=True, slots=True)
class ReduceSum(_Reduction):
    """Sum over axes; axes count from the first per-example axis (negative: from the last)."""

    axes: tuple[int, ...]
    keepdims: bool = False

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "ReduceSum"

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """The sum."""
        (x,) = inputs
        result: FloatArray = np.sum(
            x, axis=_batched(self._axes(x.ndim - 1)), keepdims=self.keepdims
        )
        return result

    def _square(self, count: int) -> Fraction:
        return Fraction(count)

    def _weight(self, count: int) -> Interval:
        del count
        return constant(1.0)


@final
@dataclass(frozen=True, slots=True)
class ReduceMean(_Reduction):
    """Mean over axes; axes count from the first per-example axis (negative: from the last)."""

    axes: tuple[int, ...]
    keepdims: bool = False

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "ReduceMean"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """As for the sum; a mean of no entries is not a number."""
        if self._count(inputs[0]) == 0:
            raise ValueError(f"the mean over axes {self.axes} of shape {inputs[0]} has no terms")
        return _Reduction.output_shape(self, inputs)

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """The mean."""
        (x,) = inputs
        result: FloatArray = np.mean(
            x, axis=_batched(self._axes(x.ndim - 1)), keepdims=self.keepdims
        )
        return result

    def _square(self, count: int) -> Fraction:
        return Fraction(1, count)

    def _weight(self, count: int) -> Interval:
        return constant(float(count)).reciprocal()


@final
@dataclass(frozen=True, slots=True)
class Centre(Op):
    """y = x − mean(x) over axes, counted from the first of the example, for every slice."""

    axes: tuple[int, ...]

    @property
    def kind(self) -> str:
        """Own name: exporters write a mean and a difference."""
        return "Centre"

    @property
    def family(self) -> str:
        """Rule family."""
        return "centre"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """Unchanged; a mean of no entries is not a number."""
        (shape,) = inputs
        within = all(0 <= axis < len(shape) for axis in self.axes)
        if not self.axes or len(set(self.axes)) != len(self.axes) or not within:
            raise ValueError(f"axes {self.axes} do not fit shape {shape}")
        if self._count(shape) == 0:
            raise ValueError(f"the mean over axes {self.axes} of shape {shape} has no terms")
        return shape

    def output_facts(self, inputs: Sequence[ValueFacts], scope: Scope) -> ValueFacts:
        """Returns B ≥ sup ‖Px‖ ≤ min(X, ‖x − c‖), P the projection away from constant slices.

        Proof: ‖P‖ ≤ 1, and Px = P(x − c) for any c that is constant along the axes; c is the middle
        of the box of each slice. For a single axis the norms of runs along it do not grow either.
        Attained: by x without mean; by the ends of a box [a, b], half of the entries at each.
        """
        (x,) = inputs
        rule = "centre.output_norm"
        norm = product_of(rule, self.input_lipschitz(0, inputs, scope), x.norm)
        if self._count(x.shape) == 1:
            return ValueFacts.of(x.shape, norm, constant(0.0))
        box = x.box.broadcast(x.shape)
        total = box.sum(self.axes, keepdims=True)
        mean = total * constant(float(self._count(x.shape))).reciprocal()
        distance = bound_of((box - Interval.exact(self._middle(box))).norm(), rule)
        runs = x.runs if x.runs is not None and self.axes == (x.runs.axis,) else None
        return ValueFacts.of(x.shape, tightest(norm, distance), box - mean, runs)

    def input_lipschitz(self, index: int, inputs: Sequence[ValueFacts], scope: Scope) -> Bound:
        """Returns 1, the norm of a projection; 0 for means of single entries. Attained always."""
        del scope
        is_zero = self._count(inputs[index].shape) == 1
        return Bound(ZERO if is_zero else ONE, "centre.input_lipschitz")

    def link(self, inputs: Sequence[ValueFacts], scope: Scope) -> Link | None:
        """The projection as a matrix, where it is small."""
        del scope
        (x,) = inputs
        return matrix_of(self.evaluate, x.shape, x.shape)

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """x less its mean."""
        (x,) = inputs
        centred: FloatArray = x - np.mean(x, axis=_batched(self.axes), keepdims=True)
        return centred

    def _count(self, shape: Shape) -> int:
        return math.prod(shape[axis] for axis in self.axes)

    def _middle(self, box: Interval) -> FloatArray:
        """A number for each slice, 0 where an end of its box is unknown."""
        with np.errstate(over="ignore", invalid="ignore"):
            low = np.min(box.lo, axis=self.axes, keepdims=True)
            high = np.max(box.hi, axis=self.axes, keepdims=True)
            middle = 0.5 * low + 0.5 * high
        return np.where(np.isfinite(middle), middle, 0.0)


def _batched(axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(axis + 1 for axis in axes)
