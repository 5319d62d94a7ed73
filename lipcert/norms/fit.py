"""Fitting a majorant whose finite Toeplitz matrix has a small norm: an untrusted choice.

What enters: a search, which can estimate a symbol at frequencies, and the sizes of a map. What
leaves: a majorant that may be too small somewhere and is only proposed. A linear program keeps it
above the estimates, and cutting planes x'T(g)x ≤ t keep the largest eigenvalue of T(g) down.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, final

import numpy as np

from lipcert.norms.geometry import IndexArray
from lipcert.norms.majorant import Majorant
from lipcert.norms.search import Search
from lipcert.norms.tiling import Cells, Tiling
from lipcert.upper import FloatArray

__all__ = ["Fit", "fitted"]

_MARGIN: Final = 0.07  # of the distance to the peak: keeps coarse cells sufficient
_REFINEMENTS: Final = 1
_CONTACTS: Final = 6  # one cell in so many is refined, where g is closest to the symbol
_CUTS: Final = 25
_FEWEST_CUTS: Final = 12
_FEW_TERMS: Final = 13
_WORTHWHILE: Final = 1.004  # ratio of squares: a smaller gain over the peak is not pursued
_HOPELESS: Final = 1.001  # the same, while the peak is not known well
_ENOUGH_POINTS: Final = 120
_ACCURACY: Final = 5e-4
_DENSE_SIDE: Final = 200


@final
@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """A proposed majorant g, and estimates of λ_max(T(g)) and of the peak of the symbol."""

    majorant: Majorant
    largest: float
    peak: float


def fitted(search: Search, sizes: tuple[int, ...]) -> Fit | None:
    """A majorant on the tiling of the search; None where it would gain nothing."""
    tiling = search.tiling
    cells = tiling.everything(1)
    while len(cells) < _ENOUGH_POINTS:
        cells = cells.children()
    program = _Program.of(tiling, sizes)
    program.add(cells, _heights(search, cells))
    found = program.solve()
    for _ in range(_REFINEMENTS):
        if found is None:
            return None
        clearance = (program.rows @ found[0] - program.heights)[-len(cells) :]
        closest = np.argsort(clearance)[: max(4, len(cells) // _CONTACTS)]
        cells = cells.chosen(closest).children()
        program.add(cells, _heights(search, cells))
        found = program.solve()
    peak = float(np.max(program.heights))
    if found is None or found[1] * _WORTHWHILE > peak:
        return None
    coefficients, largest = found
    return Fit(Majorant.of(tiling.spans, coefficients), largest, peak)


def _heights(search: Search, cells: Cells) -> FloatArray:
    """The largest eigenvalue at the centres of cells, over all groups."""
    groups = search.symbol.groups
    group = np.repeat(np.arange(groups), len(cells))
    every = Cells(cells.level, group, np.tile(cells.index, (groups, 1)))
    heights: FloatArray = np.max(search.estimates(every).reshape(groups, -1), axis=0)
    return heights


@final
@dataclass(slots=True, eq=False)
class _Program:
    """Minimise t over (g, t): rows · g ≥ heights, x'T(g)x ≤ t for the vectors x found so far.

    places: at each entry of T(g), the number of its coefficient + 1, or 0.
    """

    tiling: Tiling
    places: IndexArray
    terms: int
    rows: FloatArray
    heights: FloatArray
    cuts: list[FloatArray] = field(default_factory=list)

    @classmethod
    def of(cls, tiling: Tiling, sizes: tuple[int, ...]) -> _Program:
        """A program without any demand."""
        terms = len(Majorant.shifts_of(tiling.spans))
        numbered = Majorant.of(tiling.spans, np.arange(1.0, terms + 1.0))
        places = numbered.toeplitz(sizes).astype(np.int64)
        return cls(tiling, places, terms, np.empty((0, terms)), np.empty(0))

    def add(self, cells: Cells, heights: FloatArray) -> None:
        """Demand that g be at least these heights at the centres of the cells."""
        rows = Majorant.of(self.tiling.spans, np.ones(self.terms)).terms_at(self.tiling, cells)
        self.rows = np.concatenate((self.rows, rows))
        self.heights = np.concatenate((self.heights, heights))

    def solve(self) -> tuple[FloatArray, float] | None:
        """The best coefficients met, and their λ_max(T(g)); None where nothing is to be gained.

        The optimum t of a program with too few cuts lies below that of the program with all.
        """
        from scipy.optimize import linprog  # noqa: PLC0415  slow to import

        peak = float(np.max(self.heights))
        demands = self.heights + _MARGIN * (peak - self.heights)
        objective = np.append(np.zeros(self.terms), 1.0)
        bounds = [(-2.0 * peak, 2.0 * peak)] * self.terms + [(0.0, None)]
        above = np.column_stack((-self.rows, np.zeros(len(self.rows))))
        if not self.cuts:
            self._cut(np.ones((len(self.places), 1)) / len(self.places) ** 0.5)
        best, least = np.zeros(self.terms), math.inf
        for _ in range(max(_FEWEST_CUTS, _CUTS * _FEW_TERMS // self.terms)):
            matrix = np.concatenate((above, np.array(self.cuts)))
            limits = np.append(-demands, np.zeros(len(self.cuts)))
            result = linprog(objective, matrix, limits, bounds=bounds, method="highs")
            if result.status != 0 or result.x is None:
                return None
            optimum = np.asarray(result.x, dtype=np.float64)
            coefficients, bound = optimum[:-1], float(optimum[-1])
            if bound * _HOPELESS > peak:
                return None
            values, vectors = _top(np.append(0.0, coefficients)[self.places])
            if values[-1] < least:
                best, least = coefficients, float(values[-1])
            if least <= bound * (1.0 + _ACCURACY):
                break
            self._cut(vectors[:, values > bound])
        return best, least

    def _cut(self, vectors: FloatArray) -> None:
        """Demand x'T(g)x ≤ t for each column x."""
        for vector in vectors.T:
            products = np.outer(vector, vector).ravel()
            sums = np.bincount(self.places.ravel(), products, self.terms + 1)
            self.cuts.append(np.append(sums[1:], -1.0))


def _top(matrix: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The largest eigenvalues, in ascending order, and their vectors."""
    if len(matrix) <= _DENSE_SIDE:
        values, vectors = np.linalg.eigh(matrix)
        return values[-4:], vectors[:, -4:]
    from scipy.sparse.linalg import eigsh  # noqa: PLC0415  slow to import

    values, vectors = eigsh(matrix, k=4, which="LA", tol=1e-5, v0=np.ones(len(matrix)))
    order = np.argsort(values)
    return values[order], vectors[:, order]
