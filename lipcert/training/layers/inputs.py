"""What keeps the norm of inputs under control: a clip to a ball, and normalisation to a sphere.

What enters: a batch. What leaves: examples of bounded norm, each from itself alone. Invariant:
‖f(x)‖ ≤ radius for every finite x, up to the rounding of one division.
(Béthune et al. 2024, Section 4: projection onto the ball, projection onto the sphere.)
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from lipcert.choices import check_positive


@final
class InputClip(nn.Module):
    """x·min(1, radius/‖x‖) for the whole of each example.

    Lipschitz constant 1, output norm min(X, radius). Proof: the projection onto a ball, which is
    convex. Examples within the ball are left exactly as they are.
    """

    def __init__(self, radius: float = 1.0) -> None:
        super().__init__()
        check_positive("InputClip: radius", radius)
        self.radius = radius

    def forward(self, x: Tensor) -> Tensor:
        """Drawn into the ball."""
        return x / (_lengths(x) / self.radius).clamp(min=1.0)

    def extra_repr(self) -> str:
        """The radius."""
        return f"{self.radius}"


@final
class InputNormalization(nn.Module):
    """radius·x/max(‖x‖, norm_floor) for the whole of each example: of norm radius, from
    norm_floor on.

    Lipschitz constant radius/norm_floor, which is no concern of layers above an input; output norm
    min(radius, X·radius/norm_floor). Proof: as for `normalization`, without the mean. 0 gives 0.
    """

    def __init__(self, radius: float = 1.0, norm_floor: float = 1e-6) -> None:
        super().__init__()
        check_positive("InputNormalization: radius", radius)
        check_positive("InputNormalization: norm_floor", norm_floor)
        self.radius = radius
        self.norm_floor = norm_floor

    def forward(self, x: Tensor) -> Tensor:
        """Drawn onto the sphere."""
        return x / (_lengths(x) / self.radius).clamp(min=self.norm_floor / self.radius)

    def extra_repr(self) -> str:
        """Radius and floor."""
        return f"{self.radius}, norm_floor={self.norm_floor}"


def _lengths(x: Tensor) -> Tensor:
    """[examples, 1, …]."""
    axes = tuple(range(1, x.dim()))
    lengths: Tensor = torch.linalg.vector_norm(x, dim=axes, keepdim=True)
    return lengths
