"""Conv: y = Tx + b, b added at every position of its channel, in either direction.

Images that are constant on every channel need no image: what a position receives depends on the
set of taps that reach it, and a grid has few such sets along each axis.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from lipcert.core.arithmetic import add_up, multiply_up
from lipcert.core.interval import Array, Interval, exact, norm_up, symmetric, up
from lipcert.core.program import Move, Operand, Shape
from lipcert.core.rules.base import Rule
from lipcert.core.rules.facts import Cotangent, Fact, affine_norm, box_norm, lengths_up, root_up
from lipcert.core.rules.windows import Axis, Mask, convolution_axes, kernel_square, patterns
from lipcert.core.window_kinds import Conv


class ConvRule(Rule[Conv]):
    """A convolution or its transpose, and a bias per channel."""

    def fact(self) -> Fact:
        """Norm: the least of `affine_norm`, round 0 and round an image c constant on every channel.

        Proof: ‖Tx + b‖ ≤ ‖Tc + b‖ + ‖T‖‖x − c‖. An entry is a sum over the taps that reach it, of
        kernel entries times entries of their channels' ranges, and at most the norm of these kernel
        entries times ‖x‖.
        Attained: without bias, by the first right singular vector.
        """
        op, x, before, after, weights = self.op, self.x, self.before, self.shape, self.weights
        axes = self._axes
        into, out_of = [a.at_outputs for a in axes], [a.at_positions for a in axes]
        if op.transposed:
            into, out_of = out_of, into
        kernel = _kernel(op, weights.entries(op.weight))
        if kernel.shape[0] * kernel.shape[2] != before[1]:
            raise ValueError("a kernel does not fit the channels of its input")
        largest = self.lipschitz(0)
        bias, shift, cross = symmetric(0.0, after[1:2]), 0.0, 0.0
        if op.bias is not None:
            bias, shift = weights.entries(op.bias), weights.norm(op.bias)
            backwards = kernel.moved(lambda end: np.swapaxes(end, 1, 2))
            cross = _image_norm(_per_tap(backwards, bias), out_of, None, before[0])
        norms = [affine_norm(largest, x.norm, cross, shift, self._positions)]
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

    def lipschitz(self, _: int) -> float:
        """‖T‖₂. Attained always."""
        return self.weights.operator_norm(self.output, self.op, self.before, self.shape)

    def reaches(self) -> Iterator[tuple[Operand, float]]:
        """Weight: κX, or the Frobenius norm of all windows. Bias: √P, disjoint columns of ones.

        Proof: κ is that of `kernel_square`. w ↦ y is, into each output channel, the matrix of the
        windows of its group; its norm is at most its Frobenius norm, in which every entry counts as
        often as it is read: over the box, or over the value z behind a move, no entry of which is
        read more than m times: √m‖z‖.
        Attained: where windows do not overlap; by one window; always.
        """
        axes = self._axes
        reads = [(a.at_outputs if self.op.transposed else a.at_positions).sum(axis=1) for a in axes]
        bounds = [
            multiply_up(root_up(kernel_square(axes)), self.x.norm),
            _windows_norm(self.x.box, self.before, reads),
        ]
        if self.behind is not None and isinstance(self.behind.op, Move):
            rank, every = len(self.before), np.ones(self.before)
            for axis, counts in enumerate(reads, start=2):
                every *= counts.reshape(-1, *[1] * (rank - 1 - axis))
            sources = self.behind.op.sources.ravel()
            used = sources >= 0
            times = np.bincount(sources[used], weights=every.ravel()[used])
            most = np.max(times, initial=0.0)
            bounds.append(multiply_up(root_up(int(most)), self.behind.x.norm))
        yield self.op.weight, min(bounds)
        if self.op.bias is not None:
            yield self.op.bias, root_up(self._positions)

    def operand_gradients(self, cotangent: Cotangent) -> Iterator[tuple[Operand, float]]:
        """Also by channel sums S ≥ √Σ_c ‖g_c‖₁²: S of the bias, which receives Σ_p g_c(p)."""
        for operand, gradient in super().operand_gradients(cotangent):
            if cotangent.sums == math.inf:
                yield operand, gradient
                continue
            from lipcert.core.rules.window_reads import longest_window  # noqa: PLC0415  for sums

            by_sums = 1.0 if operand is self.op.bias else longest_window(self, self._axes)
            yield operand, min(gradient, multiply_up(by_sums, cotangent.sums))

    @property
    def _axes(self) -> tuple[Axis, ...]:
        return convolution_axes(self.op, self.before, self.shape)

    @property
    def _positions(self) -> int:
        """How often each bias is added."""
        return self.shape[0] * math.prod(self.shape[2:])


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
    kernel = weight.moved(lambda end: end.reshape(shape))
    return kernel.moved(lambda end: np.swapaxes(end, 1, 2)) if op.transposed else kernel


def _per_tap(kernel: Interval, channels: Interval) -> Interval:
    """What each tap adds to each output channel, for values of the channels: [outputs, *taps]."""
    groups, outputs, inputs, *taps = kernel.shape

    def matrix(ends: Array) -> Array:
        return np.moveaxis(ends, 2, 1).reshape(groups, inputs, -1)

    def row(ends: Array) -> Array:
        return ends.reshape(groups, 1, inputs)

    found = channels.moved(row) @ kernel.moved(matrix)
    shape = (groups * outputs, *taps)
    return found.moved(lambda end: end.reshape(shape))


def _grid(per_tap: Interval, masks: Sequence[Mask]) -> Interval:
    """The sums over each set of taps that occurs: [channels, *sets of each axis]."""
    for axis, (sets, _) in enumerate(patterns(masks), start=1):
        moved = [np.moveaxis(ends, axis, -1) for ends in (per_tap.lo, per_tap.hi)]
        flat = [ends.reshape(-1, ends.shape[-1]) for ends in moved]
        found = Interval(*flat) @ exact(sets.T)
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


def _windows_norm(box: Interval, before: Shape, reads: Sequence[npt.NDArray[np.int64]]) -> float:
    """√Σ reads·x² over the box; an entry that stands for an axis is read as often as all of it."""
    magnitude = box.magnitude()
    for axis, counts in enumerate(reads, start=2):
        kept = counts if magnitude.shape[axis] > 1 else counts.sum(keepdims=True)
        roots = up(np.sqrt(kept.astype(np.float64)))
        magnitude = up(magnitude * roots.reshape(-1, *[1] * (magnitude.ndim - 1 - axis)))
    channels = math.prod(before[:2]) // max(math.prod(magnitude.shape[:2]), 1)
    return multiply_up(root_up(channels), norm_up(magnitude))
