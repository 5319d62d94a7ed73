"""Layer centering: every example less its own mean.

What enters: a batch. What leaves: x − mean(x), the mean taken over axes of the example. Invariant:
no example sees another.
"""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from lipcert.training.layers.axes import example_axis


@final
class LayerCentering(nn.Module):
    """x − mean(x) over all axes of an example, or over the given ones (Béthune et al. 2024, C.2.3).

    Lipschitz constant 1, output norm X. Proof: I − 11ᵀ/n is an orthogonal projection (Property 4).

    The published code averages over the first axis, too, which is that of the examples: there one
    example moves the outputs of all others, and no bound per example holds.
    """

    def __init__(self, axes: tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.axes = axes

    def forward(self, x: Tensor) -> Tensor:
        """Every example less its mean."""
        axes = tuple(range(1, x.dim())) if self.axes is None else self.axes
        inside = [example_axis("LayerCentering", axis, x) for axis in axes]
        return x - x.mean(dim=inside, keepdim=True)

    def extra_repr(self) -> str:
        """The axes."""
        return f"axes={self.axes}"
