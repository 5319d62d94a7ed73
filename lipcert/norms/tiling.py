"""Tiling: frequency space cut into cells, each halved along every axis as often as needed.

What enters: the degrees (spans) of a symbol. What leaves: cells with exact rational centres, a
test that given cells cover everything, and by how much a norm can fall between a point of a cell
and its centre.

Cells are boxes in coordinates y. For two axes of equal span, y = (w₁ + w₂, w₁ − w₂): boxes in y
are diamonds in w, twice as large as the squares for which the same bound holds. Otherwise y = w.
Since H(−w) is the conjugate of H(w), half of the last coordinate suffices.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, final

import numpy as np

from lipcert.norms.geometry import IndexArray
from lipcert.upper import Lower, Upper

_PI_BELOW: Final = Fraction(31415926535897932384, 10**19)
_PI_ABOVE: Final = Fraction(31415926535897932385, 10**19)


def cosine_squared(angle: Fraction) -> Lower:
    """Lower bound of cos²θ, θ = π · angle; 0 where θ exceeds π/2.

    Proof: cos²θ = (1 + cos 2θ)/2 decreases on [0, π/2], and partial sums of the cosine series
    that end with a negative term are lower bounds of the cosine.
    """
    theta = angle * _PI_ABOVE
    if theta >= Fraction(3, 2):
        return Lower(0.0)
    return Lower(float(_half_of_one_plus_cosine(2 * theta, 11))) * Lower(1.0 - 2.0**-52)


def cosine_squared_above(angle: Fraction) -> Upper:
    """Upper bound of cos²θ, θ = π · angle ≤ π/2: partial sums that end with a positive term."""
    if angle >= Fraction(1, 2):
        raise ValueError("the angle is not below a right one")
    return Upper.of_fraction(_half_of_one_plus_cosine(2 * angle * _PI_BELOW, 12))


def _half_of_one_plus_cosine(angle: Fraction, terms: int) -> Fraction:
    """(1 + cos)/2, the series cut after this many terms."""
    term, cosine = Fraction(1), Fraction(1)
    for order in range(1, terms + 1):
        term *= -(angle**2) / ((2 * order - 1) * (2 * order))
        cosine += term
    return (1 + cosine) / 2


@final
@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Cells of one level. group: [n]; index: [n, axes], counted in cells of that level."""

    level: int
    group: IndexArray
    index: IndexArray

    def __len__(self) -> int:
        return len(self.group)

    def chosen(self, which: slice | IndexArray | np.typing.NDArray[np.bool_]) -> Cells:
        """The cells selected by a slice, a mask or positions."""
        return Cells(self.level, self.group[which], self.index[which])

    def children(self) -> Cells:
        """The 2^axes halves of every cell, one level deeper."""
        axes = self.index.shape[1]
        corners = np.array(list(itertools.product((0, 1), repeat=axes)), dtype=np.int64)
        index = (2 * self.index[:, None] + corners).reshape(-1, axes)
        return Cells(self.level + 1, np.repeat(self.group, len(corners)), index)


