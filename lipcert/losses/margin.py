"""Hinge and Kantorovich–Rubinstein losses: gradients that take finitely many values.

What enters: facts about K class scores (or one score s·z, s = ±1, for two classes). What leaves:
a norm bound that no admissible scores exceed, and a hull where the entries sum to 0.

The published variants that weight an example by the class counts of its *batch* are not
per-example losses: the loss of one example then depends on the others. The factory refuses them;
here the counts are the constants of balanced classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import final

from lipcert.facts import Bound, CotangentFacts, PairHull, ValueFacts
from lipcert.losses.base import (
    ClassAxis,
    Loss,
    LossRecord,
    OutputReduction,
    class_axis,
    no_class_axis,
    require_nonnegative,
)
from lipcert.upper import ONE, Upper


@final
@dataclass(frozen=True, slots=True)
class MulticlassHinge(Loss):
    """One hinge per class: h_j = max(0, margin/2 − s_j·z_j), s_y = 1 and s_j = −1 otherwise.

    sum: ℓ = Σ_j h_j. mean: ℓ = ((K − 1)·h_y + Σ_{j≠y} h_j)/K, the mean that gives the label the
    weight of all other classes together, as Lipschitz libraries define it; the plain mean is
    covered too, being smaller. One output: ℓ = max(0, margin/2 − s·z) for a label s = ±1.
    """

    margin: float = 1.0
    reduction: OutputReduction = OutputReduction.MEAN

    def __post_init__(self) -> None:
        require_nonnegative("margin", self.margin)

    @property
    def kind(self) -> str:
        """Name on the command line."""
        return "multiclass-hinge"

    def parameters(self) -> LossRecord:
        """Margin and reduction over the classes."""
        return {"margin": self.margin, "output_reduction": self.reduction.value}

    def cotangent(self, logits: ValueFacts) -> CotangentFacts:
        """Returns B with B ≥ sup ‖∂ℓ/∂z‖₂: √K summed, √((K − 1)/K) for the mean, 1 for K = 1.

        Hypotheses: one vector of class scores.
        Proof: |∂h_j/∂z_j| ≤ 1, so the norm is at most that of the weights: K ones, or K − 1 at
        the label and K − 1 ones elsewhere, over K: √((K − 1)² + (K − 1))/K. A plain mean has K
        ones over K, which is no more for K ≥ 2.
        Attained: when every margin is violated.
        """
        rule = "loss.multiclass_hinge"
        axis = class_axis(logits.shape)
        if axis is None:
            return CotangentFacts(no_class_axis(rule, logits.shape))
        if self.reduction is OutputReduction.SUM:
            return CotangentFacts(Bound(Upper(float(axis.classes)).sqrt(), rule))
        return CotangentFacts(Bound(_balanced_hinge(axis), rule))


@final
@dataclass(frozen=True, slots=True)
class MultiMargin(Loss):
    """ℓ = Σ_{j≠y} max(0, margin − z_y + z_j); the mean divides by K, as torch does (p = 1)."""

    margin: float = 1.0
    reduction: OutputReduction = OutputReduction.MEAN

    def __post_init__(self) -> None:
        require_nonnegative("margin", self.margin)

    @property
    def kind(self) -> str:
        """Name on the command line."""
        return "multi-margin"

    def parameters(self) -> LossRecord:
        """Margin and reduction over the classes."""
        return {"margin": self.margin, "output_reduction": self.reduction.value}

    def cotangent(self, logits: ValueFacts) -> CotangentFacts:
        """Returns B with B ≥ sup ‖∂ℓ/∂z‖₂ = √(K(K − 1)) (√((K − 1)/K) for the mean), and a hull.

        Hypotheses: one vector of class scores; no class weights.
        Proof: the gradient is Σ_{j≠y} w_j·(e_j − e_y) with w_j in [0, 1]: its square norm
        Σw_j² + (Σw_j)² is at most (K − 1) + (K − 1)², and it lies in (K − 1)·conv{e_j − e_y}.
        Attained: when every margin is violated.
        """
        rule = "loss.multi_margin"
        axis = class_axis(logits.shape)
        if axis is None:
            return CotangentFacts(no_class_axis(rule, logits.shape))
        classes = axis.classes
        summed = Upper(float(classes * (classes - 1))).sqrt()
        norm = Bound(self.reduction.applied(summed, classes), rule)
        scale = self.reduction.applied(Upper(float(classes - 1)), classes)
        return CotangentFacts(norm, PairHull(classes, scale) if axis.is_last else None)


@final
@dataclass(frozen=True, slots=True)
class KantorovichRubinstein(Loss):
    """ℓ = mean_{j≠y} z_j − z_y; one output: ℓ = −s·z for a label s in [−1, 1].

    This is the batch loss of the literature when the class counts are replaced by the constants
    of balanced classes.
    """

    @property
    def kind(self) -> str:
        """Name on the command line."""
        return "kr"

    def parameters(self) -> LossRecord:
        """None."""
        return {}

    def cotangent(self, logits: ValueFacts) -> CotangentFacts:
        """Returns B = ‖∂ℓ/∂z‖₂ = √(K/(K − 1)), 1 for one output, and a hull.

        Hypotheses: one vector of class scores.
        Proof: the gradient is the constant mean_{j≠y} (e_j − e_y): 1 + (K − 1)/(K − 1)².
        Attained: always.
        """
        rule = "loss.kr"
        axis = class_axis(logits.shape)
        if axis is None:
            return CotangentFacts(no_class_axis(rule, logits.shape))
        hull = PairHull(axis.classes, ONE) if axis.is_last and axis.classes > 1 else None
        return CotangentFacts(Bound(_balanced_kr(axis), rule), hull)


@final
@dataclass(frozen=True, slots=True)
class HingeKantorovichRubinstein(Loss):
    """ℓ = KR + hkr_weight · hinge, with the `kr` loss and the mean `multiclass-hinge` loss."""

    hkr_weight: float = 1.0
    margin: float = 1.0

    def __post_init__(self) -> None:
        require_nonnegative("hkr-weight", self.hkr_weight)
        require_nonnegative("margin", self.margin)

    @property
    def kind(self) -> str:
        """Name on the command line."""
        return "hkr"

    def parameters(self) -> LossRecord:
        """Weight and margin of the hinge."""
        return {"hkr_weight": self.hkr_weight, "margin": self.margin}

    def cotangent(self, logits: ValueFacts) -> CotangentFacts:
        """Returns B with B ≥ sup ‖∂ℓ/∂z‖₂ = √(K/(K − 1)) + hkr_weight·√((K − 1)/K).

        Hypotheses: one vector of class scores.
        Proof: the triangle inequality (1 + hkr_weight for one output).
        Attained: when every margin is violated; both gradients then point the same way.
        """
        rule = "loss.hkr"
        axis = class_axis(logits.shape)
        if axis is None:
            return CotangentFacts(no_class_axis(rule, logits.shape))
        hinge = Upper(self.hkr_weight) * _balanced_hinge(axis)
        return CotangentFacts(Bound(_balanced_kr(axis) + hinge, rule))


def _balanced_hinge(axis: ClassAxis) -> Upper:
    """√((K − 1)/K); 1 for a single output."""
    if axis.classes == 1:
        return ONE
    return Upper.of_fraction(Fraction(axis.classes - 1, axis.classes)).sqrt()


def _balanced_kr(axis: ClassAxis) -> Upper:
    """√(K/(K − 1)); 1 for a single output."""
    if axis.classes == 1:
        return ONE
    return Upper.of_fraction(Fraction(axis.classes, axis.classes - 1)).sqrt()
