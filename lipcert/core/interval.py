"""Directed rounding of arrays: intervals of float64 numbers that contain the exact results.

Input: arrays taken as exact, or intervals. Output: intervals whose ends are moved outwards by one
float64 after every operation that rounds to nearest. inf means "not known".

Proof: IEEE 754 operations (+, −, ×, ÷, √) rounded to nearest give one of the two float64 next to
the exact result, and np.nextafter steps beyond it; an overflow gives inf, which is outwards, and
its neighbour on the wrong side is the largest float64, which is outwards too. Sums of n terms err
by at most γ_{n−1}·Σ|terms| in any order, and by nothing else: additions do not underflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lipcert.core.arithmetic import round_down, round_up, sqrt_up

Array: TypeAlias = npt.NDArray[np.float64]

_PART: Final = 1 << 24
"""Number of entries of a large array that are processed at a time."""


def up(array: Array) -> Array:
    """Return the next float64 above each entry."""
    return np.asarray(np.nextafter(array, np.inf), dtype=np.float64)


def down(array: Array) -> Array:
    """Return the next float64 below each entry."""
    return np.asarray(np.nextafter(array, -np.inf), dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Interval:
    """lo ≤ x ≤ hi entry by entry; the two arrays have one shape. Never NaN."""

    lo: Array
    hi: Array

    def __post_init__(self) -> None:
        if self.lo is self.hi:
            fits = not np.isnan(self.lo.min(initial=np.inf))
        else:
            fits = self.lo.shape == self.hi.shape and bool((self.lo <= self.hi).all())
        if not fits:
            raise ValueError("the ends of an interval do not fit each other")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of both arrays of ends."""
        return self.lo.shape

    def __add__(self, other: Interval) -> Interval:
        return Interval(down(self.lo + other.lo), up(self.hi + other.hi))

    def __neg__(self) -> Interval:
        return Interval(-self.hi, -self.lo)

    def __sub__(self, other: Interval) -> Interval:
        return self + -other

    def __mul__(self, other: Interval) -> Interval:
        """Products of ends bound all products; 0·inf counts as 0, its value at finite numbers."""
        ends, others = ((x.lo, x.hi)[: 1 + (x.lo is not x.hi)] for x in (self, other))
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            products = [np.where((a == 0.0) | (b == 0.0), 0.0, a * b) for a in ends for b in others]
        low, high = np.minimum.reduce(products), np.maximum.reduce(products)
        return Interval(down(low), up(high))

    def __matmul__(self, other: Interval) -> Interval:
        """Matrix products in numpy's sense; the whole line if an end is infinite.

        Hypotheses on the machine: as in `norms.float_engine` (conventional products, any order,
        perhaps fused; gradual underflow is not assumed).
        Proof: with self = a + δ, |δ| ≤ r, and other = b + ε, |ε| ≤ s, the product is
        ab + δb + (a + δ)ε. fl(ab) errs by at most γ_n|a||b| + 4nη, η = 2^-1022, so that the radius
        is at most (r + γ_n|a|)|b| + (|a| + r)s + 4nη. γ_n ≤ n·2^-52, and what the sums of
        non-negative terms lose is below 4(n + 1)u of them and 12nη.
        Attained: up to rounding, where one factor is exact.
        """
        (a, r), (b, s) = self.ball(), other.ball()
        terms = a.shape[-1]
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            centre = a @ b
            magnitude = np.abs(a)
            spread = up(r + up(magnitude * (terms * 2.0**-52))) @ np.abs(b)
            if s.any():
                spread = spread + up(magnitude + r) @ s
            spread = up(up(spread * (1.0 + (terms + 4) * 2.0**-51)) + terms * 2.0**-1016)
            low, high = down(centre - spread), up(centre + spread)
        known = np.isfinite(low) & np.isfinite(high) & np.isfinite(a).all() & np.isfinite(b).all()
        return Interval(np.where(known, low, -np.inf), np.where(known, high, np.inf))

    def middle(self) -> Array:
        """Return about the middle of each interval; not finite if an end is not."""
        low, high = self.lo, self.hi
        with np.errstate(invalid="ignore"):
            return low if low is high else np.where(low == high, low, 0.5 * low + 0.5 * high)

    def ball(self) -> tuple[Array, Array]:
        """Return a centre, and a bound of the ends' distance to it; not finite if an end is not."""
        low, high, centre = self.lo, self.hi, self.middle()
        if low is high:
            return centre, np.broadcast_to(0.0, low.shape)
        with np.errstate(invalid="ignore"):
            radius = np.maximum(up(high - centre), up(centre - low))
        return centre, np.where(low == high, 0.0, radius)

    def reciprocal(self) -> Interval:
        """1/x; the whole line if 0 lies in the interval."""
        crosses = (self.lo <= 0.0) & (self.hi >= 0.0)
        low = 1.0 / np.where(crosses, 1.0, self.hi)
        high = 1.0 / np.where(crosses, 1.0, self.lo)
        return Interval(np.where(crosses, -np.inf, down(low)), np.where(crosses, np.inf, up(high)))

    def root(self) -> Interval:
        """√x, where negative numbers count as 0."""
        known = clip(self, 0.0, math.inf)
        return clip(Interval(down(np.sqrt(known.lo)), up(np.sqrt(known.hi))), 0.0, math.inf)

    def meet(self, other: Interval) -> Interval:
        """Return the intersection of both; raise ValueError if it is empty."""
        return Interval(np.maximum(self.lo, other.lo), np.minimum(self.hi, other.hi))

    def broadcast(self, shape: tuple[int, ...]) -> Interval:
        """Return the interval broadcast to a larger shape, without copying."""
        return self.moved(lambda end: np.broadcast_to(end, shape))

    def moved(self, act: Callable[[Array], Array]) -> Interval:
        """Return the interval with rearranged ends; exact numbers stay one array."""
        low = act(self.lo)
        return Interval(low, low if self.lo is self.hi else act(self.hi))

    def transposed(self) -> Interval:
        """Return the interval with the last two axes exchanged."""
        return self.moved(lambda end: np.swapaxes(end, -1, -2))

    def magnitude(self) -> Array:
        """The largest |x| of each entry."""
        if self.lo is self.hi:
            return np.abs(self.lo)
        return np.maximum(np.abs(self.lo), np.abs(self.hi))

    def sum(self, axes: tuple[int, ...]) -> Interval:
        """Enclose the sum over axes, which keep the length 1."""
        terms = math.prod(self.lo.shape[axis] for axis in axes)
        error = up(up(np.sum(self.magnitude(), axis=axes, keepdims=True)) * (terms * 2.0**-51))
        with np.errstate(invalid="ignore"):
            low = down(np.sum(self.lo, axis=axes, keepdims=True) - error)
            high = up(np.sum(self.hi, axis=axes, keepdims=True) + error)
        unknown = ~np.isfinite(error)
        return Interval(np.where(unknown, -np.inf, low), np.where(unknown, np.inf, high))


