"""Conv: y = Tx + b, b added at every position of its channel, in either direction.

Images that are constant on every channel need no image: what a position receives depends on the
set of taps that reach it, and a grid has few such sets along each axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lipcert.core.arithmetic import add_up, multiply_up
from lipcert.core.interval import Array, Interval, exact, norm_up, symmetric, up
from lipcert.core.program import Conv, Shape
from lipcert.core.rules.dense import affine_norm
from lipcert.core.rules.facts import Fact, box_norm, lengths_up, root_up
from lipcert.core.rules.matrices import product
from lipcert.core.rules.weights import Weights
from lipcert.core.rules.windows import Mask, convolution_axes, patterns


def conv_positions(after: Shape) -> int:
    """How often each bias is added."""
    return after[0] * math.prod(after[2:])


def conv_fact(
    op: Conv, x: Fact, before: Shape, after: Shape, *, weights: Weights, output: str
) -> Fact:
    """Norm: the least of `affine_norm`, round 0 and round an image c constant on every channel.

    Proof: ‖Tx + b‖ ≤ ‖Tc + b‖ + ‖T‖‖x − c‖. An entry is a sum over the taps that reach it, of
    kernel entries times entries of their channels' ranges, and at most the norm of these kernel
    entries times ‖x‖.
    Attained: without bias, by the first right singular vector.
    """
    axes = convolution_axes(op, before, after)
    into, out_of = [a.at_outputs for a in axes], [a.at_positions for a in axes]
    if op.transposed:
        into, out_of = out_of, into
    kernel = _kernel(op, weights.entries(op.weight))
    if kernel.shape[0] * kernel.shape[2] != before[1]:
        raise ValueError("a kernel does not fit the channels of its input")
    largest = weights.operator_norm(output, op, before, after)
    positions = conv_positions(after)
    bias, shift, cross = symmetric(0.0, after[1:2]), 0.0, 0.0
    if op.bias is not None:
        bias, shift = weights.entries(op.bias), weights.norm(op.bias)
        backwards = Interval(np.swapaxes(kernel.lo, 1, 2), np.swapaxes(kernel.hi, 1, 2))
        cross = _image_norm(_per_tap(backwards, bias), out_of, None, before[0])
    norms = [affine_norm(largest, x.norm, cross, shift, positions)]
    channels = _channels(x.box)
    channels = channels.broadcast(before[1:2])
    if np.isfinite(channels.magnitude()).all():
        centre = exact(0.5 * channels.lo + 0.5 * channels.hi)
        image = _image_norm(_per_tap(kernel, centre), into, bias, before[0])
        distance = box_norm(x.box - _spread(centre, len(before)), before)
        norms.append(add_up(image, multiply_up(largest, distance)))
    cap = min(largest, weights.norm(op.weight))
    box = _box(kernel, channels, into, x.norm, cap) + bias
    return Fact.of(after, min(norms), _spread(box, len(after)))


def _box(
    kernel: Interval, channels: Interval, masks: Sequence[Mask], norm: float, cap: float
) -> Interval:
    """The range of the entries of each channel of Tx."""
    by_range = _grid(_per_tap(kernel, channels), masks)
    lengths = lengths_up(np.moveaxis(kernel.magnitude(), 2, -1))  # [groups, outputs, *taps]
    squares = up(lengths * lengths).reshape(-1, *kernel.shape[3:])
    reach = up(np.sqrt(np.maximum(_grid(exact(squares), masks).hi, 0.0)))
    reach = np.minimum(reach, cap)
    found = by_range.meet(exact(reach) * symmetric(norm, reach.shape))
    axes = tuple(range(1, reach.ndim))
    return Interval(np.min(found.lo, axis=axes), np.max(found.hi, axis=axes))


def _kernel(op: Conv, weight: Interval) -> Interval:
    """[groups, outputs of a group, inputs of a group, *taps]."""
    shape = (op.groups, weight.shape[0] // op.groups, *weight.shape[1:])
    low, high = weight.lo.reshape(shape), weight.hi.reshape(shape)
    if op.transposed:
        low, high = np.swapaxes(low, 1, 2), np.swapaxes(high, 1, 2)
    return Interval(low, high)


def _per_tap(kernel: Interval, channels: Interval) -> Interval:
    """What each tap adds to each output channel, for values of the channels: [outputs, *taps]."""
    groups, outputs, inputs, *taps = kernel.shape

    def matrix(ends: Array) -> Array:
        return np.moveaxis(ends, 2, 1).reshape(groups, inputs, -1)

    def row(ends: Array) -> Array:
        return ends.reshape(groups, 1, inputs)

    right = Interval(matrix(kernel.lo), matrix(kernel.hi))
    found = product(Interval(row(channels.lo), row(channels.hi)), right)
    shape = (groups * outputs, *taps)
    return Interval(found.lo.reshape(shape), found.hi.reshape(shape))


def _grid(per_tap: Interval, masks: Sequence[Mask]) -> Interval:
    """The sums over each set of taps that occurs: [channels, *sets of each axis]."""
    for axis, (sets, _) in enumerate(patterns(masks), start=1):
        moved = [np.moveaxis(ends, axis, -1) for ends in (per_tap.lo, per_tap.hi)]
        flat = [ends.reshape(-1, ends.shape[-1]) for ends in moved]
        found = product(Interval(*flat), exact(sets.T))
        shape = (*moved[0].shape[:-1], len(sets))
        low, high = (np.moveaxis(end.reshape(shape), -1, axis) for end in (found.lo, found.hi))
        per_tap = Interval(low, high)
    return per_tap


def _image_norm(
    per_tap: Interval, masks: Sequence[Mask], shift: Interval | None, copies: int
) -> float:
    """The norm of the image that `_grid` describes, shifted by channel, `copies` times."""
    image = _grid(per_tap, masks)
    if shift is not None:
        image = image + _spread(shift, len(image.shape) + 1, first=1)
    magnitude = image.magnitude()
    for axis, (_, counts) in enumerate(patterns(masks), start=1):
        roots = up(np.sqrt(counts)).reshape(-1, *[1] * (magnitude.ndim - 1 - axis))
        magnitude = up(magnitude * roots)
    return multiply_up(root_up(copies), norm_up(magnitude))


def _channels(box: Interval) -> Interval:
    """The range of each channel."""
    axes = (0, *range(2, len(box.shape)))
    return Interval(np.min(box.lo, axis=axes), np.max(box.hi, axis=axes))


def _spread(channels: Interval, rank: int, first: int = 0) -> Interval:
    """Per channel, as a box [1, channels, 1, ...]; without the axes before `first`."""
    shape = (1, -1, *[1] * (rank - 2))[first:]
    return Interval(channels.lo.reshape(shape), channels.hi.reshape(shape))
