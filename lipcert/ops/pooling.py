"""Pooling over windows that slide over the trailing axes: maximum, mean, and p-norm.

What enters: facts about x of shape [channels, *sizes]. What leaves: norm and box of the pooled
value, and Jacobian norms from how often windows overlap. Invariant: every window reads at least
one input position; padding never takes part in a maximum and adds nothing to a sum.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from lipcert.facts import Bound, Shape, ValueFacts, product_of
from lipcert.interval import Interval
from lipcert.links import Link, matrix_of
from lipcert.norms.geometry import Geometry, Window
from lipcert.norms.pooling import average_pool_norm
from lipcert.norms.windows import largest_overlap, max_pool_norm
from lipcert.ops.base import Op
from lipcert.scope import Scope
from lipcert.upper import FloatArray, Upper


class _Pool(Op):
    """An op on [channels, *sizes] that treats every channel alike and window by window."""

    __slots__ = ()
    geometry: Geometry

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """Channels stay; every spatial size becomes the number of windows."""
        (shape,) = inputs
        sizes = tuple(window.size for window in self.geometry)
        if shape[1:] != sizes or not shape:
            raise ValueError(f"input {shape} does not fit [channels, *{sizes}]")
        return (shape[0], *(window.outputs for window in self.geometry))

    def input_lipschitz(self, index: int, inputs: Sequence[ValueFacts], scope: Scope) -> Bound:
        """Returns the norm of the pooling, which no fact about the input improves."""
        del index, inputs, scope
        return self._norm()

    def output_facts(self, inputs: Sequence[ValueFacts], scope: Scope) -> ValueFacts:
        """Returns B ≥ sup ‖y‖ = L·X, since the pooled zero is zero, and the image of the box."""
        del scope
        (x,) = inputs
        norm = product_of(f"{self.family}.output_norm", x.norm, self._norm())
        return ValueFacts.of(self.output_shape([x.shape]), norm, self._image(x))

    @abstractmethod
    def _norm(self) -> Bound:
        """Lipschitz constant, of a map that keeps 0."""

    @abstractmethod
    def _image(self, x: ValueFacts) -> Interval:
        """Box of the output."""


@final
@dataclass(frozen=True, slots=True)
class MaxPool(_Pool):
    """The largest entry of every window."""

    geometry: Geometry

    def __post_init__(self) -> None:
        _require_reading(self.geometry)

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "MaxPool"

    @property
    def family(self) -> str:
        """Rule family."""
        return "max_pool"

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """The maximum, one axis after the other."""
        (x,) = inputs
        return self._largest(x, leading=2)

    def _norm(self) -> Bound:
        """Returns √overlap ≥ the Lipschitz constant, also for any choice among equal maxima.

        Proof: `norms.windows.max_pool_norm`. A generalised Jacobian mixes rows that select one
        entry each: rows of sum 1, columns of sum ≤ overlap, and ‖J‖² ≤ row sum · column sum.
        Attained: one entry is the maximum of every window that reads it.
        """
        return Bound(max_pool_norm(self.geometry), "max_pool.input_lipschitz")

    def _image(self, x: ValueFacts) -> Interval:
        return x.box.broadcast(x.shape).map(lambda ends: self._largest(ends, leading=1))

    def _largest(self, array: FloatArray, leading: int) -> FloatArray:
        for axis, window in enumerate(self.geometry, start=leading):
            array = np.max(_windows(array, axis, window, -np.inf), axis=-1)
        return array


@final
@dataclass(frozen=True, slots=True)
class AveragePool(_Pool):
    """The sum of every window divided by Π divisors[dimension][output position]."""

    geometry: Geometry
    divisors: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        expected = [window.outputs for window in self.geometry]
        if [len(counts) for counts in self.divisors] != expected:
            raise ValueError(f"divisors must be given for {expected} outputs per dimension")
        if any(count < 1 for counts in self.divisors for count in counts):
            raise ValueError("a divisor of an average is less than 1")

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "AveragePool"

    @property
    def family(self) -> str:
        """Rule family."""
        return "average_pool"

    def operator_norm(self, scope: Scope) -> Bound:
        """The norm of the map."""
        del scope
        return self._norm()

    def link(self, inputs: Sequence[ValueFacts], scope: Scope) -> Link | None:
        """The means as a matrix, where it is small."""
        del scope
        shape = inputs[0].shape
        return matrix_of(self.evaluate, shape, self.output_shape([shape]))

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """The mean, one axis after the other."""
        (x,) = inputs
        for axis, (window, counts) in enumerate(zip(self.geometry, self.divisors, strict=True), 2):
            x = np.sum(_windows(x, axis, window, 0.0), axis=-1)
            x = x / _along(counts, axis, x.ndim)
        return x

    def _norm(self) -> Bound:
        """Returns the norm of the map, a Kronecker product of one-dimensional ones.

        Proof: `norms.pooling.average_pool_norm`. Attained: up to rounding.
        """
        return Bound(
            average_pool_norm(self.geometry, self.divisors), "average_pool.input_lipschitz"
        )

    def _image(self, x: ValueFacts) -> Interval:
        box = x.box.broadcast(x.shape)
        for axis, (window, counts) in enumerate(zip(self.geometry, self.divisors, strict=True), 1):
            summed = _window_sum(box, axis, window)
            box = summed * Interval.exact(_along(counts, axis, len(x.shape))).reciprocal()
        return box


@final
@dataclass(frozen=True, slots=True)
class LpPool(_Pool):
    """(Σ |x|^p)^(1/p) over every window, p ≥ 1."""

    geometry: Geometry
    p: int = 2

    def __post_init__(self) -> None:
        if self.p < 1:
            raise ValueError(f"p-norm pooling needs p >= 1, not {self.p}")
        _require_reading(self.geometry)

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "LpPool"

    @property
    def family(self) -> str:
        """Rule family."""
        return "lp_pool"

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """The p-norms, from sums of powers along one axis after the other."""
        (x,) = inputs
        powers = np.abs(x) ** self.p
        for axis, window in enumerate(self.geometry, start=2):
            powers = np.sum(_windows(powers, axis, window, 0.0), axis=-1)
        return self._root(powers)

    def _norm(self) -> Bound:
        """Returns √overlap (p ≥ 2) or √(taps·overlap) (p = 1) ≥ the Lipschitz constant.

        Proof: |‖a‖_p − ‖b‖_p| ≤ ‖a − b‖_p ≤ ‖a − b‖₂ for p ≥ 2, ≤ √taps·‖a − b‖₂ for p = 1;
        each position lies in at most `overlap` windows, so the squares add up to overlap·‖·‖².
        Attained: windows that do not overlap; p = 1 by equal magnitudes.
        """
        square = largest_overlap(self.geometry)
        if self.p == 1:
            square *= math.prod(max(window.reads()) for window in self.geometry)
        return Bound(Upper(float(square)).sqrt(), "lp_pool.input_lipschitz")

    def _image(self, x: ValueFacts) -> Interval:
        """Monotone in the magnitudes. numpy's powers err by less than 8 ulp; rounding 1/p by half
        an ulp moves a root by less than ln(2^1024)/2 ulp.
        """
        powers = x.box.absolute().broadcast(x.shape).monotone(self._power).clip(0.0, np.inf)
        for axis, window in enumerate(self.geometry, start=1):
            powers = _window_sum(powers, axis, window).clip(0.0, np.inf)
        return powers.monotone(self._root, ulps=512).clip(0.0, np.inf)

    def _power(self, magnitude: FloatArray) -> FloatArray:
        with np.errstate(over="ignore", under="ignore"):
            result: FloatArray = magnitude**self.p
        return result

    def _root(self, powers: FloatArray) -> FloatArray:
        result: FloatArray = powers ** (1.0 / self.p)
        return result


def _windows(array: FloatArray, axis: int, window: Window, padding: float) -> FloatArray:
    """The axis replaced by its windows: [..., outputs, ..., taps], taps on a new last axis."""
    first = np.arange(window.outputs) * window.stride - window.pad_begin
    places = first[:, np.newaxis] + np.arange(window.taps) * window.dilation
    inside = (places >= 0) & (places < window.size)
    last = array.swapaxes(axis, -1)
    padded = np.append(last, np.full((*last.shape[:-1], 1), padding), axis=-1)
    return padded[..., np.where(inside, places, window.size)].swapaxes(axis, -2)


def _window_sum(box: Interval, axis: int, window: Window) -> Interval:
    windows = box.map(lambda ends: _windows(ends, axis, window, 0.0))
    return windows.sum((len(windows.shape) - 1,))


def _along(counts: tuple[int, ...], axis: int, rank: int) -> FloatArray:
    """The counts as an array that broadcasts along one axis."""
    return np.asarray(counts, dtype=np.float64).reshape(-1, *[1] * (rank - 1 - axis))


def _require_reading(geometry: Geometry) -> None:
    for window in geometry:
        if min(window.reads()) == 0:
            raise ValueError(f"a window reads padding only: {window}")
