"""A block of the Lipschitz MLP-Mixer: orthogonal layers along tokens, then along features.

What enters: tokens [examples, tokens, width]. What leaves: the same shape. Invariant: no bias and
no normalisation, so that with orthogonal weights every step preserves norms in both directions.
"""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from lipcert.training.layers.sorting import MaxMin
from lipcert.training.layers.sums import HalfResidual


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
        """Tokens mixed, then features."""
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
