"""A bias as a layer of its own: per channel, or a learned position of every token.

What enters: a batch [examples, channels, …]. What leaves: the same plus trained numbers, repeated
over the axes that they do not have.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from lipcert.errors import UsageError


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
        """Shifted."""
        rank = self.bias.dim()
        if x.shape[1 : 1 + rank] != self.bias.shape:
            raise UsageError(
                f"AddBias: examples of shape {tuple(x.shape[1:])} do not begin with the axes of a "
                f"bias of shape {tuple(self.bias.shape)}"
            )
        return x + self.bias.reshape((*self.bias.shape, *[1] * (x.dim() - 1 - rank)))

    def extra_repr(self) -> str:
        """Shape of the bias."""
        return ", ".join(map(str, self.bias.shape))
