"""Vectors pulled back through single steps: rows g become gᵀJ, all of them at once.

Input: an interval that holds the rows, a step, and the shape of what it reads. Output: an interval
that holds what they become; nothing for a step that is not linear.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np

from lipcert.core.forms.links import Diagonal, Matrix, link_of
from lipcert.core.interval import Interval, down, exact, up
from lipcert.core.program import IndexArray, Move, Shape, Step
from lipcert.core.rules.window_reads import windows_over
from lipcert.core.rules.windows import Axis, axes_of, convolution_axes
from lipcert.core.token_kinds import ReduceSum
from lipcert.core.window_kinds import AveragePool, Conv


def pulled(
    rows: Interval, step: Step, shape: Shape, slopes: Mapping[str, Interval]
) -> Interval | None:
    """rows·J for the Jacobian J of a step between values in row-major order; None where unknown.

    shape: of what it reads. slopes: of each step that acts entry by entry, as in `links_of`.
    ValueError where the step does not fit its shapes.
    """
    match step.op:
        case Conv() | AveragePool():
            found = _over_windows(rows, step.op, shape, step.shape)
        case Move(sources):
            found = _moved(rows, sources.ravel(), math.prod(shape))
        case ReduceSum(axes, mean):
            terms = math.prod(shape[axis] for axis in axes) if mean else 1
            whole = rows.moved(lambda end: end.reshape(-1, *step.shape))
            found = whole.broadcast((len(rows.lo), *shape)) * exact(float(terms)).reciprocal()
        case _ if len(step.inputs) == 1:
            found = _linked(rows, step, shape, slopes)
        case _:
            return None
    return None if found is None else _flat(found)


def _linked(
    rows: Interval, step: Step, shape: Shape, slopes: Mapping[str, Interval]
) -> Interval | None:
    """Through a diagonal, or a matrix on every run along the last axis."""
    link = link_of(step, shape, slopes)
    if isinstance(link, Diagonal):
        return rows * link.entries if rows.shape[1] == link.entries.lo.size else None
    if not isinstance(link, Matrix):
        return None
    runs = rows.moved(lambda end: end.reshape(len(end), -1, len(link.entries.lo)))
    return runs @ link.entries


def _moved(rows: Interval, sources: IndexArray, size: int) -> Interval | None:
    """To where the entries come from; None where one is repeated."""
    inside = np.flatnonzero(sources >= 0)
    if np.bincount(sources[inside], minlength=1).max() > 1:
        return None
    low, high = np.zeros((len(rows.lo), size)), np.zeros((len(rows.lo), size))
    low[:, sources[inside]], high[:, sources[inside]] = rows.lo[:, inside], rows.hi[:, inside]
    return Interval(low, high)


def _flat(rows: Interval) -> Interval:
    return rows.moved(lambda end: end.reshape(len(end), -1))


def _over_windows(
    rows: Interval, op: Conv | AveragePool, shape: Shape, after: Shape
) -> Interval | None:
    """rows·J for the Jacobian J of a step between two shapes; None for a transposed convolution.

    ValueError where the step does not fit its shapes.
    """
    if isinstance(op, AveragePool):
        return _averaged(rows, op, shape, after)
    return None if op.transposed else _convolved(rows, op, shape, after)


def _convolved(rows: Interval, op: Conv, shape: Shape, after: Shape) -> Interval:
    """Proof: gᵀJ at a position of channel i is the sum, over the taps through which a window p
    reads it, of Σ_o g_o(p)·K_oi(tap)."""
    axes = convolution_axes(op, shape, after)
    split = (op.groups, -1, op.weight.shape[1], math.prod(op.window.taps))
    kernel = Interval(op.weight.lo, op.weight.hi).moved(lambda end: end.reshape(split))
    above = rows.moved(lambda end: end.reshape(len(end), op.groups, -1, math.prod(after[2:])))

    def through(tap: int, used: IndexArray) -> Interval:
        own = kernel.moved(lambda end: np.swapaxes(end[..., tap], 1, 2))
        return own @ above.moved(lambda end: end[..., used])

    return _gathered((len(rows.lo), *split[::2], math.prod(shape[2:])), shape, axes, through)


def _averaged(rows: Interval, op: AveragePool, shape: Shape, after: Shape) -> Interval:
    """Each window divided by the number of its terms."""
    axes = axes_of(op.window, shape[2:])
    read = (windows_over(shape, axes) >= 0).sum(axis=1)
    terms = np.full_like(read, math.prod(op.window.taps)) if op.counts_padding else read
    above = rows.moved(lambda end: end.reshape(len(end), shape[1], -1))
    above = above * exact(terms).reciprocal()

    def through(tap: int, used: IndexArray) -> Interval:
        del tap
        return above.moved(lambda end: end[..., used])

    if math.prod(after[2:]) != len(terms):
        raise ValueError("an average does not fit its shapes")
    return _gathered((len(rows.lo), shape[1], math.prod(shape[2:])), shape, axes, through)


def _gathered(
    size: Shape,
    shape: Shape,
    axes: tuple[Axis, ...],
    through: Callable[[int, IndexArray], Interval],
) -> Interval:
    """What positions receive from windows, tap by tap: through one tap, no two read the same.

    size: of what is received, positions last. through: a tap, from the windows that read by it.
    """
    low, high = np.zeros(size), np.zeros(size)
    for tap, places in enumerate(windows_over(shape, axes).T):
        used = np.flatnonzero(places >= 0)
        part, where = through(tap, used), places[used]
        low[..., where] = down(low[..., where] + part.lo)
        high[..., where] = up(high[..., where] + part.hi)
    return Interval(low, high)
