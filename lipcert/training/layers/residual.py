"""Residual blocks: a value plus what a branch makes of it.

What enters: a batch that the branch maps to one of the same shape. What leaves: the sum, or half of
it. Invariant: nothing is broadcast, since a repeated branch would count several times.
"""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from lipcert.errors import UsageError


@final
class Residual(nn.Module):
    """x + f(x). Lipschitz constant 1 + L, output norm X + ‖f‖ (Béthune et al. 2024, B.4)."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        """The sum."""
        return x + _same_shape(x, self.branch(x))


@final
class HalfResidual(nn.Module):
    """½(x + f(x)). Lipschitz constant (1 + L)/2, output norm (X + ‖f‖)/2: 1 and X where f is
    1-Lipschitz with f(0) = 0 (Béthune et al. 2024, C.2.4)."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        """Half of the sum."""
        return 0.5 * (x + _same_shape(x, self.branch(x)))


def _same_shape(x: Tensor, branch: Tensor) -> Tensor:
    if branch.shape != x.shape:
        raise UsageError(
            f"Residual: the branch maps a batch of shape {tuple(x.shape)} to "
            f"{tuple(branch.shape)}, which cannot be added entry by entry"
        )
    return branch
