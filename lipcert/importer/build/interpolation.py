"""Interpolation along one axis, as the matrix it is.

What enters: the attributes of a Resize node along one axis. What leaves: weights [outputs, inputs]
or, for the nearest neighbour, the index of the input that each output takes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from lipcert.importer.build.builder import RefusedNodeError
from lipcert.upper import FloatArray


@final
@dataclass(frozen=True, slots=True)
class Interpolation:
    """From `size` to `target` positions; scale is target/size or as the file states it.

    antialias: shrinking stretches the kernel, so that every input counts.
    """

    size: int
    target: int
    scale: float
    coordinates: str
    nearest: str
    cubic_factor: float
    exclude_outside: bool
    antialias: bool

    @property
    def changes_nothing(self) -> bool:
        """Whether every output position is the input position of the same number."""
        places = range(self.target)
        return all(self._position(p) == p for p in places) and self.target == self.size

    def nearest_indices(self) -> tuple[int, ...]:
        """The input position of every output position."""
        return tuple(self._nearest(self._position(place)) for place in range(self.target))

    def weights(self, mode: str) -> FloatArray:
        """Rows of weights for mode "linear" or "cubic": [target, size]."""
        matrix = np.zeros((self.target, self.size))
        for place in range(self.target):
            position = self._position(place)
            places, row = self._row(mode, position)
            if self.antialias:
                row = row / np.sum(row)
            inside = (places >= 0) & (places < self.size)
            if self.exclude_outside:
                row = np.where(inside, row, 0.0)
                row = row / np.sum(row)
            np.add.at(matrix[place], np.clip(places, 0, self.size - 1), row)
        return matrix

    def _row(self, mode: str, position: float) -> tuple[npt.NDArray[np.int64], FloatArray]:
        """Neighbours of a position, perhaps outside of the input, and their weights."""
        stretch = max(1.0, 1.0 / self.scale) if self.antialias else 1.0
        reach = 2.0 * stretch
        places = np.arange(math.floor(position - reach), math.ceil(position + reach) + 1)
        distance = np.abs(places - position) / stretch
        row = np.clip(1.0 - distance, 0.0, 1.0) if mode == "linear" else self._cubic(distance)
        return places, row

    def _cubic(self, distance: FloatArray) -> FloatArray:
        a, d = self.cubic_factor, distance
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1.0, near, np.where(d < 2.0, far, 0.0))

    def _position(self, place: int) -> float:
        """Where an output position lies between the input positions."""
        centred = (place + 0.5) / self.scale - 0.5
        match self.coordinates:
            case "asymmetric":
                return place / self.scale
            case "half_pixel":
                return centred
            case "half_pixel_symmetric":
                covered = self.target / (self.scale * self.size)
                return self.size / 2 * (1 - covered) + centred
            case "pytorch_half_pixel":
                return centred if self.target > 1 else 0.0
            case "align_corners":
                return place * (self.size - 1) / (self.target - 1) if self.target > 1 else 0.0
            case "tf_half_pixel_for_nn":
                return (place + 0.5) / self.scale
            case mode:
                raise RefusedNodeError(f"coordinate_transformation_mode {mode!r} is not supported")

    def _nearest(self, position: float) -> int:
        match self.nearest:
            case "floor":
                index = math.floor(position)
            case "ceil":
                index = math.ceil(position)
            case "round_prefer_ceil":
                index = math.floor(position + 0.5)
            case _:
                index = math.ceil(position - 0.5)
        return min(max(index, 0), self.size - 1)
