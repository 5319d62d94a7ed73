"""Colour spaces: images in red, green and blue as luminance and chrominance.

What enters: images [examples, 3, height, width] in RGB. What leaves: the same image by a fixed
linear map of its colours. Invariant: the map is the same for all pixels and is not trained.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from lipcert.errors import UsageError

ColourName = Literal["grey", "yiq", "yuv"]

_LUMINANCE: Final = (0.299, 0.587, 0.114)
_MATRICES: Final = MappingProxyType(
    {
        "grey": (_LUMINANCE,),
        "yiq": (_LUMINANCE, (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112)),
        "yuv": (_LUMINANCE, (-0.14713, -0.28886, 0.436), (0.615, -0.51499, -0.10001)),
    }
)


@final
class ColourSpace(nn.Module):
    """RGB to YIQ or YUV (BT.470), or to the luminance Y alone.

    Lipschitz constant ‖M‖₂ of the matrix of the colours, output norm ‖M‖₂·X: 0.8572 for YIQ and
    YUV, 0.6686 for grey. Proof: the same matrix acts on every pixel (Béthune et al. 2024, Section
    4). HSV is not offered: the hue jumps where red begins, and near grey the least change of a
    colour changes it arbitrarily, so that no Lipschitz constant exists.
    """

    matrix: Tensor

    def __init__(self, space: ColourName) -> None:
        super().__init__()
        if space not in _MATRICES:
            raise UsageError(
                f"ColourSpace: {space!r} is none of {', '.join(_MATRICES)} (HSV has no Lipschitz "
                "constant)"
            )
        self.space = space
        self.register_buffer("matrix", torch.tensor(_MATRICES[space])[:, :, None, None])

    def forward(self, x: Tensor) -> Tensor:
        """The colours of every pixel, mapped."""
        if x.dim() != 4 or x.shape[1] != 3:
            raise UsageError(
                "ColourSpace: give images [examples, 3, height, width] in RGB, not a batch of "
                f"shape {tuple(x.shape)}"
            )
        return functional.conv2d(x, self.matrix)

    def extra_repr(self) -> str:
        """The space."""
        return self.space
