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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from lipcert.core.budget import spend
from lipcert.core.forms.links import Diagonal, Edge, Link, Matrix
from lipcert.core.interval import Array, Interval, norm_up
from lipcert.core.line import NotProved

_LARGEST: Final = 2.0**400
"""of multipliers and of their inverses, and of what links do to a number"""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """A vector on its way down: rows·v, for the variables v from number `first` on.

    fresh: which rows are these variables themselves, one each, from the first one on.
    """

    rows: Array
    first: int
    fresh: npt.NDArray[np.bool_] | None = None

    @property
    def where(self) -> slice:
        """Where the variables stand among all."""
        return slice(self.first, self.first + self.rows.shape[1])

    def below(self, matrix: Array) -> Rows:
        """What a matrix sends down of it; of fresh rows that is as it stands in the matrix."""
        if self.fresh is None:
            return Rows(matrix.T @ self.rows, self.first)
        others = matrix[~self.fresh].T @ self.rows[~self.fresh, np.count_nonzero(self.fresh) :]
        return Rows(np.concatenate([matrix[self.fresh].T, others], axis=1), self.first)

    def plus(self, other: Rows) -> Rows:
        """The sum, over the variables of both."""
        first, stop = min(self.first, other.first), max(self.where.stop, other.where.stop)
        rows = np.zeros((len(self.rows), stop - first))
        for part in (self, other):
            rows[:, part.first - first : part.where.stop - first] += part.rows
        return Rows(rows, first)


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
    """What is above each unknown slope, from the top on, and δ: linear in `total` variables, of
    which g is the last `size`."""

    blocks: tuple[Block, ...]
    bottom: Rows
    total: int
    size: int

    def matrix(self, factors: Array, *, unsigned: bool = False) -> Array:
        """Return M for multipliers of these variables; unsigned: as if all terms were positive."""
        found = np.zeros((self.total, self.total))
        for block in self.blocks:
            own, rest, t = block.own, block.above.where, factors[block.own, None]
            ends = (np.abs(x) if unsigned else -x for x in (block.low, block.high))
            left, right = (end[:, None] * block.above.rows for end in ends)
            cross = 0.5 * (t * (left + right))
            found[own, own] += np.diag(factors[own])
            found[own, rest] += cross
            found[rest, own] += cross.T
            if block.low.any():
                found[rest, rest] += left.T @ (t * right)
        bottom = self.bottom
        squares = bottom.rows.T @ bottom.rows
        found[bottom.where, bottom.where] += squares if unsigned else -squares
        return 0.5 * (found + found.T)


def descent_of(
    edges: Sequence[Edge], size: int, taken: Callable[[Interval], Array] = Interval.middle
) -> Descent:
    """The way down from the target of the last edge to the source of the first.

    size: length of g. taken: the numbers in the place of entries that are known as intervals.
    Proof: a place sends to each source of its edges the transposed link times its own cotangent,
    which is the sum of what its readers sent: they stand behind it.
    """
    first = unknowns(edges)
    total = first + size
    found = {edges[-1].target: Rows(np.eye(size), first, np.ones(size, dtype=np.bool_))}
    blocks: list[Block] = []
    for edge in reversed(edges):
        spend()
        if edge.target not in found:
            raise NotProved("a step of the chain leads nowhere")
        above = found[edge.target]
        if isinstance(edge.link, Matrix):
            below = above.below(taken(edge.link.entries))
        else:
            slopes, unknown = edge.link.entries, edge.link.unknown
            below = Rows(taken(slopes)[:, None] * above.rows, above.first)
            if unknown.any():
                own = slice(first - int(np.count_nonzero(unknown)), first)
                first, kept = own.start, Rows(above.rows[unknown], above.first)
                blocks.append(Block(kept, own, slopes.lo[unknown], slopes.hi[unknown]))
                below = _replaced(below, unknown, own)
        met = found.get(edge.source)
        found[edge.source] = below if met is None else met.plus(below)
    return Descent(tuple(blocks), found[edges[0].source], total, size)


def _replaced(below: Rows, unknown: npt.NDArray[np.bool_], own: slice) -> Rows:
    """Return new variables, those with these numbers, in place of the unknown rows."""
    stop = own.stop if unknown.all() else below.where.stop
    rows = np.zeros((len(below.rows), stop - own.start))
    if not unknown.all():
        rows[:, below.first - own.start :] = np.where(unknown[:, None], 0.0, below.rows)
    rows[unknown, : own.stop - own.start] = np.eye(own.stop - own.start)
    return Rows(rows, own.start, unknown)


def inequality_of(edges: Sequence[Edge], size: int) -> tuple[Array, Array]:
    """M for edges from below, and how far each entry of it is from the exact one at most.

    Proof: an entry is a sum of products of factors c, which pass at most n roundings, so that it
    errs by γ_n·Σ Π|c|. Factors that are off by r change it by at most Σ Π(|c| + r) − Σ Π|c|. These
    two are the entry for the magnitudes of the links, all signs being +, and computed alike. What
    underflows is below 2^-1022, at fewer than 2^40 numbers; the links and multipliers that it meets
    stretch it at most by what is multiplied here, as all ways through edges of norms s together
    stretch by Π(1 + s) at most.
    """
    diagonals = [e.link for e in edges if isinstance(e.link, Diagonal) and e.link.unknown.any()]
    if any(x.weights is None or x.weights.shape != x.unknown.shape for x in diagonals):
        raise NotProved("its multipliers do not fit its steps")
    chosen = [x.weights[x.unknown] for x in diagonals if x.weights is not None]
    t = np.concatenate([np.zeros(0), *chosen])
    stretch = math.prod(1.0 + _stretch(edge.link) for edge in edges)
    if not (((t >= 1.0 / _LARGEST) & (t <= _LARGEST)).all() and stretch <= _LARGEST):
        raise NotProved("its multipliers or its steps are too large or too small")
    plain, largest = descent_of(edges, size), descent_of(edges, size, Interval.magnitude)
    above = largest.matrix(t, unsigned=True)
    n = plain.total + len(plain.bottom.rows) + 2 * sum(len(e.link.entries.lo) + 8 for e in edges)
    error = above * (n * 2.0**-50) + stretch**2 * float(np.max(t, initial=1.0)) * 2.0**-970
    if not all(_is_exact(edge.link) for edge in edges):
        least = descent_of(edges, size, lambda entries: np.abs(entries.middle()))
        error += above - least.matrix(t, unsigned=True)
    return plain.matrix(t), error


def _stretch(link: Link) -> float:
    """≥ its norm."""
    entries = link.entries.magnitude()
    return norm_up(entries) if isinstance(link, Matrix) else float(np.max(entries, initial=0.0))


def _is_exact(link: Link) -> bool:
    """Whether all numbers of the link that count as known are exact."""
    same = link.entries.lo == link.entries.hi
    return bool(same.all() if isinstance(link, Matrix) else (same | link.unknown).all())
