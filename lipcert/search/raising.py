"""Which weights to raise: p, q and τ for which max([W, b/τ], −pqᵀ) has a small norm.

Input: W, b, and a bound of ‖x‖ for x ≥ 0. Output: untrusted numbers for `core.forms.raised`.
Quasi-Newton steps minimise the logarithm of ‖A‖·√(‖x‖² + τ²) over the logarithms of all numbers,
while the smoothing of the maximum over directions decreases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import numpy as np
import numpy.typing as npt

from lipcert.search.multipliers import smoothed_ball
from lipcert.search.quasi_newton import descend

FloatArray = npt.NDArray[np.float64]
_PHASES: Final = ((0.03, 0.4, 1.3), (0.01, 0.5, 1.15), (0.003, 1.0, 1.1))
"""how far the maximum is smoothed, as a part of a sum, its part of the looks left, and up to how
many times the known bound what it ends with is of use"""
_MOST_LOOKS, _LEAST_LOOKS = 30, 6
_WORK: Final = 3e9
"""multiplications of all looks"""
_LEAST_GAIN: Final = 1e-4
_ROUNDS: Final = 12
_LARGEST: Final = 1e50
"""of numbers whose products are far from the ends of what float64 holds"""
_WORTH: Final = 0.98
"""of the bound that is known, what must be possible"""


def numbers_to_raise(
    matrix: FloatArray, constants: FloatArray, norm: float, runs: int, known: float
) -> tuple[tuple[float, ...], ...] | None:
    """p, q and (τ,); None where a bound below the one that is known is not to be had.

    norm: of all runs of x together.
    """
    rows, columns = matrix.shape
    scale = float(np.abs(matrix).mean()) if matrix.size else 0.0
    sizes = (scale, norm, float(np.abs(constants).max()) + 1.0)
    if not is_worth_a_search(rows, columns) or not all(
        1.0 / _LARGEST < size < _LARGEST for size in sizes
    ):
        return None
    looks = int(min(_WORK / _work(rows, columns), _MOST_LOOKS))
    above, below, reached = _best(matrix, constants, norm, runs)
    if reached >= _WORTH * known:
        return None
    problem = _Problem(matrix, constants, norm, runs)
    tau = (0.3 if constants.any() else 1e-6) * norm / runs**0.5
    p, q = (
        4.0 * scale**0.5 * np.maximum(part / part.max(), 0.1)
        for part in (above, np.append(below, below.max()))
    )
    point = np.log(np.concatenate([p, q, [tau]]))
    for width, share, hope in _PHASES:
        some = max(1, round(share * looks))
        looks -= some

        def look(where: FloatArray, width: float = width) -> _Look:
            return problem.look(where, width)

        here = look(point)
        for found in descend(look, here, some, _LEAST_GAIN):
            here = found
        if here.value > 2.0 * np.log(hope * known):
            return None
        point = here.point
    p, q, tau = problem.numbers(point)
    return tuple(p.tolist()), tuple(q.tolist()), (tau,)


def is_worth_a_search(rows: int, columns: int) -> bool:
    """Whether a matrix of this size can be looked at often enough."""
    return _LEAST_LOOKS * _work(rows, columns) <= _WORK


def _work(rows: int, columns: int) -> int:
    """Multiplications of a look; entrywise work costs as much as a hundred."""
    small = min(rows, columns + 1)
    return 4 * rows * columns * (small + 100) + 10 * small**3


def _best(
    matrix: FloatArray, constants: FloatArray, norm: float, runs: int
) -> tuple[FloatArray, FloatArray, float]:
    """relu(Wx + b) for a good x of all runs alike, the x that it comes from, and its norm."""
    own, positive = norm / runs**0.5, np.maximum(matrix, 0.0)
    below = positive[np.argmax(own * np.linalg.norm(positive, axis=1) + constants)] + 1e-300
    above, reached = np.ones(len(matrix)), 0.0
    for _ in range(_ROUNDS):
        below = below * (own / max(float(np.linalg.norm(below)), 1e-300))
        value = np.maximum(matrix @ below + constants, 0.0)
        if not value.any():
            break
        above, reached = value, float(np.linalg.norm(value)) * runs**0.5
        next_below = np.maximum(matrix.T @ value, 0.0)
        if not next_below.any():
            break
        below = next_below
    return above, below, reached


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Problem:
    """The bound as a function of the logarithms of p, q and τ, one after the other."""

    matrix: FloatArray
    constants: FloatArray
    norm: float
    runs: int

    def numbers(self, point: FloatArray) -> tuple[FloatArray, FloatArray, float]:
        """p, q and τ at a point of logarithms."""
        found, rows = np.exp(point), len(self.matrix)
        return found[:rows], found[rows:-1], float(found[-1])

    def look(self, point: FloatArray, width: float) -> _Look:
        """At a point. width: of the smoothed maximum."""
        p, q, tau = self.numbers(point)
        whole = np.concatenate([self.matrix, (self.constants / tau)[:, None]], axis=1)
        level = -np.outer(p, q)
        raised = np.maximum(whole, level)
        wide = raised.shape[0] < raised.shape[1]
        square = raised @ raised.T if wide else raised.T @ raised
        largest, cases = smoothed_ball(square, width * float(np.trace(square)))
        slopes = cases @ (cases.T @ raised) if wide else (raised @ cases) @ cases.T
        slopes *= 2.0 / largest
        length = self.norm**2 + self.runs * tau**2
        by_level = np.where(whole < level, slopes * level, 0.0)
        by_tau = -float((slopes * np.where(whole < level, 0.0, whole))[:, -1].sum())
        gradient = np.concatenate([by_level.sum(axis=1), by_level.sum(axis=0), [by_tau]])
        gradient[-1] += 2.0 * self.runs * tau**2 / length
        sizes = np.abs(by_level)
        curvature = np.concatenate([sizes.sum(axis=1), sizes.sum(axis=0), [abs(by_tau) + 2.0]])
        curvature = np.maximum(curvature, 0.01 * float(curvature.max()))
        return _Look(point, float(np.log(largest) + np.log(length)), gradient, curvature)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Look:
    """The bound and its derivatives at a point."""

    point: FloatArray
    value: float
    gradient: FloatArray
    curvature: FloatArray

    def slopes(self) -> tuple[FloatArray, FloatArray]:
        """The gradient, and an estimate of the second derivative."""
        return self.gradient, self.curvature
