"""Links: the Jacobians along a chain of steps, one after another.

What enters: two values of a program, where each step from the lower to the upper one reads only
the one before. What leaves: for each step a known matrix or slopes of unknown value, on runs of
consecutive entries that no step mixes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias, final

import numpy as np

from lipcert.core.budget import spend
from lipcert.core.interval import Array, Interval, exact, up
from lipcert.core.norms.convolution import MAX_ENTRIES, Convolution
from lipcert.core.norms.steps import Kernel
from lipcert.core.program import (
    Activation,
    AveragePool,
    BatchNorm,
    Centre,
    Conv,
    Dense,
    IndexArray,
    Move,
    PRelu,
    ReduceSum,
    Scale,
    Shape,
    Shift,
    Step,
)

_ROUNDING: Final = 2.0**-51


@final
@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """A known matrix [after, before] on every run; each entry errs by at most that of `radius`."""

    centre: Array
    radius: Array | None


@final
@dataclass(frozen=True, slots=True, eq=False)
class Diagonal:
    """A diagonal matrix on every run, with any entries in `slopes`. weights: its multipliers."""

    slopes: Interval
    weights: Array | None


Link: TypeAlias = Matrix | Diagonal


def links_of(
    steps: Sequence[Step],
    shapes: Mapping[str, Shape],
    slopes: Mapping[str, Interval],
    multipliers: Sequence[Sequence[float]],
) -> tuple[tuple[Link, ...], int] | None:
    """The links, and how many runs there are; None where a step is no link.

    slopes: for each Activation and PRelu, by the value it computes, an interval that broadcasts to
    its shape and holds the slopes of chords. multipliers: a list for each of these steps, from
    below, of as many numbers as a run has entries, or empty.
    Proof: a step works on blocks of consecutive entries, and their numbers' common divisor counts
    the runs that all steps respect. Slopes hold for every run if they hold for their union.
    """
    found: list[tuple[Link, int]] = []
    rest = list(multipliers)
    for step in steps:
        spend()
        shape = shapes[step.inputs[0]]
        link = _link(step, shape, slopes)
        if isinstance(step.op, Activation | PRelu) and isinstance(link, Diagonal) and rest:
            link = replace(link, weights=np.array(rest.pop(0), dtype=np.float64))
        if link is None:
            return None
        columns = link.centre.shape[1] if isinstance(link, Matrix) else 1
        found.append((link, math.prod(shape) // max(columns, 1)))
    runs = math.gcd(*(blocks for _, blocks in found))
    if rest or runs < 1:
        return None
    on_runs = [_on_run(link, blocks // runs, runs) for link, blocks in found]
    whole = tuple(link for link in on_runs if link is not None)
    return (whole, runs) if len(whole) == len(found) else None


def _on_run(link: Link, blocks: int, runs: int) -> Link | None:
    """On a run of so many blocks; None for a matrix that is too large."""
    if isinstance(link, Diagonal):
        low, high = link.slopes.lo.reshape(runs, -1), link.slopes.hi.reshape(runs, -1)
        return replace(link, slopes=Interval(low.min(axis=0), high.max(axis=0)))
    if link.centre.size * blocks**2 > MAX_ENTRIES:
        return None
    radius = None if link.radius is None else _repeated(link.radius, blocks)
    return Matrix(_repeated(link.centre, blocks), radius)


def _repeated(matrix: Array, blocks: int) -> Array:
    """So many times along a diagonal."""
    return np.asarray(np.kron(np.eye(blocks), matrix), dtype=np.float64)


def _link(step: Step, shape: Shape, slopes: Mapping[str, Interval]) -> Link | None:
    """The Jacobian of a step that reads a value of this shape, in row-major order."""
    match step.op:
        case Activation() | PRelu():
            return _diagonal(slopes[step.output], shape) if step.output in slopes else None
        case Scale(factor):
            return _diagonal(Interval(factor.lo, factor.hi), shape)
        case BatchNorm(scale, _, _, inverse):
            factors = Interval(scale.lo, scale.hi) * Interval(inverse.lo, inverse.hi)
            per_channel = (-1, *[1] * (len(shape) - 2))
            ends = factors.lo.reshape(per_channel), factors.hi.reshape(per_channel)
            return _diagonal(Interval(*ends), shape)
        case Shift():
            return _diagonal(exact(1.0), shape)
        case Dense(weight):
            return _matrix(Interval(weight.lo, weight.hi))
        case _ if math.prod(shape) * math.prod(step.shape) > MAX_ENTRIES:
            return None
        case Conv():
            return _convolution(step, shape)
        case AveragePool():
            return _average(step, step.op, shape)
        case ReduceSum():
            return _sum(step, step.op, shape)
        case Centre(axes):
            return _centre(axes, shape)
        case Move(sources):
            return _move(step, sources.ravel(), math.prod(shape))
    return None


def _diagonal(slopes: Interval, shape: Shape) -> Diagonal | None:
    whole = slopes.broadcast(shape)
    flat = Interval(whole.lo.ravel(), whole.hi.ravel())
    known = np.isfinite(flat.lo).all() and np.isfinite(flat.hi).all()
    return Diagonal(flat, None) if known else None


def _matrix(entries: Interval) -> Matrix | None:
    """The middle of the entries, and how far the ends are from it."""
    if not (np.isfinite(entries.lo).all() and np.isfinite(entries.hi).all()):
        return None
    if (entries.lo == entries.hi).all():
        return Matrix(entries.lo, None)
    centre = 0.5 * entries.lo + 0.5 * entries.hi
    return Matrix(centre, np.maximum(up(entries.hi - centre), up(centre - entries.lo)))


def _convolution(step: Step, shape: Shape) -> Matrix | None:
    """Written out; a transposed one is the transpose of what is written out."""
    if not isinstance(step.op, Conv):
        return None
    kernel = Kernel.of(step.op, shape, step.shape)
    ends = (replace(kernel.frame, kernel=end) for end in (kernel.entries.lo, kernel.entries.hi))
    low, high = (end.matrix().T if kernel.adjoint else end.matrix() for end in ends)
    return _matrix(Interval(low, high))


def _average(step: Step, op: AveragePool, shape: Shape) -> Matrix:
    """The sum over windows, each channel by itself, divided by the number of terms."""
    ones = np.ones((shape[1], 1, *op.window.taps))
    total = Convolution(ones, shape[2:], op.window, shape[1]).matrix()
    if total.shape[0] != math.prod(step.shape) or shape[0] != 1:
        raise ValueError("an average does not fit its shapes")
    counts = total.sum(axis=1, keepdims=True)
    if op.counts_padding:
        counts[:] = math.prod(op.window.taps)
    return _divided(total, np.maximum(counts, 1.0))


def _sum(step: Step, op: ReduceSum, shape: Shape) -> Matrix:
    """1, or 1 divided by the number of terms, where an entry belongs to a sum."""
    targets = np.broadcast_to(np.arange(math.prod(step.shape)).reshape(step.shape), shape).ravel()
    total = np.zeros((math.prod(step.shape), targets.size))
    total[targets, np.arange(targets.size)] = 1.0
    terms = math.prod(shape[axis] for axis in op.axes) if op.mean else 1
    return _divided(total, np.full((1, 1), float(terms)))


def _centre(axes: Shape, shape: Shape) -> Matrix:
    """I − 11ᵀ/m on each block of m entries: two roundings each."""
    kept = tuple(1 if axis in axes else length for axis, length in enumerate(shape))
    blocks = np.broadcast_to(np.arange(math.prod(kept)).reshape(kept), shape).ravel()
    together = blocks[:, np.newaxis] == blocks
    share = 1.0 / max(math.prod(shape[axis] for axis in axes), 1)
    centre = np.eye(blocks.size) - np.where(together, share, 0.0)
    return Matrix(centre, np.abs(centre) * _ROUNDING)


def _move(step: Step, sources: IndexArray, size: int) -> Link:
    """1 where an entry comes from."""
    if np.array_equal(sources, np.arange(size)):
        return Diagonal(exact(np.ones(size)), None)
    entries = np.zeros((math.prod(step.shape), size))
    inside = np.flatnonzero(sources >= 0)
    entries[inside, sources[inside]] = 1.0
    return Matrix(entries, None)


def _divided(total: Array, counts: Array) -> Matrix:
    """Entries 0 or 1, divided by counts: one rounding each."""
    centre = total / counts
    return Matrix(centre, centre * _ROUNDING)
