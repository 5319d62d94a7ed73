"""Move: entries of one value in another place: reshape, transpose, slice, gather, pad, expand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import final

import numpy as np

from lipcert.core.program import IndexArray, Shape
from lipcert.ops.base import Op
from lipcert.upper import FloatArray


class Padding(Enum):
    """What stands around a value."""

    ZEROS = "zeros"
    WRAPPED = "wrapped"
    """the opposite side"""
    REPEATED = "repeated"
    """entries of the border or from within: reflected, say"""


@final
@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Move(Op):
    """y.flat[k] = x.flat[sources[k]], or 0 where sources[k] = −1; x of `shape`, y of sources'."""

    shape: Shape
    sources: IndexArray

    def __post_init__(self) -> None:
        lowest, size = self.sources.min(initial=0), math.prod(self.shape)
        if lowest < -1 or self.sources.max(initial=-1) >= size:
            raise ValueError(f"a move reads entries that a value of shape {self.shape} has not")

    @property
    def is_reshape(self) -> bool:
        """Whether every entry keeps its place in row-major order."""
        flat = self.sources.reshape(-1)
        return flat.size == math.prod(self.shape) and bool((flat == np.arange(flat.size)).all())

    @property
    def is_permutation(self) -> bool:
        """Whether every entry of x stands in y exactly once, and nothing else does."""
        if self.sources.size != math.prod(self.shape) or self.sources.min(initial=0) < 0:
            return False
        return bool((np.bincount(self.sources.reshape(-1)) == 1).all())

    @property
    def padding(self) -> Padding | None:
        """What stands around x where y is x with further entries around it; None where it is not.

        Every entry stands where it stood, but for the widths of the padding.
        """
        size, full = self.shape, self.sources.shape
        if len(size) != len(full) or size == full or min(np.subtract(full, size)) < 0:
            return None
        own = np.arange(math.prod(size)).reshape(size)
        for start in np.argwhere(self.sources == 0):
            ends = list(zip(start, size, strict=True))
            if np.array_equal(self.sources[tuple(slice(a, a + n) for a, n in ends)], own):
                widths = [(a, all_ - a - n) for (a, n), all_ in zip(ends, full, strict=True)]
                for padding, padded in (
                    (Padding.ZEROS, np.pad(own, widths, constant_values=-1)),
                    (Padding.WRAPPED, np.pad(own, widths, mode="wrap")),
                ):
                    if np.array_equal(padded, self.sources):
                        return padding
                return Padding.REPEATED
        return None

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """That of the sources."""
        if list(inputs) != [self.shape]:
            raise ValueError(f"a move of values of shape {self.shape} does not fit {inputs}")
        return self.sources.shape

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Exact."""
        (x,) = inputs
        flat = np.pad(x.reshape(len(x), -1), ((0, 0), (0, 1)))
        return flat[:, self.sources]
