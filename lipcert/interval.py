"""Interval arrays with outward rounding: the elementwise companion of `upper.py`.

What enters and leaves: `Interval(lo, hi)`, two float64 arrays (possibly broadcast) such that the
real array they speak of satisfies lo ≤ a ≤ hi entry by entry. Single operations are rounded
outward with `nextafter`; products of matrices use the a-priori bound γ_n |A||x|.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce, wraps
from typing import Any, Final, TypeVar, cast, final

import numpy as np

from lipcert.upper import INFINITE, FloatArray, Upper, gamma, norm

_TINY: Final = 2.0**-1022
_Operation = TypeVar("_Operation", bound="Callable[..., Interval]")


def _down(array: FloatArray) -> FloatArray:
    with np.errstate(over="ignore"):
        result: FloatArray = np.nextafter(array, -np.inf)
    return result


def _up(array: FloatArray) -> FloatArray:
    with np.errstate(over="ignore"):
        result: FloatArray = np.nextafter(array, np.inf)
    return result


def _compact(array: FloatArray) -> FloatArray:
    """One entry along every axis along which a broadcast array repeats itself."""
    result: FloatArray = array[tuple(slice(1 if step == 0 else None) for step in array.strides)]
    return result


def _once(operation: _Operation) -> _Operation:
    """An elementwise operation, done once for entries that repeat because of a broadcast."""

    @wraps(operation)
    def compactly(*arguments: Any, **options: Any) -> Interval:
        shapes = [item.shape for item in arguments if isinstance(item, Interval)]
        small = (item.map(_compact) if isinstance(item, Interval) else item for item in arguments)
        return operation(*small, **options).broadcast(np.broadcast_shapes(*shapes))

    return cast("_Operation", compactly)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Interval:
    """Entrywise bounds lo ≤ a ≤ hi of an array; infinite ends mean "not known"."""

    lo: FloatArray
    hi: FloatArray

    def __post_init__(self) -> None:
        lo = np.asarray(self.lo, dtype=np.float64)
        hi = lo if self.hi is self.lo else np.asarray(self.hi, dtype=np.float64)
        if not np.all(_compact(lo) <= _compact(hi)):  # false for NaN, too
            raise ValueError("an interval needs lo <= hi without NaN")
        object.__setattr__(self, "lo", lo)
        object.__setattr__(self, "hi", hi)

    @classmethod
    def exact(cls, array: FloatArray) -> Interval:
        """The interval that holds just this array."""
        return cls(array, array)

    @classmethod
    def symmetric(cls, radius: Upper, shape: tuple[int, ...]) -> Interval:
        """[−radius, radius] at every entry (a broadcast view, no memory)."""
        hi = np.float64(radius.value)
        return cls(np.broadcast_to(-hi, shape), np.broadcast_to(hi, shape))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the arrays."""
        return np.broadcast_shapes(self.lo.shape, self.hi.shape)

    @property
    def is_exact(self) -> bool:
        """Whether every entry is known exactly."""
        return self._is_point or bool(np.array_equal(self.lo, self.hi))

    @property
    def _is_point(self) -> bool:
        """Whether both ends are the same array: exact without looking at the entries."""
        return self.lo is self.hi

    def broadcast(self, shape: tuple[int, ...]) -> Interval:
        """The same interval seen with a larger shape."""
        return self.map(lambda end: np.broadcast_to(end, shape))

    def map(self, view: Callable[[FloatArray], FloatArray]) -> Interval:
        """Apply an exact rearrangement (reshape, transpose, slice, repeat) to both ends."""
        lo = view(self.lo)
        return Interval(lo, lo if self._is_point else view(self.hi))

    @_once
    def intersect(self, other: Interval) -> Interval:
        """What both intervals allow."""
        return Interval(np.maximum(self.lo, other.lo), np.minimum(self.hi, other.hi))

    @_once
    def hull(self, other: Interval) -> Interval:
        """The smallest interval that holds both."""
        return Interval(np.minimum(self.lo, other.lo), np.maximum(self.hi, other.hi))

    @_once
    def __neg__(self) -> Interval:
        return Interval(-self.hi, -self.lo)

    @_once
    def __add__(self, other: Interval) -> Interval:
        """Entrywise sum; an end that is 0 is exact, because sums of floats never underflow."""
        with np.errstate(invalid="ignore", over="ignore"):
            lo, hi = np.asarray(self.lo + other.lo), np.asarray(self.hi + other.hi)
            np.nextafter(lo, -np.inf, out=lo, where=lo != 0.0)
            np.nextafter(hi, np.inf, out=hi, where=hi != 0.0)
        return _without_nan(lo, hi)

    def __sub__(self, other: Interval) -> Interval:
        return self + (-other)

    @_once
    def __mul__(self, other: Interval) -> Interval:
        """Entrywise product; 0 · inf counts as 0, since every value itself is finite.

        Proof: a product is monotone in each factor, so its extremes are among the products of the
        ends. A NaN can only be 0 · inf, and is passed on by minimum.
        """
        with np.errstate(invalid="ignore", over="ignore"):
            corners = [a * b for a in self._ends() for b in other._ends()]
        if np.any(np.isnan(reduce(np.minimum, corners))):
            corners = [np.where(np.isnan(corner), 0.0, corner) for corner in corners]
        return Interval(_down(reduce(np.minimum, corners)), _up(reduce(np.maximum, corners)))

    @_once
    def reciprocal(self) -> Interval:
        """1/a; the whole line where the interval holds 0."""
        with np.errstate(divide="ignore", over="ignore"):
            lo, hi = _down(1.0 / self.hi), _up(1.0 / self.lo)
        holds_zero = (self.lo <= 0.0) & (self.hi >= 0.0)
        return Interval(np.where(holds_zero, -np.inf, lo), np.where(holds_zero, np.inf, hi))

    @_once
    def monotone(self, function: Callable[[FloatArray], FloatArray], ulps: int = 8) -> Interval:
        """Image under a non-decreasing function whose floating-point code errs by ≤ `ulps` ulp.

        `ulps` is 0 for functions that are computed exactly (maximum, clip, identity).
        """
        low, high = function(self.lo), function(self.hi)  # rounding may exchange close ends
        return Interval(np.minimum(low, high), np.maximum(low, high)).widen(ulps)

    @_once
    def widen(self, ulps: int) -> Interval:
        """Both ends moved outward by at least `ulps` units in the last place."""
        if ulps == 0:
            return self
        factor = ulps * 2.0**-52
        with np.errstate(invalid="ignore", over="ignore"):
            return _without_nan(
                _down(self.lo - np.abs(self.lo) * factor - _TINY),
                _up(self.hi + np.abs(self.hi) * factor + _TINY),
            )

    @_once
    def clip(self, low: float, high: float) -> Interval:
        """Intersection with a range that is known to hold every entry."""
        return Interval(np.clip(self.lo, low, high), np.clip(self.hi, low, high))

    def matmul(self, matrix: Interval) -> Interval:
        """a · M for a = self [..., n] and an interval matrix M [n, m]: [..., m].

        Proof: with centre c, radius r of a (c ± r ⊇ a after outward rounding) and an exact M,
        a·M ∈ c·M ± r·|M|; an interval M adds (|c| + r)·rad(M). Each floating-point product of
        n terms errs by at most γ_n times the product of magnitudes.
        """
        terms = matrix.shape[-2]
        centre, radius = self._centre_radius()
        middle, spread = matrix._centre_radius()
        error = 4.0 * gamma(terms + 8).value
        with np.errstate(invalid="ignore", over="ignore"):
            value, size, magnitude = centre @ middle, np.abs(middle), np.abs(centre)
            half = np.full(value.shape, terms * 8.0 * _TINY)
            if radius is not None:
                half += radius @ size
                magnitude += radius
            if spread is not None:
                half += magnitude @ spread
                size += spread
            half = _up(half + error * (magnitude @ size))
            if not np.all(np.isfinite(value) & np.isfinite(half)):
                half = np.full(value.shape, np.inf)
            return _without_nan(_down(value - half), _up(value + half))

    def sum(self, axes: tuple[int, ...], keepdims: bool = False) -> Interval:
        """Sum over axes, γ_n of the magnitudes added on both sides."""
        terms = int(np.prod([self.shape[axis] for axis in axes], initial=1))
        slack = 4.0 * gamma(terms + 4).value
        lo, hi = np.broadcast_arrays(self.lo, self.hi)
        mass = np.sum(np.maximum(np.abs(lo), np.abs(hi)), axis=axes, keepdims=keepdims)
        with np.errstate(invalid="ignore"):
            return _without_nan(
                _down(np.sum(lo, axis=axes, keepdims=keepdims) - slack * mass),
                _up(np.sum(hi, axis=axes, keepdims=keepdims) + slack * mass),
            )

    @_once
    def absolute(self) -> Interval:
        """|a|, exactly."""
        least = np.maximum(np.maximum(self.lo, -self.hi), 0.0)
        return Interval(least, self.magnitude())

    def magnitude(self) -> FloatArray:
        """max(|lo|, |hi|), entry by entry."""
        largest: FloatArray = reduce(np.maximum, [np.abs(_compact(end)) for end in self._ends()])
        return np.broadcast_to(largest, self.shape)

    def max_abs(self) -> Upper:
        """The largest magnitude of any entry (0 for an empty array)."""
        return Upper(float(np.max(_compact(self.magnitude()), initial=0.0)))

    def norm(self) -> Upper:
        """Upper bound of the Euclidean norm of any array in the interval.

        Proof: where every entry of `once` stands n times, the sum of squares is n times that of it.
        """
        magnitude = self.magnitude()
        once = _compact(magnitude)
        if not np.all(np.isfinite(once)):
            return INFINITE
        if once.size == magnitude.size:
            return norm(once)
        return norm(once) * Upper(float(magnitude.size // once.size)).sqrt()

    def _ends(self) -> tuple[FloatArray, ...]:
        return (self.lo,) if self._is_point else (self.lo, self.hi)

    def _centre_radius(self) -> tuple[FloatArray, FloatArray | None]:
        """A centre, and how far the entries are from it at most; None where that is 0."""
        if self.is_exact:
            return self.lo, None
        with np.errstate(invalid="ignore", over="ignore"):
            centre = 0.5 * self.lo + 0.5 * self.hi
            radius = _up(np.maximum(self.hi - centre, centre - self.lo))
        unknown = ~np.isfinite(centre) | ~np.isfinite(radius)
        return np.where(unknown, 0.0, centre), np.where(unknown, np.inf, radius)


def _without_nan(lo: FloatArray, hi: FloatArray) -> Interval:
    if np.any(np.isnan(lo)) or np.any(np.isnan(hi)):
        lo, hi = np.where(np.isnan(lo), -np.inf, lo), np.where(np.isnan(hi), np.inf, hi)
    return Interval(lo, hi)
