"""Layers of tokens [examples, tokens, width], of norm 1 at most behind `UnitLayerNorm`.

Neither has a bias. The scores of the attention are the products of queries and keys as they are,
times `scale`, which does not shrink with the width: behind unit tokens it is what bounds the slope.
A block of the Lipschitz MLP-Mixer is orthogonal layers along tokens, then along features, without
normalisation, so that with orthogonal weights every step preserves norms in both directions.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from lipcert.errors import UsageError
from lipcert.settings.choices import check_positive
from lipcert.training.layers.axes import divided, unflattened
from lipcert.training.layers.sorting import MaxMin
from lipcert.training.layers.sums import HalfResidual


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
        """What `print` shows of it: width, heads and scale."""
        return f"{self.width}, heads={self.heads}, scale={self.scale:g}"


@final
class MixerBlock(nn.Module):
    """Dense, MaxMin, dense along the tokens, and the same along the features.

    Lipschitz constant Π‖W‖ of the four weights, output norm X·Π‖W‖: 1 and X with orthogonal
    weights, as they are at first (Béthune et al. 2024, C.2.4: square weights, no LayerNorm). Proof:
    the same matrix acts on every column, or row, of the tokens. half_residual: ½(x + f(x)) around
    both halves, with constants (1 + ‖W₁‖‖W₂‖)/2 each.
    """

    def __init__(self, tokens: int, width: int, *, half_residual: bool = False) -> None:
        super().__init__()
        halves: list[nn.Module] = [_Mixing(tokens, axis=1), _Mixing(width, axis=2)]
        if half_residual:
            halves = [HalfResidual(half) for half in halves]
        self.token_mixing, self.feature_mixing = halves

    def forward(self, x: Tensor) -> Tensor:
        """The input with its tokens mixed, then its features."""
        mixed: Tensor = self.feature_mixing(self.token_mixing(x))
        return mixed


@final
class _Mixing(nn.Module):
    """Along the tokens (axis 1) or the features (axis 2)."""

    def __init__(self, size: int, axis: int) -> None:
        super().__init__()
        self.axis = axis
        self.first = _orthogonal(size)
        self.sort = MaxMin(axis=-1)
        self.second = _orthogonal(size)

    def forward(self, x: Tensor) -> Tensor:
        lines = x.transpose(self.axis, 2)
        mixed: Tensor = self.second(self.sort(self.first(lines)))
        return mixed.transpose(self.axis, 2)


def _orthogonal(size: int) -> nn.Linear:
    layer = nn.Linear(size, size, bias=False)
    nn.init.orthogonal_(layer.weight)
    return layer