@final
@dataclass(frozen=True, slots=True)
class Tiling:
    """The cells of level 0: along axis i, spans[i] · density of them make a full turn."""

    spans: tuple[int, ...]
    density: int

    @classmethod
    def reaching(cls, spans: tuple[int, ...], angle: float, levels: int) -> Tiling:
        """The coarsest tiling whose `angle` is reached after this many halvings."""
        coarsest = math.pi * float(cls(spans, 1).angle(levels))
        return cls(spans, math.ceil(coarsest / angle))

    @property
    def is_rotated(self) -> bool:
        """Whether cells are diamonds."""
        return len(self.spans) == 2 and self.spans[0] == self.spans[1]

    def counts(self, level: int) -> tuple[int, ...]:
        """Number of cells of a level along each coordinate, half a turn along the last one.

        Rotated: y lives modulo (2π, 2π) and (2π, −2π), of which [0, 4π) × [0, 2π) is a
        fundamental domain; −y maps its half [0, 4π) × [0, π] onto the other half.
        """
        full = [span * self.density for span in self.spans]
        if self.is_rotated:
            full[0] *= 2
        full[-1] = (full[-1] + 1) // 2
        return tuple(count << level for count in full)

    def everything(self, groups: int) -> Cells:
        """All cells of level 0, for every group."""
        grid = np.indices(self.counts(0)).reshape(len(self.spans), -1).T
        group = np.repeat(np.arange(groups), len(grid))
        return Cells(0, group, np.tile(grid, (groups, 1)))

    def centres(self, cells: Cells) -> tuple[IndexArray, IndexArray]:
        """(numerators [n, axes], denominators [n]): w = 2π · numerators / denominators."""
        common = math.lcm(*self.spans)
        weights = np.array([common // span for span in self.spans], dtype=np.int64)
        numerators = (2 * cells.index + 1) * weights
        denominator = 2 * common * self.density << cells.level
        if self.is_rotated:
            first, second = numerators.T
            numerators = np.stack((first + second, first - second), axis=1)
            denominator *= 2
        return numerators, np.full(len(cells), denominator, dtype=np.int64)

    def angle(self, level: int) -> Fraction:
        """θ/π where ‖P(centre)‖ ≥ cos θ · ‖P(w)‖ for a global maximiser w in the cell.

        spans: the degrees of P in each axis.
        Proof: let M = sup ‖P‖ = |u*P(w)v|. Along a ray from w, the real part of u*P(·)v, centred
        and turned by a phase, is a real trigonometric function of exponential type Σ spans_i
        |d_i|/2, bounded by M and equal to M at w; hence it stays above M cos(Σ spans_i |d_i|/2)
        while that angle is at most π/2 (Duffin and Schaeffer 1938). Boxes: |d_i| is at most half
        a cell, π/(spans_i · density · 2^level). Diamonds: |d₁| + |d₂| is at most that.
        """
        axes = 1 if self.is_rotated else len(self.spans)
        return Fraction(axes, (2 * self.density) << level)

    def cosine_squared(self, level: int) -> Lower:
        """Lower bound of cos²θ at this level; 0 where θ exceeds π/2."""
        return cosine_squared(self.angle(level))

    def is_covered_by(self, leaves: tuple[Cells, ...], groups: int) -> bool:
        """Whether the cells cover half the frequencies of each group, without overlap.

        Proof: all lie in the half, none is an ancestor of another or appears twice, and for each
        group their volumes add up to that of the half; the closed cells then miss no open set.
        """
        deepest = max((cells.level for cells in leaves), default=0)
        axes = len(self.spans)
        volume = np.zeros(groups, dtype=np.int64)
        seen: dict[int, IndexArray] = {}
        for cells in sorted(leaves, key=lambda each: each.level):
            counts = self.counts(cells.level)
            if np.any(cells.index < 0) or np.any(cells.index >= np.array(counts)):
                return False
            for level, keys in seen.items():
                index = cells.index >> (cells.level - level)
                if np.any(np.isin(self._keys(Cells(level, cells.group, index)), keys)):
                    return False
            keys = self._keys(cells)
            if len(np.unique(keys)) != len(keys):
                return False
            seen[cells.level] = np.concatenate((seen.get(cells.level, keys[:0]), keys))
            volume += np.bincount(cells.group, minlength=groups) << axes * (deepest - cells.level)
        return bool(np.all(volume == math.prod(self.counts(0)) << axes * deepest))

    def _keys(self, cells: Cells) -> IndexArray:
        """One number per cell of a level."""
        shape = self.counts(cells.level)
        keys: IndexArray = cells.group * math.prod(shape) + np.ravel_multi_index(
            tuple(cells.index.T), shape
        )
        return keys
