"""Products: multipliers of products of non-negative numbers, for `core.lines.products`.

`product_line` takes a region in its variables v, and finds untrusted multipliers and the norm that
they prove. The dual problem asks for moments Y ≥ 0 of v with the largest ‖o‖², such that entries of
FYFᵀ are not negative, F the factors, those of y·(y − u) are 0, and traces are within the norms.
Steps alternate between the pairs (Y, FYFᵀ) and what is allowed of each (the alternating direction
method of multipliers; Boyd et al. 2011); the multipliers are what keeps the two together. Those of
the norms are searched last, given the others that are kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from lipcert.core.kinds import BatchNorm, Centre, Concat
from lipcert.core.line import NotProved
from lipcert.core.lines.chains import VALUES, chain_steps
from lipcert.core.lines.products import MAX_CUTS, ProductFact, Unfolded, region_of
from lipcert.core.lines.proof import Proof
from lipcert.core.norms.residual import lower_factor
from lipcert.core.program import Activation, Dense, Move
from lipcert.core.rules.facts import Fact
from lipcert.core.token_kinds import Add, ReduceSum, Scale, Shift
from lipcert.core.window_kinds import AveragePool, Conv
from lipcert.search.quasi_newton import Seen, descend

FloatArray = npt.NDArray[np.float64]
_Single = npt.NDArray[np.float32]
IndexArray = npt.NDArray[np.int64]
LARGEST: Final = 512
"""Most variables."""
_ROUND, _ROUNDS = 150, 4
"""Steps after which multipliers are tested, and how often."""
_PENALTY, _FACTOR, _BALANCE, _OFTEN = 8.0, 1.6, 5.0, 20
_OVER: Final = 1.7
"""Over-relaxation of a step; 1 is the plain step."""
WORTH, _SETTLED = 0.995, 0.999
"""Share of the known bound that has to be proved; share of the last round that ends the search."""
_SMALLEST: Final = 3e-4
"""The smallest multipliers that are kept, for factors of norm 1."""
SLACK: Final = 2.0**-21
"""Share of the square of the norm, for facts that are a little larger, and for rounding."""
_LOOKS: Final = 40
_STABLE: Final = 1e-6
"""How near to 0 an entry of a box may end and still count as having either sign."""
TINY: Final = 1e-12
"""Smallest multiplier of y·(y − u), as a share of the square of the norm, instead of 0."""
_MOST: Final = 1e50
_RELU: Final = Activation("relu")
_AFFINE: Final = (
    Add, AveragePool, BatchNorm, Centre, Concat, Conv, Dense, Move, ReduceSum, Scale, Shift,
)  # fmt: skip
"""Steps that a region may have, besides ReLUs."""


def product_line(
    proof: Proof, facts: Mapping[str, Fact], start: str, stop: str
) -> ProductFact | None:
    """Return a line about a value; None if nothing far below the known norm is found."""
    known, region = facts[stop].norm, region_between(proof, facts, start, stop)
    if region is None:
        return None
    problem, best, before = _Problem.of(region, known), None, 1.0
    for weights in problem.weights():
        found = problem.proved(weights)
        if found is None:
            continue
        if best is None or found.square < best.square:
            best = found
        if best.square > _SETTLED**2 * before:
            break
        before = best.square
    if best is None or best.square > WORTH**2:
        return None
    return best.line(problem, start, stop)


def region_between(
    proof: Proof, facts: Mapping[str, Fact], start: str, stop: str
) -> Unfolded | None:
    """Return the steps between two values as a region, for entries that may have either sign.

    The result is None if there are too many, steps of other kinds, or norms whose products float64
    cannot hold.
    """
    steps = chain_steps(proof.program, VALUES, start, stop, proof.free) or ()
    if any(step.op != _RELU and not isinstance(step.op, _AFFINE) for step in steps):
        return None
    ties = wide_entries(proof, facts, start, stop)
    try:
        region = region_of(proof, facts, start, stop, ties or ())
    except NotProved:
        return None
    if region.total > LARGEST:
        return None
    norms = facts[stop].norm, *(group.norm for group in region.groups)
    return region if all(1.0 / _MOST < norm < _MOST for norm in norms) else None


def wide_entries(
    proof: Proof, facts: Mapping[str, Fact], start: str, stop: str
) -> tuple[tuple[float, ...], ...] | None:
    """Return 1 for each entry of a ReLU that may have either sign, or nearly so, and else 0."""
    steps = chain_steps(proof.program, VALUES, start, stop, proof.free)
    if steps is None:
        return None
    found = []
    for step in steps:
        if step.op == _RELU:
            box = facts[step.inputs[0]].box.broadcast(step.shape)
            room = _STABLE * float(np.max(np.minimum(-box.lo, box.hi), initial=0.0))
            wide = (box.lo < room) & (box.hi > -room)
            found.append(tuple(wide.ravel().astype(float).tolist()))
    return tuple(found)


def count_of_variables(proof: Proof, facts: Mapping[str, Fact], start: str, stop: str) -> float:
    """Return how many variables the steps between two values have; inf if they have none."""
    found: float = 1 + proof.program.size(start)
    ties = wide_entries(proof, facts, start, stop) if found <= LARGEST else None
    return math.inf if ties is None else found + sum(map(sum, ties))


@dataclass(frozen=True, slots=True, eq=False)
class _Problem:
    """The moments that are asked for, in units of the known norms.

    factors: rows of norm 1, `used` among those of the region, whose norms were `lengths`; then the
    variables of the start, if they may be negative. goal: the form of ‖o‖². squares: rows that are
    variables of a group; tied: rows of y, and of y − u; signed: how many rows have a sign.
    """

    region: Unfolded
    known: float
    factors: FloatArray
    used: IndexArray
    lengths: FloatArray
    goal: FloatArray
    squares: tuple[IndexArray, ...]
    tied: tuple[IndexArray, IndexArray]
    signed: int

    @classmethod
    def of(cls, region: Unfolded, known: float) -> _Problem:
        """Return the problem without hi − y, which say little and slow the steps down."""
        scale, (start, *relus) = scale_of(region), region.groups
        rows, stop = region.factors[0] * scale, region.stop[0] * scale
        lengths = np.linalg.norm(rows, axis=1)
        first = 1 + np.arange(2 * start.size)
        ys = [relu.factors + np.flatnonzero(relu.chosen) for relu in relus]
        above = [y + 2 * relu.size for y, relu in zip(ys, relus, strict=True)]
        used = np.concatenate([[0], first[lengths[first] > 0.0], *ys, *above]).astype(np.int64)
        place = np.zeros(len(rows), dtype=np.int64)
        place[used] = np.arange(len(used))
        factors, signed = rows[used] / lengths[used, None], len(used)
        own = place[first[: start.size]]
        if (rows[first[: start.size], 0] != 0.0).any() or not own.all():
            own = signed + np.arange(start.size)
            factors = np.concatenate([factors, np.eye(region.total)[start.own]])
        goal = stop.T @ stop / known**2
        return cls(
            region,
            known,
            factors,
            used,
            lengths[used],
            goal,
            (own, *(place[y] for y in ys)),
            (place[np.concatenate([own[:0], *ys])], place[np.concatenate([own[:0], *above])]),
            signed,
        )

    def weights(self) -> Iterator[FloatArray]:
        """Yield better and better multipliers of the products of factors; those of squares are −ν.

        They are computed in single precision, which is enough, as they are approximate.
        """
        values, basis = np.linalg.eigh(self.factors.T @ self.factors)
        F: _Single = self.factors.astype(np.float32)
        Q, goal = basis.astype(np.float32), self.goal.astype(np.float32)
        share = (1.0 / (1.0 + np.outer(values, values))).astype(np.float32)
        (size, total), penalty = F.shape, _PENALTY
        Y, U = np.zeros((2, total, total), dtype=np.float32)
        V = np.zeros((size, size), dtype=np.float32)
        Y[0, 0] = 1.0
        W: _Single = np.asarray(F @ Y @ F.T, dtype=np.float32)
        for count in range(1, _ROUND * _ROUNDS + 1):
            wanted = Q.T @ (Y - U + goal / penalty + F.T @ (W - V) @ F) @ Q
            both = Q @ (share * wanted) @ Q.T
            image = F @ both @ F.T
            U += _OVER * both + (1.0 - _OVER) * Y
            V += _OVER * image + (1.0 - _OVER) * W
            eigenvalues, vectors = np.linalg.eigh(0.5 * (U + U.T))
            kept = vectors[:, eigenvalues > 0.0]
            Y, before_Y = (kept * eigenvalues[eigenvalues > 0.0]) @ kept.T, Y
            W, before_W = self._allowed(V), W
            U, V = U - Y, V - W
            if count % _OFTEN == 0:
                apart = float(np.linalg.norm(both - Y) + np.linalg.norm(image - W))
                moved = float(np.linalg.norm(Y - before_Y) + np.linalg.norm(W - before_W))
                ratio = apart / max(penalty * moved, 1e-300)
                factor = _FACTOR if ratio > _BALANCE else 1.0 / _FACTOR
                if not 1.0 / _BALANCE <= ratio <= _BALANCE:
                    penalty, U, V = penalty * factor, U / factor, V / factor
            if count % _ROUND == 0:
                yield -penalty * 0.5 * (V + V.T).astype(np.float64)

    def _allowed(self, image: _Single) -> _Single:
        """Return the nearest products that are allowed."""
        found = np.maximum(image, 0.0)
        found[self.signed :] = image[self.signed :]
        found[:, self.signed :] = image[:, self.signed :]
        found[0, 0] = 1.0
        for rows, columns in (self.tied, self.tied[::-1]):
            found[rows, columns] = 0.0
        for which in self.squares:
            found[which, which] = _of_trace(image[which, which])
        return found

    def proved(self, weights: FloatArray) -> _Found | None:
        """Return what multipliers of products prove, with the best multipliers of the norms."""
        kept = weights[: self.signed, : self.signed].copy()
        norms = []
        for which in self.squares:
            norms.append(max(-float(np.min(weights[which, which], initial=0.0)), _SMALLEST))
            inside = which[which < self.signed]
            kept[inside, inside] = 0.0
        kept[0, 0] = 0.0
        ties = np.maximum(-2.0 * kept[self.tied], 0.0)
        cuts = np.where(kept > _SMALLEST, kept, 0.0)
        factors = self.factors[: self.signed]
        y, above = factors[self.tied[0]], factors[self.tied[1]]
        both = (y * ties[:, None]).T @ above
        matrix = 0.5 * (both + both.T) - self.goal - factors.T @ cuts @ factors
        own = [group.own for group in self.region.groups]

        def shifted_by(numbers: Sequence[float] | FloatArray) -> FloatArray:
            return np.asarray(matrix + np.diag(spread(self.region, [0.0, *numbers])))

        def look(point: FloatArray) -> Seen | None:
            numbers = np.exp(point)
            shifted = shifted_by(numbers)
            below = shifted[1:, 1:]
            if lower_factor(below - SLACK * np.eye(len(below))) is None:
                return None
            solved = np.append(0.0, np.linalg.solve(below, shifted[1:, 0]))
            square = float(numbers.sum() - shifted[0, 0] + shifted[0] @ solved)
            parts = np.array([float(np.sum(solved[part] ** 2)) for part in own])
            return Seen(point, square, numbers * (1.0 - parts), numbers * (1.0 + parts))

        lowest = float(np.linalg.eigvalsh(shifted_by(norms)[1:, 1:])[0])
        point = np.log(np.array(norms) + max(2.0 * SLACK - lowest, 0.0))
        here = look(point)
        if here is None:
            return None
        for found in descend(look, here, _LOOKS, 1e-5):
            here = found
        return _Found(here.value + SLACK, np.exp(here.point), ties, cuts)


def spread(region: Unfolded, numbers: Sequence[float] | FloatArray) -> FloatArray:
    """Return a number for each variable, from one for the first and one for each group."""
    return np.repeat(numbers, [1, *(g.own.stop - g.own.start for g in region.groups)])


def scale_of(region: Unfolded) -> FloatArray:
    """Return factors for the variables, so that those of a group have a norm of at most 1."""
    return spread(region, [1.0, *(group.norm / 2.0**group.exponent for group in region.groups)])


def listed(region: Unfolded, numbers: FloatArray) -> tuple[tuple[float, ...], ...]:
    """Return a number for each entry of each ReLU, from those for its variables; else 0."""
    relus, found = region.groups[1:], []
    ends = np.cumsum([relu.own.stop - relu.own.start for relu in relus])
    for relu, own in zip(relus, np.split(numbers, ends), strict=False):
        whole = np.zeros(relu.size)
        whole[relu.chosen] = own
        found.append(tuple(whole.tolist()))
    return tuple(found)


def _of_trace(squares: _Single) -> _Single:
    """Return the nearest non-negative numbers with a sum of at most 1."""
    found = np.maximum(squares, 0.0)
    if found.sum() <= 1.0:
        return found
    falling = np.sort(squares)[::-1]
    levels = (np.cumsum(falling) - 1.0) / np.arange(1, len(falling) + 1)
    kept = int(np.count_nonzero(falling > levels))
    found = np.maximum(squares - float(levels[kept - 1]), 0.0)
    return np.asarray(found, dtype=np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """Multipliers, and ‖o‖² as a share of what is known."""

    square: float
    norms: FloatArray
    ties: FloatArray
    cuts: FloatArray

    def line(self, problem: _Problem, start: str, stop: str) -> ProductFact:
        """Return the line, in the numbers of the region."""
        square, region = problem.known**2, problem.region
        scale, used = square / problem.lengths, problem.used
        upper = np.triu(self.cuts + self.cuts.T - np.diag(self.cuts.diagonal()))
        rows, columns = np.nonzero(upper)
        order = np.argsort(-upper[rows, columns])[:MAX_CUTS]
        rows, columns = rows[order], columns[order]
        cuts = upper[rows, columns] * scale[rows] / problem.lengths[columns]
        places = used[rows] * region.factors.shape[1] + used[columns]
        numbers = self.ties * scale[problem.tied[0]] / problem.lengths[problem.tied[1]]
        sizes = np.array([group.norm**2 for group in region.groups])
        return ProductFact(
            value=stop,
            start=start,
            level=float(problem.known * np.sqrt(self.square)),
            norms=tuple((square * self.norms / sizes).tolist()),
            ties=listed(region, np.where(numbers == 0.0, TINY * square, numbers)),
            places=tuple(places.tolist()),
            cuts=tuple(cuts.tolist()),
        )
