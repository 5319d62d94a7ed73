"""Sums and means over axes.

What enters: facts about x. What leaves: norm and box of the sum, and the exact norm of the map.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np

from lipcert.facts import Bound, Shape, ValueFacts, product_of
from lipcert.interval import Interval
from lipcert.links import Link, matrix_of
from lipcert.ops.base import Op
from lipcert.ops.scalar import constant
from lipcert.scope import Scope
from lipcert.upper import FloatArray, Upper

__all__ = ["ReduceMean", "ReduceSum"]


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


def _batched(axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(axis + 1 for axis in axes)
