"""Layers at the ends of a network: a clip to a ball, normalisation to a sphere, colour spaces, and
a clip of the gradient that comes in at the output.

Input: a batch; for colours, images [examples, 3, height, width] in RGB. Output: examples of bounded
norm, each from itself alone (‖f(x)‖ ≤ radius for every finite x, up to the rounding of one
division); the same image by a fixed linear map of its colours, which is the same for all pixels and
is not trained; the batch itself, whose gradient is clipped for each example in the backward pass.
(Béthune et al. 2024, Section 4: projection onto the ball, onto the sphere.)
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from lipcert.errors import UsageError
from lipcert.measure.lowering.functions import with_clipped_cotangent
from lipcert.settings.values import check_positive
from lipcert.training.layers.axes import is_exporting

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
class InputClip(nn.Module):
    """x·min(1, radius/‖x‖) for the whole of each example.

    Lipschitz constant 1, output norm min(X, radius). Proof: the projection onto a ball, which is
    convex. Examples within the ball are left exactly as they are.
    """

    def __init__(self, radius: float = 1.0) -> None:
        super().__init__()
        check_positive("InputClip: radius", radius)
        self.radius = radius

    def forward(self, x: Tensor) -> Tensor:
        """The inputs, projected onto the ball."""
        return x / (_lengths(x) / self.radius).clamp(min=1.0)

    def extra_repr(self) -> str:
        """What `print` shows of it: the radius."""
        return f"{self.radius}"


@final
class InputNormalization(nn.Module):
    """radius·x/max(‖x‖, norm_floor) for the whole of each example: of norm radius, from
    norm_floor on.

    Lipschitz constant radius/norm_floor, which does not matter at an input; output norm
    min(radius, X·radius/norm_floor). Proof: as for `normalization`, without the mean. 0 gives 0.
    """

    def __init__(self, radius: float = 1.0, norm_floor: float = 1e-6) -> None:
        super().__init__()
        check_positive("InputNormalization: radius", radius)
        check_positive("InputNormalization: norm_floor", norm_floor)
        self.radius = radius
        self.norm_floor = norm_floor

    def forward(self, x: Tensor) -> Tensor:
        """The inputs, scaled to the radius."""
        return x / (_lengths(x) / self.radius).clamp(min=self.norm_floor / self.radius)

    def extra_repr(self) -> str:
        """What `print` shows of it: radius and floor."""
        return f"{self.radius}, norm_floor={self.norm_floor}"


def _lengths(x: Tensor) -> Tensor:
    """[examples, 1, …]."""
    axes = tuple(range(1, x.dim()))
    lengths: Tensor = torch.linalg.vector_norm(x, dim=axes, keepdim=True)
    return lengths


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
        """What `print` shows of it: the space."""
        return self.space


@final
class LossGradientClip(nn.Module):
    """x; in the backward pass the gradient g of each example becomes g·min(1, radius/‖g‖).

    Lipschitz constant 1, output norm X (Béthune et al. 2024, B.5). The clip only shortens
    gradients, so every bound of the network without it holds with it.

    What is compared with the radius is what arrives: for a sum over the batch that is divided by a
    constant B, clip to C by radius C/B. The file that such a network exports to holds the identity,
    so that no reader of the file knows of the clip: where the loss gradient at the output is to be
    clipped, state the mechanism's loss_clip instead, which analysis, certificate and audit share.
    """

    def __init__(self, radius: float) -> None:
        super().__init__()
        check_positive("LossGradientClip: radius", radius)
        self.radius = radius

    def forward(self, x: Tensor) -> Tensor:
        """x itself: only the gradient is clipped."""
        if is_exporting():
            return x
        return with_clipped_cotangent(x, self.radius)

    def extra_repr(self) -> str:
        """What `print` shows of it: the radius."""
        return f"{self.radius}"
