"""A clip of gradients, as a layer: the identity whose backward pass clips.

Input: a batch; in the backward pass, its gradient. Output: the batch itself; the gradient, clipped
for each example. Invariant: values are never changed.
"""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from lipcert.measure.lowering.functions import with_clipped_cotangent
from lipcert.settings.choices import check_positive
from lipcert.training.layers.axes import is_exporting


@final
class LossGradientClip(nn.Module):
    """x; in the backward pass the gradient g of each example becomes g·min(1, radius/‖g‖).

    Lipschitz constant 1, output norm X (Béthune et al. 2024, B.5). The clip only shortens
    gradients, so every bound of the network without it holds with it.

    What is compared with the radius is what arrives: for a sum over the batch that is divided by a
    constant B, clip to C by radius C/B. The file that such a network exports to holds the identity,
    so that no reader of the file knows of the clip: where the loss gradient at the output is to be
    clipped, state the mechanism's loss_clip instead, which analysis, certificate and audit share.
    """

    def __init__(self, radius: float) -> None:
        super().__init__()
        check_positive("LossGradientClip: radius", radius)
        self.radius = radius

    def forward(self, x: Tensor) -> Tensor:
        """x itself: only the gradient is clipped."""
        if is_exporting():
            return x
        return with_clipped_cotangent(x, self.radius)

    def extra_repr(self) -> str:
        """What `print` shows of it: the radius."""
        return f"{self.radius}"
