"""Pooling that keeps norms: the Euclidean length of every window.

What enters: images [examples, channels, height, width]. What leaves: one number ≥ 0 for every
window of every channel. Invariant: windows do not overlap, so ‖f(x)‖ = ‖x‖ on the positions that
are read.
"""

from __future__ import annotations

import math
from typing import Final, final

import torch
from torch import Tensor, nn

from lipcert.errors import UsageError

__all__ = ["ScaledL2NormPool2d"]

_SAFE: Final = 2.0**16
"""so many times the root of the smallest normal number: squares of that size are accurate"""


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
        high, wide = self.kernel_size
        used = x[:, :, : rows * high, : columns * wide]
        windows = used.unflatten(3, (columns, wide)).unflatten(2, (rows, high))
        lengths: Tensor = torch.linalg.vector_norm(windows, dim=(3, 5))
        return lengths if torch.compiler.is_exporting() else lengths * (lengths >= _least(x.dtype))

    def extra_repr(self) -> str:
        """The window."""
        return f"{self.kernel_size}"


def _least(dtype: torch.dtype) -> float:
    """The shortest window that counts; half precision is accumulated in float32."""
    accumulated = torch.promote_types(dtype, torch.float32)
    return _SAFE * math.sqrt(torch.finfo(accumulated).tiny)
