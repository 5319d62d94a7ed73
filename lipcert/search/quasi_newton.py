"""Quasi-Newton steps: minimise a smooth function of many numbers in few evaluations.

`descend` takes the function and a starting point, and yields points with decreasing values. It is
limited-memory BFGS, started from an estimate of the curvature along each axis, with backtracking
line search (Nocedal and Wright, Numerical Optimization, chapters 3 and 7).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

_MEMORY: Final = 8
_LONGEST: Final = 1.0
_SHORTEST: Final = 1e-3
_SHORTER: Final = 0.35
_ENOUGH: Final = 1e-4
"""Least share of the descent that the slope predicts."""


class Look(Protocol):
    """A point with the value of the function, and its derivatives."""

    @property
    def point(self) -> FloatArray:
        """The coordinates of this state."""
        ...

    @property
    def value(self) -> float:
        """The function value that is minimised."""
        ...

    def slopes(self) -> tuple[FloatArray, FloatArray]:
        """Return the gradient, and a positive estimate of the second derivative along each axis."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """A value and its derivatives at a point."""

    point: FloatArray
    value: float
    gradient: FloatArray
    curvature: FloatArray

    def slopes(self) -> tuple[FloatArray, FloatArray]:
        """Return the gradient, and an estimate of the second derivative."""
        return self.gradient, self.curvature


LookT = TypeVar("LookT", bound=Look)


def descend(
    look: Callable[[FloatArray], LookT | None], first: LookT, looks: int, least_gain: float
) -> Iterator[LookT]:
    """Yield points with smaller and smaller values, until evaluations run out or gains are small.

    look: evaluates a point; None where the function is infinite. looks: the number of evaluations.
    least_gain: of a step, as a share of the value.
    """
    here, (gradient, curvature) = first, first.slopes()
    moves: list[tuple[FloatArray, FloatArray]] = []
    while True:
        step = -_over_curvature(gradient, curvature, moves)
        step *= min(1.0, _LONGEST / max(float(np.max(np.abs(step), initial=0.0)), 1e-300))
        slope, length, there = float(gradient @ step), 1.0, None
        while slope < 0.0 and looks > 0 and length > _SHORTEST:
            looks -= 1
            there = look(here.point + length * step)
            if there is not None and there.value <= here.value + _ENOUGH * length * slope:
                break
            there, length = None, _SHORTER * length
        if there is None:
            return
        yield there
        if looks <= 0 or here.value - there.value < least_gain * abs(here.value):
            return
        before, (gradient, curvature) = gradient, there.slopes()
        moved, turned = there.point - here.point, gradient - before
        if moved @ turned > 1e-12 * np.linalg.norm(moved) * np.linalg.norm(turned):
            moves = [*moves, (moved, turned)][-_MEMORY:]
        here = there


def _over_curvature(
    gradient: FloatArray, curvature: FloatArray, moves: list[tuple[FloatArray, FloatArray]]
) -> FloatArray:
    """Return the gradient times an inverse of second derivatives that agrees with recent moves."""
    rest, shares = gradient.copy(), []
    for moved, turned in reversed(moves):
        share = float(moved @ rest) / float(turned @ moved)
        shares.append(share)
        rest -= share * turned
    found: FloatArray = rest / curvature
    for (moved, turned), share in zip(moves, reversed(shares), strict=True):
        found += moved * (share - float(turned @ found) / float(turned @ moved))
    return found
