"""Majorant: a scalar trigonometric polynomial that stands above every eigenvalue of a symbol.

What enters: the real coefficients of g(w) = g_0 + 2 Σ_δ g_δ cos(δ·w), taken as exact. What leaves:
certified values of g, a bound of its supremum, and its finite Toeplitz matrix. Whether g really
stands above a symbol is what `cells.py` proves. A constant is the simplest majorant.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lipcert.interval import Interval
from lipcert.norms.frequencies import TWIDDLE_ERROR, half_space, reduced_angles
from lipcert.norms.geometry import IndexArray
from lipcert.norms.tiling import Cells, Tiling
from lipcert.upper import ZERO, FloatArray, Upper, gamma, total

__all__ = ["Majorant"]

_DENSITY: Final = {1: 16, 2: 8, 3: 6}  # of the cells on which the supremum is bounded


@final
@dataclass(frozen=True, slots=True, eq=False)
class Majorant:
    """g, of degree spans[i] along axis i.

    shifts: [terms, axes], one of every pair ±δ, the origin first.    coefficients: [terms].
    supremum: an upper bound of g.    error: |computed g(w) − g(w)| ≤ error.
    """

    spans: tuple[int, ...]
    shifts: IndexArray
    coefficients: FloatArray
    supremum: Upper
    error: Upper

    @classmethod
    def constant(cls, spans: tuple[int, ...], value: float) -> Majorant:
        """The same value at every frequency."""
        origin = np.zeros((1, len(spans)), dtype=np.int64)
        return cls(spans, origin, np.array([value]), Upper(value), ZERO)

    @classmethod
    def of(cls, spans: tuple[int, ...], coefficients: FloatArray) -> Majorant:
        """g with coefficients in the order of `half_space(spans)`.

        Proof of the error: a sum of products: Σ|g_δ| times γ and the error of cosines.
        """
        shifts = cls.shifts_of(spans)
        mass = Upper(2.0) * total(Upper(abs(float(each))) for each in coefficients)
        error = mass * (gamma(len(shifts) + 4) + TWIDDLE_ERROR)
        rough = cls(spans, shifts, coefficients, mass, error)
        return cls(spans, shifts, coefficients, min(mass, rough._least_upper_bound()), error)

    @staticmethod
    def shifts_of(spans: tuple[int, ...]) -> IndexArray:
        """The shifts of a majorant with all coefficients: [terms, axes]."""
        return np.array(half_space(spans), dtype=np.int64).reshape(-1, len(spans))

    def covers(self, spans: tuple[int, ...]) -> bool:
        """Whether polynomials of these degrees are no finer than g."""
        return len(spans) == len(self.spans) and all(map(operator.le, spans, self.spans))

    def raised(self, step: float) -> Majorant:
        """g plus a constant, up to rounding."""
        coefficients = self.coefficients.copy()
        coefficients[0] += step
        if len(coefficients) == 1:
            return Majorant.constant(self.spans, float(coefficients[0]))
        return Majorant.of(self.spans, coefficients)

    def at(self, tiling: Tiling, cells: Cells) -> FloatArray:
        """g at the centres of cells, within `error`: [n]."""
        if len(self.shifts) == 1:
            return np.full(len(cells), self.coefficients[0])
        values: FloatArray = self.terms_at(tiling, cells) @ self.coefficients
        return values

    def terms_at(self, tiling: Tiling, cells: Cells) -> FloatArray:
        """What each coefficient is multiplied with at the centres of cells: [n, terms]."""
        weights = np.where(np.any(self.shifts, axis=1), 2.0, 1.0)
        rows: FloatArray = weights * np.cos(reduced_angles(self.shifts, *tiling.centres(cells)))
        return rows

    def floor(self, tiling: Tiling, cells: Cells) -> FloatArray:
        """Lower bounds of g − sin²θ · sup g at the centres of cells of one level: [n]."""
        drop = self.supremum * tiling.sine_squared(cells.level) + self.error
        values = Interval.exact(self.at(tiling, cells)) - Interval.exact(np.array(drop.value))
        return values.lo

    def toeplitz(self, sizes: tuple[int, ...]) -> FloatArray:
        """The matrix g_{i−j} over the points i, j of a box: exact."""
        points = np.indices(sizes).reshape(len(sizes), -1).T
        table = np.zeros(tuple(2 * span + 1 for span in self.spans))
        for shift, coefficient in zip(self.shifts, self.coefficients, strict=True):
            table[tuple(shift + self.spans)] = table[tuple(self.spans - shift)] = coefficient
        difference = points[:, None] - points
        spans = np.array(self.spans)
        near = np.all(np.abs(difference) <= spans, axis=2)
        where = np.clip(difference + spans, 0, 2 * spans)
        return np.where(near, table[tuple(np.moveaxis(where, 2, 0))], 0.0)

    def _least_upper_bound(self) -> Upper:
        """Upper bound of sup g, from values on cells.

        Proof: h = g − c is a real trigonometric polynomial. At distance d from a point where |h|
        is largest, |h| ≥ ‖h‖ cos(Σ spans_i |d_i|) (Duffin and Schaeffer 1938); at level 1 that
        angle is at most twice the angle of level 1, which is the angle of level 0.
        """
        tiling = Tiling(self.spans, _DENSITY[min(3, len(self.spans))])
        cells = tiling.everything(1).children()
        values = self.at(tiling, cells)
        middle = 0.5 * float(np.max(values)) + 0.5 * float(np.min(values))
        reach = (Interval.exact(values) - Interval.exact(np.array(middle))).max_abs() + self.error
        cosine = tiling.cosine_squared(0).sqrt()
        return Upper(max(middle, 0.0)) + reach.over(cosine)
