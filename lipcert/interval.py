"""Interval arrays with outward rounding: the elementwise companion of `upper.py`.

What enters and leaves: `Interval(lo, hi)`, two float64 arrays (possibly broadcast) such that the
real array they speak of satisfies lo ≤ a ≤ hi entry by entry. Single operations are rounded
outward with `nextafter`; products of matrices use the a-priori bound γ_n |A||x|.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lipcert.upper import INFINITE, FloatArray, Upper, gamma, norm

__all__ = ["Interval"]

_TINY: Final = 2.0**-1022


def _down(array: FloatArray) -> FloatArray:
    with np.errstate(over="ignore"):
        result: FloatArray = np.nextafter(array, -np.inf)
    return result


def _up(array: FloatArray) -> FloatArray:
    with np.errstate(over="ignore"):
        result: FloatArray = np.nextafter(array, np.inf)
    return result


@final
@dataclass(frozen=True, slots=True, eq=False)
class Interval:
    """Entrywise bounds lo ≤ a ≤ hi of an array; infinite ends mean "not known"."""

    lo: FloatArray
    hi: FloatArray

    def __post_init__(self) -> None:
        lo = np.asarray(self.lo, dtype=np.float64)
        hi = np.asarray(self.hi, dtype=np.float64)
        if np.any(np.isnan(lo)) or np.any(np.isnan(hi)) or np.any(lo > hi):
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
        hi = np.broadcast_to(np.float64(radius.value), shape)
        return cls(-hi, hi)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the arrays."""
        return np.broadcast_shapes(self.lo.shape, self.hi.shape)

    @property
    def is_exact(self) -> bool:
        """Whether every entry is known exactly."""
        return bool(np.array_equal(self.lo, self.hi))

    def broadcast(self, shape: tuple[int, ...]) -> Interval:
        """The same interval seen with a larger shape."""
        return Interval(np.broadcast_to(self.lo, shape), np.broadcast_to(self.hi, shape))

    def map(self, view: Callable[[FloatArray], FloatArray]) -> Interval:
        """Apply an exact rearrangement (reshape, transpose, slice, repeat) to both ends."""
        return Interval(view(self.lo), view(self.hi))

    def intersect(self, other: Interval) -> Interval:
        """What both intervals allow."""
        return Interval(np.maximum(self.lo, other.lo), np.minimum(self.hi, other.hi))

    def hull(self, other: Interval) -> Interval:
        """The smallest interval that holds both."""
        return Interval(np.minimum(self.lo, other.lo), np.maximum(self.hi, other.hi))

    def __neg__(self) -> Interval:
        return Interval(-self.hi, -self.lo)

    def __add__(self, other: Interval) -> Interval:
        """Entrywise sum; an end that is 0 is exact, because sums of floats never underflow."""
        with np.errstate(invalid="ignore", over="ignore"):
            lo, hi = self.lo + other.lo, self.hi + other.hi
            lo, hi = np.where(lo == 0.0, lo, _down(lo)), np.where(hi == 0.0, hi, _up(hi))
        return _without_nan(lo, hi)

    def __sub__(self, other: Interval) -> Interval:
        return self + (-other)

    def __mul__(self, other: Interval) -> Interval:
        """Entrywise product; 0 · inf counts as 0, since every value itself is finite."""
        with np.errstate(invalid="ignore", over="ignore"):
            corners = [
                np.nan_to_num(a * b, nan=0.0, posinf=np.inf, neginf=-np.inf)
                for a in (self.lo, self.hi)
                for b in (other.lo, other.hi)
            ]
        return Interval(
            _down(np.minimum.reduce(np.broadcast_arrays(*corners))),
            _up(np.maximum.reduce(np.broadcast_arrays(*corners))),
        )

    def reciprocal(self) -> Interval:
        """1/a; the whole line where the interval holds 0."""
        with np.errstate(divide="ignore", over="ignore"):
            lo, hi = _down(1.0 / self.hi), _up(1.0 / self.lo)
        holds_zero = (self.lo <= 0.0) & (self.hi >= 0.0)
        return Interval(np.where(holds_zero, -np.inf, lo), np.where(holds_zero, np.inf, hi))

    def monotone(self, function: Callable[[FloatArray], FloatArray], ulps: int = 8) -> Interval:
        """Image under a non-decreasing function whose floating-point code errs by ≤ `ulps` ulp.

        `ulps` is 0 for functions that are computed exactly (maximum, clip, identity).
        """
        return Interval(function(self.lo), function(self.hi)).widen(ulps)

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
        if not (np.all(np.isfinite(radius)) and np.all(np.isfinite(spread))):
            shape = (*self.shape[:-1], matrix.shape[-1])
            return Interval(np.full(shape, -np.inf), np.full(shape, np.inf))
        magnitude = np.abs(centre) + radius
        error = 4.0 * gamma(terms + 8).value
        with np.errstate(invalid="ignore", over="ignore"):
            mass = magnitude @ (np.abs(middle) + spread)
            half = radius @ np.abs(middle) + (magnitude @ spread if np.any(spread) else 0.0)
            half = _up(half + error * mass + terms * 8.0 * _TINY)
            value = centre @ middle
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

    def absolute(self) -> Interval:
        """|a|, exactly."""
        least = np.maximum(np.maximum(self.lo, -self.hi), 0.0)
        return Interval(least, self.magnitude())

    def magnitude(self) -> FloatArray:
        """max(|lo|, |hi|), entry by entry."""
        result: FloatArray = np.maximum(np.abs(self.lo), np.abs(self.hi))
        return result

    def max_abs(self) -> Upper:
        """The largest magnitude of any entry (0 for an empty array)."""
        return Upper(float(np.max(self.magnitude(), initial=0.0)))

    def norm(self) -> Upper:
        """Upper bound of the Euclidean norm of any array in the interval."""
        magnitude = np.broadcast_to(self.magnitude(), self.shape)
        return norm(magnitude) if np.all(np.isfinite(magnitude)) else INFINITE

    def _centre_radius(self) -> tuple[FloatArray, FloatArray]:
        if self.is_exact:
            return self.lo, np.zeros_like(self.lo)
        with np.errstate(invalid="ignore", over="ignore"):
            centre = 0.5 * self.lo + 0.5 * self.hi
            radius = _up(np.maximum(self.hi - centre, centre - self.lo))
        unknown = ~np.isfinite(centre) | ~np.isfinite(radius)
        return np.where(unknown, 0.0, centre), np.where(unknown, np.inf, radius)


def _without_nan(lo: FloatArray, hi: FloatArray) -> Interval:
    return Interval(np.where(np.isnan(lo), -np.inf, lo), np.where(np.isnan(hi), np.inf, hi))
