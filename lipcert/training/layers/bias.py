"""A bias per channel, as a layer of its own.

What enters: a batch [examples, channels, …]. What leaves: the same plus one number per channel.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from lipcert.errors import UsageError

__all__ = ["AddBias"]


@final
class AddBias(nn.Module):
    """x + b, b_c at all P positions of channel c.

    Lipschitz constant 1 in x and √P in b; output norm X + √P·‖b‖. Proof: the Jacobian in b repeats
    every entry P times. The published bounds leave √P out: with 31×31 positions gradients and
    activations are up to 31 times what they state.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Shifted channel by channel."""
        if x.dim() < 2 or x.shape[1] != self.channels:
            raise UsageError(
                f"AddBias: a batch of shape {tuple(x.shape)} does not have {self.channels} channels"
            )
        return x + self.bias.reshape(self.channels, *[1] * (x.dim() - 2))

    def extra_repr(self) -> str:
        """Channels."""
        return f"{self.channels}"
