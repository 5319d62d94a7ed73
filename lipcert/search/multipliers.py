"""Multipliers: a few cheap steps towards the best ones for a chain, in plain float64.

The bound is convex in the multipliers t. If w is the worst value below an unknown slope in
[m − r, m + r] and s the one above, its derivative by t is (rs)² − (w − ms)²: at the optimum every
constraint |w − ms| ≤ r|s| holds with equality. For a single entry Newton's step multiplies t by
((w − ms)/(rs))^½; here all entries take this step at once, shortened while it fails. The maximum at
the top is smoothed: several cotangents with shares stand for one. A barrier, the logarithm of a
determinant, keeps off multipliers that admit no form; it vanishes towards the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias, final

import numpy as np
import numpy.typing as npt

from lipcert.core.forms.descent import Block, Descent, descent_of, unknown_slopes, unknowns
from lipcert.core.forms.links import Diagonal, Edge, Matrix, Place
from lipcert.core.interval import exact

FloatArray = npt.NDArray[np.float64]
_RATIOS: Final = (1.0 + 2.0**-26, 1.05, 1.4)
"""of the multipliers that are tried first to the least that are possible"""
_HOT, _COLD, _MOST_STEPS, _LEAST_STEPS = 0.15, 0.015, 16, 3
_LAST_STEPS: Final = 0.4
"""the part of the steps that is taken from multipliers of a chain like this one"""
_ALIKE: Final = 1.0001
_WORK: Final = 2e10
"""numbers of all factors of one chain, times their rows"""
_MOST_CASES: Final = 40
_LEAST_GAIN: Final = 3e-4
_LEAST_LENGTH: Final = 0.02
_TINY: Final = 1e-100
_SMALL: Final = 200
"""rows of a matrix up to which numpy serves, and scipy need not be imported"""
_ACCURACY: Final = 1e-7


def multipliers(
    edges: Sequence[Edge], *, hull: bool, memory: Memory | None = None
) -> tuple[tuple[float, ...], ...] | None:
    """A list for each diagonal that has multipliers, as in a certificate; None: none are found.

    hull: whether the cotangents at the top are differences of classes, or any of norm 1. memory:
    of chains through the same diagonals; what is found here is added.
    """
    top = edges[-1].link
    size = len(top.centre) if isinstance(top, Matrix) else top.slopes.lo.size
    descent = descent_of(edges, size, 0)
    if descent is None:
        return None
    memory = {} if memory is None else memory
    key = hull, tuple(edge.target for edge in edges if unknowns([edge]) or edge is edges[-1])
    problem = _Problem.of(descent, hull)
    found = _alike(problem, memory.get(key)) or _tuned(problem, _attained(edges, hull))
    if found is None:
        return None
    memory[key] = found
    return tuple(_lists(edges, found.state.multipliers))


def steepest(edges: Sequence[Edge]) -> FloatArray | None:
    """The transposed Jacobian where every slope is the largest, as far as float64 goes."""
    top = edges[-1].link
    size = len(top.centre) if isinstance(top, Matrix) else top.slopes.lo.size
    known = [
        edge
        if isinstance(edge.link, Matrix)
        else replace(edge, link=Diagonal(exact(edge.link.slopes.hi)))
        for edge in edges
    ]
    descent = descent_of(known, size, 0)
    return None if descent is None else descent.bottom.rows


def _attained(edges: Sequence[Edge], hull: bool) -> float:
    """The value where every slope is the largest: no multipliers give less."""
    jacobian = steepest(edges)
    return 0.0 if jacobian is None else _largest(jacobian.T @ jacobian, hull)


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


def _tuned(problem: _Problem, attained: float) -> _Found | None:
    """Good multipliers for the unknown slopes."""
    found = [(state, ratio) for ratio in _RATIOS if (state := problem.start(ratio)) is not None]
    if not found:
        return None
    best, ratio = min(found, key=lambda pair: pair[0].value)
    least = max(attained * (1.0 + _LEAST_GAIN), _TINY)
    if best.value <= least or not best.multipliers.size:
        return _Found(best, ratio, 1.0)
    guard = problem.guard * _HOT * best.value / best.multipliers.size
    reached = problem.improved(min((state for state, _ in found), key=lambda s: s.guarded(guard)))
    reached = min(best, reached, key=lambda state: state.value)
    return _Found(reached, ratio, reached.value / best.value)


def _alike(problem: _Problem, before: _Found | None) -> _Found | None:
    """From what was found for another chain, if it gains as much here; None if it does not."""
    if before is None:
        return None
    start, again = problem.start(before.ratio), problem.again(before.state)
    if start is None or again is None or start.value <= _TINY:
        return None
    if again.value > _ALIKE * before.gain * start.value:
        return None
    if before.gain < 1.0:
        again = problem.improved(again, _LAST_STEPS)
    return _Found(again, before.ratio, again.value / start.value)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """One block of variables eliminated: its triangular factor, and that of what lies above."""

    own: slice
    above: slice
    corner: FloatArray
    rest: FloatArray


@final
@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """Multipliers, the form that they give, the factor that gives it, and the largest value."""

    multipliers: FloatArray
    form: FloatArray
    steps: tuple[_Step, ...]
    value: float

    def ratio(self, step: _Step) -> float:
        """Of the multipliers of a block to the least that its elimination allows."""
        scaled = step.corner / np.sqrt(self.multipliers[step.own])[:, None]
        return 1.0 / max(_top(np.eye(len(scaled)) - scaled @ scaled.T), _TINY)

    def guarded(self, weight: float) -> float:
        """The value and a barrier, which grows where the factor becomes singular."""
        own = [step.corner.diagonal() for step in self.steps]
        scaled = np.concatenate([np.zeros(0), *own]) / np.sqrt(self.multipliers)
        return self.value - 2.0 * weight * float(np.log(scaled).sum())


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """What was reached for a chain: from which ratio, and its value over that of this start."""

    state: _State
    ratio: float
    gain: float


Memory: TypeAlias = dict[tuple[bool, tuple[Place, ...]], _Found]
"""By `hull` and where the diagonals, and the whole, lead."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Problem:
    """The inequality of a descent, as a function of the multipliers.

    blocks: from the lowest on, each with the end of the variables that its elimination touches.
    """

    descent: Descent
    blocks: tuple[tuple[Block, int], ...]
    fixed: FloatArray
    hull: bool

    @property
    def guard(self) -> float:
        """How strong the barrier is: with slopes of both signs the best are at the rim."""
        return 1.0 if any((block.low < 0.0).any() for block, _ in self.blocks) else 0.4

    @classmethod
    def of(cls, descent: Descent, hull: bool) -> _Problem:
        fixed = np.zeros((descent.total, descent.total))
        bottom, end = descent.bottom.where, 0
        fixed[bottom, bottom] = descent.bottom.rows.T @ descent.bottom.rows
        blocks: list[tuple[Block, int]] = []
        for block in descent.blocks[::-1]:
            end = max(
                end, block.above.where.stop, bottom.stop if block.own.stop > bottom.start else 0
            )
            blocks.append((block, end))
        return cls(descent, tuple(blocks), fixed, hull)

    def at(self, multipliers: FloatArray) -> _State | None:
        """The form; None where the multipliers admit none."""
        return self._eliminated(lambda block, _: multipliers[block.own])

    def start(self, ratio: float) -> _State | None:
        """κ/p² with p² = r/(|m| + r), and κ a multiple of the least that the slopes below allow."""

        def chosen(block: Block, own: FloatArray) -> FloatArray:
            middle, radius = 0.5 * (block.low + block.high), 0.5 * (block.high - block.low)
            p = np.sqrt(radius / (np.abs(middle) + radius))
            least = max(_top(own), _top(np.outer(p, p) * own), _TINY)
            return np.asarray(least * ratio / p**2)

        return self._eliminated(chosen)

    def again(self, other: _State) -> _State | None:
        """With the multipliers of another chain, as far above the least as they are there."""
        own = [block.own for block, _ in self.blocks]
        if own != [step.own for step in other.steps]:
            return None
        ratios = {step.own.start: other.ratio(step) for step in other.steps}

        def chosen(block: Block, rest: FloatArray) -> FloatArray:
            shape = other.multipliers[block.own]
            least = _top(rest / np.sqrt(np.outer(shape, shape)))
            return np.asarray(max(least, _TINY) * ratios[block.own.start] * shape)

        return self._eliminated(chosen)

    def _eliminated(self, chosen: Callable[[Block, FloatArray], FloatArray]) -> _State | None:
        """Block by block from below. chosen: multipliers, from what blocks below leave of one."""
        rest = self.fixed.copy()
        found: list[FloatArray] = []
        steps: list[_Step] = []
        for block, end in self.blocks:
            own, front = block.own, slice(block.own.stop, end)
            t = chosen(block, rest[own, own])
            above, rows = block.above.where, block.above.rows
            side = rest[front, own].copy()
            placed = slice(above.start - own.stop, above.stop - own.stop)
            side[placed] += ((0.5 * t * (block.low + block.high))[:, None] * rows).T
            try:
                corner: FloatArray = np.asarray(np.linalg.cholesky(np.diag(t) - rest[own, own]))
            except np.linalg.LinAlgError:
                return None
            half = _solved(corner, side.T).T
            rest[front, front] += half @ half.T
            if (both := t * block.low * block.high).any():
                rest[above, above] -= rows.T @ (both[:, None] * rows)
            steps.append(_Step(own, front, corner, half))
            found.append(t)
        top = slice(self.descent.total - self.descent.size, self.descent.total)
        form = rest[top, top]
        if not np.isfinite(form).all():
            return None
        multipliers = np.concatenate([np.zeros(0), *found])
        return _State(multipliers, form, tuple(steps), _largest(form, self.hull))

    def improved(self, first: _State, part: float = 1.0) -> _State:
        """After some steps; the barrier keeps away from multipliers that admit no form.

        part: of the course of temperatures, the last one.
        """
        best = state = first
        length = 1.0
        steps = int(np.clip(_WORK / self.descent.total**3, _LEAST_STEPS, _MOST_STEPS))
        course = np.geomspace(_HOT, _COLD, steps)[-math.ceil(part * steps) :]
        for temperature in map(float, course):
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
        chance = np.random.default_rng(0).standard_normal((below, _MOST_CASES))
        values = np.zeros((self.descent.total, cases.shape[1] + _MOST_CASES))
        values[below:, : cases.shape[1]] = cases
        values[:below, cases.shape[1] :] = np.sqrt(guard / _MOST_CASES) * chance
        reached, allowed = np.zeros(below), np.zeros(below)
        for step, (block, _) in zip(state.steps[::-1], self.blocks[::-1], strict=True):
            right = values[step.own] + step.rest.T @ values[step.above]
            values[step.own] = _solved(step.corner, right, transposed=True)
            above = block.above.rows @ values[block.above.where]
            middle, radius = 0.5 * (block.low + block.high), 0.5 * (block.high - block.low)
            rest = values[step.own] - middle[:, None] * above
            reached[step.own] = np.einsum("ij,ij->i", rest, rest)
            allowed[step.own] = radius**2 * np.einsum("ij,ij->i", above, above)
        reached += 1e-12 * reached.max()
        allowed += 1e-12 * allowed.max()
        ratio = np.divide(reached, allowed, out=np.ones(below), where=allowed > 0.0)
        found: FloatArray = np.clip(ratio, 1e-2, 1e2) ** 0.25
        return found

    def _worst(self, form: FloatArray, temperature: float) -> FloatArray:
        """Cotangents as columns, of which the squared lengths are shares."""
        if not self.hull:
            values, vectors = _uppermost(form)
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


