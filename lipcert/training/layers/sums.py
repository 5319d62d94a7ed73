"""Sums: a bias as a layer of its own, examples less their mean, and residual blocks.

Input: a batch [examples, …]. Output: the same plus trained numbers, repeated over the axes that
they do not have; x − mean(x), the mean over axes of the example; x plus the output of a branch, or
half of that sum. Invariants: no example affects another; a branch is never broadcast, since a
repeated one would count several times.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from lipcert.errors import UsageError
from lipcert.settings.choices import check_positive
from lipcert.training.layers.axes import example_axis


@final
class AddBias(nn.Module):
    """x + b, b of the shape of the first axes behind the examples, equal at all P positions behind.

    AddBias(c): a number per channel. AddBias(tokens, width): learned positions, with P = 1.
    Lipschitz constant 1 in x and √P in b; output norm X + √P·‖b‖. Proof: the Jacobian in b repeats
    every entry P times. The published bounds leave √P out: with 31×31 positions gradients and
    activations are up to 31 times what they state.
    """

    def __init__(self, *shape: int) -> None:
        super().__init__()
        if not shape:
            raise UsageError("AddBias: give the length of one axis at least, as in AddBias(16)")
        self.bias = nn.Parameter(torch.zeros(shape))

    def forward(self, x: Tensor) -> Tensor:
        """The input plus the bias."""
        rank = self.bias.dim()
        if x.shape[1 : 1 + rank] != self.bias.shape:
            raise UsageError(
                f"AddBias: examples of shape {tuple(x.shape[1:])} do not begin with the axes of a "
                f"bias of shape {tuple(self.bias.shape)}"
            )
        return x + self.bias.reshape((*self.bias.shape, *[1] * (x.dim() - 1 - rank)))

    def extra_repr(self) -> str:
        """What `print` shows of it: shape of the bias."""
        return ", ".join(map(str, self.bias.shape))


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
        """What `print` shows of it: the axes."""
        return f"axes={self.axes}"


@final
class Residual(nn.Module):
    """x + f(x). Lipschitz constant 1 + L, output norm X + ‖f‖ (Béthune et al. 2024, B.4)."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        """The sum of input and block."""
        return x + _same_shape(x, self.branch(x))


@final
class HalfResidual(nn.Module):
    """½(x + f(x)). Lipschitz constant (1 + L)/2, output norm (X + ‖f‖)/2: 1 and X where f is
    1-Lipschitz with f(0) = 0 (Béthune et al. 2024, C.2.4)."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        """Half of the sum of input and block."""
        return 0.5 * (x + _same_shape(x, self.branch(x)))


@final
class ScaledResidual(nn.Module):
    """x + f(x)/(2·depth), for networks of so many blocks of two branches, as transformers are.

    Lipschitz constant 1 + L/(2·depth), output norm X + ‖f‖/(2·depth). All blocks together: at most
    e^L, whatever the depth, since (1 + L/k)^k ≤ e^L.
    """

    def __init__(self, branch: nn.Module, depth: float) -> None:
        super().__init__()
        check_positive("ScaledResidual: depth", depth)
        self.branch = branch
        self.depth = depth

    def forward(self, x: Tensor) -> Tensor:
        """The sum, the branch at its share."""
        return x + _same_shape(x, self.branch(x)) / (2.0 * self.depth)

    def extra_repr(self) -> str:
        """What `print` shows of it: the depth."""
        return f"depth={self.depth}"


def _same_shape(x: Tensor, branch: Tensor) -> Tensor:
    if branch.shape != x.shape:
        raise UsageError(
            f"Residual: the branch maps a batch of shape {tuple(x.shape)} to "
            f"{tuple(branch.shape)}, which cannot be added entry by entry"
        )
    return branch
