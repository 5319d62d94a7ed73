"""Linear combinations and concatenations of several values.

What enters: facts about the values. What leaves: norm and box of the result, and one Jacobian
norm per value. A value that is passed twice is counted twice, because its cotangents add.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from lipcert.facts import (
    Bound,
    CotangentFacts,
    PairHull,
    Runs,
    Shape,
    ValueFacts,
    product_of,
    sum_of,
)
from lipcert.interval import Interval
from lipcert.ops.base import Op
from lipcert.ops.broadcasting import aligned, broadcast_shape, repetition_root
from lipcert.scope import Scope
from lipcert.upper import ONE, FloatArray, Upper, root_sum_square, total


@final
@dataclass(frozen=True, slots=True)
class Add(Op):
    """y = Σ coefficient_i · x_i with broadcasting (Add, Sub, Sum and Mean of ONNX)."""

    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.coefficients or not all(map(math.isfinite, self.coefficients)):
            raise ValueError(f"coefficients must be finite and at least one: {self.coefficients}")

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "Add"

    @property
    def family(self) -> str:
        """Rule family."""
        return "add"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """The broadcast shape."""
        if len(inputs) != len(self.coefficients):
            raise ValueError(f"{len(inputs)} values for {len(self.coefficients)} coefficients")
        return broadcast_shape(inputs)

    def output_facts(self, inputs: Sequence[ValueFacts], scope: Scope) -> ValueFacts:
        """Returns B ≥ sup ‖Σ c_i x_i‖ = Σ |c_i|√m_i X_i, and the sum of the boxes.

        Proof: triangle inequality; broadcasting repeats every entry of x_i exactly m_i times.
        Attained: by parallel values.
        """
        shape = self.output_shape([x.shape for x in inputs])
        stretches = [self.input_lipschitz(i, inputs, scope) for i in range(len(inputs))]
        terms = [
            product_of("add.output_norm", stretch, x.norm)
            for stretch, x in zip(stretches, inputs, strict=True)
        ]
        boxes = [_times(c, x.box) for c, x in zip(self.coefficients, inputs, strict=True)]
        box = boxes[0]
        for other in boxes[1:]:
            box = box + other
        runs = _summed_runs(self.coefficients, inputs)
        return ValueFacts.of(shape, sum_of("add.output_norm", *terms), box, runs)

    def input_lipschitz(self, index: int, inputs: Sequence[ValueFacts], scope: Scope) -> Bound:
        """Returns |c_i|·√m_i, the norm of the (constant) Jacobian. Attained: always."""
        del scope
        shape = self.output_shape([x.shape for x in inputs])
        repeated = Bound(repetition_root(inputs[index].shape, shape), "add.input_lipschitz")
        return repeated.scaled(Upper(abs(self.coefficients[index])))

    def input_cotangent(
        self,
        index: int,
        cotangent: CotangentFacts,
        inputs: Sequence[ValueFacts],
        scope: Scope,
    ) -> CotangentFacts:
        """The chain rule; a value of full shape with a positive coefficient keeps the hull."""
        chained = cotangent.through(self.input_lipschitz(index, inputs, scope))
        hull, coefficient = cotangent.hull, self.coefficients[index]
        whole = inputs[index].shape == self.output_shape([x.shape for x in inputs])
        if hull is None or coefficient <= 0.0 or not whole:
            return chained
        scaled = PairHull(hull.classes, hull.scale * Upper(coefficient), hull.smoothing)
        return CotangentFacts(chained.norm, scaled)

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Plain float64."""
        rank = max(x.ndim for x in inputs) - 1
        terms = [c * aligned(x, rank) for c, x in zip(self.coefficients, inputs, strict=True)]
        result = terms[0]
        for term in terms[1:]:
            result = result + term
        return result


@final
@dataclass(frozen=True, slots=True)
class Concat(Op):
    """The values one after the other along an axis of the example."""

    axis: int

    def __post_init__(self) -> None:
        if self.axis < 0:
            raise ValueError("the axis of a concatenation is counted from the front")

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "Concat"

    @property
    def family(self) -> str:
        """Rule family."""
        return "concat"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """Lengths along the axis add; the others agree."""
        rest = {(*shape[: self.axis], *shape[self.axis + 1 :]) for shape in inputs}
        ranks = {len(shape) for shape in inputs}
        if len(rest) != 1 or len(ranks) != 1 or self.axis >= min(ranks):
            raise ValueError(f"shapes {list(inputs)} do not concatenate along axis {self.axis}")
        length = sum(shape[self.axis] for shape in inputs)
        return (*inputs[0][: self.axis], length, *inputs[0][self.axis + 1 :])

    def output_facts(self, inputs: Sequence[ValueFacts], scope: Scope) -> ValueFacts:
        """Returns B ≥ sup ‖(x_1, …, x_n)‖ = √Σ X_i², and the boxes one after the other.

        Attained: when the values reach their norms together.
        """
        del scope
        shape = self.output_shape([x.shape for x in inputs])
        joint = root_sum_square(x.norm.value for x in inputs)
        rule = "concat.output_norm"
        norm = Bound(joint, rule) if joint.is_finite else sum_of(rule, *(x.norm for x in inputs))
        boxes = [x.box.broadcast(x.shape) for x in inputs]
        box = Interval(
            np.concatenate([box.lo for box in boxes], axis=self.axis),
            np.concatenate([box.hi for box in boxes], axis=self.axis),
        )
        return ValueFacts.of(shape, norm, box)

    def input_lipschitz(self, index: int, inputs: Sequence[ValueFacts], scope: Scope) -> Bound:
        """Returns 1: the Jacobian embeds the value. Attained: always."""
        del index, inputs, scope
        return Bound(ONE, "concat.input_lipschitz")

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Exact."""
        return np.concatenate(inputs, axis=self.axis + 1)


def _summed_runs(coefficients: Sequence[float], inputs: Sequence[ValueFacts]) -> Runs | None:
    """Runs of a sum of values of one shape: triangle inequality."""
    axes = {x.runs.axis for x in inputs if x.runs is not None}
    if len(axes) != 1 or len({x.shape for x in inputs}) != 1:
        return None
    (axis,) = axes
    terms = [Upper(abs(c)) * x.run_norm(axis) for c, x in zip(coefficients, inputs, strict=True)]
    return Runs(axis, total(terms))


def _times(coefficient: float, box: Interval) -> Interval:
    """coefficient · box; exact for ±1."""
    if coefficient == 1.0:
        return box
    return -box if coefficient == -1.0 else box * Interval.exact(np.array(coefficient))
