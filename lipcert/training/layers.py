"""Layers of Lipschitz-bounded networks that torch lacks, as plain modules.

Each takes a batch [examples, …], and every example of its output depends only on the same example
of its input.

Invariant: `lipcert.export` exports each layer to nodes that `lipcert.load_model` recognises, so
that an analysis finds the Lipschitz constant and the output norm that its docstring states; each
layer accepts empty batches.

Three published layers are left out, because no true bound can be stated for them: conversion to HSV
(the hue is discontinuous), a layer that averages over the batch, and a convolution that is
1-Lipschitz only by a factor of average energy (use a constraint on the weight, which bounds the
norm of the convolution itself).

Activations (GroupSort, MaxMin, Householder reflections) preserve norms; they act on groups of
entries along one axis: they sort each group, or replace a group z by its reflection z − 2(vᵀz)v if
vᵀz < 0. Invariant: at every point they multiply by an orthogonal matrix, hence they are 1-Lipschitz
and norm-preserving: ‖f(x)‖ = ‖x‖ and ‖Jᵀg‖ = ‖g‖. Where sorted entries are equal, the generalised
Jacobians are averages of permutations, of norm 1 too. (Anil, Lucas and Grosse 2019; Mhammedi et al.
2017; Singla, Singla and Feizi 2022; Béthune et al. 2024, B.1.)

For images [examples, channels, height, width], pooling returns one number ≥ 0 for every window of
every channel. Windows do not overlap, so ‖f(x)‖ = ‖x‖ on the positions that are read.

Where it is exported, a layer computes the same function in nodes that an importer recognises as a
whole; otherwise, in the operations that are fastest, also in the backward pass.

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

Normalisations have a bounded slope: (x − μ)/max(norm_floor, s), s the standard deviation; and (x −
μ)/√(‖x − μ‖² + 1), whose blocks have norm below 1. The values of one example are cut into blocks of
n entries, and each block is normalised to x̂ with ‖x̂‖ ≤ min(√n, X/norm_floor), then perhaps mapped
to weight·x̂ + bias. Invariant: blocks lie within one example.

Lipschitz constant of x ↦ x̂: 1/norm_floor (Barczewski and Ramon 2024, Eqs. 5 and 6). Proof: with u
= (x − μ)/‖x − μ‖ and the projection P = I − 11ᵀ/n, the Jacobian is P/norm_floor where s is below
the floor, (P − uuᵀ)/s where it is above, and between the two where both meet. Unlike √(s² + ε), the
maximum leaves large deviations unchanged. Constant blocks give 0, with a finite derivative.
"""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import MappingProxyType
from typing import Final, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from lipcert.errors import UsageError
from lipcert.settings.values import check_positive


def example_axis(layer: str, axis: int, x: Tensor) -> int:
    """Return the axis of a batch x, counted from the front.

    Raises:
        UsageError: unless it is an axis of one example.
    """
    found = axis + x.dim() if axis < 0 else axis
    if not 0 < found < x.dim():
        raise UsageError(
            f"{layer}: axis {axis} of a batch of shape {tuple(x.shape)} is not an axis of one "
            f"example; choose one of 1 to {x.dim() - 1}, or count from the last with -1"
        )
    return found


def divided(layer: str, what: str, size: int, parts: int) -> int:
    """Return size / parts; raise UsageError unless it is whole."""
    if size % parts:
        raise UsageError(f"{layer}: {size} {what} do not divide into parts of {parts}")
    return size // parts


def unflattened(x: Tensor, axis: int, *sizes: int) -> Tensor:
    """Split one axis into several of these sizes."""
    return x.reshape(*x.shape[:axis], *sizes, *x.shape[axis + 1 :])


def is_exporting() -> bool:
    """Whether torch.onnx or torch.export is tracing."""
    return bool(torch.compiler.is_exporting() or torch.onnx.is_in_onnx_export())


class Layer(nn.Module, ABC):
    """A layer that shows, when printed, the numbers that it was made with."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Return the output for a batch [examples, …]."""

    def extra_repr(self) -> str:
        """Return the arguments by name."""
        names = inspect.signature(type(self)).parameters
        given = {name: getattr(self, name, None) for name in names}
        plain = {k: v for k, v in given.items() if not isinstance(v, nn.Module | None)}
        return ", ".join(f"{name}={value}" for name, value in plain.items())


