"""Inputs: how an image enters a network.

What enters: images [n, 1, 8, 8] with values in [0, 1]. What leaves: vectors [n, size]. Invariant:
the vector of an image follows from this image and a formula written before any image was seen, so
that it costs no privacy; all but the bare pixels have norm 1 (an image without contrast has 0).
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import conv2d, normalize, pad

__all__ = ["BINS", "CELLS", "Inputs", "oriented_gradients"]

BINS: Final = 8
CELLS: Final = 4
"""along each side"""
_WINDOW: Final = torch.tensor([1.0, 3.0, 3.0, 1.0]) / 8.0
"""of a cell: 4 pixels wide, 2 apart, so that cells overlap"""


class Inputs(Enum):
    """By the name that the table has."""

    PIXELS = "pixels"
    """values in [0, 1]: norm at most 8, and 3.9 on average"""
    UNIT = "pixels, norm 1"
    CENTRED = "centred pixels, norm 1"
    HOG = "oriented gradients, norm 1"

    def of(self, images: Tensor) -> Tensor:
        """[n, 1, 8, 8] → [n, size]."""
        match self:
            case Inputs.PIXELS:
                return images.flatten(1)
            case Inputs.UNIT:
                return normalize(images.flatten(1))
            case Inputs.CENTRED:
                return _centred(images.flatten(1))
            case Inputs.HOG:
                return _centred(oriented_gradients(images).flatten(1))

    @property
    def size(self) -> int:
        """How many numbers an image becomes."""
        return BINS * CELLS**2 if self is Inputs.HOG else 64


def oriented_gradients(images: Tensor) -> Tensor:
    """How much brightness rises into each of 8 directions, in each of 4×4 overlapping cells.

    Central differences (no brightness beyond the border); a pixel counts ‖∇‖·max(0, cos φ)⁴ for a
    direction at the angle φ to its gradient. (After Dalal and Triggs, 2005.)  # [n, 8, 4, 4]
    """
    middle = pad(images, (1, 1, 1, 1))
    across = middle[:, :, 1:-1, 2:] - middle[:, :, 1:-1, :-2]  # [n, 1, 8, 8]
    down = middle[:, :, 2:, 1:-1] - middle[:, :, :-2, 1:-1]
    angles = 2.0 * math.pi / BINS * torch.arange(BINS).reshape(1, BINS, 1, 1)
    cosines = torch.cos(torch.atan2(down, across) - angles)
    rises = torch.hypot(across, down) * cosines.clamp(min=0.0) ** 4
    window = torch.outer(_WINDOW, _WINDOW).expand(BINS, 1, -1, -1)
    return conv2d(rises, window, stride=2, padding=1, groups=BINS)


def _centred(vectors: Tensor) -> Tensor:
    return normalize(vectors - vectors.mean(dim=1, keepdim=True))
