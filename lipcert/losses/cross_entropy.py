"""Cross-entropy and focal loss: gradients that are multiples of softmax(z) − target.

What enters: facts about the class scores. What leaves: a norm bound, and the hull
scale · conv{e_j − t_y} in which the gradient lies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lipcert.errors import UsageError
from lipcert.facts import Bound, CotangentFacts, PairHull, ValueFacts, no_bound
from lipcert.interval import Interval
from lipcert.losses.base import (
    ClassAxis,
    Loss,
    LossRecord,
    class_axis,
    no_class_axis,
    require_nonnegative,
    require_positive,
)
from lipcert.losses.softmax_error import SoftmaxError, over_simplex, softmax_error
from lipcert.upper import INFINITE, ONE, FloatArray, Lower, Upper

_FOCAL_CELLS: Final = 2**18
_ULPS: Final = 8
_INVERSE_E: Final = 0.3678794411714424  # 1/e = 0.36787944117144232…, rounded up


@final
@dataclass(frozen=True, slots=True)
class CrossEntropy(Loss):
    """ℓ = −Σ_j t_j·log softmax(z/τ)_j with t = (1 − a)·e_y + (a/K)·1 (smoothing a)."""

    temperature: float = 1.0
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        require_positive("temperature", self.temperature)
        if not 0.0 <= self.label_smoothing < 1.0:
            raise UsageError(f"label-smoothing: {self.label_smoothing!r} is not in [0, 1)")

    @property
    def kind(self) -> str:
        """Name on the command line."""
        return "cross-entropy"

    def parameters(self) -> LossRecord:
        """Temperature and smoothing."""
        return {"temperature": self.temperature, "label_smoothing": self.label_smoothing}

    def cotangent(self, logits: ValueFacts) -> CotangentFacts:
        """Returns B with B ≥ sup ‖(softmax(z/τ) − t_y)/τ‖₂, and a hull that holds the gradient.

        Hypotheses: one vector of K ≥ 2 class scores; the label is one of the K classes.
        Proof: norm: `losses.softmax_error` with the logits z/τ. Hull: p is a convex combination
        of the e_j, so p − t_y ∈ conv{e_j − t_y}. Without smoothing, p − e_y =
        (1 − p_y)·Σ_{j≠y} p_j/(1 − p_y)·(e_j − e_y), and the hull of all e_j − e_y holds 0 (j = y),
        so every smaller multiple of a member is a member: the scale sup (1 − p_y) suffices.
        Attained: in the limit of large logits (√2/τ without smoothing), and on a logit ball.
        Reference: Béthune et al. 2024 for √2/τ.
        """
        rule = "loss.cross_entropy"
        axis = _classes(rule, logits)
        if isinstance(axis, Bound):
            return CotangentFacts(axis)
        slope = ONE.over(Lower(self.temperature))
        error = _error(axis.classes, logits, slope, self.label_smoothing)
        if error.norm < over_simplex(axis.classes, self.label_smoothing).norm:
            rule = "loss.cross_entropy.bounded_logits"
        miss = ONE if self.label_smoothing else error.miss
        hull = PairHull(axis.classes, miss * slope, self.label_smoothing)
        return CotangentFacts(Bound(error.norm * slope, rule), hull if axis.is_last else None)

    def gradients(self, logits: FloatArray) -> FloatArray:
        """(softmax(z/τ) − t_y)/τ for every label y."""
        scores = logits.reshape(len(logits), -1) / self.temperature
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        softmax = odds / odds.sum(axis=1, keepdims=True)
        classes = scores.shape[1]
        targets = (1.0 - self.label_smoothing) * np.eye(classes) + self.label_smoothing / classes
        errors: FloatArray = (softmax - targets[:, np.newaxis]) / self.temperature
        return errors.reshape(classes, *logits.shape)


@final
@dataclass(frozen=True, slots=True)
class Focal(Loss):
    """ℓ = −(1 − p_y)^γ · log p_y with p = softmax(z)."""

    focal_gamma: float = 2.0

    def __post_init__(self) -> None:
        require_nonnegative("focal-gamma", self.focal_gamma)

    @property
    def kind(self) -> str:
        """Name on the command line."""
        return "focal"

    def parameters(self) -> LossRecord:
        """The focusing exponent."""
        return {"focal_gamma": self.focal_gamma}

    def cotangent(self, logits: ValueFacts) -> CotangentFacts:
        """Returns B with B ≥ sup ‖∂ℓ/∂z‖₂, and a hull that holds the gradient.

        Hypotheses: one vector of K ≥ 2 class scores; the label is one of the K classes.
        Proof: the gradient is h(p_y)·(p − e_y), h(p) = (1−p)^γ − γp(1−p)^{γ−1}·log p ≥ 0, and
        p − e_y ∈ (1 − p_y)·conv{e_j − e_y}, whose members have norm ≤ √2. So the scale
        s = sup h(p)(1 − p), over the p_y that the logits admit, serves both.
        Attained: with two classes, or when one wrong class takes the rest of the mass.
        Reference: Lin et al. 2017 for the loss.
        """
        axis = _classes("loss.focal", logits)
        if isinstance(axis, Bound):
            return CotangentFacts(axis)
        error = _error(axis.classes, logits, ONE, 0.0)
        scale = focal_scale(self.focal_gamma, error.miss)
        norm = Bound(Upper(2.0).sqrt() * scale, "loss.focal")
        return CotangentFacts(norm, PairHull(axis.classes, scale) if axis.is_last else None)


def focal_scale(gamma: float, miss: Upper) -> Upper:
    """Returns s ≥ sup of (1−p)^{γ+1} + γ(1−p)^γ·(−p·log p) over 1 − miss ≤ p ≤ 1.

    Proof: on each cell [l, r] of a partition the powers are at most those at l, and the concave
    −p·log p at most 1/e where the cell may hold its maximum 1/e, otherwise the larger end value.
    """
    lowest = float((Interval.exact(np.asarray(1.0)) - _exact(miss.value)).clip(0.0, 0.5).lo)
    edges = np.linspace(lowest, 1.0, _FOCAL_CELLS + 1)
    left, right = edges[:-1], edges[1:]
    rest = Interval.exact(np.asarray(1.0)) - Interval.exact(left)
    rest = rest.clip(0.0, 1.0)
    entropy = np.maximum(_entropy(left), _entropy(right))
    entropy = np.where((left <= _INVERSE_E) & (right >= 0.367), _INVERSE_E, entropy)
    focus = _power(rest, gamma)
    value = focus * rest + _exact(gamma) * focus * Interval.exact(entropy)
    return Upper(float(np.max(value.hi)))


def _classes(rule: str, logits: ValueFacts) -> ClassAxis | Bound:
    """The class axis, or the reason why there is no softmax over classes."""
    axis = class_axis(logits.shape)
    if axis is None:
        return no_class_axis(rule, logits.shape)
    if axis.classes < 2:
        return no_bound(
            rule,
            "the network has a single output, and a softmax over one class is constant",
            "use --loss bce for a single logit",
        )
    return axis


def _error(classes: int, logits: ValueFacts, slope: Upper, smoothing: float) -> SoftmaxError:
    """The softmax error of the logits times `slope`."""
    radius = logits.norm.value
    lowest, highest = float(np.min(logits.box.lo)), float(np.max(logits.box.hi))
    spread = INFINITE
    if math.isfinite(lowest) and math.isfinite(highest):
        spread = Upper(float((_exact(highest) - _exact(lowest)).hi))
    return softmax_error(classes, radius * slope, spread * slope, smoothing)


def _power(base: Interval, exponent: float) -> Interval:
    return base.monotone(lambda array: np.power(array, exponent), _ULPS)


def _entropy(p: FloatArray) -> FloatArray:
    """Upper bound of −p·log p for 0 ≤ p ≤ 1, entry by entry."""
    positive = np.maximum(p, np.finfo(np.float64).tiny)
    return (-(Interval.exact(p) * Interval.exact(positive).monotone(np.log, _ULPS))).hi


def _exact(value: float) -> Interval:
    return Interval.exact(np.asarray(value))
