"""The entrywise maximum or minimum of several values.

What enters: facts about the values. What leaves: norm and box of the result, and one Jacobian
norm per value, for any choice among equal entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import final

import numpy as np

from lipcert.facts import Bound, Shape, ValueFacts, sum_of
from lipcert.interval import Interval
from lipcert.ops.base import Op
from lipcert.ops.broadcasting import aligned, broadcast_shape, repetition_root
from lipcert.scope import Scope
from lipcert.upper import FloatArray, root_sum_square


@final
@dataclass(frozen=True, slots=True)
class Extremum(Op):
    """y = max(x_1, …, x_n) or the minimum, entry by entry, with broadcasting."""

    largest: bool

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "Max" if self.largest else "Min"

    @property
    def family(self) -> str:
        """Rule family."""
        return "extremum"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """The broadcast shape."""
        return broadcast_shape(inputs)

    def output_facts(self, inputs: Sequence[ValueFacts], scope: Scope) -> ValueFacts:
        """Returns B ≥ sup ‖y‖ = √Σ m_i·X_i², m_i copies of x_i, and the extremum of the boxes.

        Proof: y² ≤ Σ x_i² at every entry, and the entries of x_i occur m_i times each.
        Attained: for two values, when each is 0 where the other is chosen.
        """
        del scope
        shape = self.output_shape([x.shape for x in inputs])
        rule = "extremum.output_norm"
        stretched = [x.norm.value * repetition_root(x.shape, shape) for x in inputs]
        joint = root_sum_square(stretched)
        norm = Bound(joint, rule) if joint.is_finite else sum_of(rule, *(x.norm for x in inputs))
        boxes = [x.box.broadcast(x.shape) for x in inputs]
        box = Interval(self._chosen([b.lo for b in boxes]), self._chosen([b.hi for b in boxes]))
        return ValueFacts.of(shape, norm, box)

    def input_lipschitz(self, index: int, inputs: Sequence[ValueFacts], scope: Scope) -> Bound:
        """Returns √m for a value whose entries are repeated m times.

        Proof: a generalised Jacobian multiplies the repeated value by weights in [0, 1].
        Attained: where this value is chosen everywhere.
        """
        del scope
        shape = self.output_shape([x.shape for x in inputs])
        return Bound(repetition_root(inputs[index].shape, shape), "extremum.input_lipschitz")

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Exact."""
        rank = max(x.ndim for x in inputs) - 1
        return self._chosen([aligned(x, rank) for x in inputs])

    def _chosen(self, arrays: Sequence[FloatArray]) -> FloatArray:
        return reduce(np.maximum if self.largest else np.minimum, arrays)
