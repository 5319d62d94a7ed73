"""One quadratic inequality for a network of links, with what rounding changes in it.

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
from typing import Final

import numpy as np
import numpy.typing as npt

from lipcert.core.budget import spend
from lipcert.core.forms.links import Diagonal, Edge, Matrix
from lipcert.core.interval import Array, norm_up, up
from lipcert.core.rules.facts import lengths_up

_TINY: Final = 2.0**-1000
_SAFE: Final = 1.0 + 2.0**-20
_LARGEST_EXPONENT: Final = 200
_NOTHING: Final = np.zeros(0), np.zeros(0, dtype=np.int64)


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
        """The part of the matrix that belongs to g."""
        return self.matrix[-self.size :, -self.size :]

    def error(self, top: Array) -> Fraction:
        """How far M is from the exact one at most, with a matrix added in the block of g.

        Proof: an entry is a sum of products of two or three factors, of which each passes at most
        `terms` + 8 roundings; |fl − exact| ≤ γ·Σ|products|, whose Frobenius norm is at most mass.
        """
        gamma = Fraction(self.terms + 9, 1 << 53) * 2
        return gamma * (self.mass + Fraction(norm_up(top))) + self.drift + Fraction(_TINY)


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """A vector on its way down: rows·v, for the variables v from number `first` to `stop`.

    errors: for each row, how far it is from the exact one at most, in the norm.
    """

    rows: Array
    errors: Array
    first: int

    @property
    def where(self) -> slice:
        """Where the variables stand among all."""
        return slice(self.first, self.first + self.rows.shape[1])

    @property
    def lengths(self) -> Array:
        """Upper bounds of the norms of the exact rows."""
        return up(lengths_up(self.rows) + self.errors)

    def below_matrix(self, link: Matrix) -> Rows:
        """Wᵀs. A product errs by γ_n of the product of the magnitudes, entry by entry."""
        size = np.abs(link.centre).T
        spread = size @ (self.errors + (len(self.rows) + 2) * 2.0**-52 * self.lengths)
        if link.radius is not None:
            spread = spread + link.radius.T @ self.lengths
        return Rows(link.centre.T @ self.rows, spread * _SAFE + _TINY, self.first)

    def below_known(self, factors: Array, errors: Array) -> Rows:
        """Ds for known slopes, which err."""
        spread = (np.abs(factors) * (self.errors + 2.0**-52 * self.lengths)) + errors * self.lengths
        return Rows(factors[:, None] * self.rows, spread * _SAFE + _TINY, self.first)

    def scaled(self, exponents: npt.NDArray[np.int64]) -> Rows:
        """Rows times powers of two."""
        rows, errors = np.ldexp(self.rows, exponents[:, None]), np.ldexp(self.errors, exponents)
        return Rows(rows, errors * _SAFE + _TINY, self.first)

    def plus(self, other: Rows) -> Rows:
        """The sum, over the variables of both; one rounding in an entry of both."""
        first, stop = min(self.first, other.first), max(self.where.stop, other.where.stop)
        rows = np.zeros((len(self.rows), stop - first))
        for part in (self, other):
            rows[:, part.first - first : part.where.stop - first] += part.rows
        spread = self.errors + other.errors + 2.0**-52 * (self.lengths + other.lengths)
        return Rows(rows, spread * _SAFE + _TINY, first)

    def chosen(self, which: npt.NDArray[np.bool_]) -> Rows:
        """The rows that the mask selects."""
        return Rows(self.rows[which], self.errors[which], self.first)


def unknowns(edges: Sequence[Edge]) -> int:
    """Number of variables below g."""
    diagonals = (edge.link for edge in edges if isinstance(edge.link, Diagonal))
    return sum(int(np.count_nonzero(link.unknown)) for link in diagonals)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The unknown slopes of one diagonal: what is above them, which variables below, their ends."""

    above: Rows
    own: slice
    low: Array
    high: Array


@dataclass(frozen=True, slots=True, eq=False)
class Descent:
    """What is above each unknown slope, from the top on, and δ: linear in `total` variables."""

    blocks: tuple[Block, ...]
    bottom: Rows
    total: int
    size: int

    def inequality(self, factors: Array) -> Inequality | None:
        """M for multipliers of these variables."""
        matrix = np.zeros((self.total, self.total))
        drift = mass = Fraction(0)
        terms = 2
        for block in self.blocks:
            more = _constraint(matrix, block, factors[block.own])
            drift, mass = drift + more[0], mass + more[1]
            terms += len(block.low) + 2
        bottom = self.bottom
        matrix[bottom.where, bottom.where] -= bottom.rows.T @ bottom.rows
        length, error = norm_up(bottom.rows), norm_up(bottom.errors)
        if not (np.isfinite(matrix).all() and math.isfinite(length) and math.isfinite(error)):
            return None
        drift += Fraction(error) * (2 * Fraction(length) + Fraction(error))
        symmetric = 0.5 * (matrix + matrix.T)
        terms += len(bottom.rows)
        return Inequality(symmetric, self.size, drift, mass + Fraction(length) ** 2, terms)


