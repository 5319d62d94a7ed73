"""Blocks: a bias as a layer, centering, residual blocks, layers of tokens, and layers for the
input.

`AddBias` adds trained numbers, repeated over the axes that they lack. `LayerCentering` subtracts
the mean over axes of the example. The residual blocks add the output of a branch to x, with a
weight or without. Invariants: no example affects another; a branch is never broadcast, since a
repeated entry would count several times.

`BoundedSelfAttention` and `MixerBlock` act on tokens [examples, tokens, width] of norm at most 1,
as `UnitLayerNorm` returns them. Neither has a bias. The scores of the attention are the products of
queries and keys, times `scale`, which does not shrink with the width: behind unit tokens it bounds
the slope. A block of the Lipschitz MLP-Mixer consists of orthogonal layers along tokens, then along
features, without normalisation, so that with orthogonal weights every step preserves norms in both
directions.

`InputClip`, `InputNormalization` and `ColourSpace` belong at the input of a network. The first two
return examples of bounded norm (‖f(x)‖ ≤ radius for every finite x, up to the rounding of one
division): a projection onto the ball or onto the sphere (Béthune et al. 2024, Section 4). The third
takes images [examples, 3, height, width] in RGB, and applies one fixed linear map to the colours of
every pixel.
"""

from types import MappingProxyType
from typing import Final, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from lipcert.errors import UsageError
from lipcert.settings.values import check_positive
from lipcert.training.layers.activations import (
    Layer,
    MaxMin,
    divided,
    example_axis,
    unflattened,
)


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
        """Return the input plus the bias."""
        rank = self.bias.dim()
        if x.shape[1 : 1 + rank] != self.bias.shape:
            raise UsageError(
                f"AddBias: examples of shape {tuple(x.shape[1:])} do not begin with the axes of a "
                f"bias of shape {tuple(self.bias.shape)}"
            )
        return x + self.bias.reshape((*self.bias.shape, *[1] * (x.dim() - 1 - rank)))

    def extra_repr(self) -> str:
        """Show the shape of the bias when printed."""
        return ", ".join(map(str, self.bias.shape))


