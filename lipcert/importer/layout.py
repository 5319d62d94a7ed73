"""Layout: where the examples of a batch lie inside a tensor.

What enters: the shape of a tensor at a batch size N. What leaves: the one axis that carries the
batch, and the shape that belongs to one example. Invariant: along `axis` the size is
before·N·after, and entry (p, i, s) of that axis, together with everything else at the same place,
belongs to example i alone. So in row-major order element (p'·N + i)·S + s belongs to example i,
for P = prod(shape[:axis])·before, and a reshape, which keeps P, keeps the statement.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt

from lipcert.core.program import Shape
from lipcert.importer.constant import Constant


class MixingError(Exception):
    """Examples of a batch influence each other, or cannot be told apart; says why."""


class ReadsAcrossError(MixingError):
    """An op sums, sorts or normalises over the batch."""


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """The batch lies on `axis`, whose size is before·batch·after.

    whole: there is one example, and the tensor with all its axes belongs to it.
    """

    shape: Shape
    batch: int
    axis: int
    before: int = 1
    after: int = 1
    whole: bool = False

    def __post_init__(self) -> None:
        if not self.whole and self.shape[self.axis] != self.before * self.batch * self.after:
            raise MixingError(f"the batch axis {self.axis} of the shape {self.shape} is cut")

    @property
    def rank(self) -> int:
        """Number of dimensions, the batch included."""
        return len(self.shape)

    @property
    def is_merged(self) -> bool:
        """Whether the batch shares its axis with entries of one example, or has none."""
        return self.whole or self.before * self.after > 1

    @classmethod
    def whole_of(cls, shape: Shape) -> Layout:
        """The layout of a tensor that is one example, or part of one, with all its axes."""
        return cls(shape, 1, 0, whole=True)

    @property
    def is_one(self) -> bool:
        """Whether there is one example, to which all axes belong."""
        return self.batch == 1 and self.is_merged

    @property
    def spoils_matrices(self) -> bool:
        """Whether the batch is one of the last two axes, so that the tensor is no matrix."""
        return not self.is_one and self.axis >= self.rank - 2

    @property
    def prefix(self) -> int:
        """P: the number of blocks of N·S entries in row-major order."""
        return math.prod(self.shape[: self.axis]) * self.before

    @property
    def full_example_shape(self) -> Shape:
        """Shape of one example with the batch axis kept at its share (1 if not merged)."""
        if self.whole:
            return self.shape
        share = self.before * self.after
        return (*self.shape[: self.axis], share, *self.shape[self.axis + 1 :])

    @property
    def example_shape(self) -> Shape:
        """Shape of one example; the batch axis is gone unless it is merged."""
        if self.is_merged:
            return self.full_example_shape
        return (*self.shape[: self.axis], *self.shape[self.axis + 1 :])

    def example_axis(self, axis: int) -> int:
        """Position of an axis in `example_shape`; ValueError for a batch axis that is gone."""
        axis = axis + self.rank if axis < 0 else axis
        if self.is_merged or axis < self.axis:
            return axis
        if axis == self.axis:
            raise ValueError("the batch axis is no axis of an example")
        return axis - 1

    def moved(self, shape: Shape, axis: int) -> Layout:
        """The same split of the batch axis, at another place of another shape."""
        return Layout(shape, self.batch, axis, self.before, self.after)

    def example_part(self, constant: Constant) -> Constant:
        """A constant that is broadcast against this layout, as one example sees it."""
        missing = self.rank - len(constant.shape)
        full = constant.rearranged(lambda a: a.reshape((1,) * missing + a.shape))
        if not self.is_one and full.shape[self.axis] != 1:
            if not full.is_same_along(self.axis, self.before, self.batch, self.after):
                raise MixingError("a constant differs from example to example")
            full = full.rearranged(self._first_example)
        if self.is_merged:
            return full
        return full.rearranged(lambda a: np.squeeze(a, axis=self.axis))

    def _first_example(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        head, tail = array.shape[: self.axis], array.shape[self.axis + 1 :]
        parts = array.reshape(*head, self.before, self.batch, self.after, *tail)
        first: npt.NDArray[Any] = np.take(parts, 0, axis=self.axis + 1)
        return first.reshape(*head, self.before * self.after, *tail)


def locate(prefix: int, shape: Shape, batch: int) -> Layout:
    """The layout of a tensor of which P is known; prefers an axis that is the batch alone."""
    found = _places(prefix, shape, batch)
    if not found:
        raise MixingError(f"the batch is spread over several axes of the shape {shape}")
    return min(found, key=lambda layout: layout.is_merged)


def is_told(prefix: int, shape: Shape, batch: int) -> bool:
    """Whether exactly one axis can be that of the batch alone."""
    return sum(not layout.is_merged for layout in _places(prefix, shape, batch)) == 1


def _places(prefix: int, shape: Shape, batch: int) -> list[Layout]:
    found: list[Layout] = []
    blocks = 1
    for axis, size in enumerate(shape):
        if blocks <= prefix and prefix % blocks == 0:
            before = prefix // blocks
            if size % (before * batch) == 0:
                found.append(Layout(shape, batch, axis, before, size // (before * batch)))
        blocks *= size
    return found