def exact(array: Array | float) -> Interval:
    """The interval from each number to itself."""
    known = np.asarray(array, dtype=np.float64)
    return Interval(known, known)


def enclosed(number: Fraction) -> Interval:
    """The float64 numbers around a rational one."""
    return Interval(np.array(round_down(number)), np.array(round_up(number)))


def symmetric(radius: float, shape: tuple[int, ...]) -> Interval:
    """[−radius, radius] everywhere."""
    ends = np.full(shape, radius)
    return Interval(-ends, ends)


def _scaled_square(array: Array, exponent: int) -> Fraction:
    """Return an upper bound of Σ x²·4^-exponent, for |x| < 2^exponent.

    Proof: underflow loses less than 2^-1022 each, covered by n·2^-1000; N terms give a relative
    error of γ_{N+1}, and 1/(1 − γ) ≤ 1 + 2γ. Large arrays are processed part by part.
    """
    total = Fraction(0)
    for part in _parts(array):
        flat = np.ldexp(part.ravel(), -exponent)
        computed = Fraction(float(np.dot(flat, flat)))
        relative = 1 + Fraction(flat.size + 2, 1 << 52)
        total += computed * relative + Fraction(flat.size, 1 << 1000)
    return total


def largest_magnitude(array: Array) -> float:
    """Return the largest |x|, without making another array of that size."""
    return float(max(array.max(initial=0.0), -array.min(initial=0.0)))


def _parts(array: Array) -> Iterator[Array]:
    """Yield the parts of an array, each of limited size."""
    if array.size <= _PART or array.ndim == 0:
        yield array
        return
    step = max(_PART * len(array) // array.size, 1)
    for start in range(0, len(array), step):
        yield array[start : start + step]


def norm_up(array: Array) -> float:
    """Return a float64 ≥ √Σ x²; inf if an entry is infinite.

    It is computed from the scaled sum, so that squares neither overflow nor vanish. For one number
    it is exact.
    """
    largest = largest_magnitude(array)
    if largest == 0.0 or not math.isfinite(largest) or array.size == 1:
        return largest
    exponent = math.frexp(largest)[1]
    root = sqrt_up(round_up(_scaled_square(array, exponent)))
    return round_up(Fraction(root) * Fraction(2) ** exponent)


def hull(first: Interval, second: Interval) -> Interval:
    """Return the smallest interval that contains both."""
    return Interval(np.minimum(first.lo, second.lo), np.maximum(first.hi, second.hi))


def clip(x: Interval, low: float, high: float) -> Interval:
    """Enclose the nearest numbers in [low, high]."""
    return Interval(np.clip(x.lo, low, high), np.clip(x.hi, low, high))


def absolute(x: Interval) -> Interval:
    """|x|, exactly."""
    return Interval(np.maximum(np.maximum(x.lo, -x.hi), 0.0), x.magnitude())
