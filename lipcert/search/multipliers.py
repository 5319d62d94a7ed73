"""Multipliers: a few cheap steps towards the best ones for a chain, in plain float64.

The bound is convex in the multipliers t. If w is the worst value below an unknown slope in
[m − r, m + r] and s the one above, its derivative by t is (rs)² − (w − ms)²: at the optimum every
constraint |w − ms| ≤ r|s| holds with equality. For a single entry Newton's step multiplies t by
((w − ms)/(rs))^½; here all entries take this step at once, shortened while it fails. The maximum at
the top is smoothed: several cotangents with shares stand for one. A barrier, the logarithm of a
determinant, keeps off multipliers that admit no form; it vanishes towards the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

import numpy as np
import numpy.typing as npt
from scipy.linalg import LinAlgError, cholesky, solve_triangular
from scipy.sparse.linalg import ArpackError, eigsh

from lipcert.core.forms.descent import Descent, descent_of, unknown_slopes
from lipcert.core.forms.links import Diagonal, Edge, Matrix
from lipcert.core.interval import exact

FloatArray = npt.NDArray[np.float64]
_RATIOS: Final = (1.0 + 2.0**-26, 1.05, 1.4)
"""of the multipliers that are tried first to the least that are possible"""
_HOT, _COLD, _MOST_STEPS, _LEAST_STEPS = 0.15, 0.015, 16, 3
_WORK: Final = 2e10
"""numbers of all factors of one chain, times their rows"""
_MOST_CASES: Final = 40
_LEAST_GAIN: Final = 3e-4
_LEAST_LENGTH: Final = 0.02
_TINY: Final = 1e-100
_SMALL: Final = 64
_ACCURACY: Final = 1e-7


def multipliers(edges: Sequence[Edge], *, hull: bool) -> tuple[tuple[float, ...], ...] | None:
    """A list for each diagonal that has multipliers, as in a certificate; None: none are found.

    hull: whether the cotangents at the top are differences of classes, or any of norm 1.
    """
    top = edges[-1].link
    size = len(top.centre) if isinstance(top, Matrix) else top.slopes.lo.size
    descent = descent_of(edges, size, 0)
    found = None if descent is None else _tuned(descent, hull, _attained(edges, size, hull))
    return None if found is None else tuple(_lists(edges, found))


def _attained(edges: Sequence[Edge], size: int, hull: bool) -> float:
    """The value where every slope is the largest: no multipliers give less."""
    known = [
        edge
        if isinstance(edge.link, Matrix)
        else replace(edge, link=Diagonal(exact(edge.link.slopes.hi)))
        for edge in edges
    ]
    descent = descent_of(known, size, 0)
    return 0.0 if descent is None else _largest(descent.bottom.rows.T @ descent.bottom.rows, hull)


def _lists(edges: Sequence[Edge], found: FloatArray) -> Iterator[tuple[float, ...]]:
    """The multipliers of each diagonal; 1 for known slopes, nothing where all are known."""
    first = 0
    for edge in edges:
        if not (isinstance(edge.link, Diagonal) and edge.link.weighed):
            continue
        unknown = unknown_slopes(edge.link)
        numbers = np.ones(unknown.size)
        stop = first + int(np.count_nonzero(unknown))
        numbers[unknown] = found[first:stop]
        yield tuple(numbers.tolist()) if stop > first else ()
        first = stop


def _tuned(descent: Descent, hull: bool, attained: float) -> FloatArray | None:
    """A multiplier for each unknown slope, from the lowest on."""
    problem = _Problem.of(descent, hull)
    starts = [problem.at(first) for ratio in _RATIOS if (first := problem.start(ratio)) is not None]
    found = [state for state in starts if state is not None]
    if not found:
        return None
    best = min(found, key=lambda state: state.value)
    least = max(attained * (1.0 + _LEAST_GAIN), _TINY)
    if best.value <= least or not best.multipliers.size:
        return best.multipliers
    guard = problem.guard * _HOT * best.value / best.multipliers.size
    reached = problem.improved(min(found, key=lambda state: state.guarded(guard)))
    return min(best, reached, key=lambda state: state.value).multipliers


@final
@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """Multipliers, the form that they give, what is left of its factor, and the largest value."""

    multipliers: FloatArray
    form: FloatArray
    factor: FloatArray
    value: float

    def guarded(self, weight: float) -> float:
        """The value and a barrier, which grows where the factor becomes singular."""
        below = len(self.multipliers)
        scaled = self.factor.diagonal()[:below] / np.sqrt(self.multipliers)
        return self.value - 2.0 * weight * float(np.log(scaled).sum())


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Problem:
    """The inequality of a descent, as a function of the multipliers."""

    descent: Descent
    low: FloatArray
    high: FloatArray
    fixed: FloatArray
    hull: bool

    @property
    def guard(self) -> float:
        """How strong the barrier is: with slopes of both signs the best are at the rim."""
        return 1.0 if (self.low < 0.0).any() else 0.4

    @classmethod
    def of(cls, descent: Descent, hull: bool) -> _Problem:
        blocks = descent.blocks[::-1]
        low = np.concatenate([np.zeros(0), *(block.low for block in blocks)])
        high = np.concatenate([np.zeros(0), *(block.high for block in blocks)])
        fixed = np.zeros((descent.total, descent.total))
        where = descent.bottom.where
        fixed[where, where] = descent.bottom.rows.T @ descent.bottom.rows
        return cls(descent, low, high, fixed, hull)

    def at(self, multipliers: FloatArray) -> _State | None:
        """The form; None where the multipliers admit none."""
        matrix = -self.fixed
        for block in self.descent.blocks:
            own, rest = block.own, block.above.where
            t = multipliers[own]
            cross = (-0.5 * t * (block.low + block.high))[:, None] * block.above.rows
            matrix[own, own] += np.diag(t)
            matrix[own, rest] += cross
            matrix[rest, own] += cross.T
            if (both := t * block.low * block.high).any():
                matrix[rest, rest] += block.above.rows.T @ (both[:, None] * block.above.rows)
        below = len(multipliers)
        factor = _factor(matrix, below)
        if factor is None:
            return None
        half = factor[below:]
        form = half @ half.T - matrix[below:, below:]
        return _State(multipliers, form, factor, _largest(form, self.hull)) if _fine(form) else None

    def start(self, ratio: float) -> FloatArray | None:
        """κ/p² with p² = r/(|m| + r), and κ a multiple of the least that the slopes below allow."""
        rest = self.fixed
        found: list[FloatArray] = []
        for block in self.descent.blocks[::-1]:
            count = len(block.low)
            own = rest[:count, :count]
            middle, radius = 0.5 * (block.low + block.high), 0.5 * (block.high - block.low)
            p = np.sqrt(radius / (np.abs(middle) + radius))
            whole, weighted = (_top(part) for part in (own, np.outer(p, p) * own))
            t = max(whole, weighted, _TINY) * ratio / p**2
            found.append(t)
            rows = np.zeros((count, len(rest) - count))
            first = block.above.where.start - block.own.stop
            rows[:, first : first + block.above.rows.shape[1]] = block.above.rows
            cross = rest[:count, count:] + (t * middle)[:, None] * rows
            factor = _factor(np.concatenate([np.diag(t) - own, cross.T]), count)
            if factor is None:
                return None
            half = factor[count:]
            rest = rest[count:, count:] + half @ half.T
            if (both := t * block.low * block.high).any():
                rest -= rows.T @ (both[:, None] * rows)
            if not _fine(rest):
                return None
        return np.concatenate([np.zeros(0), *found])

    def improved(self, first: _State) -> _State:
        """After some steps; the barrier keeps away from multipliers that admit no form."""
        best = state = first
        length = 1.0
        steps = int(np.clip(_WORK / self.descent.total**3, _LEAST_STEPS, _MOST_STEPS))
        for temperature in map(float, np.geomspace(_HOT, _COLD, steps)):
            guard = self.guard * temperature * best.value / len(first.multipliers)
            step = self.factors(state, temperature, guard)
            attempt = self.at(state.multipliers * step**length)
            before = state.guarded(guard)
            if attempt is not None and (after := attempt.guarded(guard)) < before:
                state, length = attempt, min(1.0, 1.5 * length)
                best = state if state.value < best.value else best
                if before - after < _LEAST_GAIN * before or best.value <= _TINY:
                    break
            else:
                length *= 0.4
                if length < _LEAST_LENGTH:
                    break
        return best

    def factors(self, state: _State, temperature: float, guard: float) -> FloatArray:
        """By how much a step of length 1 multiplies each multiplier.

        The derivative of the barrier is that of more cases, without any cotangent at the top.
        """
        below = len(state.multipliers)
        cases = self._worst(state.form, temperature)
        half = state.factor[below:].T @ cases
        chance = np.random.default_rng(0).standard_normal((below, _MOST_CASES))
        right = np.concatenate([-half, np.sqrt(guard / _MOST_CASES) * chance], axis=1)
        cases = np.concatenate([cases, np.zeros((len(cases), _MOST_CASES))], axis=1)
        values = solve_triangular(
            state.factor[:below], right, lower=True, trans="T", check_finite=False
        )
        values = np.concatenate([values, cases])
        reached, allowed = np.zeros(below), np.zeros(below)
        for block in self.descent.blocks:
            above = block.above.rows @ values[block.above.where]
            middle, radius = 0.5 * (block.low + block.high), 0.5 * (block.high - block.low)
            rest = values[block.own] - middle[:, None] * above
            reached[block.own] = np.einsum("ij,ij->i", rest, rest)
            allowed[block.own] = radius**2 * np.einsum("ij,ij->i", above, above)
        reached += 1e-12 * reached.max()
        allowed += 1e-12 * allowed.max()
        ratio = np.divide(reached, allowed, out=np.ones(below), where=allowed > 0.0)
        found: FloatArray = np.clip(ratio, 1e-2, 1e2) ** 0.25
        return found

    def _worst(self, form: FloatArray, temperature: float) -> FloatArray:
        """Cotangents as columns, of which the squared lengths are shares."""
        if not self.hull:
            values, vectors = np.linalg.eigh(form)
            shares = _shares(values[-_MOST_CASES:], temperature)
            return np.asarray(vectors[:, -_MOST_CASES:] * np.sqrt(shares))
        diagonal = form.diagonal()
        one, other = np.triu_indices(len(form), 1)
        squares = diagonal[one] + diagonal[other] - 2.0 * form[one, other]
        if len(squares) > _MOST_CASES:
            kept = np.argpartition(squares, -_MOST_CASES)[-_MOST_CASES:]
            one, other, squares = one[kept], other[kept], squares[kept]
        cases = np.zeros((len(form), len(squares)))
        columns = np.arange(len(squares))
        cases[one, columns], cases[other, columns] = 1.0, -1.0
        return cases * np.sqrt(_shares(squares, temperature))


def _largest(form: FloatArray, hull: bool) -> float:
    """Over cotangents of norm 1, or over differences of classes."""
    if not hull:
        return _top(form)
    diagonal = form.diagonal()
    return float(np.max(diagonal[:, None] + diagonal - 2.0 * form))


def _factor(matrix: FloatArray, below: int) -> FloatArray | None:
    """The first columns of a triangular factor of a symmetric matrix; None if there are none."""
    try:
        corner = cholesky(matrix[:below, :below], lower=True, check_finite=False)
    except LinAlgError:
        return None
    rows = matrix[below:, :below].T
    rest = solve_triangular(corner, rows, lower=True, check_finite=False).T
    return np.concatenate([corner, rest])


def _top(matrix: FloatArray) -> float:
    """The largest eigenvalue."""
    if len(matrix) <= _SMALL:
        return float(np.linalg.eigvalsh(matrix)[-1])
    start = np.random.default_rng(0).standard_normal(len(matrix))
    try:
        found = eigsh(matrix, 1, which="LA", tol=_ACCURACY, v0=start, return_eigenvectors=False)
    except ArpackError:
        return float(np.linalg.eigvalsh(matrix)[-1])
    return float(found[0]) * (1.0 + _ACCURACY)


def _fine(matrix: FloatArray) -> bool:
    return bool(np.isfinite(matrix).all())


def _shares(values: FloatArray, temperature: float) -> FloatArray:
    """Shares that sum to 1 and grow with value/largest/temperature."""
    largest = max(float(np.max(values, initial=0.0)), _TINY)
    weights: FloatArray = np.exp((values / largest - 1.0) / temperature)
    weights /= weights.sum()
    return weights
