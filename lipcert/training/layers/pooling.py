"""Pooling that keeps norms: the Euclidean length of every window.

Input: images [examples, channels, height, width]. Output: one number ≥ 0 for every window of every
channel. Invariant: windows do not overlap, so ‖f(x)‖ = ‖x‖ on the positions that are read.
"""

from __future__ import annotations

import math
from typing import Final, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from lipcert.errors import UsageError
from lipcert.training.layers.axes import is_exporting, unflattened

_SAFE: Final = 2.0**32
"""sums of squares so many times the smallest normal number do not suffer from underflow"""


@final
class ScaledL2NormPool2d(nn.Module):
    """√(k²·mean x²) = √(Σ x²) over k×k windows with stride k (Béthune et al. 2024, B.1).

    Lipschitz constant 1, output norm X. Proof: |‖a‖ − ‖b‖| ≤ ‖a − b‖ in every window, and windows
    are disjoint. Rows and columns that fill no window are dropped, as torch's pools do.

    The published layer adds ε inside the root: at x = 0 its outputs are √(k²ε) instead of 0, and
    their norm is above X. Here 0 gives 0, with derivative 0; in float32 so do windows of length
    below 7e-15, whose squares would be too inaccurate for a derivative of norm 1.
    """

    def __init__(self, kernel_size: int | tuple[int, int] = 2) -> None:
        super().__init__()
        pair = (kernel_size, kernel_size) if isinstance(kernel_size, int) else tuple(kernel_size)
        if len(pair) != 2 or min(pair) < 1:
            raise UsageError(f"ScaledL2NormPool2d: windows of size {kernel_size}")
        self.kernel_size: tuple[int, int] = pair

    def forward(self, x: Tensor) -> Tensor:
        """The length of every window."""
        if x.dim() != 4:
            raise UsageError(
                "ScaledL2NormPool2d: give images [examples, channels, height, width], not a batch "
                f"of shape {tuple(x.shape)}"
            )
        rows, columns = (size // k for size, k in zip(x.shape[2:], self.kernel_size, strict=True))
        if min(rows, columns) < 1:
            raise UsageError(f"ScaledL2NormPool2d: no window fits into {tuple(x.shape[2:])}")
        if not is_exporting():
            return _pooled(x, self.kernel_size)
        high, wide = self.kernel_size
        used = x[:, :, : rows * high, : columns * wide]
        windows = unflattened(unflattened(used, 3, columns, wide), 2, rows, high)
        lengths: Tensor = torch.linalg.vector_norm(windows, dim=(3, 5))
        return lengths

    def extra_repr(self) -> str:
        """What `print` shows of it: the window."""
        return f"{self.kernel_size}"


def _pooled(x: Tensor, window: tuple[int, int]) -> Tensor:
    """√(Σ x²), with derivative 0 where the squares are not accurate; sums are float32 at least."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    energy = functional.avg_pool2d(wide * wide, window) * math.prod(window)
    counts = energy >= _SAFE * torch.finfo(wide.dtype).tiny
    lengths = torch.where(counts, energy, 1.0).sqrt() * counts
    return lengths.to(x.dtype)
