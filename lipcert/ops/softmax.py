"""Softmax and its logarithm along one axis.

What enters: facts about the logits. What leaves: boxes of the probabilities from the spread of
the logits, and Jacobian norms that shrink when no class can dominate. Invariant: `_Spread` bounds
differences of logits within one slice; everything else follows from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np

from lipcert.facts import (
    Bound,
    CotangentFacts,
    PairHull,
    Shape,
    ValueFacts,
    product_of,
    sum_of,
    tightest,
)
from lipcert.interval import Interval
from lipcert.ops.base import Op
from lipcert.ops.broadcasting import root_of
from lipcert.ops.scalar import constant, exponential
from lipcert.scope import Scope
from lipcert.upper import ZERO, FloatArray, Upper


class _OverAxis(Op):
    """An op that treats every slice along one axis alike."""

    __slots__ = ()
    axis: int

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """That of the input."""
        (shape,) = inputs
        self._position(len(shape))
        return shape

    def _position(self, rank: int) -> int:
        if not -rank <= self.axis < rank:
            raise ValueError(f"axis {self.axis} does not fit a value with {rank} axes")
        return self.axis % rank

    def _spread(self, logits: ValueFacts) -> _Spread:
        return _Spread.of(logits, self._position(len(logits.shape)))


@final
@dataclass(frozen=True, slots=True)
class Softmax(_OverAxis):
    """p = e^z / Σ e^z along the axis."""

    axis: int = -1

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "Softmax"

    @property
    def family(self) -> str:
        """Rule family."""
        return "softmax"

    def output_facts(self, inputs: Sequence[ValueFacts], scope: Scope) -> ValueFacts:
        """Returns B ≥ sup ‖p‖ = √(slices·max p), and the range of a probability.

        Proof: ‖p‖² = Σ p_i² ≤ max p · Σ p_i = max p per slice, slices add in squares.
        Attained: approached by unbounded logits; by equal ones at X = 0.
        """
        del scope
        (logits,) = inputs
        spread = self._spread(logits)
        share = spread.share
        largest = Upper(float(share.hi))
        norm = Bound(root_of(spread.slices) * largest.sqrt(), "softmax.output_norm")
        return ValueFacts.of(logits.shape, norm, share)

    def input_lipschitz(self, index: int, inputs: Sequence[ValueFacts], scope: Scope) -> Bound:
        """Returns min(½, max p) ≥ sup ‖diag(p) − ppᵀ‖; 0 for a single class.

        Proof: Gershgorin: row i of diag(p) − ppᵀ has p_i(1 − p_i) on the diagonal and the same
        sum of magnitudes off it, 2p_i(1 − p_i) ≤ ½ together. Also diag(p) − ppᵀ ≤ diag(p).
        Attained: by two classes at equal logits; approached by more when the others vanish.
        """
        del index, scope
        (logits,) = inputs
        spread = self._spread(logits)
        if spread.classes == 1:
            return Bound(ZERO, "softmax.input_lipschitz.single_class")
        half = Bound(Upper(0.5), "softmax.input_lipschitz")
        largest = Upper(float(spread.share.hi))
        return tightest(half, Bound(largest, "softmax.input_lipschitz.spread"))

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """The probabilities."""
        (x,) = inputs
        axis = self._position(x.ndim - 1) + 1
        powers = np.exp(x - np.max(x, axis=axis, keepdims=True))
        result: FloatArray = powers / np.sum(powers, axis=axis, keepdims=True)
        return result


@final
@dataclass(frozen=True, slots=True)
class LogSoftmax(_OverAxis):
    """z − ln Σ e^z along the axis."""

    axis: int = -1

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "LogSoftmax"

    @property
    def family(self) -> str:
        """Rule family."""
        return "log_softmax"

    def output_facts(self, inputs: Sequence[ValueFacts], scope: Scope) -> ValueFacts:
        """Returns B ≥ sup ‖ln p‖ = √N·ln n + L·X, and the range of ln p.

        Proof: all N entries are −ln n at z = 0, and the map has Lipschitz constant L. The box is
        the logarithm of the range of a probability.
        Attained: at X = 0.
        """
        (logits,) = inputs
        spread = self._spread(logits)
        rule = "log_softmax.output_norm"
        at_zero = Bound(root_of(logits.size) * _logarithm(spread.classes), rule)
        growth = product_of(rule, self.input_lipschitz(0, inputs, scope), logits.norm)
        return ValueFacts.of(logits.shape, sum_of(rule, at_zero, growth), spread.log_share)

    def input_lipschitz(self, index: int, inputs: Sequence[ValueFacts], scope: Scope) -> Bound:
        """Returns √(n·max p) ≥ sup ‖I − 1pᵀ‖ for n classes; 0 for one.

        Proof: 1pᵀ is a projection (pᵀ1 = 1) that is neither 0 nor I when n ≥ 2, and then
        ‖I − Q‖ = ‖Q‖ = ‖1‖·‖p‖ = √n·‖p‖, with ‖p‖² ≤ max p as in softmax.
        Attained: approached by unbounded logits (√n); by equal logits at X = 0 (1).
        Reference: Szyld 2006, The many proofs of an identity on the norm of oblique projections.
        """
        del index, scope
        (logits,) = inputs
        spread = self._spread(logits)
        if spread.classes == 1:
            return Bound(ZERO, "log_softmax.input_lipschitz.single_class")
        largest = Upper(float(spread.share.hi))
        norm = (Upper(float(spread.classes)) * largest).sqrt()
        return Bound(norm, "log_softmax.input_lipschitz")

    def input_cotangent(
        self,
        index: int,
        cotangent: CotangentFacts,
        inputs: Sequence[ValueFacts],
        scope: Scope,
    ) -> CotangentFacts:
        """Returns the cotangent unchanged, hull and norm, where its entries sum to 0.

        Behind −t·e_y, t ≤ T: B = T·√(m(m + M)) ≥ sup t·‖p − e_y‖ with m = sup (1 − p_y) and
        M = max p, and the hull T·m·conv{e_j − e_y}.
        Proof: Jᵀg = (I − p1ᵀ)g = g − p·(1ᵀg). Every member of a hull of pairs sums to 0. −t·e_y
        gives t·(p − e_y) = t·Σ_{j≠y} p_j(e_j − e_y), which is t(1 − p_y) times a member of a hull
        that holds 0; and ‖p − e_y‖² = (1 − p_y)² + Σ_{j≠y} p_j² ≤ (1 − p_y)² + (1 − p_y)·max p.
        Hypotheses: one slice, which the hull's classes fill.
        Attained: approached by unbounded logits (√2·T); by equal ones at X = 0.
        """
        (logits,) = inputs
        hull, spread = cotangent.hull, self._spread(logits)
        if hull is not None and hull.classes == spread.classes == logits.size:
            return cotangent
        if cotangent.label is not None and spread.classes == logits.size:
            is_last = self._position(len(logits.shape)) == len(logits.shape) - 1
            hull = PairHull(spread.classes, cotangent.label * spread.miss) if is_last else None
            return CotangentFacts(_behind_label(cotangent.label, spread), hull)
        return cotangent.through(self.input_lipschitz(index, inputs, scope))

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """The logarithms of the probabilities."""
        (x,) = inputs
        axis = self._position(x.ndim - 1) + 1
        below = x - np.max(x, axis=axis, keepdims=True)
        result: FloatArray = below - np.log(np.sum(np.exp(below), axis=axis, keepdims=True))
        return result


@final
@dataclass(frozen=True, slots=True)
class _Spread:
    """How far logits of one slice can be apart.

    pair: bound of z_i − z_j; above_mean: bound of z_i − mean of the other logits.
    """

    classes: int
    slices: int
    pair: Upper
    above_mean: Upper

    @classmethod
    def of(cls, logits: ValueFacts, axis: int) -> _Spread:
        """From the box (largest hi − least lo) and from the norm X.

        Proof: by Cauchy–Schwarz |z_i − z_j| ≤ √2·X, and z_i − mean_{j≠i} z_j ≤ √(n/(n − 1))·X.
        """
        classes = logits.shape[axis]
        slices = logits.size // max(classes, 1)
        if classes <= 1:
            return cls(classes, slices, ZERO, ZERO)
        box = logits.box.broadcast(logits.shape)
        with np.errstate(invalid="ignore"):
            ends = Interval(np.min(box.lo, axis=axis), np.max(box.hi, axis=axis))
        by_box = (Interval.exact(ends.hi) - Interval.exact(ends.lo)).max_abs()
        ball = logits.norm.value
        root = Upper.of_fraction(Fraction(classes, classes - 1)).sqrt()
        pair = min(by_box, Upper(2.0).sqrt() * ball)
        return cls(classes, slices, pair, min(pair, root * ball))

    @property
    def share(self) -> Interval:
        """Range of a probability: 1/p_i = 1 + Σ_{j≠i} e^{z_j − z_i}.

        Proof of the upper end: Jensen, Σ_{j≠i} e^{z_j − z_i} ≥ (n − 1)·e^{mean_j z_j − z_i}. The
        lower end bounds each summand.
        """
        least = exponential(constant(-self.above_mean.value))
        most = exponential(constant(self.pair.value))
        terms = constant(float(self.classes - 1)) * Interval(least.lo, most.hi)
        return (constant(1.0) + terms).reciprocal().clip(0.0, 1.0)

    @property
    def miss(self) -> Upper:
        """Bound of 1 − p_i: 0 for one class."""
        if self.classes <= 1:
            return ZERO
        return (constant(1.0) - Interval.exact(self.share.lo)).clip(0.0, 1.0).max_abs()

    @property
    def log_share(self) -> Interval:
        """Range of ln p_i, in a form that survives probabilities below the least float."""
        least = constant(-self.pair.value) - constant(_logarithm(self.classes).value)
        top = Interval.exact(self.share.hi).monotone(np.log).clip(-math.inf, 0.0)
        return Interval(np.minimum(least.lo, top.hi), top.hi)


def _behind_label(label: Upper, spread: _Spread) -> Bound:
    """T·√(m(m + M)), as `LogSoftmax.input_cotangent` says."""
    miss, largest = spread.miss, Upper(float(spread.share.hi))
    return Bound(label * (miss * (miss + largest)).sqrt(), "log_softmax.input_cotangent")


def _logarithm(classes: int) -> Upper:
    """ln n, rounded up."""
    if classes <= 1:
        return ZERO
    return constant(float(classes)).monotone(np.log).max_abs()
