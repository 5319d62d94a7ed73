"""Clips round a layer, and what a clip by channels says of the gradient of a convolution."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lipcert.core.arithmetic import multiply_up
from lipcert.core.interval import Interval
from lipcert.core.program import (
    Conv,
    CotangentClip,
    InputClip,
    Move,
    Program,
    Shape,
)
from lipcert.core.rules.facts import Cotangent, Fact, root_up
from lipcert.core.rules.windows import Axis, convolution_axes

_Indices: TypeAlias = npt.NDArray[np.int64]
_BLOCK: Final = 1 << 20
_MOST_READS: Final = 1 << 24
_MOST_TIMES: Final = 16


def clipped_fact(op: InputClip, x: Fact, shape: Shape) -> Fact:
    """x where ‖x‖ ≤ radius; otherwise the radius, and the box drawn to 0.

    Proof: y = t·x with t in [0, 1], so that every entry lies between 0 and that of x, and no run
    grows. The Jacobian has norm 1, whether t is differentiated (y is then the projection onto a
    ball, a convex set) or taken as a constant.
    Attained: by every x with ‖x‖ ≥ radius.
    """
    if x.norm <= op.radius:
        return x
    box = Interval(np.minimum(x.box.lo, 0.0), np.maximum(x.box.hi, 0.0))
    return Fact.of(shape, op.radius, box, x.run, x.column)


def clipped_cotangent(op: CotangentClip, cotangent: Cotangent) -> Cotangent:
    """min(l, radius), by channel also for the sums; a hull stays one.

    Proof: the clip multiplies g by a t in [0, 1], after which |g| is at most the radius. A root of
    a sum of squares is at most the sum of magnitudes, so that ‖g‖₂ ≤ |g| also by channel. With a
    member a hull holds its shorter multiples.
    Attained: by every g with |g| ≥ radius.
    """
    sums = op.radius if op.by_channel else math.inf
    return replace(cotangent, norm=min(cotangent.norm, op.radius), sums=min(cotangent.sums, sums))


def without_cotangent_clips(program: Program) -> Program:
    """The function that the program computes, which clips of the cotangent are no part of."""
    return replace(
        program,
        steps=tuple(
            replace(step, op=replace(step.op, radius=math.inf))
            if isinstance(step.op, CotangentClip)
            else step
            for step in program.steps
        ),
    )


def kernel_reach_by_sums(
    op: Conv, x: Fact, before: Shape, after: Shape, moved: tuple[Move, Fact] | None
) -> float:
    """R with ‖∂loss/∂kernel‖ ≤ R·S for S ≥ √Σ_c ‖g_c‖₁², g the gradient at the output.

    x: what the convolution reads; moved: by which move that comes from which value z. R = ‖x‖, or
    √m·‖z‖ where no position of the output meets an entry of z more than m times.
    Proof (Young): the gradient for output channel c is Σ_p g_c(p)·r_c(p), where r_c(p) holds, for
    each channel and tap, the entry of x that position p meets through that tap, or 0: of a
    convolution x(p·stride + t·dilation − before), of a transposed one the q with
    q·stride + t·dilation − before = p. Different taps meet different entries, so ‖r_c(p)‖ ≤ ‖x‖ and
    ‖Σ_p g_c(p)·r_c(p)‖ ≤ ‖g_c‖₁·‖x‖; squares add over c. If an entry of z occurs m times in r_c(p)
    at most, ‖r_c(p)‖ ≤ √m‖z‖. Attained: at one position and one tap.
    """
    axes = convolution_axes(op, before, after)
    if moved is None or op.transposed or before[0] != 1:
        return x.norm
    move, source = moved
    return min(x.norm, multiply_up(_most_in_a_window(move, before, axes), source.norm))


def _most_in_a_window(move: Move, before: Shape, axes: tuple[Axis, ...]) -> float:
    """√m: how often one entry of the value behind a move is in one window, over all channels.

    inf where that is more than some times, or takes too long to find out.
    """
    channels = before[1]
    size = channels * math.prod(axis.reads.size for axis in axes)
    if move.sources.shape != before or size > _MOST_READS:
        return math.inf
    reads = _windows(before, axes)  # [windows, taps], −1 outside
    sources = np.concatenate([move.sources.reshape(channels, -1), np.full((channels, 1), -1)], 1)
    most = 1
    step = max(1, _BLOCK // max(reads.shape[1] * channels, 1))
    for start in range(0, len(reads), step):
        part = reads[start : start + step]
        met = np.moveaxis(sources[:, part], 0, 1).reshape(len(part), -1)
        met.sort(axis=1)
        while most < met.shape[1] and _has_run(met, most + 1):
            most += 1
            if most > _MOST_TIMES:
                return math.inf
    return root_up(most)


def _has_run(rows: _Indices, length: int) -> bool:
    """Whether a number ≥ 0 stands so many times in one of these sorted rows."""
    first, last = rows[:, : 1 - length], rows[:, length - 1 :]
    return bool(((first == last) & (first >= 0)).any())


def _windows(before: Shape, axes: tuple[Axis, ...]) -> _Indices:
    """The flat position that each tap of each window reads: [windows, taps], −1 for padding."""
    flat = np.zeros((1, 1), dtype=np.int64)
    for axis, size in zip(axes, before[2:], strict=True):
        outer, inner = flat[:, None, :, None], axis.reads[None, :, None, :]
        joint = np.where((outer < 0) | (inner < 0), -1, outer * size + inner)
        flat = joint.reshape(len(flat) * len(axis.reads), -1)
    return flat
