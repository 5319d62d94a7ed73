"""Sorting along an axis (TopK of the whole axis).

What enters: facts about x. What leaves: the same norm, a box of order statistics, Jacobian norm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from lipcert.facts import Bound, Shape, ValueFacts, product_of
from lipcert.ops.base import Op
from lipcert.scope import Scope
from lipcert.upper import ONE, FloatArray


@final
@dataclass(frozen=True, slots=True)
class Sort(Op):
    """All entries along one axis of the example, in ascending or descending order."""

    axis: int
    descending: bool = False

    def __post_init__(self) -> None:
        if self.axis < 0:
            raise ValueError("the axis of a sort is counted from the front")

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "TopK"

    @property
    def family(self) -> str:
        """Rule family."""
        return "sort"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """The shape of x."""
        (shape,) = inputs
        if self.axis >= len(shape):
            raise ValueError(f"axis {self.axis} does not exist in shape {shape}")
        return shape

    def output_facts(self, inputs: Sequence[ValueFacts], scope: Scope) -> ValueFacts:
        """Returns X itself: sorting permutes the entries. The ends of the box are sorted too.

        Proof of the box: every order statistic is non-decreasing in every entry.
        Attained: always.
        """
        del scope
        (x,) = inputs
        box = x.box.broadcast(x.shape).map(lambda end: self._sorted(end, self.axis))
        return ValueFacts.of(x.shape, product_of("sort.output_norm", x.norm), box)

    def input_lipschitz(self, index: int, inputs: Sequence[ValueFacts], scope: Scope) -> Bound:
        """Returns 1.

        Proof: where the order is strict, the Jacobian is a permutation matrix; the generalised
        Jacobians are convex combinations of these. Attained: always.
        """
        del index, inputs, scope
        return Bound(ONE, "sort.input_lipschitz")

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Exact."""
        (x,) = inputs
        return self._sorted(x, self.axis + 1)

    def _sorted(self, array: FloatArray, axis: int) -> FloatArray:
        ascending = np.sort(array, axis=axis)
        return np.flip(ascending, axis=axis) if self.descending else ascending
