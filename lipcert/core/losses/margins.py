"""Losses whose gradients take finitely many values: likelihood, hinges, Kantorovich–Rubinstein.

Of K class scores, or of one score s·z, s = ±1, for two classes. The published variants that weight
an example by the class counts of its *batch* are not per-example losses: the loss of one example
then depends on the others. Here the counts are the constants of balanced classes.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from lipcert.core.arithmetic import add_up, divide_up, multiply_up, sqrt_up
from lipcert.core.losses.base import ClassLoss, NotNegative, Terms
from lipcert.core.rules.facts import Cotangent, Fact, Hull, root_up


@dataclass(frozen=True, slots=True)
class NegativeLogLikelihood(ClassLoss):
    """ℓ = −z_y for outputs z: torch's nll_loss without weights of classes.

    Behind LogSoftmax this is the cross-entropy of the logits before it.
    """

    def bound(self, logits: Fact, outputs: int) -> Cotangent:
        """−e_y: the loss is linear in the outputs. Attained: always."""
        del logits, outputs
        return Cotangent(1.0, label=1.0)


@dataclass(frozen=True, slots=True)
class MulticlassHinge(ClassLoss):
    """One hinge per class: h_j = max(0, margin/2 − s_j·z_j), s_y = 1 and s_j = −1 otherwise.

    sum: ℓ = Σ_j h_j. mean: ℓ = ((K − 1)·h_y + Σ_{j≠y} h_j)/K, the mean that gives the label the
    weight of all other classes together, as Lipschitz libraries define it; the plain mean is
    covered too, being smaller. One output: ℓ = max(0, margin/2 − s·z) for a label s = ±1.
    """

    of_one_score: ClassVar[bool] = True
    margin: NotNegative = 1.0
    output_reduction: Terms = "mean"

    def bound(self, _: Fact, outputs: int) -> Cotangent:
        """Entries in [−1, 1] times the weights of the K hinges.

        sum: 1 each. mean: (K − 1)/K for the label and 1/K for the others, √((K − 1)² + K − 1)/K in
        all, which is no less than √K/K, the plain mean's, for K ≥ 2; 1 for one output.
        Attained: where every margin is violated.
        """
        mean = self.output_reduction == "mean"
        return Cotangent(_hinge_mean(outputs) if mean else root_up(outputs))


@dataclass(frozen=True, slots=True)
class MultiMargin(ClassLoss):
    """ℓ = Σ_{j≠y} max(0, margin − z_y + z_j); the mean divides by K, as torch does (p = 1)."""

    margin: NotNegative = 1.0
    output_reduction: Terms = "mean"

    def bound(self, _: Fact, outputs: int) -> Cotangent:
        """Σ_{j≠y} w_j(e_j − e_y), w_j in [0, 1]; the mean divides by K.

        Proof: Σw_j² + (Σw_j)² ≤ (K − 1) + (K − 1)², and it is at most K − 1 times a member of the
        hull. Attained: where every margin is violated.
        """
        divisor = outputs if self.output_reduction == "mean" else 1
        norm = sqrt_up(Fraction(outputs * (outputs - 1), divisor**2))
        return Cotangent(norm, Hull(outputs, divide_up(float(outputs - 1), float(divisor))))


@dataclass(frozen=True, slots=True)
class KantorovichRubinstein(ClassLoss):
    """ℓ = mean_{j≠y} z_j − z_y; one output: ℓ = −s·z for a label s in [−1, 1].

    This is the batch loss of the literature when the class counts are replaced by the constants
    of balanced classes.
    """

    of_one_score: ClassVar[bool] = True

    def bound(self, _: Fact, outputs: int) -> Cotangent:
        """mean_{j≠y} e_j − e_y, of norm √(1 + 1/(K − 1)); for one output −s. Attained."""
        return Cotangent(_kr_norm(outputs), Hull(outputs, 1.0) if outputs > 1 else None)


@dataclass(frozen=True, slots=True)
class HingeKantorovichRubinstein(ClassLoss):
    """ℓ = KR + hkr_weight · hinge, with the `kr` loss and the mean `multiclass-hinge` loss."""

    of_one_score: ClassVar[bool] = True
    hkr_weight: NotNegative = 1.0
    margin: NotNegative = 1.0

    def bound(self, _: Fact, outputs: int) -> Cotangent:
        """The sum of `kr` and hkr_weight times the mean `multiclass-hinge`. Attained: as there."""
        hinge = multiply_up(self.hkr_weight, _hinge_mean(outputs))
        return Cotangent(add_up(_kr_norm(outputs), hinge))


def _hinge_mean(classes: int) -> float:
    return sqrt_up(Fraction(classes - 1, classes)) if classes > 1 else 1.0


def _kr_norm(classes: int) -> float:
    return sqrt_up(Fraction(classes, classes - 1)) if classes > 1 else 1.0