def descent_of(
    edges: Sequence[Edge], size: int, exponent: int, exponents: npt.NDArray[np.int64] | None = None
) -> Descent | None:
    """The way down from the target of the last edge to the source of the first.

    g = 2^exponent times the last `size` variables, and the others 2^-exponents times theirs.
    Proof: a place sends to each source of its edges the transposed link times its own cotangent,
    which is the sum of what its readers sent: they stand behind it.
    """
    first = unknowns(edges)
    total = first + size
    exponents = np.zeros(first, dtype=np.int64) if exponents is None else exponents
    top = Rows(np.ldexp(np.eye(size), exponent), np.zeros(size), first)
    found = {edges[-1].target: top}
    blocks: list[Block] = []
    for edge in reversed(edges):
        spend()
        above = found.get(edge.target)
        if above is None:
            return None
        if isinstance(edge.link, Matrix):
            below = above.below_matrix(edge.link)
        else:
            slopes, unknown = edge.link.slopes, edge.link.unknown
            below = above.below_known(*slopes.ball())
            if unknown.any():
                own = slice(first - int(np.count_nonzero(unknown)), first)
                first, own_exponents = own.start, exponents[own]
                kept = above.chosen(unknown).scaled(own_exponents)
                blocks.append(Block(kept, own, slopes.lo[unknown], slopes.hi[unknown]))
                below = _replaced(below, unknown, own_exponents, first)
        met = found.get(edge.source)
        found[edge.source] = below if met is None else met.plus(below)
    return Descent(tuple(blocks), found[edges[0].source], total, size)


def inequality_of(edges: Sequence[Edge], size: int, exponent: int) -> Inequality | None:
    """M for edges from below, g = 2^exponent times the variables; None without good multipliers.

    size: length of g. Variables are scaled by powers of two, so that t is near 1.
    """
    found = [_multipliers(e.link) for e in edges if isinstance(e.link, Diagonal)]
    weighed = [item for item in found if item is not None]
    if len(weighed) < len(found):
        return None
    factors, exponents = (np.concatenate(part) for part in zip(_NOTHING, *weighed, strict=True))
    descent = descent_of(edges, size, exponent, exponents)
    return None if descent is None else descent.inequality(factors)


def _multipliers(link: Diagonal) -> tuple[Array, npt.NDArray[np.int64]] | None:
    """t = f·4^e with ½ ≤ f < 2, for the unknown slopes; None unless all are of use."""
    unknown, weights = link.unknown, link.weights
    if not unknown.any():
        return _NOTHING
    if weights is None or weights.shape != unknown.shape:
        return None
    chosen = weights[unknown]
    if not (np.isfinite(chosen).all() and (chosen > 0.0).all()):
        return None
    exponents = np.frexp(chosen)[1].astype(np.int64) // 2
    if (np.abs(exponents) > _LARGEST_EXPONENT).any():
        return None
    return np.ldexp(chosen, -2 * exponents), exponents


def _constraint(matrix: Array, block: Block, factors: Array) -> tuple[Fraction, Fraction]:
    """Adds Σ t(w − αs)(w − βs), w before the variables of s; returns its drift and its mass."""
    above, own, rest = block.above, block.own, block.above.where
    low, high, count = block.low, block.high, len(block.low)
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
    below: Rows, unknown: npt.NDArray[np.bool_], exponents: npt.NDArray[np.int64], first: int
) -> Rows:
    """New variables from number `first` on, w = 2^-exponent times them, for unknown rows."""
    count = len(exponents)
    stop = first + count if unknown.all() else below.where.stop
    rows = np.zeros((len(below.rows), stop - first))
    if not unknown.all():
        rows[:, below.first - first :] = np.where(unknown[:, None], 0.0, below.rows)
    rows[np.flatnonzero(unknown), np.arange(count)] = np.ldexp(1.0, -exponents)
    return Rows(rows, np.where(unknown, 0.0, below.errors), first)
