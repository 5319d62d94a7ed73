"""One quadratic inequality for a chain of links, with what rounding changes in it.

On its way down a cotangent g meets matrices, s ← Wᵀs, and diagonals, w = Ds with unknown slopes in
[α, β]: there w takes the place of s as a new variable, and t(w − αs)(βs − w) ≥ 0 entry by entry,
for any t ≥ 0. Below, δ = Jᵀg is what arrives. The matrix M of the quadratic form
    Σ t(w − αs)(w − βs) − ‖δ‖²,    s and δ linear in the variables,
is what this file computes. If M with P added in the block of g is positive semidefinite, then
gᵀPg ≥ ‖δ‖² + Σ t(w − αs)(βs − w) ≥ ‖δ‖² for all slopes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, final

import numpy as np
import numpy.typing as npt

from lipcert.core.budget import spend
from lipcert.core.forms.links import Diagonal, Link, Matrix
from lipcert.core.interval import Array, norm_up, up
from lipcert.core.rules.facts import lengths_up

_KNOWN: Final = 2.0**-44
_TINY: Final = 2.0**-1000
_SAFE: Final = 1.0 + 2.0**-20
_LARGEST_EXPONENT: Final = 200


@final
@dataclass(frozen=True, slots=True, eq=False)
class Inequality:
    """M, for variables from the lowest diagonal up to g, which is the last `size` of them.

    drift: how far the exact M is from it at most, in the norm. mass: the sum over its terms of
    the products of the Frobenius norms of two factors. terms: numbers added up for an entry.
    """

    matrix: Array
    size: int
    drift: Fraction
    mass: Fraction
    terms: int

    @property
    def block(self) -> Array:
        """The block of g."""
        return self.matrix[-self.size :, -self.size :]

    def error(self, top: Array) -> Fraction:
        """How far M is from the exact one at most, with a matrix added in the block of g.

        Proof: an entry is a sum of products of two or three factors, of which each passes at most
        `terms` + 8 roundings; |fl − exact| ≤ γ·Σ|products|, whose Frobenius norm is at most mass.
        """
        gamma = Fraction(self.terms + 9, 1 << 53) * 2
        return gamma * (self.mass + Fraction(norm_up(top))) + self.drift + Fraction(_TINY)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """A vector on its way down: rows·v, for the variables v from number `first` to `stop`.

    errors: for each row, how far it is from the exact one at most, in the norm.
    """

    rows: Array
    errors: Array
    first: int

    @property
    def where(self) -> slice:
        """The variables."""
        return slice(self.first, self.first + self.rows.shape[1])

    @property
    def lengths(self) -> Array:
        """Of the exact rows."""
        return up(lengths_up(self.rows) + self.errors)

    def below_matrix(self, link: Matrix) -> _Rows:
        """Wᵀs. A product errs by γ_n of the product of the magnitudes, entry by entry."""
        size = np.abs(link.centre).T
        spread = size @ (self.errors + (len(self.rows) + 2) * 2.0**-52 * self.lengths)
        if link.radius is not None:
            spread = spread + link.radius.T @ self.lengths
        return _Rows(link.centre.T @ self.rows, spread * _SAFE + _TINY, self.first)

    def below_known(self, factors: Array, errors: Array) -> _Rows:
        """Ds for known slopes, which err."""
        spread = (np.abs(factors) * (self.errors + 2.0**-52 * self.lengths)) + errors * self.lengths
        return _Rows(factors[:, None] * self.rows, spread * _SAFE + _TINY, self.first)

    def scaled(self, exponents: npt.NDArray[np.int64]) -> _Rows:
        """Rows times powers of two."""
        rows, errors = np.ldexp(self.rows, exponents[:, None]), np.ldexp(self.errors, exponents)
        return _Rows(rows, errors * _SAFE + _TINY, self.first)

    def chosen(self, which: npt.NDArray[np.bool_]) -> _Rows:
        """Some of the rows."""
        return _Rows(self.rows[which], self.errors[which], self.first)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Slopes:
    """A diagonal: slopes known to within rounding, and unknown ones with their multipliers."""

    link: Diagonal
    unknown: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, link: Diagonal) -> _Slopes:
        largest = link.slopes.magnitude()
        return cls(link, link.slopes.hi - link.slopes.lo > _KNOWN * largest)

    def known(self, above: _Rows) -> _Rows:
        """Ds as if all slopes were known."""
        low, high = self.link.slopes.lo, self.link.slopes.hi
        middle = np.where(low == high, low, 0.5 * low + 0.5 * high)
        spread = np.where(low == high, 0.0, np.maximum(up(high - middle), up(middle - low)))
        return above.below_known(middle, spread)

    def multipliers(self) -> tuple[Array, npt.NDArray[np.int64]] | None:
        """t = f·4^e with ½ ≤ f < 2, for the unknown slopes; None unless all are of use."""
        weights = self.link.weights
        if weights is None or weights.shape != self.unknown.shape:
            return None
        chosen = weights[self.unknown]
        if not (np.isfinite(chosen).all() and (chosen > 0.0).all()):
            return None
        exponents = np.frexp(chosen)[1].astype(np.int64) // 2
        if (np.abs(exponents) > _LARGEST_EXPONENT).any():
            return None
        return np.ldexp(chosen, -2 * exponents), exponents


def unknowns(links: Sequence[Link]) -> int:
    """Number of variables below g."""
    diagonals = (_Slopes.of(link) for link in links if isinstance(link, Diagonal))
    return sum(int(np.count_nonzero(slopes.unknown)) for slopes in diagonals)


def inequality_of(links: Sequence[Link], size: int, exponent: int) -> Inequality | None:
    """M for links from below, g = 2^exponent times the variables; None without good multipliers.

    size: length of g. Variables are scaled by powers of two, so that t is near 1.
    """
    total = unknowns(links) + size
    matrix = np.zeros((total, total))
    vector = _Rows(np.ldexp(np.eye(size), exponent), np.zeros(size), total - size)
    drift = mass = Fraction(0)
    terms = 0
    for link in reversed(links):
        spend()
        terms += len(vector.rows) + 2
        if isinstance(link, Matrix):
            vector = vector.below_matrix(link)
            continue
        slopes = _Slopes.of(link)
        below = slopes.known(vector)
        if slopes.unknown.any():
            weighed = slopes.multipliers()
            if weighed is None:
                return None
            factors, exponents = weighed
            above = vector.chosen(slopes.unknown).scaled(exponents)
            more = _constraint(matrix, above, link, slopes.unknown, factors)
            drift, mass = drift + more[0], mass + more[1]
            below = _replaced(below, slopes.unknown, exponents)
        vector = below
    matrix[vector.where, vector.where] -= vector.rows.T @ vector.rows
    length, error = norm_up(vector.rows), norm_up(vector.errors)
    if not (np.isfinite(matrix).all() and math.isfinite(length) and math.isfinite(error)):
        return None
    drift += Fraction(error) * (2 * Fraction(length) + Fraction(error))
    symmetric = 0.5 * (matrix + matrix.T)
    return Inequality(
        symmetric, size, drift, mass + Fraction(length) ** 2, terms + len(vector.rows)
    )


def _constraint(
    matrix: Array, above: _Rows, link: Diagonal, unknown: npt.NDArray[np.bool_], factors: Array
) -> tuple[Fraction, Fraction]:
    """Adds Σ t(w − αs)(w − βs), w before the variables of s; returns its drift and its mass."""
    count = len(above.rows)
    low, high = link.slopes.lo[unknown], link.slopes.hi[unknown]
    own, rest = slice(above.first - count, above.first), above.where
    left, right = -low[:, None] * above.rows, -high[:, None] * above.rows
    cross = 0.5 * (factors[:, None] * (left + right))
    matrix[own, own] += np.diag(factors)
    matrix[own, rest] += cross
    matrix[rest, own] += cross.T
    if low.any():
        product = left.T @ (factors[:, None] * right)
        matrix[rest, rest] += 0.5 * (product + product.T)
    whole = [np.append(left, np.ones(count)), np.append(2.0 * right, 2.0 * factors)]
    sizes = [norm_up(part) for part in whole]
    errors = [
        norm_up(up(np.abs(low) * above.errors)),
        norm_up(up(2.0 * np.abs(high) * above.errors)),
    ]
    if not all(map(math.isfinite, sizes + errors)):
        return Fraction(1 << 1000), Fraction(0)
    (a, b), (da, db) = map(Fraction, sizes), map(Fraction, errors)
    return a * db + da * b + da * db, a * b


def _replaced(
    below: _Rows, unknown: npt.NDArray[np.bool_], exponents: npt.NDArray[np.int64]
) -> _Rows:
    """New variables, w = 2^-exponent times them, in the place of unknown rows."""
    count = len(exponents)
    width = below.rows.shape[1] if not unknown.all() else 0
    rows = np.zeros((len(below.rows), count + width))
    rows[:, count:] = np.where(unknown[:, None], 0.0, below.rows[:, :width])
    rows[np.flatnonzero(unknown), np.arange(count)] = np.ldexp(1.0, -exponents)
    errors = np.where(unknown, 0.0, below.errors)
    return _Rows(rows, errors, below.first - count)
