"""ClipRule: which norm the gradient of one example may keep, and of which parameters together.

What enters: what was bounded of a network under gradient clipping. What leaves: the groups, each
with the radius that its noise was set for, and the losses whose gradients are clipped. Invariant:
the radius that is enforced is the very number that the noise rests on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self, final

from torch import Tensor

from lipcert.analysis.bounded import Bounded
from lipcert.core.losses.base import Loss
from lipcert.measure.losses import clipped_gradient, per_example_loss
from lipcert.privacy.noise import Group
from lipcert.settings.choices import check_nonnegative


@final
@dataclass(frozen=True, slots=True, eq=False)
class ClipRule:
    """∇ℓ_i + λθ of every group, scaled down to its radius, which is the bound of the group.

    loss_clip: the norm to which ∂ℓ/∂logits is clipped before, None where it is not. weight_decay:
    λ, 0 where decay is no business of the clip.
    """

    groups: tuple[Group, ...]
    loss: Loss
    loss_clip: float | None = None
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_nonnegative("clipping: weight-decay", self.weight_decay)

    @classmethod
    def of(cls, run: Bounded, weight_decay: float = 0.0) -> Self:
        """As analysed. C for all parameters together, C/√K for each of K groups; less where the
        network itself bounds the gradient by less, and the noise was set for that."""
        return cls(run.groups, run.loss, run.loss_clip, weight_decay)

    @property
    def radii(self) -> list[float]:
        """To which the gradients of the groups are clipped."""
        return [group.grad_norm.value for group in self.groups]

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """ℓ of every example; labels as `checked_labels` returns them.  # [examples]"""
        clipped = logits if self.loss_clip is None else clipped_gradient(logits, self.loss_clip)
        return per_example_loss(self.loss, clipped, labels)
