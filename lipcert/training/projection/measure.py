"""Measures: certified upper bounds of norms of the present weights.

What enters: the numbers of all parameters, and for each use a limit. What leaves: a bound for each
use. Here: norms that are read off the entries.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, final

import numpy as np

from lipcert.graph.viewed import viewed
from lipcert.training.projection.uses import Norm, Use
from lipcert.upper import FloatArray, gamma

Numbers = Mapping[str, FloatArray]
"""by the graph's names of parameters, exact"""

_ROUNDED: Final = 1.0 + 2.0**-49  # more than the few roundings of the last operations
_FLOOR: Final = 2.0**-80  # of a limit: norms below it are taken for it, far above all underflow


@dataclass(frozen=True, slots=True, eq=False)
class Measure(ABC):
    """Bounds of the norms of some uses.

    spreads: for each use, B such that weights whose entries are off by a relative u have a norm
    that is off by at most u·B times what this measure proves of it.
    """

    uses: tuple[Use, ...]
    spreads: tuple[float, ...]

    @abstractmethod
    def bounds(self, numbers: Numbers, *, tight: bool) -> Sequence[float]:
        """For each use a bound of its norm; inf or NaN where nothing can be proved.

        tight: within about one in a thousand of what this measure can prove at all. Otherwise
        norms that are proved to be within their limits may be answered by the limit.
        """


@final
@dataclass(frozen=True, slots=True, eq=False)
class Entrywise(Measure):
    """Euclidean norms, also of rows, and largest magnitudes, which grow with magnitudes: spreads
    of 1."""

    @classmethod
    def of(cls, uses: Sequence[Use]) -> Entrywise:
        """Of uses that are no maps."""
        return cls(tuple(uses), (1.0,) * len(uses))

    def bounds(self, numbers: Numbers, *, tight: bool) -> Sequence[float]:
        """Returns B ≥ ‖θ‖₂, B ≥ ‖row‖₂ for all rows of the view, or B ≥ max |entries of it|.

        Proof: the computed sum S of n squares is at least (1 − γ_n) times the exact one, and
        1/√(1 − γ_n) ≤ 1 + γ_n. The largest magnitude is exact up to the rounding of a view's
        factor. The floor covers underflow: n·2^-1022 is far below its square.
        Attained: up to rounding.
        """
        del tight
        with np.errstate(over="ignore"):
            return [_bound(use, numbers[use.parameter]) for use in self.uses]


def _bound(use: Use, whole: FloatArray) -> float:
    if use.norm is Norm.EUCLIDEAN:
        flat = whole.reshape(-1)
        value = math.sqrt(np.dot(flat, flat)) * _rounding(flat.size)
    elif use.norm is Norm.ROW and use.operand is not None:
        rows = viewed(use.operand, whole)
        longest = np.max(np.einsum("ij,ij->i", rows, rows), initial=0.0)
        value = math.sqrt(longest) * _rounding(rows.shape[1])
    else:
        array = whole if use.operand is None else viewed(use.operand, whole)
        value = max(float(np.max(array, initial=0.0)), -float(np.min(array, initial=0.0)))
    bound = value * _ROUNDED
    floor = use.limit * _FLOOR
    return floor if bound < floor else bound


@cache
def _rounding(terms: int) -> float:
    """1 + γ of a sum of squares, and some."""
    return 1.0 + gamma(terms + 4).value
