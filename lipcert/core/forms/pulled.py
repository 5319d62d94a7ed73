"""Vectors pulled back through single steps: rows g become gᵀJ, all of them at once.

Input: an interval that holds the rows, a step, and the shape of what it reads. Output: an interval
that holds what they become; nothing for a step that is not linear.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from lipcert.core.forms.links import Diagonal, Matrix, link_of
from lipcert.core.interval import Interval, down, exact, up
from lipcert.core.program import (
    AveragePool,
    Conv,
    IndexArray,
    Move,
    ReduceSum,
    Shape,
    Step,
)


def pulled(
    rows: Interval, step: Step, shape: Shape, slopes: Mapping[str, Interval]
) -> Interval | None:
    """rows·J for the Jacobian J of a step between values in row-major order; None where unknown.

    shape: of what it reads. slopes: of each step that acts entry by entry, as in `links_of`.
    ValueError where the step does not fit its shapes.
    """
    match step.op:
        case Conv() | AveragePool():
            from lipcert.core.forms.windows import rows_over_windows  # noqa: PLC0415  these alone

            found = rows_over_windows(rows, step.op, shape, step.shape)
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
        return rows * link.slopes if rows.shape[1] == link.slopes.lo.size else None
    if not isinstance(link, Matrix):
        return None
    centre, radius = link.centre, 0.0 if link.radius is None else link.radius
    runs = rows.moved(lambda end: end.reshape(len(end), -1, len(centre)))
    return runs @ Interval(down(centre - radius), up(centre + radius))


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
