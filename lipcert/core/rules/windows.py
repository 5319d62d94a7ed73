"""Windows along one axis after the other: which position each tap of each window reads.

Convolution, transposed convolution and average pooling are products of such axes.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from lipcert.core.arithmetic import multiply_up
from lipcert.core.interval import Array, Interval, norm_up
from lipcert.core.program import Shape
from lipcert.core.rules.facts import root_up
from lipcert.core.window_kinds import Conv, Window

Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """reads: the position of the input that each tap of each window reads, −1 for padding."""

    reads: npt.NDArray[np.int64]
    size: int

    @property
    def at_outputs(self) -> Mask:
        """Which taps of each window read the input: [outputs, taps]."""
        return self.reads >= 0

    @property
    def at_positions(self) -> Mask:
        """Through which taps each position of the input is read: [size, taps].

        Through one tap, by one window at most: strides are positive.
        """
        mask = np.zeros((self.size, self.reads.shape[1]), dtype=np.bool_)
        outputs, taps = np.nonzero(self.at_outputs)
        mask[self.reads[outputs, taps], taps] = True
        return mask


def axes_of(window: Window, sizes: Shape) -> tuple[Axis, ...]:
    """The axes of windows over a grid."""
    if not len(sizes) == len(window.taps) == len(window.outputs):
        raise ValueError("windows do not fit the grid that they slide over")
    if min(*window.strides, *window.dilations, *window.taps, 1) < 1:
        raise ValueError("a window has no tap, stride or dilation")
    return tuple(Axis(window.reads(axis, size), size) for axis, size in enumerate(sizes))


def read_axes(window: Window, before: Shape) -> tuple[Axis, ...] | None:
    """The axes of windows; None where a window reads nothing but padding."""
    axes = axes_of(window, before[2:])
    return axes if all(axis.at_outputs.any(axis=1).all() for axis in axes) else None


def overlap(axes: tuple[Axis, ...]) -> int:
    """The largest number of windows that read one position, at least 1."""
    counts = (int(np.max(axis.at_positions.sum(axis=1), initial=1)) for axis in axes)
    return math.prod(counts)


def convolution_axes(op: Conv, before: Shape, after: Shape) -> tuple[Axis, ...]:
    """Of the convolution itself, or of the one that a transposed convolution transposes."""
    larger, smaller = (after, before) if op.transposed else (before, after)
    if smaller[2:] != op.window.outputs:
        raise ValueError("a convolution has another number of windows than outputs")
    return axes_of(op.window, larger[2:])


def kernel_square(axes: Sequence[Axis]) -> int:
    """κ² with ‖conv(w, x)‖ ≤ κ‖w‖_F‖x‖ for all kernels w and inputs x, also with groups.

    Proof: one input and one output channel first. y_o = Σ A[o, p, t]·x_p·w_t, where A is 0 or 1 and
    any two of its indices fix the third. As a matrix from pairs (two of the indices) to the third
    one, its rows are disjoint, with at most m entries, hence of norm √m: m is the largest number
    of windows that read a position, of taps that a window reads through, or of windows that read
    through a tap. Over several axes A is a product, and so is the least of these bounds: apply
    the one of the first axis to the norms of the slices along the others. Channels: by Cauchy–
    Schwarz, ‖Σ_c y_c‖² ≤ (Σ_c κ‖w_c‖‖x_c‖)² ≤ κ²‖w‖²‖x‖² into each output channel.
    Attained: where windows do not overlap.
    """
    counts = [(axis.at_outputs, axis.at_positions) for axis in axes]
    return math.prod(
        min(_most(outputs, 1), _most(outputs, 0), _most(positions, 1))
        for outputs, positions in counts
    )


def kernel_norm(op: Conv, weight: Interval, before: Shape, after: Shape) -> float:
    """≥ the norm of a convolution: κ times the Frobenius norm of the largest group.

    Proof: groups are blocks on a diagonal.
    """
    largest = max(map(norm_up, np.split(weight.magnitude(), op.groups)))
    return multiply_up(kernel_stretch(op, before, after), largest)


def kernel_stretch(op: Conv, before: Shape, after: Shape) -> float:
    """κ, with which the norm of a convolution is at most κ times the Frobenius norm of its kernel.

    Proof: `kernel_square`.
    """
    return root_up(kernel_square(convolution_axes(op, before, after)))


def patterns(masks: Sequence[Mask]) -> list[tuple[Array, Array]]:
    """For each axis, the distinct sets of taps [sets, taps], and how often each one occurs."""
    found = (zip(*sorted(Counter(map(bytes, mask)).items()), strict=True) for mask in masks)
    return [(np.array([*map(list, sets)], float), np.array(n, float)) for sets, n in found]


def _most(mask: Mask, axis: int) -> int:
    return int(np.max(np.sum(mask, axis=axis), initial=0))
