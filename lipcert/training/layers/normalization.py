"""Normalisation with a bounded slope: (x − μ)/max(norm_floor, s), s the standard deviation; and (x
− μ)/√(‖x − μ‖² + 1), whose blocks have norm below 1.

The values of one example are cut into blocks of n entries, and each block is normalised to x̂ with
‖x̂‖ ≤ min(√n, X/norm_floor), then perhaps mapped to weight·x̂ + bias. Invariant: blocks lie within
one example.

Lipschitz constant of x ↦ x̂: 1/norm_floor (Barczewski and Ramon 2024, Eqs. 5 and 6). Proof: with u
= (x − μ)/‖x − μ‖ and the projection P = I − 11ᵀ/n, the Jacobian is P/norm_floor where s is below
the floor, (P − uuᵀ)/s where it is above, and between the two where both meet. Unlike √(s² + ε), the
maximum leaves large deviations unchanged. Constant blocks give 0, with a finite derivative.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from lipcert.errors import UsageError
from lipcert.settings.values import check_positive
from lipcert.training.layers.activations import Layer, divided, unflattened


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