def _solved(corner: FloatArray, right: FloatArray, *, transposed: bool = False) -> FloatArray:
    """L⁻¹ or L⁻ᵀ times what stands on the right, for a lower triangular matrix L."""
    if len(corner) <= _SMALL:
        return np.asarray(np.linalg.solve(corner.T if transposed else corner, right))
    from scipy.linalg import solve_triangular  # noqa: PLC0415  slow to import

    if transposed:
        return np.asarray(solve_triangular(corner.T, right, check_finite=False))
    return np.asarray(solve_triangular(corner, right, lower=True, check_finite=False))


def _top(matrix: FloatArray) -> float:
    """The largest eigenvalue."""
    if len(matrix) <= _SMALL:
        return float(np.linalg.eigvalsh(matrix)[-1])
    from scipy.sparse.linalg import ArpackError, eigsh  # noqa: PLC0415

    start = np.random.default_rng(0).standard_normal(len(matrix))
    try:
        found = eigsh(matrix, 1, which="LA", tol=_ACCURACY, v0=start, return_eigenvectors=False)
    except ArpackError:
        return float(np.linalg.eigvalsh(matrix)[-1])
    return float(found[0]) * (1.0 + _ACCURACY)


def _uppermost(matrix: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The largest eigenvalues, and their vectors as columns; all, of a small matrix."""
    if len(matrix) <= _SMALL:
        values, vectors = np.linalg.eigh(matrix)
        return np.asarray(values), np.asarray(vectors)
    from scipy.linalg import eigh  # noqa: PLC0415

    last = len(matrix) - 1
    values, vectors = eigh(matrix, subset_by_index=[last - _MOST_CASES + 1, last])
    return np.asarray(values), np.asarray(vectors)


def _shares(values: FloatArray, temperature: float) -> FloatArray:
    """Shares that sum to 1 and grow with value/largest/temperature."""
    largest = max(float(np.max(values, initial=0.0)), _TINY)
    weights: FloatArray = np.exp((values / largest - 1.0) / temperature)
    weights /= weights.sum()
    return weights
