"""Links: what the Jacobian of an op is made of, where it is one exact matrix or always diagonal.

What enters and leaves: `Matrix` or `Slopes`, which `chains.py` strings together. Both speak of
values in row-major order, so that a reshape changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lipcert.facts import Shape
from lipcert.interval import Interval
from lipcert.upper import FloatArray

_LARGEST_MATRIX: Final = 2**21


@final
@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """The Jacobian applies one known matrix to each run of `before` entries.

    entries: makes the matrix [after, before]; each entry errs by at most 4 unit roundoffs.
    """

    after: int
    before: int
    entries: Callable[[], FloatArray]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Slopes:
    """The Jacobian is diagonal, with entries in `range`; that broadcasts to the shape of the value.

    Every Clarke Jacobian at every point of the input's box counts.
    """

    range: Interval


Link = Matrix | Slopes
IDENTITY: Final = Slopes(Interval.exact(np.ones(())))


def matrix_of(
    linear: Callable[[FloatArray], FloatArray], before: Shape, after: Shape
) -> Matrix | None:
    """The matrix of a linear map of examples, from its images of unit vectors; None if it is large.

    Hypotheses: an output is a single entry of x times a constant, or a sum of several such terms
    with different entries, so that the images are exact but for the rounding of the constants.
    """
    rows, columns = math.prod(after), math.prod(before)
    if rows * columns > _LARGEST_MATRIX:
        return None

    def entries() -> FloatArray:
        images = linear(np.eye(columns).reshape(columns, *before))
        return np.ascontiguousarray(images.reshape(columns, rows).T)

    return Matrix(rows, columns, entries)
