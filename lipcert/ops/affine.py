"""Elementwise maps by a constant or trained tensor: x·s, x/d and x + b, broadcast into x.

What enters: facts about x, and a scope that bounds the operand. What leaves: norm and box of the
result and the Jacobian norms in x and in the operand. A positive constant factor (a temperature)
and a shift keep the hull of a logit gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    no_bound,
    product_of,
    sum_of,
)
from lipcert.interval import Interval
from lipcert.links import IDENTITY, Link, Slopes
from lipcert.operand import Operand
from lipcert.ops.base import Op
from lipcert.ops.broadcasting import broadcast_shape, repetition_root, root_of, slice_norm
from lipcert.scope import Scope
from lipcert.upper import ONE, FloatArray, Lower, Upper


@final
@dataclass(frozen=True, slots=True, eq=False)
class Scale(Op):
    """y = x · scale, the operand broadcast into the shape of x."""

    scale: Operand

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "Mul"

    @property
    def family(self) -> str:
        """Rule family."""
        return "scale"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """The shape of x."""
        return _unchanged(inputs, self.scale)

    def operands(self) -> Mapping[str, Operand]:
        """The factors."""
        return {"scale": self.scale}

    def operator_norm(self, scope: Scope) -> Bound:
        """Norm of a diagonal map: its largest entry in magnitude."""
        return scope.max_abs(self.scale)

    def output_facts(self, inputs: Sequence[ValueFacts], scope: Scope) -> ValueFacts:
        """Returns B ≥ sup ‖s·x‖ = max|s|·X, and the product of the boxes.

        Attained: when X may sit on the entry with the largest factor.
        """
        (x,) = inputs
        norm = product_of("scale.output_norm", self.operator_norm(scope), x.norm)
        runs = x.runs
        if runs is not None:
            runs = Runs(runs.axis, runs.norm * self.operator_norm(scope).value)
        return ValueFacts.of(x.shape, norm, x.box * scope.entries(self.scale), runs)

    def input_lipschitz(self, index: int, inputs: Sequence[ValueFacts], scope: Scope) -> Bound:
        """Returns B ≥ max|s|, the norm of the diagonal Jacobian. Attained: always."""
        del index, inputs
        return product_of("scale.input_lipschitz", self.operator_norm(scope))

    def link(self, inputs: Sequence[ValueFacts], scope: Scope) -> Link | None:
        """The factors."""
        del inputs
        return Slopes(scope.entries(self.scale))

    def param_lipschitz(self, inputs: Sequence[ValueFacts], scope: Scope) -> Mapping[str, Bound]:
        """Returns B ≥ the largest norm of the slice of x that one factor multiplies.

        Proof: the columns of the Jacobian are these slices, with disjoint supports.
        Attained: when all of X lies in one slice.
        """
        del scope
        (x,) = inputs
        largest = slice_norm(x, self.scale.shape, x.shape)
        return {"scale": product_of("scale.param_lipschitz", largest)}

    def input_cotangent(
        self,
        index: int,
        cotangent: CotangentFacts,
        inputs: Sequence[ValueFacts],
        scope: Scope,
    ) -> CotangentFacts:
        """The chain rule; a hull is kept when every factor is the same positive number."""
        chained = cotangent.through(self.input_lipschitz(index, inputs, scope))
        entries = scope.entries(self.scale)
        if np.min(entries.lo, initial=np.inf) != np.max(entries.hi, initial=-np.inf):
            return chained
        return CotangentFacts(chained.norm, _stretched(cotangent.hull, entries))

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Plain float64."""
        (x,) = inputs
        result: FloatArray = x * self.scale.array
        return result


