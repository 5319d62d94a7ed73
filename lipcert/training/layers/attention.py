"""Self-attention without biases, whose scores keep to a stated scale.

What enters: tokens [examples, tokens, width], of norm 1 at most behind `UnitLayerNorm`. What
leaves: the same shape. Invariant: scores are the products of queries and keys as they are, times
`scale`, which does not shrink with the width: behind unit tokens it is what bounds the slope.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from lipcert.errors import UsageError
from lipcert.settings.choices import check_positive
from lipcert.training.layers.axes import divided, unflattened


@final
class BoundedSelfAttention(nn.Module):
    """softmax(scale·q@kᵀ)@v of several heads, then a linear map; q, k, v and it have no bias.

    For n tokens of norm 1 at most, weights of spectral norm 1 at most and a = scale: Lipschitz
    constant at most a + (1 + a)·√κ, κ = n/(1 + (n − 1)·e^(−2a)) ≤ e^(2a), output norm at most
    min(√κ·X, √(n·heads)). Proof: no probability of a head is above κ/n. For δq, δk, δv the head
    moves by at most a·‖δq‖ + a·√κ·‖δk‖ + √κ·‖δv‖, as a variance over tokens of norm 1 is at most 1
    (`lipcert explain attention`), and heads add up by Minkowski's inequality.

    A bias in q, k or v would make tokens longer, and with them every factor above.
    """

    def __init__(self, width: int, heads: int = 1, *, scale: float = 1.0) -> None:
        super().__init__()
        check_positive("BoundedSelfAttention: scale", scale)
        divided("BoundedSelfAttention", "features", width, heads)
        self.width = width
        self.heads = heads
        self.scale = scale
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Every token as a mean of values, head by head."""
        if x.dim() != 3 or x.shape[2] != self.width:
            raise UsageError(
                "BoundedSelfAttention: give tokens [examples, tokens, width] of width "
                f"{self.width}, not a batch of shape {tuple(x.shape)}"
            )
        q, k, v = (self._of_heads(part(x)) for part in (self.query, self.key, self.value))
        weights = torch.softmax(self.scale * torch.matmul(q, k.transpose(2, 3)), dim=3)
        mixed: Tensor = self.output(torch.matmul(weights, v).transpose(1, 2).flatten(2))
        return mixed

    def _of_heads(self, x: Tensor) -> Tensor:
        """[examples, heads, tokens, features of a head]."""
        return unflattened(x, 2, self.heads, self.width // self.heads).transpose(1, 2)

    def extra_repr(self) -> str:
        """Width, heads and scale."""
        return f"{self.width}, heads={self.heads}, scale={self.scale:g}"
