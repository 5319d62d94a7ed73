"""Raised products: multipliers of products found in few evaluations, for `core.lines.products`.

`raised_line` takes a region in its variables v, in units of the known norms, and finds untrusted
numbers and the norm that they prove. With multipliers t of y·(u − y) and d of (z − lo)(hi − z),
‖o‖² is at most vᵀBv; with numbers p, and v ≥ 0, at most vᵀQv, Q = max(B, −pp') off the diagonal;
and if Q ≤ S, which has a number for each group, at most ΣS. Quasi-Newton steps minimise the
logarithm of the least such sum, by a smoothed eigenvalue, over the logarithms of all numbers. They
begin with numbers for which the slopes would vanish if no ‖o‖ were larger than that of a good
value z.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from lipcert.core.lines.products import ProductFact, Unfolded
from lipcert.core.lines.proof import Proof
from lipcert.core.norms.residual import lower_factor
from lipcert.core.rules.facts import Fact
from lipcert.search.products import SLACK, TINY, WORTH, listed, region_between, scale_of, spread
from lipcert.search.quasi_newton import Seen, descend

FloatArray = npt.NDArray[np.float64]
_WIDTH: Final = 0.05
"""Smoothing of the largest eigenvalue, which is about 1."""
_LEAST_LOOKS, _MOST_LOOKS, _WORK = 48, 100, 8e5
"""Least and largest number of evaluations, and entries of the matrices in all of them."""
_CASES: Final = 12
"""Most eigenvectors that are used."""
_ABOVE, _NEAR = 1.1, 0.001
"""Relative shift above an eigenvalue for inverse iteration, and tolerance of the result: 1 % would
hide what steps gain, so that none seems to go down."""
_LEAST_GAIN: Final = 1e-4
_SLOW, _LEAST_OF_SLOW = 3, 2e-3
"""So many steps must gain this much in the logarithm of the square of the norm."""
_TRIES, _CLIMBS = 3, 25
"""Number of starting values, and steps of each."""
_FIRST_WHOLE, _FIRST_ENDS, _FIRST_TIE, _FIRST_RAISED = 0.3, 0.45, 1.0, 2.0
_FIRST_SHARE: Final = 0.5
"""Share of the t that makes the slopes vanish."""
_SPREAD: Final = 10.0
"""Largest ratio to the usual multiplier of y·(u − y), at first."""
_ACTIVE: Final = 1e-6
_SMALLEST: Final = 0.02
"""Least p where v is not 0, as a share of what it is elsewhere."""
_FLAT: Final = 0.01
"""Least curvature, as a share of the largest; least ‖o‖² at a good value."""
_LEAST_SHARE: Final = 1e-5
"""Least number of a group, as a share of the whole."""
_LEAST: Final = 1e-6
"""Squares of norms below this share of what is known count as equal."""
_LOWEST, _HIGHEST = -30.0, 10.0
"""Range of logarithms: beyond it rounding dominates."""


def raised_line(
    proof: Proof, facts: Mapping[str, Fact], start: str, stop: str
) -> ProductFact | None:
    """Return a line about a value; None if nothing far below the known norm is found."""
    known, region = facts[stop].norm, region_between(proof, facts, start, stop)
    if region is None:
        return None
    problem, uppermost = _Problem.of(region, known), _Uppermost()

    def look(point: FloatArray) -> Seen:
        return problem.look(point, uppermost)

    with np.errstate(all="ignore"):
        here = look(problem.start())
        values = [here.value]
        looks = int(np.clip(_WORK / region.total**2, _LEAST_LOOKS, _MOST_LOOKS))
        for found in descend(look, here, looks, _LEAST_GAIN):
            here = found
            values.append(here.value)
            if len(values) > _SLOW and values[-1 - _SLOW] - here.value < _LEAST_OF_SLOW:
                break
        numbers = problem.numbers(here.point)
        whole = problem.whole(numbers)
    return problem.line(numbers, whole, start, stop) if whole.sum() <= WORTH**2 else None


class _Uppermost:
    """The largest eigenvalues of matrices, each a little different from the one before.

    One step of inverse iteration from the vectors of the matrix before is right nearly always; a
    factorisation tests whether it is.
    """

    def __init__(self) -> None:
        self._value, self._vectors = 0.0, np.zeros((0, 0))

    def of(self, matrix: FloatArray) -> tuple[float, FloatArray]:
        """Return the largest one, smoothed, and vectors whose sum of squares is its derivative."""
        found = self._next(matrix) if self._vectors.size else None
        values, vectors = np.linalg.eigh(matrix) if found is None else found
        values, vectors = values[-_CASES:], vectors[:, -_CASES:]
        self._value, self._vectors = float(values[-1]), vectors
        shares = np.exp((values - self._value) / _WIDTH)
        total = float(shares.sum())
        return self._value + _WIDTH * math.log(total), vectors * np.sqrt(shares / total)

    def _next(self, matrix: FloatArray) -> tuple[FloatArray, FloatArray] | None:
        one = np.eye(len(matrix))
        try:
            moved = np.linalg.solve(_ABOVE * self._value * one - matrix, self._vectors)
            moved /= np.linalg.norm(moved, axis=0)
            basis, _ = np.linalg.qr(np.concatenate([self._vectors, moved], axis=1))
            values, vectors = np.linalg.eigh(basis.T @ (matrix @ basis))
            if lower_factor(values[-1] * (1.0 + _NEAR) * one - matrix) is None:
                return None
        except np.linalg.LinAlgError:
            return None
        return values, basis @ vectors


@dataclass(frozen=True, slots=True, eq=False)
class _Numbers:
    """S for the first variable and for each group, t, d and p."""

    whole: FloatArray
    ties: FloatArray
    ends: FloatArray
    raised: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class _Problem:
    """The bound as a function of the logarithms of all numbers, one after the other.

    above: rows of u, for the variables y; goal: the form of ‖o‖²; low, high: ends of z. has_ends:
    for which z both ends are known.
    """

    region: Unfolded
    known: float
    above: FloatArray
    goal: FloatArray
    low: FloatArray
    high: FloatArray
    has_ends: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, region: Unfolded, known: float) -> _Problem:
        """Return the problem in variables whose groups have a norm of at most 1."""
        scale, (start, *relus) = scale_of(region), region.groups
        rows, stop = region.factors[0] * scale, region.stop[0] * (scale / known)
        above = np.zeros((region.total, region.total))
        for relu in relus:
            y = relu.factors + np.flatnonzero(relu.chosen)
            above[relu.own] = (rows[y] - rows[y + 2 * relu.size]) / relu.norm
        first = slice(start.factors, start.factors + start.size)
        last = slice(first.stop, first.stop + start.size)
        has_ends = np.any(rows[first, 1:], axis=1) & np.any(rows[last, 1:], axis=1)
        low, high = -rows[first, 0] / start.norm, rows[last, 0] / start.norm
        return cls(region, known, above, stop.T @ stop, low, high, has_ends)

    @property
    def z(self) -> slice:
        """The variables of the start."""
        return self.region.groups[0].own

    @property
    def y(self) -> slice:
        """The variables of all ReLUs."""
        return slice(self.z.stop, self.region.total)

    def numbers(self, point: FloatArray) -> _Numbers:
        """Return the numbers that have these logarithms."""
        sizes = 1 + len(self.region.groups), self.y.stop - self.y.start, len(self.low)
        parts = np.split(np.exp(np.clip(point, _LOWEST, _HIGHEST)), np.cumsum(sizes))
        return _Numbers(*parts)

    def form(self, ties: FloatArray, ends: FloatArray) -> FloatArray:
        """Return B for these multipliers, see above."""
        z, y, found = self.z, self.y, np.zeros_like(self.goal)
        found[y] = ties[:, None] * self.above[y]
        found = 0.5 * (found + found.T) + self.goal
        ends = ends * self.has_ends
        found[0, z] += 0.5 * ends * (self.low + self.high)
        found[z, 0] = found[0, z]
        found[0, 0] -= float(ends @ (self.low * self.high))
        at = np.arange(1, len(found))
        found[at, at] -= np.concatenate([ends, ties])
        return found

    def raised(self, numbers: _Numbers) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        """Return Q, and which of its entries are those of B."""
        form = self.form(numbers.ties, numbers.ends)
        p = np.where(self.region.unsigned, numbers.raised, np.inf)
        level = -np.outer(p, p)
        kept = form >= level
        np.fill_diagonal(kept, val=True)
        return np.where(kept, form, level), kept

    def whole(self, numbers: _Numbers) -> FloatArray:
        """Return S as large as it has to be."""
        shares = np.maximum(numbers.whole, _LEAST_SHARE * numbers.whole.sum())
        roots = 1.0 / np.sqrt(spread(self.region, shares))
        form, _ = self.raised(numbers)
        largest = float(np.linalg.eigvalsh(form * roots[:, None] * roots)[-1])
        return np.asarray(max(largest, 0.0) * (1.0 + SLACK) * shares + SLACK)

    def look(self, point: FloatArray, uppermost: _Uppermost) -> Seen:
        """Return the value at a point, and slopes."""
        numbers = self.numbers(point)
        form, kept = self.raised(numbers)
        share = numbers.whole / numbers.whole.sum()
        roots = 1.0 / np.sqrt(spread(self.region, share))
        largest, cases = uppermost.of(form * roots[:, None] * roots)
        largest = max(largest, _LEAST)
        cases *= roots[:, None]
        weights = cases @ cases.T / largest
        by_row = -np.einsum("ij,ij->i", weights, form)
        groups = (slice(1), *(group.own for group in self.region.groups))
        by_group = np.array([by_row[group].sum() for group in groups])
        own, z, y = weights.diagonal(), self.z, self.y
        rest = np.where(kept, 0.0, weights)
        weights -= rest
        tie, end = numbers.ties * own[y], numbers.ends * self.has_ends * own[z]
        by_tie = numbers.ties * np.einsum("ij,ij->i", weights[y], self.above[y])
        at_ends = weights[0, z] * (self.low + self.high) - own[0] * self.low * self.high
        by_end = numbers.ends * self.has_ends * at_ends
        by_raised = -2.0 * numbers.raised * (rest @ numbers.raised)
        by_share = by_group - share * by_group.sum()
        gradient = np.concatenate([by_share, by_tie - tie, by_end - end, by_raised])
        raised = 2.0 * numbers.raised * (np.abs(rest) @ numbers.raised)
        sizes = [np.abs(by_group) + share, np.abs(by_tie) + tie, np.abs(by_end) + end, raised]
        curvature = np.concatenate(sizes)
        return Seen(
            point,
            math.log(largest),
            gradient,
            np.maximum(curvature, _FLAT * float(curvature.max())),
        )

    def start(self) -> FloatArray:
        """Start from the best of a few values v, with the slopes a of ‖o‖² passed on through ReLUs.

        Where y > 0, t·y = a; where v is 0, p makes Q times v vanish.
        """
        v, slopes, reached = self._good_value()
        value, slope = v[self.y], slopes[self.y]
        ties = slope / value
        known = (value > 0.0) & (slope > 0.0)
        usual = float(np.sort(ties[known])[known.sum() // 2]) if known.any() else _FIRST_TIE
        ties = np.clip(np.where(known, ties, usual), usual / _SPREAD, usual * _SPREAD)
        ends = np.full(len(self.low), _FIRST_ENDS * max(reached, _FLAT))
        p = np.full(len(v), _FIRST_RAISED)
        active = v > _ACTIVE
        p[active] *= np.maximum(v[active], _SMALLEST)
        rows = self.form(ties, ends)[np.ix_(~active, active)]
        p[~active] = _vanishing(rows, p[active], v[active])
        whole = np.full(1 + len(self.region.groups), _FIRST_WHOLE)
        ties *= _FIRST_SHARE
        found: FloatArray = np.log(np.concatenate([whole, ties, ends, p]))
        return found

    def _good_value(self) -> tuple[FloatArray, FloatArray, float]:
        """Return all variables at a point with large ‖o‖², its slopes by them, and ‖o‖² itself."""
        rng, relus = np.random.default_rng(0), [group.own for group in self.region.groups[1:]]
        low, high = np.where(self.has_ends, [self.low, self.high], [[-1.0], [1.0]])[:, :, None]
        z = low + (high - low) * rng.random((len(low), _TRIES))
        best = np.zeros(self.region.total), np.zeros(self.region.total), -1.0
        for _ in range(_CLIMBS):
            z = np.clip(z, low, high)
            z = z / np.maximum(np.linalg.norm(z, axis=0), 1.0)
            v = np.concatenate(
                [np.ones((1, _TRIES)), z, np.zeros((self.y.stop - self.y.start, _TRIES))]
            )
            for own in relus:
                v[own] = np.maximum(self.above[own] @ v, 0.0)
            image = self.goal @ v
            slopes = 2.0 * image
            for own in reversed(relus):
                slopes += self.above[own].T @ np.where(v[own] > 0.0, slopes[own], 0.0)
            squares = np.einsum("ij,ij->j", v, image)
            place = int(squares.argmax())
            if squares[place] > best[2]:
                best = v[:, place], slopes[:, place], float(squares[place])
            uphill = slopes[self.z]
            z = z + uphill / np.maximum(np.linalg.norm(uphill, axis=0), 1e-300)
        return best

    def line(self, numbers: _Numbers, whole: FloatArray, start: str, stop: str) -> ProductFact:
        """Return the line, in the numbers of the region."""
        square, region = self.known**2, self.region
        norms = np.array([group.norm for group in region.groups])
        sizes = spread(region, [1.0, *norms])
        z, count = region.groups[0], region.factors.shape[1]
        lower = z.factors + np.flatnonzero(self.has_ends)
        cuts = numbers.ends[self.has_ends] * (square / z.norm**2)
        return ProductFact(
            value=stop,
            start=start,
            level=float(self.known * math.sqrt(float(whole.sum()))),
            norms=tuple((square * whole[1:] / norms**2).tolist()),
            ties=listed(region, square * np.maximum(numbers.ties, TINY) / sizes[self.y] ** 2),
            places=tuple((lower * count + lower + z.size).tolist()),
            cuts=tuple(cuts.tolist()),
            raised=tuple((self.known * numbers.raised / sizes).tolist()),
        )


def _vanishing(rows: FloatArray, p: FloatArray, v: FloatArray) -> FloatArray:
    """Return for each row b the largest q, in a range, with Σ max(b, −q·p)·v ≥ 0."""
    low, high = np.full(len(rows), 1e-6), np.full(len(rows), _FIRST_RAISED)
    for _ in range(30):
        middle = np.sqrt(low * high)
        is_low = np.maximum(rows, -middle[:, None] * p) @ v >= 0.0
        low, high = np.where(is_low, middle, low), np.where(is_low, high, middle)
    return low