@final
@dataclass(frozen=True, slots=True, eq=False)
class Divide(Op):
    """y = x / divisor, the operand broadcast into the shape of x."""

    divisor: Operand

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "Div"

    @property
    def family(self) -> str:
        """Rule family."""
        return "divide"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """The shape of x."""
        return _unchanged(inputs, self.divisor)

    def operands(self) -> Mapping[str, Operand]:
        """The divisors."""
        return {"divisor": self.divisor}

    def operator_norm(self, scope: Scope) -> Bound:
        """Returns B ≥ 1/min|d|, the norm of a diagonal map; none where a divisor may be 0."""
        entries = scope.entries(self.divisor)
        mignitude = np.maximum(np.maximum(entries.lo, -entries.hi), 0.0)
        value = ONE.over(Lower(float(np.min(mignitude, initial=np.inf))))
        if value.is_finite:
            return Bound(value, "divide.operator_norm")
        return no_bound(
            "divide.operator_norm",
            "a divisor is 0 or may come arbitrarily close to 0 within the weights in scope",
            "freeze the divisor, or multiply by a trained scale instead of dividing by one",
        )

    def output_facts(self, inputs: Sequence[ValueFacts], scope: Scope) -> ValueFacts:
        """Returns B ≥ sup ‖x/d‖ = X/min|d|, and the quotient of the boxes.

        Attained: when X may sit on the entry with the smallest divisor.
        """
        (x,) = inputs
        norm = product_of("divide.output_norm", self.operator_norm(scope), x.norm)
        return ValueFacts.of(x.shape, norm, x.box * scope.entries(self.divisor).reciprocal())

    def input_lipschitz(self, index: int, inputs: Sequence[ValueFacts], scope: Scope) -> Bound:
        """Returns B ≥ 1/min|d|, the norm of the diagonal Jacobian. Attained: always."""
        del index, inputs
        return product_of("divide.input_lipschitz", self.operator_norm(scope))

    def link(self, inputs: Sequence[ValueFacts], scope: Scope) -> Link | None:
        """The reciprocals."""
        del inputs
        return Slopes(scope.entries(self.divisor).reciprocal())

    def param_lipschitz(self, inputs: Sequence[ValueFacts], scope: Scope) -> Mapping[str, Bound]:
        """Returns B ≥ (largest norm of the slice of x over one divisor) / min|d|².

        Proof: ∂y/∂d_j = −x/d_j² on the slice of d_j; the slices are disjoint.
        Attained: when all of X lies in the slice of the smallest divisor.
        """
        (x,) = inputs
        largest = slice_norm(x, self.divisor.shape, x.shape)
        inverse = self.operator_norm(scope)
        return {"divisor": product_of("divide.param_lipschitz", largest, inverse, inverse)}

    def input_cotangent(
        self,
        index: int,
        cotangent: CotangentFacts,
        inputs: Sequence[ValueFacts],
        scope: Scope,
    ) -> CotangentFacts:
        """The chain rule; a hull is kept when every divisor is the same positive number."""
        chained = cotangent.through(self.input_lipschitz(index, inputs, scope))
        entries = scope.entries(self.divisor)
        if np.min(entries.lo, initial=np.inf) != np.max(entries.hi, initial=-np.inf):
            return chained
        return CotangentFacts(chained.norm, _stretched(cotangent.hull, entries.reciprocal()))

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Plain float64."""
        (x,) = inputs
        result: FloatArray = x / self.divisor.array
        return result


@final
@dataclass(frozen=True, slots=True, eq=False)
class Shift(Op):
    """y = x + bias, the operand broadcast into the shape of x."""

    bias: Operand

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "Add"

    @property
    def family(self) -> str:
        """Rule family."""
        return "shift"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """The shape of x."""
        return _unchanged(inputs, self.bias)

    def operands(self) -> Mapping[str, Operand]:
        """The terms added."""
        return {"bias": self.bias}

    def output_facts(self, inputs: Sequence[ValueFacts], scope: Scope) -> ValueFacts:
        """Returns B ≥ sup ‖x + b‖ = X + √m‖b‖ for a bias repeated m times, and the sum of boxes.

        Attained: by x parallel to the expanded bias.
        """
        (x,) = inputs
        expanded = scope.norm(self.bias).scaled(repetition_root(self.bias.shape, x.shape))
        norm = sum_of("shift.output_norm", x.norm, expanded)
        runs = x.runs
        if runs is not None:
            length = (1,) * (len(x.shape) - len(self.bias.shape)) + self.bias.shape
            copies = x.shape[runs.axis] // max(length[runs.axis], 1)
            added = scope.norm(self.bias).value * root_of(copies)
            runs = Runs(runs.axis, runs.norm + added)
        return ValueFacts.of(x.shape, norm, x.box + scope.entries(self.bias), runs)

    def input_lipschitz(self, index: int, inputs: Sequence[ValueFacts], scope: Scope) -> Bound:
        """Returns 1: the Jacobian is the identity."""
        del index, inputs, scope
        return Bound(ONE, "shift.input_lipschitz")

    def link(self, inputs: Sequence[ValueFacts], scope: Scope) -> Link | None:
        """The identity."""
        del inputs, scope
        return IDENTITY

    def param_lipschitz(self, inputs: Sequence[ValueFacts], scope: Scope) -> Mapping[str, Bound]:
        """Returns √m for a bias of which every entry is added at m places.

        Proof: the Jacobian's columns are indicators of m entries each, with disjoint supports.
        Attained: always; a channel bias over H×W positions has √(HW).
        """
        del scope
        (x,) = inputs
        return {"bias": Bound(repetition_root(self.bias.shape, x.shape), "shift.param_lipschitz")}

    def input_cotangent(
        self,
        index: int,
        cotangent: CotangentFacts,
        inputs: Sequence[ValueFacts],
        scope: Scope,
    ) -> CotangentFacts:
        """The cotangent itself, hull included."""
        del index, inputs, scope
        return cotangent

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Plain float64."""
        (x,) = inputs
        result: FloatArray = x + self.bias.array
        return result


def _unchanged(inputs: Sequence[Shape], operand: Operand) -> Shape:
    (shape,) = inputs
    if broadcast_shape([shape, operand.shape]) != shape:
        raise ValueError(f"an operand of shape {operand.shape} does not broadcast into {shape}")
    return shape


def _stretched(hull: PairHull | None, factor: Interval) -> PairHull | None:
    """The hull times a positive factor; none for other factors."""
    if hull is None or not np.all(factor.lo > 0.0):
        return None
    return PairHull(hull.classes, hull.scale * Upper(float(np.max(factor.hi))), hull.smoothing)
