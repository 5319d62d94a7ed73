"""Sorting activations: GroupSort and MaxMin.

What enters: values with groups of entries along one axis. What leaves: the same entries, each group
in order. Invariant: at every point a permutation, hence 1-Lipschitz and norm-preserving:
‖f(x)‖ = ‖x‖ and ‖Jᵀg‖ = ‖g‖. Where entries are equal, the generalised Jacobians are averages of
permutations, of norm 1 too. (Anil, Lucas and Grosse 2019; Béthune et al. 2024, B.1.)
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from lipcert.errors import UsageError
from lipcert.training.layers.axes import divided, example_axis, unflattened
from lipcert.training.layers.exporting import is_exporting


@final
class GroupSort(nn.Module):
    """Each group of `size` consecutive entries along an axis, in ascending order.

    Lipschitz constant 1, output norm X.
    """

    def __init__(self, size: int, axis: int = 1) -> None:
        super().__init__()
        if size < 1:
            raise UsageError(f"GroupSort: groups of {size} entries")
        self.size = size
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        """Sorted within groups."""
        axis = example_axis("GroupSort", self.axis, x)
        groups = divided("GroupSort", "entries", x.shape[axis], self.size)
        grouped = unflattened(x, axis, groups, self.size)
        if self.size == 2 and not is_exporting():
            larger, smaller = _ordered(*grouped.unbind(axis + 1))
            ordered = torch.stack([smaller, larger], dim=axis + 1)
        else:
            ordered = torch.sort(grouped, dim=axis + 1).values
        return ordered.flatten(axis, axis + 1)

    def extra_repr(self) -> str:
        """Size and axis."""
        return f"{self.size}, axis={self.axis}"


@final
class MaxMin(nn.Module):
    """GroupSort with groups of two: entry i of the first half of an axis and entry i of the second
    become the larger one, in the first half, and the smaller one.

    Lipschitz constant 1, output norm X.
    """

    def __init__(self, axis: int = 1) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        """The larger entries, then the smaller ones."""
        axis = example_axis("MaxMin", self.axis, x)
        half = divided("MaxMin", "entries", x.shape[axis], 2)
        first, second = x.narrow(axis, 0, half), x.narrow(axis, half, half)
        if is_exporting():
            ordered = torch.maximum(first, second), torch.minimum(first, second)
        else:
            ordered = _ordered(*x.chunk(2, dim=axis))
        return torch.cat(ordered, dim=axis)

    def extra_repr(self) -> str:
        """The axis."""
        return f"axis={self.axis}"


def _ordered(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Maxima and minima, off by a rounding of the larger one, and several times as fast as torch's
    own, whose backward passes look for ties. Of equal entries each gets half of both cotangents, as
    torch has it: with the middle m and half the difference h these are m ± |h|, and |·|' is 0 at 0.
    """
    half = 0.5 * (first - second)
    middle, gap = second + half, half.abs()
    return middle + gap, middle - gap
