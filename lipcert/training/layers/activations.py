"""Activations that preserve norms (GroupSort, MaxMin, Householder reflections) and a pooling layer
that preserves the Euclidean length of every window.

The activations act on groups of entries along one axis: they sort each group, or replace a group z
by its reflection z − 2(vᵀz)v if vᵀz < 0. Invariant: at every point they multiply by an orthogonal
matrix, hence they are 1-Lipschitz and norm-preserving: ‖f(x)‖ = ‖x‖ and ‖Jᵀg‖ = ‖g‖. Where sorted
entries are equal, the generalised Jacobians are averages of permutations, of norm 1 too. (Anil,
Lucas and Grosse 2019; Mhammedi et al. 2017; Singla, Singla and Feizi 2022; Béthune et al. 2024,
B.1.)

For images [examples, channels, height, width], pooling returns one number ≥ 0 for every window of
every channel. Windows do not overlap, so ‖f(x)‖ = ‖x‖ on the positions that are read.

Two helpers serve all layers. `example_axis` counts an axis from the front, and raises UsageError if
it is not an axis of one example. `is_exporting` lets a layer compute the same function in two ways:
for the exporter, in nodes that an importer recognises as a whole; otherwise, in the operations that
are fastest, also in the backward pass.
"""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from lipcert.errors import UsageError


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