class GroupSort(Layer):
    """Sorts each group of `size` consecutive entries along an axis, in ascending order.

    Lipschitz constant 1, output norm X.
    """

    def __init__(self, size: int, axis: int = 1) -> None:
        super().__init__()
        if size < 1:
            raise UsageError(f"GroupSort: groups of {size} entries")
        self.size = size
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        """Return the entries, sorted within each group."""
        axis = example_axis("GroupSort", self.axis, x)
        groups = divided("GroupSort", "entries", x.shape[axis], self.size)
        grouped = unflattened(x, axis, groups, self.size)
        if self.size == 2 and not is_exporting():
            larger, smaller = _ordered(*grouped.unbind(axis + 1))
            ordered = torch.stack([smaller, larger], dim=axis + 1)
        else:
            ordered = torch.sort(grouped, dim=axis + 1).values
        return ordered.flatten(axis, axis + 1)


class MaxMin(Layer):
    """GroupSort with groups of two: entry i of the first half of an axis is paired with entry i of
    the second half; the larger one goes to the first half, the smaller one to the second.

    Lipschitz constant 1, output norm X.
    """

    def __init__(self, axis: int = 1) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        """Return the larger entries, then the smaller ones."""
        axis = example_axis("MaxMin", self.axis, x)
        half = divided("MaxMin", "entries", x.shape[axis], 2)
        first, second = x.narrow(axis, 0, half), x.narrow(axis, half, half)
        if is_exporting():
            ordered = torch.maximum(first, second), torch.minimum(first, second)
        else:
            ordered = _ordered(*x.chunk(2, dim=axis))
        return torch.cat(ordered, dim=axis)