class LayerCentering(Layer):
    """x − mean(x) over all axes of an example, or over the given ones (Béthune et al. 2024, C.2.3).

    Lipschitz constant 1, output norm X. Proof: I − 11ᵀ/n is an orthogonal projection (Property 4).

    The published code averages over the first axis, too, which is that of the examples: there one
    example moves the outputs of all others, and no bound per example holds.
    """

    def __init__(self, axes: tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.axes = axes

    def forward(self, x: Tensor) -> Tensor:
        """Subtract from every example its mean."""
        axes = tuple(range(1, x.dim())) if self.axes is None else self.axes
        inside = [example_axis("LayerCentering", axis, x) for axis in axes]
        return x - x.mean(dim=inside, keepdim=True)


class Residual(nn.Module):
    """x + f(x). Lipschitz constant 1 + L, output norm X + ‖f‖ (Béthune et al. 2024, B.4)."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of input and branch."""
        return x + _same_shape(x, self.branch(x))


class HalfResidual(nn.Module):
    """½(x + f(x)). Lipschitz constant (1 + L)/2, output norm (X + ‖f‖)/2: 1 and X if f is
    1-Lipschitz with f(0) = 0 (Béthune et al. 2024, C.2.4)."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        """Return half of the sum of input and branch."""
        return 0.5 * (x + _same_shape(x, self.branch(x)))


class ScaledResidual(Layer):
    """x + f(x)/(2·depth), for networks of `depth` blocks with two branches each, such as
    transformers.

    Lipschitz constant 1 + L/(2·depth), output norm X + ‖f‖/(2·depth). All blocks together: at most
    e^L, whatever the depth, since (1 + L/k)^k ≤ e^L.
    """

    def __init__(self, branch: nn.Module, depth: float) -> None:
        super().__init__()
        check_positive("ScaledResidual: depth", depth)
        self.branch = branch
        self.depth = depth

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of the input and the scaled branch."""
        return x + _same_shape(x, self.branch(x)) / (2.0 * self.depth)


def _same_shape(x: Tensor, branch: Tensor) -> Tensor:
    if branch.shape != x.shape:
        raise UsageError(
            f"Residual: the branch maps a batch of shape {tuple(x.shape)} to "
            f"{tuple(branch.shape)}, which cannot be added entry by entry"
        )
    return branch


class BoundedSelfAttention(Layer):
    """softmax(scale·q@kᵀ)@v of several heads, then a linear map; none of the four linear maps has a
    bias.

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
        """Return, for every token and head, a weighted mean of values."""
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
        """Split the features into heads: [examples, heads, tokens, features of a head]."""
        return unflattened(x, 2, self.heads, self.width // self.heads).transpose(1, 2)


class MixerBlock(nn.Module):
    """Dense, MaxMin, dense along the tokens, and the same along the features.

    Lipschitz constant Π‖W‖ of the four weights, output norm X·Π‖W‖: 1 and X with orthogonal
    weights, as they are initialised (Béthune et al. 2024, C.2.4: square weights, no LayerNorm).
    Proof: the same matrix acts on every column, or row, of the tokens. half_residual: ½(x + f(x))
    around both halves, with constants (1 + ‖W₁‖‖W₂‖)/2 each.
    """

    def __init__(self, tokens: int, width: int, *, half_residual: bool = False) -> None:
        super().__init__()
        halves: list[nn.Module] = [_Mixing(tokens, axis=1), _Mixing(width, axis=2)]
        if half_residual:
            halves = [HalfResidual(half) for half in halves]
        self.token_mixing, self.feature_mixing = halves

    def forward(self, x: Tensor) -> Tensor:
        """Mix the tokens of the input, then its features."""
        mixed: Tensor = self.feature_mixing(self.token_mixing(x))
        return mixed


class _Mixing(nn.Module):
    """One half of a block: mixes along the tokens (axis 1) or the features (axis 2)."""

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


ColourName = Literal["grey", "yiq", "yuv"]

_LUMINANCE: Final = (0.299, 0.587, 0.114)
_MATRICES: Final = MappingProxyType(
    {
        "grey": (_LUMINANCE,),
        "yiq": (_LUMINANCE, (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112)),
        "yuv": (_LUMINANCE, (-0.14713, -0.28886, 0.436), (0.615, -0.51499, -0.10001)),
    }
)


class InputClip(Layer):
    """x·min(1, radius/‖x‖) for each whole example.

    Lipschitz constant 1, output norm min(X, radius). Proof: it is the projection onto a ball, which
    is convex. Examples within the ball are left exactly as they are.
    """

    def __init__(self, radius: float = 1.0) -> None:
        super().__init__()
        check_positive("InputClip: radius", radius)
        self.radius = radius

    def forward(self, x: Tensor) -> Tensor:
        """Project the examples onto the ball."""
        return x / (_lengths(x) / self.radius).clamp(min=1.0)


class InputNormalization(Layer):
    """radius·x/max(‖x‖, norm_floor) for each whole example: of norm radius if ‖x‖ ≥ norm_floor.

    Lipschitz constant radius/norm_floor, which does not matter at an input; output norm min(radius,
    X·radius/norm_floor). Proof: as for `normalization`, without the mean. 0 gives 0.
    """

    def __init__(self, radius: float = 1.0, norm_floor: float = 1e-6) -> None:
        super().__init__()
        check_positive("InputNormalization: radius", radius)
        check_positive("InputNormalization: norm_floor", norm_floor)
        self.radius = radius
        self.norm_floor = norm_floor

    def forward(self, x: Tensor) -> Tensor:
        """Scale the examples to the radius."""
        return x / (_lengths(x) / self.radius).clamp(min=self.norm_floor / self.radius)


def _lengths(x: Tensor) -> Tensor:
    """Return the norm of every example: [examples, 1, …]."""
    axes = tuple(range(1, x.dim()))
    lengths: Tensor = torch.linalg.vector_norm(x, dim=axes, keepdim=True)
    return lengths


class ColourSpace(Layer):
    """Converts RGB to YIQ or YUV (BT.470), or to the luminance Y alone.

    Lipschitz constant ‖M‖₂ of the matrix of the colours, output norm ‖M‖₂·X: 0.8572 for YIQ and
    YUV, 0.6686 for grey. Proof: the same matrix acts on every pixel (Béthune et al. 2024, Section
    4). HSV is not offered: the hue jumps where red begins, and near grey the smallest change of a
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
        """Map the colours of every pixel."""
        if x.dim() != 4 or x.shape[1] != 3:
            raise UsageError(
                "ColourSpace: give images [examples, 3, height, width] in RGB, not a batch of "
                f"shape {tuple(x.shape)}"
            )
        return functional.conv2d(x, self.matrix)
