"""Links: what the Jacobian of an op is made of, where it is one exact matrix or always diagonal.

What enters and leaves: `Matrix` or `Slopes`, which `chains.py` strings together. Both speak of
values in row-major order, so that a reshape changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lipcert.interval import Interval
from lipcert.upper import FloatArray

__all__ = ["IDENTITY", "Link", "Matrix", "Slopes"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """The Jacobian applies one exact matrix to each run of entries. weight: [after, before]."""

    weight: FloatArray


@final
@dataclass(frozen=True, slots=True, eq=False)
class Slopes:
    """The Jacobian is diagonal, with entries in `range`; that broadcasts to the shape of the value.

    Every Clarke Jacobian at every point of the input's box counts.
    """

    range: Interval


Link = Matrix | Slopes
IDENTITY: Final = Slopes(Interval.exact(np.ones(())))