def _ordered(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return maxima and minima, off by a rounding of the larger entry.

    This is several times as fast as torch's own functions, whose backward passes look for ties. Of
    equal entries each gets half of both cotangents, as in torch: with the middle m and half the
    difference h the results are m ± |h|, and |·|' is 0 at 0.
    """
    half = 0.5 * (first - second)
    middle, gap = second + half, half.abs()
    return middle + gap, middle - gap


class Householder(Layer):
    """Reflects groups of entries into the half space of `direction`, which is not trained.

    direction: one number for each entry of a group; the default exchanges pairs (a, b) with a < b,
    which is MaxMin. Entry i of a group lies in the i-th part of the axis. Lipschitz constant 1,
    output norm X.

    Proof: with an orthogonal Q whose first row is v/‖v‖, the layer is Qᵀ∘D∘Q, where D takes the
    absolute value of the first entry: (vᵀz)v changes its sign where vᵀz < 0, and nothing else does.
    The layer is exported in this form, because an analysis knows linear maps by given matrices and
    PReLU. Q is rounded, and the constant with it: 1 + 1e-6 or less in float32.

    A trained direction is not offered: it would have to have norm 1 after every noisy step, and its
    own gradient is bounded only by 4·X per group. An orthogonal dense layer before a fixed
    activation has the same freedom, and tighter bounds.
    """

    rotation: Tensor
    slopes: Tensor
    normal: Tensor

    def __init__(self, direction: Sequence[float] = (1.0, -1.0), axis: int = 1) -> None:
        super().__init__()
        vector = torch.tensor(list(direction), dtype=torch.float64)
        length = torch.linalg.vector_norm(vector)
        if vector.dim() != 1 or len(vector) < 1 or not 0.0 < float(length) < float("inf"):
            raise UsageError(
                f"Householder: {tuple(direction)} is not a direction: give numbers, not all 0"
            )
        self.axis = axis
        self.direction = tuple(direction)
        dtype, normal = torch.get_default_dtype(), vector / length
        self.register_buffer("normal", normal.to(dtype))
        self.register_buffer("rotation", _rotation(normal).to(dtype))
        slopes = torch.ones(len(vector))
        slopes[0] = -1.0
        self.register_buffer("slopes", slopes)

    def forward(self, x: Tensor) -> Tensor:
        """Return every group on the side to which the direction points."""
        axis, size = example_axis("Householder", self.axis, x), len(self.direction)
        groups = divided("Householder", "entries", x.shape[axis], size)
        if is_exporting():
            return self._rotated(x.movedim(axis, 1), groups).movedim(1, axis)
        parts = unflattened(x, axis, size, groups)
        normal = self.normal.reshape(-1, *[1] * (parts.dim() - axis - 1))
        side = (parts * normal).sum(dim=axis, keepdim=True)
        return (parts + normal * (2.0 * torch.relu(-side))).flatten(axis, axis + 1)

    def _rotated(self, x: Tensor, groups: int) -> Tensor:
        """Compute Qᵀ∘D∘Q along the first axis of the example."""
        parts = unflattened(x, 1, len(self.direction), groups).flatten(2)  # [examples, size, rest]
        upright = functional.prelu(torch.matmul(self.rotation, parts), self.slopes)
        back = torch.matmul(self.rotation.T, upright)
        return unflattened(back, 2, groups, *x.shape[2:]).flatten(1, 2)


def _rotation(v: Tensor) -> Tensor:
    """Return an orthogonal matrix with first row v: a reflection times a sign s.

    Proof: for |v| = |e| = 1 the reflection along v − se maps se to v: its first column is sv, and
    so is its first row, as it is symmetric. The sign is chosen that makes v − se longer.
    """
    unit = torch.zeros_like(v)
    unit[0] = -1.0 if v[0] >= 0.0 else 1.0
    normal = v - unit
    normal = normal / torch.linalg.vector_norm(normal)
    reflection = torch.eye(len(v), dtype=v.dtype) - 2.0 * torch.outer(normal, normal)
    return reflection * unit[0]


_SAFE: Final = 2.0**32
"""Sums of squares this many times the smallest normal number do not suffer from underflow."""


class ScaledL2NormPool2d(Layer):
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
        """Return the length of every window."""
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


def _pooled(x: Tensor, window: tuple[int, int]) -> Tensor:
    """Return √(Σ x²), with derivative 0 where the squares are inaccurate; sums use at least
    float32."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    energy = functional.avg_pool2d(wide * wide, window) * math.prod(window)
    counts = energy >= _SAFE * torch.finfo(wide.dtype).tiny
    lengths = torch.where(counts, energy, 1.0).sqrt() * counts
    return lengths.to(x.dtype)


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


class Residual(Layer):
    """x + f(x). Lipschitz constant 1 + L, output norm X + ‖f‖ (Béthune et al. 2024, B.4)."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of input and branch."""
        return x + _same_shape(x, self.branch(x))


class HalfResidual(Residual):
    """½(x + f(x)). Lipschitz constant (1 + L)/2, output norm (X + ‖f‖)/2: 1 and X if f is
    1-Lipschitz with f(0) = 0 (Béthune et al. 2024, C.2.4)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return half of the sum of input and branch."""
        return 0.5 * super().forward(x)


class ScaledResidual(Residual):
    """x + f(x)/(2·depth), for networks of `depth` blocks with two branches each, such as
    transformers.

    Lipschitz constant 1 + L/(2·depth), output norm X + ‖f‖/(2·depth). All blocks together: at most
    e^L, whatever the depth, since (1 + L/k)^k ≤ e^L.
    """

    def __init__(self, branch: nn.Module, depth: float) -> None:
        super().__init__(branch)
        check_positive("ScaledResidual: depth", depth)
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


class BoundedGroupNorm(Layer):
    """Normalises each of `groups` groups of channels over all its positions.

    Lipschitz constant 1/norm_floor, times max|weight| with affine; output norm at most
    min(√n·√groups, X/norm_floor) for n entries in a group. affine: a weight and a bias per channel,
    which the paper does not have.
    """

    def __init__(
        self, groups: int, channels: int, norm_floor: float, *, affine: bool = False
    ) -> None:
        super().__init__()
        check_positive("BoundedGroupNorm: norm_floor", norm_floor)
        divided("BoundedGroupNorm", "channels", channels, groups)
        self.groups = groups
        self.channels = channels
        self.norm_floor = norm_floor
        self.weight = nn.Parameter(torch.ones(channels)) if affine else None
        self.bias = nn.Parameter(torch.zeros(channels)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, then scale and shift channel by channel."""
        _require_channels("BoundedGroupNorm", self.channels, x)
        size = math.prod(x.shape[1:]) // self.groups
        blocks = unflattened(x.flatten(1), 1, self.groups, size)  # [examples, groups, n]
        y = _normalised(blocks, 1, self.norm_floor).reshape(x.shape)
        if self.weight is None or self.bias is None:
            return y
        per_channel = (self.channels, *[1] * (x.dim() - 2))
        return y * self.weight.reshape(per_channel) + self.bias.reshape(per_channel)


class BoundedLayerNorm(Layer):
    """Normalises the trailing axes, of the stated sizes, together: tokens, or whole examples.

    Lipschitz constant 1/norm_floor, times max|weight| with affine; output norm of each block of n
    entries at most min(√n, X/norm_floor). affine: a weight and a bias per entry.
    """

    def __init__(
        self, shape: int | tuple[int, ...], norm_floor: float, *, affine: bool = False
    ) -> None:
        super().__init__()
        check_positive("BoundedLayerNorm: norm_floor", norm_floor)
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.norm_floor = norm_floor
        self.weight = nn.Parameter(torch.ones(self.shape)) if affine else None
        self.bias = nn.Parameter(torch.zeros(self.shape)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, then scale and shift entry by entry."""
        _require_trailing("BoundedLayerNorm", self.shape, x)
        y = _normalised(x, len(self.shape), self.norm_floor)
        return y if self.weight is None or self.bias is None else y * self.weight + self.bias


class UnitLayerNorm(Layer):
    """(x − m)/√(‖x − m‖² + 1) over the trailing axes, of the stated sizes: blocks of norm below 1.

    Lipschitz constant 1, output norm min(X, √blocks). It is LayerNorm with ε = 1/n for blocks of n
    entries, times 1/√n, without scale and shift, which the next linear map can hold. Proof: with
    c = x − m and r = √(‖c‖² + 1) the Jacobian is (P − ccᵀ/r²)/r, between 0 and P.
    """

    def __init__(self, shape: int | tuple[int, ...]) -> None:
        super().__init__()
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)

    def forward(self, x: Tensor) -> Tensor:
        """Subtract from each block its mean, and shrink it into the unit ball."""
        _require_trailing("UnitLayerNorm", self.shape, x)
        entries = math.prod(self.shape)
        return functional.layer_norm(x, self.shape, eps=1.0 / entries) / math.sqrt(entries)


class UnitGroupNorm(Layer):
    """(x − m)/√(‖x − m‖² + 1) for each of `groups` groups of channels with all its positions.

    Lipschitz constant 1, output norm min(X, √groups), as for `UnitLayerNorm`: the groups are its
    blocks.
    """

    def __init__(self, groups: int, channels: int) -> None:
        super().__init__()
        divided("UnitGroupNorm", "channels", channels, groups)
        self.groups = groups
        self.channels = channels

    def forward(self, x: Tensor) -> Tensor:
        """Subtract from each group its mean, and shrink it into the unit ball."""
        _require_channels("UnitGroupNorm", self.channels, x)
        entries = math.prod(x.shape[1:]) // self.groups
        return functional.group_norm(x, self.groups, eps=1.0 / entries) / math.sqrt(entries)


def _require_channels(layer: str, channels: int, x: Tensor) -> None:
    if x.dim() < 2 or x.shape[1] != channels:
        raise UsageError(
            f"{layer}: a batch of shape {tuple(x.shape)} does not have {channels} channels"
        )


def _require_trailing(layer: str, shape: tuple[int, ...], x: Tensor) -> None:
    axes = len(shape)
    if not 0 < axes < x.dim() or x.shape[-axes:] != shape:
        raise UsageError(
            f"{layer}: a batch of shape {tuple(x.shape)} does not hold examples that end in {shape}"
        )


def _normalised(x: Tensor, trailing: int, norm_floor: float) -> Tensor:
    """Return (x − μ)/max(norm_floor, s) over the trailing axes."""
    axes = tuple(range(x.dim() - trailing, x.dim()))
    entries = math.prod(x.shape[axis] for axis in axes)
    centred = x - x.mean(dim=axes, keepdim=True)
    lengths: Tensor = torch.linalg.vector_norm(centred, dim=axes, keepdim=True)
    return centred / (lengths / math.sqrt(entries)).clamp(min=norm_floor)
