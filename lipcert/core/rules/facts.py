"""Facts: bounds of a value, or of the gradient of the loss at it, for one example.

They hold for all admissible inputs and all weights in scope. inf stands for no bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import attrgetter
from typing import Self, TypeAlias

import numpy as np

from lipcert.core.arithmetic import add_up, multiply_up, sqrt_up
from lipcert.core.interval import Array, Interval, exact, norm_up, symmetric, up
from lipcert.core.program import Shape


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Fact:
    """norm ≥ ‖x‖₂; box holds every entry; row_norm ≥ the norm of every run along the last axis.

    box: of the rank of x, with the length 1 along axes on which the ends do not depend.
    column_norm: the norm of every run along the last axis but one. row_spread: of every example the
    runs along the last axis that differ along `token_axis` alone lie within this distance of one
    point, known or not; column_spread: so do the runs along the last axis but one that differ
    along the last alone. token_norm: the norm of all that lies at one place along the last axis but
    one.
    """

    norm: float
    box: Interval
    row_norm: float
    column_norm: float
    row_spread: float = math.inf
    column_spread: float = math.inf
    token_norm: float = math.inf

    @classmethod
    def of(  # noqa: PLR0917  the parts of a fact
        cls,
        shape: Shape,
        norm: float = math.inf,
        box: Interval | None = None,
        row_norm: float = math.inf,
        column_norm: float = math.inf,
        row_spread: float = math.inf,
        column_spread: float = math.inf,
        token_norm: float = math.inf,
    ) -> Self:
        """Return the fact that follows from these bounds of a value of this shape.

        box: for broadcasting into the shape. Proof: the norm of a part of x is at most that of x;
        a magnitude is at most the norm of a part that contains it; norms grow with magnitudes; the
        square of the norm of x, or of a part, is the sum of the squares of those of its runs; and
        runs of norm r lie within r of the point 0.
        """
        box = symmetric(math.inf, (1,) * len(shape)) if box is None else box
        row_norm, column_norm = min(row_norm, norm), min(column_norm, norm)
        box = box.meet(symmetric(min(row_norm, column_norm), (1,) * len(shape)))
        runs = [math.prod(shape) // max(length, 1) for length in (shape[-1:] + shape[-2:-1])]
        by_runs = zip(map(root_up, runs), (row_norm, column_norm), strict=False)
        norm = min(norm, box_norm(box, shape), *(multiply_up(*pair) for pair in by_runs))
        row = min(row_norm, norm, longest_run(box, shape, -1))
        column = min(column_norm, norm, longest_run(box, shape, -2))
        token = min(token_norm, norm, multiply_up(root_up(math.prod(shape[:-2])), row))
        return cls(norm, box, row, column, min(row_spread, row), min(column_spread, column), token)

    def meet(self, other: Fact, shape: Shape) -> Fact:
        """Return the fact that follows from two facts of the same value."""
        lengths = map(min, _LENGTHS(self), _LENGTHS(other))
        return Fact.of(shape, min(self.norm, other.norm), self.box.meet(other.box), *lengths)

    @property
    def max_abs(self) -> float:
        """An upper bound of the magnitude of every entry."""
        return float(np.max(self.box.magnitude(), initial=0.0))


_LENGTHS = attrgetter("row_norm", "column_norm", "row_spread", "column_spread", "token_norm")


@dataclass(frozen=True, slots=True)
class Hull:
    """scale·conv{e_j − t_y : classes j, y}, t_y = (1 − s)·e_y + (s/classes)·1, s the smoothing.

    Of values with exactly `classes` entries, in row-major order. It holds 0, the mean of the
    vertices with j = y, and so with a member every shorter multiple of it.
    """

    classes: int
    scale: float
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        if self.classes < 1 or not self.scale >= 0.0 or not 0.0 <= self.smoothing <= 1.0:
            raise ValueError("this is not a hull of logit gradients")

    def longest(self, form: Interval) -> float:
        """Bound sup √(gᵀQg) over all members g, for a positive semidefinite Q within `form`.

        Proof: a convex function is largest at a vertex.
        """
        return self.length(self.squares(form))

    def length(self, squares: Array) -> float:
        """Return the scale times the root of the largest of these squares, rounded up."""
        return multiply_up(sqrt_up(max(float(np.max(squares)), 0.0)), self.scale)

    def squares(self, form: Interval) -> Array:
        """Bound gᵀQg for a Q within `form`, at each vertex: for each label y and each class j.

        Proof: it is e_j − t, t = (1 − s)e_y + (s/K)1, and the form Q_jj − 2(Qt)_j + tᵀQt.
        """
        smoothing = exact(self.smoothing)
        keep, share = exact(1.0) - smoothing, smoothing * exact(float(self.classes)).reciprocal()
        own = form.moved(np.diagonal)
        mean = form.sum((1,)) * share.broadcast((self.classes, 1))
        flat = mean.moved(np.ravel)
        at_target = own * keep * keep + flat * keep * exact(2.0) + mean.sum((0,)) * share
        image = form * keep + mean  # (Qt)_j for the label y: [j, y]
        squares = own.moved(lambda end: end[:, None]) - image * exact(2.0) + at_target
        return squares.hi


Joined: TypeAlias = tuple[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Cotangent:
    """norm ≥ ‖∂loss/∂value‖₂ of an example; hull: a set in which that lies, where one is known.

    sums ≥ √Σ_c (Σ_i |∂loss/∂value_ci|)², c along axis 1. peaks ≥ √Σ_r (max_j |∂loss/∂value_rj|)²,
    j along the last axis. label: T, where the gradient is −t at one entry of the value with
    0 ≤ t ≤ T, and 0 at all others. parts: the gradients at so many entries each, one after another
    in row-major order, that make up the whole; empty where not known. rows: a number of entries,
    and what holds of the gradient at every so many of them, cut likewise. tokens: an axis, counted
    from the last, and ≥ Σ_i ‖the gradient at place i along it‖₂. joined: the output of a `Concat`,
    and c: norm ≤ Σ c_i·‖the gradient of that output at the places of its input i‖.
    """

    norm: float
    hull: Hull | None = None
    sums: float = math.inf
    peaks: float = math.inf
    label: float | None = None
    parts: tuple[tuple[int, Cotangent], ...] = ()
    rows: tuple[int, Cotangent] | None = None
    tokens: tuple[int, float] | None = None
    joined: Joined | None = None

    def along(self, shape: Shape) -> Cotangent | None:
        """Return bounds of the gradient at every run along the last axis of the value, or None."""
        if math.prod(shape) == shape[-1]:
            return self
        return self.rows[1] if self.rows is not None and self.rows[0] == shape[-1] else None

    def plus(self, other: Cotangent) -> Cotangent:
        """Return bounds of the sum of two gradients. Proof: norms and peaks are norms."""
        return Cotangent(add_up(self.norm, other.norm), peaks=add_up(self.peak, other.peak))

    @property
    def peak(self) -> float:
        """The lesser of peaks and norm: no entry of a run is larger than its norm."""
        return min(self.peaks, self.norm)


def token_axis(shape: Shape) -> int:
    """Of the axes before the last, the last that is longer than 1; −2 if none is."""
    return next((k for k in range(-2, -len(shape) - 1, -1) if shape[k] > 1), -2)


def root_up(count: int) -> float:
    """√count, rounded up."""
    return sqrt_up(float(count)) if count < 2**53 else math.inf


def affine_norm(largest: float, x: float, cross: float, shift: float, copies: int) -> float:
    """≥ ‖Tx + s‖, s a shift added `copies` times, where ‖T‖ ≤ largest and ‖Tᵀs‖ ≤ cross.

    Proof: ‖Tx‖ + ‖s‖, or the square expanded: ‖Tx‖² + 2⟨x, Tᵀs⟩ + ‖s‖², where ‖s‖ = √copies·shift.
    """
    linear, added = multiply_up(largest, x), multiply_up(root_up(copies), shift)
    square = add_up(multiply_up(linear, linear), multiply_up(added, added))
    square = add_up(square, multiply_up(2.0, multiply_up(x, cross)))
    return min(add_up(linear, added), sqrt_up(square))


def box_norm(box: Interval, shape: Shape) -> float:
    """The norm of the longest member of a box that is repeated to this shape.

    Proof: each end stands for equally many entries of the value.
    """
    copies = math.prod(shape) // max(math.prod(box.shape), 1)
    return multiply_up(root_up(copies), norm_up(box.magnitude()))


def lengths_up(array: Array) -> Array:
    """Norms along the last axis, rounded up; inf where an entry is infinite.

    Proof: as for `interval.norm_up`, row by row: scaled by a power of two, n entries of
    which the largest is in [1/2, 1) have a sum of squares with a relative error of γ_n, whose
    reciprocal is below 1 + (2n + 8)u, and lose at most n·2^-1000 by underflow.
    """
    terms = array.shape[-1]
    largest = np.max(np.abs(array), axis=-1, keepdims=True, initial=0.0)
    exponent = np.frexp(np.where(np.isfinite(largest), largest, 0.0))[1]
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        scaled = np.ldexp(array, -exponent)
        squares = np.einsum("...i,...i->...", scaled, scaled)
        squares = up(up(squares * (1.0 + (terms + 4) * 2.0**-52)) + terms * 2.0**-1000)
        lengths = up(np.ldexp(up(np.sqrt(squares)), exponent[..., 0]))
    largest = largest[..., 0]
    return np.where((largest == 0.0) | ~np.isfinite(largest), largest, lengths)


def longest_run(box: Interval, shape: Shape, axis: int) -> float:
    """The largest norm of a run along an axis, counted from the last, of a box as in `Fact`."""
    if len(shape) < -axis:
        return math.inf
    magnitude = np.moveaxis(box.magnitude(), axis, -1)
    copies = shape[axis] // max(magnitude.shape[-1], 1)
    return multiply_up(root_up(copies), float(np.max(lengths_up(magnitude), initial=0.0)))
