"""Hinge and Kantorovich–Rubinstein losses: gradients that take finitely many values.

Of K class scores, or of one score s·z, s = ±1, for two classes. The published variants that weight
an example by the class counts of its *batch* are not per-example losses: the loss of one example
then depends on the others. The factory refuses them; here the counts are the constants of balanced
classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from lipcert.losses.base import Loss, LossRecord, OutputReduction, require_nonnegative


@final
@dataclass(frozen=True, slots=True)
class MulticlassHinge(Loss):
    """One hinge per class: h_j = max(0, margin/2 − s_j·z_j), s_y = 1 and s_j = −1 otherwise.

    sum: ℓ = Σ_j h_j. mean: ℓ = ((K − 1)·h_y + Σ_{j≠y} h_j)/K, the mean that gives the label the
    weight of all other classes together, as Lipschitz libraries define it; the plain mean is
    covered too, being smaller. One output: ℓ = max(0, margin/2 − s·z) for a label s = ±1.
    """

    kind: ClassVar[str] = "multiclass-hinge"
    margin: float = 1.0
    reduction: OutputReduction = OutputReduction.MEAN

    def __post_init__(self) -> None:
        require_nonnegative("margin", self.margin)

    def parameters(self) -> LossRecord:
        """Margin and reduction over the classes."""
        return {"margin": self.margin, "output_reduction": self.reduction.value}


@final
@dataclass(frozen=True, slots=True)
class MultiMargin(Loss):
    """ℓ = Σ_{j≠y} max(0, margin − z_y + z_j); the mean divides by K, as torch does (p = 1)."""

    kind: ClassVar[str] = "multi-margin"
    margin: float = 1.0
    reduction: OutputReduction = OutputReduction.MEAN

    def __post_init__(self) -> None:
        require_nonnegative("margin", self.margin)

    def parameters(self) -> LossRecord:
        """Margin and reduction over the classes."""
        return {"margin": self.margin, "output_reduction": self.reduction.value}


@final
@dataclass(frozen=True, slots=True)
class KantorovichRubinstein(Loss):
    """ℓ = mean_{j≠y} z_j − z_y; one output: ℓ = −s·z for a label s in [−1, 1].

    This is the batch loss of the literature when the class counts are replaced by the constants
    of balanced classes.
    """

    kind: ClassVar[str] = "kr"

    def parameters(self) -> LossRecord:
        """None."""
        return {}


@final
@dataclass(frozen=True, slots=True)
class HingeKantorovichRubinstein(Loss):
    """ℓ = KR + hkr_weight · hinge, with the `kr` loss and the mean `multiclass-hinge` loss."""

    kind: ClassVar[str] = "hkr"
    hkr_weight: float = 1.0
    margin: float = 1.0

    def __post_init__(self) -> None:
        require_nonnegative("hkr-weight", self.hkr_weight)
        require_nonnegative("margin", self.margin)

    def parameters(self) -> LossRecord:
        """Weight and margin of the hinge."""
        return {"hkr_weight": self.hkr_weight, "margin": self.margin}
