"""Gradient bounds: how far the gradient of the loss reaches the operands of one step.

∂loss/∂operand = (∂output/∂operand)ᵀ·cotangent, so that ‖∂loss/∂operand‖ ≤ L·l with L the norm of
the map from operand to output, the input being fixed. From operand to initializer it grows by at
most the gain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar, final

import numpy as np
import numpy.typing as npt

from lipcert.core.arithmetic import add_up, multiply_up
from lipcert.core.interval import Interval, norm_up, up
from lipcert.core.program import (
    BatchNorm,
    Conv,
    Dense,
    DivideByNorm,
    Move,
    Normalize,
    Op,
    Operand,
    PRelu,
    Scale,
    Shape,
    Shift,
)
from lipcert.core.rules.clips import kernel_reach_by_sums
from lipcert.core.rules.convolution import conv_positions
from lipcert.core.rules.diagonals import batch_factor, copies, per_channel
from lipcert.core.rules.facts import Cotangent, Fact, lengths_up, root_up
from lipcert.core.rules.moves import lies_in_runs, move_norm
from lipcert.core.rules.normalize import radius_up
from lipcert.core.rules.weights import Weights
from lipcert.core.rules.windows import convolution_axes, kernel_square

_Number = TypeVar("_Number", np.float64, np.int64)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """The step that computes the input of another one; what that step reads, with its shape."""

    op: Op
    fact: Fact
    shape: Shape


def shares(
    op: Op,
    inputs: Sequence[Fact],
    shapes: Sequence[Shape],
    shape: Shape,
    cotangent: Cotangent,
    *,
    weights: Weights,
    behind: Source | None = None,
) -> list[tuple[str, float]]:
    """For each operand and each initializer in it: ≥ ‖∂loss/∂initializer‖ through this step.

    behind: the step that computes the input, if it reads one value.
    """
    found = []
    for operand, reach in _reaches(op, inputs, shapes, shape, weights, behind):
        gradient = multiply_up(reach, cotangent.norm)
        if isinstance(op, Conv) and cotangent.sums < math.inf:
            by_sums = _reach_by_sums(op, operand, inputs[0], shapes[0], shape, behind)
            gradient = min(gradient, multiply_up(by_sums, cotangent.sums))
        found += [(name, multiply_up(gain, gradient)) for name, gain in operand.sources.items()]
    return found


def _reaches(  # noqa: PLR0917 (as for all rules)
    op: Op,
    inputs: Sequence[Fact],
    shapes: Sequence[Shape],
    shape: Shape,
    weights: Weights,
    behind: Source | None,
) -> Iterator[tuple[Operand, float]]:
    """Each operand, with L.

    Dense: W ↦ (W·x_p)_p has the norm of the matrix of all x_p, at most X. Offsets: an entry that is
    added at m places has √m (disjoint columns of ones). Factors: the longest part of x that one
    entry multiplies (disjoint columns). Attained, except for W at positions that are not parallel.
    """
    match op:
        case Dense():
            yield op.weight, inputs[0].norm
            if op.bias is not None:
                yield op.bias, root_up(math.prod(shape[:-1]))
        case Conv():
            yield op.weight, _kernel_reach(op, inputs[0], shapes[0], shape, behind)
            if op.bias is not None:
                yield op.bias, root_up(conv_positions(shape))
        case Scale():
            x, parts = inputs[0], op.factor.shape
            longest = min(x.norm, _longest_part(x, x.box, shape, parts))
            yield op.factor, min(longest, _part_behind(behind, shape, parts))
        case Shift():
            yield op.offset, root_up(copies(op.offset.shape, shape))
        case PRelu():  # ∂y/∂slope is x where that is negative
            negative = Interval(
                np.minimum(inputs[0].box.lo, 0.0), np.minimum(inputs[0].box.hi, 0.0)
            )
            longest = _longest_part(inputs[0], negative, shape, op.slope.shape)
            yield op.slope, min(inputs[0].norm, longest)
        case BatchNorm():
            yield from _batch_reaches(op, inputs[0], shape, weights)
        case _:
            pass


def _reach_by_sums(  # noqa: PLR0917 (as for all rules)
    op: Conv, operand: Operand, x: Fact, before: Shape, after: Shape, behind: Source | None
) -> float:
    """R with ‖∂loss/∂operand‖ ≤ R·√Σ_c ‖g_c‖₁²: for the bias 1, which receives Σ_p g_c(p)."""
    if operand is op.bias:
        return 1.0
    moved = None
    if behind is not None and isinstance(behind.op, Move):
        moved = behind.op, behind.fact
    return kernel_reach_by_sums(op, x, before, after, moved)


def _kernel_reach(op: Conv, x: Fact, before: Shape, after: Shape, behind: Source | None) -> float:
    """κX, or the Frobenius norm of all windows: every entry as often as it is read.

    Proof: κ is that of `kernel_square`. w ↦ y is, into each output channel, the matrix of the
    windows of its group; its norm is at most its Frobenius norm, over the box, or over the value
    behind a move, no entry of which is read more than m times: √m‖x‖.
    """
    axes = convolution_axes(op, before, after)
    reads = [(a.at_outputs if op.transposed else a.at_positions).sum(axis=1) for a in axes]
    bounds = [
        multiply_up(root_up(kernel_square(axes)), x.norm),
        _windows_norm(x.box, before, reads),
    ]
    if behind is not None and isinstance(behind.op, Move):
        every = np.ones(before)
        for axis, counts in enumerate(reads, start=2):
            every *= counts.reshape(-1, *[1] * (len(before) - 1 - axis))
        used = behind.op.sources.ravel() >= 0
        where = behind.op.sources.ravel()[used]
        most = np.max(np.bincount(where, weights=every.ravel()[used]), initial=0.0)
        bounds.append(multiply_up(root_up(int(most)), behind.fact.norm))
    return min(bounds)


def _windows_norm(box: Interval, before: Shape, reads: Sequence[npt.NDArray[np.int64]]) -> float:
    """√Σ reads·x² over the box; an entry that stands for an axis is read as often as all of it."""
    magnitude = box.magnitude()
    for axis, counts in enumerate(reads, start=2):
        kept = counts if magnitude.shape[axis] > 1 else counts.sum(keepdims=True)
        roots = up(np.sqrt(kept.astype(np.float64)))
        magnitude = up(magnitude * roots.reshape(-1, *[1] * (magnitude.ndim - 1 - axis)))
    channels = math.prod(before[:2]) // max(math.prod(magnitude.shape[:2]), 1)
    return multiply_up(root_up(channels), norm_up(magnitude))


def _batch_reaches(
    op: BatchNorm, x: Fact, shape: Shape, weights: Weights
) -> Iterator[tuple[Operand, float]]:
    """Scale: (x − mean)·inverse; inverse: (x − mean)·scale; mean: −scale·inverse; shift: 1.

    Proof: each reaches the P positions of its channel only. Over the box, or by
    ‖x_c − mean_c‖ ≤ X + √P·|mean_c|.
    """
    rank = len(shape)
    channels = (1, shape[1], *[1] * (rank - 2))
    positions = root_up(copies(channels, shape))
    mean = weights.entries(op.mean)
    length = add_up(x.norm, multiply_up(positions, weights.max_abs(op.mean)))
    for operand, other in ((op.scale, op.inverse), (op.inverse, op.scale)):
        centred = (x.box - per_channel(mean, rank)) * per_channel(weights.entries(other), rank)
        by_norm = multiply_up(length, weights.max_abs(other))
        yield operand, min(by_norm, _longest_part(None, centred, shape, channels))
    factor = float(np.max(batch_factor(op, weights).magnitude(), initial=0.0))
    yield op.mean, multiply_up(positions, factor)
    yield op.shift, positions


def _longest_part(x: Fact | None, box: Interval, shape: Shape, operand: Shape) -> float:
    """The largest norm of the entries that one entry of an operand of the same rank meets.

    They lie along the axes on which the operand has length 1; x: bounds of its runs hold too.
    """
    copies(operand, shape)
    rank, magnitude = len(shape), box.magnitude()
    met = [axis for axis in range(rank) if operand[axis] == 1]
    rows = _parts(magnitude, operand)
    repeated = math.prod(shape[axis] for axis in met) // max(rows.shape[1], 1)
    longest = multiply_up(root_up(repeated), float(np.max(lengths_up(rows), initial=0.0)))
    if x is None:
        return longest
    long = {axis - rank for axis in met if shape[axis] != 1}
    return min(longest, x.run if long <= {-1} else longest, x.column if long <= {-2} else longest)


def _part_behind(behind: Source | None, shape: Shape, operand: Shape) -> float:
    """The same, from the step that computes the value; inf where that says nothing.

    Proof: what comes from one run of the value behind a move holds each entry of that run at most
    m times, hence at most √m times its norm. In a normalised block of n entries x̂² sums up to
    n·q/(q + ε) ≤ n, q being the mean square.
    """
    match behind:
        case Source(Move() as move, fact, before) if move.sources.shape == shape:
            inside = lies_in_runs(_parts(move.sources, operand), before)
            return multiply_up(move_norm(move), fact.run) if inside else math.inf
        case Source(Normalize() | DivideByNorm() as op):
            axes = {axis % len(shape) for axis in op.axes}
            met = {i for i, n in enumerate(operand) if n == 1 and shape[i] != 1}
            if not met <= axes:
                return math.inf
            return _longest_block(op, math.prod(shape[i] for i in axes))
        case _:
            return math.inf


def _longest_block(op: Normalize | DivideByNorm, entries: int) -> float:
    """≥ the norm of a normalised block of so many entries."""
    return radius_up(op) if isinstance(op, DivideByNorm) else root_up(entries)


def _parts(array: npt.NDArray[_Number], operand: Shape) -> npt.NDArray[_Number]:
    """One row for each entry of an operand, with what it meets."""
    kept = [axis for axis, length in enumerate(operand) if length != 1]
    met = [axis for axis, length in enumerate(operand) if length == 1]
    rows = array.transpose(kept + met)
    return rows.reshape(math.prod(rows.shape[: len(kept)]), -1)
