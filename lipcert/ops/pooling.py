"""Pooling over windows that slide over the trailing axes: maximum, mean, and p-norm.

On values of shape [channels, *sizes]. Every window reads at least one input position; padding
never takes part in a maximum and adds nothing to a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from lipcert.core.program import Shape
from lipcert.geometry import Geometry, Window
from lipcert.ops.base import Op
from lipcert.upper import FloatArray


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


@final
@dataclass(frozen=True, slots=True)
class MaxPool(_Pool):
    """The largest entry of every window."""

    geometry: Geometry

    def __post_init__(self) -> None:
        _require_reading(self.geometry)

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """The maximum, one axis after the other."""
        (x,) = inputs
        for axis, window in enumerate(self.geometry, start=2):
            x = np.max(_windows(x, axis, window, -np.inf), axis=-1)
        return x


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

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """The mean, one axis after the other."""
        (x,) = inputs
        for axis, (window, counts) in enumerate(zip(self.geometry, self.divisors, strict=True), 2):
            x = np.sum(_windows(x, axis, window, 0.0), axis=-1)
            x = x / _along(counts, axis, x.ndim)
        return x


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

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """The p-norms, from sums of powers along one axis after the other."""
        (x,) = inputs
        powers = np.abs(x) ** self.p
        for axis, window in enumerate(self.geometry, start=2):
            powers = np.sum(_windows(powers, axis, window, 0.0), axis=-1)
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


def _along(counts: tuple[int, ...], axis: int, rank: int) -> FloatArray:
    """The counts as an array that broadcasts along one axis."""
    return np.asarray(counts, dtype=np.float64).reshape(-1, *[1] * (rank - 1 - axis))


def _require_reading(geometry: Geometry) -> None:
    for window in geometry:
        if min(window.reads()) == 0:
            raise ValueError(f"a window reads padding only: {window}")
