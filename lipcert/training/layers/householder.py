"""Householder activation: reflected where it would point the other way.

What enters: values with groups of entries. What leaves: each group z, or its reflection z − 2(vᵀz)v
where vᵀz < 0. Invariant: at every point an orthogonal matrix, hence 1-Lipschitz and norm-preserving
(Mhammedi et al. 2017; Singla, Singla and Feizi 2022; Béthune et al. 2024, B.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from lipcert.errors import UsageError
from lipcert.training.layers.axes import divided, example_axis, unflattened
from lipcert.training.layers.exporting import is_exporting


@final
class Householder(nn.Module):
    """Groups of entries, reflected into the half space of `direction`, which is not trained.

    direction: one number for each entry of a group; the default exchanges pairs (a, b) where a < b,
    which is MaxMin. Entry i of a group lies in the i-th part of the axis. Lipschitz constant 1,
    output norm X.

    Proof: with an orthogonal Q that has v/‖v‖ for its first row, the layer is Qᵀ∘D∘Q, where D takes
    the absolute value of the first entry: (vᵀz)v changes its sign where vᵀz < 0, and nothing else
    does. So it is exported, because linear maps by known matrices and PReLU are what an analysis
    knows. Q is rounded, and the constant with it: 1 + 1e-6 or less in float32.

    A trained direction is not offered: it would have to be of norm 1 after every noisy step, and
    its own gradient is bounded by 4·X per group only. An orthogonal dense layer before a fixed
    activation has the same freedom, and tighter bounds.
    """

    rotation: Tensor
    slopes: Tensor
    normal: Tensor

    def __init__(self, direction: Sequence[float] = (1.0, -1.0), axis: int = 1) -> None:
        super().__init__()
        vector = torch.tensor(list(direction), dtype=torch.float64)
        length = torch.linalg.vector_norm(vector)
        if vector.dim() != 1 or len(vector) < 1 or not 0.0 < float(length) < float("inf"):
            raise UsageError(
                f"Householder: {tuple(direction)} is no direction: give numbers, not 0"
            )
        self.axis = axis
        self.direction = tuple(direction)
        dtype, normal = torch.get_default_dtype(), vector / length
        self.register_buffer("normal", normal.to(dtype))
        self.register_buffer("rotation", _rotation(normal).to(dtype))
        slopes = torch.ones(len(vector))
        slopes[0] = -1.0
        self.register_buffer("slopes", slopes)

    def forward(self, x: Tensor) -> Tensor:
        """Every group on the side to which the direction points."""
        axis, size = example_axis("Householder", self.axis, x), len(self.direction)
        groups = divided("Householder", "entries", x.shape[axis], size)
        if is_exporting():
            return self._rotated(x.movedim(axis, 1), groups).movedim(1, axis)
        parts = unflattened(x, axis, size, groups)
        normal = self.normal.reshape(-1, *[1] * (parts.dim() - axis - 1))
        side = (parts * normal).sum(dim=axis, keepdim=True)
        return (parts + normal * (2.0 * torch.relu(-side))).flatten(axis, axis + 1)

    def _rotated(self, x: Tensor, groups: int) -> Tensor:
        """As Qᵀ∘D∘Q, for the first axis of the example."""
        parts = unflattened(x, 1, len(self.direction), groups).flatten(2)  # [examples, size, rest]
        upright = functional.prelu(torch.matmul(self.rotation, parts), self.slopes)
        back = torch.matmul(self.rotation.T, upright)
        return unflattened(back, 2, groups, *x.shape[2:]).flatten(1, 2)

    def extra_repr(self) -> str:
        """Direction and axis."""
        return f"{self.direction}, axis={self.axis}"


def _rotation(v: Tensor) -> Tensor:
    """An orthogonal matrix with first row v: a reflection times a sign s.

    Proof: for |v| = |e| = 1 the reflection along v − se maps se to v: its first column is sv, and
    so is its first row, as it is symmetric. The sign that makes v − se the longer is taken.
    """
    unit = torch.zeros_like(v)
    unit[0] = -1.0 if v[0] >= 0.0 else 1.0
    normal = v - unit
    normal = normal / torch.linalg.vector_norm(normal)
    reflection = torch.eye(len(v), dtype=v.dtype) - 2.0 * torch.outer(normal, normal)
    return reflection * unit[0]
