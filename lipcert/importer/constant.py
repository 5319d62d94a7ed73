"""Constants of the graph, and the trained parameter of which each is a rearrangement.

What enters: the tensors of the file. What leaves: `Constant`s that remember, entry by entry, from
which entry of which parameter they come. Invariant: array = scale · parameter[index], with 0 where
index is −1; so the gain of the view is known exactly, and no parameter is ever replaced by new
numbers silently.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, final

import numpy as np

from lipcert.importer.raw import Array
from lipcert.operand import Operand, PlaceArray
from lipcert.upper import FloatArray, Upper

Rearrange = Callable[[Array], Array]
_PIECE: Final = 1 << 20


@final
@dataclass(frozen=True, slots=True)
class Origin:
    """The tensor of the file that a constant shows.

    literal: not a parameter unless it stands in the slot of a weight.
    folded: computed from parameters by the exporter or by the graph; not itself trained.
    statistic: a running mean or variance, not trained.
    known: the exporter says, or its name shows, that it is a parameter of the network.
    """

    name: str
    shape: tuple[int, ...]
    literal: bool = False
    folded: bool = False
    statistic: bool = False
    known: bool = False


@final
@dataclass(frozen=True, slots=True, eq=False)
class View:
    """scale · origin[index], flat indices into the origin; −1 stands for the number 0."""

    origin: Origin
    index: PlaceArray
    scale: Fraction = Fraction(1)

    @classmethod
    def whole(cls, origin: Origin) -> View:
        """The tensor itself."""
        size = int(np.prod(origin.shape, dtype=np.int64))
        return cls(origin, np.arange(size, dtype=np.int32).reshape(origin.shape))

    def is_whole(self) -> bool:
        """Whether these are all entries of the origin, in their own order."""
        flat = self.index.reshape(-1)
        return flat.size == math.prod(self.origin.shape) and all(
            np.array_equal(part, np.arange(start, start + part.size, dtype=np.int32))
            for start in range(0, flat.size, _PIECE)
            for part in (flat[start : start + _PIECE],)
        )

    @property
    def gain(self) -> Upper:
        """Lipschitz constant of the view: |scale| · √(largest number of copies of an entry)."""
        return Upper.of_fraction(abs(self.scale)) * Upper(float(_copies(self.index))).sqrt()


@final
@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A tensor that does not depend on the data; `view` is None for plain numbers."""

    array: Array
    view: View | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.array.shape

    @property
    def is_float(self) -> bool:
        """Whether the entries are floating-point numbers."""
        return self.array.dtype.kind == "f"

    @property
    def is_parameter(self) -> bool:
        """Whether training changes these numbers (outside the slot of a weight)."""
        return self.view is not None and not (
            self.view.origin.literal or self.view.origin.statistic
        )

    @property
    def is_known_parameter(self) -> bool:
        """Whether it is a parameter, and not just a tensor that may be one."""
        return self.view is not None and self.is_parameter and self.view.origin.known

    def rearranged(self, rearrange: Rearrange) -> Constant:
        """The same entries in another arrangement: applied to the numbers and to the indices."""
        array = rearrange(self.array)
        if self.view is None:
            return Constant(array)
        return Constant(array, replace(self.view, index=rearrange(self.view.index)))

    def embedded(self, pads: list[tuple[int, int]]) -> Constant:
        """Surrounded by zeros."""
        array = np.pad(self.array, pads)
        if self.view is None:
            return Constant(array)
        index = np.pad(self.view.index, pads, constant_values=-1)
        return Constant(array, replace(self.view, index=index))

    def scaled(self, factor: Fraction) -> Constant:
        """Every entry times one number."""
        if factor == 1:
            return self
        array = self.array.astype(np.float64) * float(factor)
        if self.view is None:
            return Constant(array)
        return Constant(array, replace(self.view, scale=self.view.scale * factor))

    def is_same_along(self, axis: int, before: int, batch: int, after: int) -> bool:
        """Whether the axis of size before·batch·after repeats, also as a view, over the batch."""
        return all(
            _repeats(part, axis, before, batch, after)
            for part in (self.array, None if self.view is None else self.view.index)
            if part is not None
        )

    def scalar(self) -> float | None:
        """The number, if there is only one."""
        return float(self.array.reshape(-1)[0]) if self.array.size == 1 else None

    def entry(self) -> float | None:
        """The one number of a tensor of which nothing says that it is a parameter."""
        return None if self.is_known_parameter else self.scalar()

    def uniform(self) -> float | None:
        """The number, if all entries are equal."""
        if self.array.size == 0 or np.any(self.array != self.array.reshape(-1)[0]):
            return None
        return float(self.array.reshape(-1)[0])

    def operand(self) -> Operand:
        """The tensor as an op uses it; statistics and literals are plain numbers."""
        if self.view is None or not self.is_parameter:
            return Operand(self._numbers())
        return Operand(
            self._numbers(),
            self.view.origin.name,
            self.view.gain,
            None if self.view.is_whole() else self.view.index,
            float(self.view.scale),
        )

    def _numbers(self) -> FloatArray:
        """The array as an operand may keep it, without another copy."""
        array = self.array.astype(np.float64, order="C")
        array.setflags(write=False)
        return array


def _copies(index: PlaceArray) -> int:
    """How often the most frequent place is read, −1 aside.

    Places that are all different, the usual case, are told by flags: large tensors have little
    room to spare.
    """
    flat = index.reshape(-1)
    if not flat.size:
        return 0
    seen = np.zeros(int(flat.max()) + 1, dtype=np.bool_)
    used = 0
    for start in range(0, flat.size, _PIECE):
        part = flat[start : start + _PIECE]
        part = part[part >= 0]
        seen[part] = True
        used += part.size
    if np.count_nonzero(seen) == used:
        return min(used, 1)
    return int(np.bincount(flat[flat >= 0]).max())


def _repeats(array: Array, axis: int, before: int, batch: int, after: int) -> bool:
    parts = np.moveaxis(array, axis, 0).reshape(before, batch, after, -1)
    return bool(np.array_equal(parts, np.broadcast_to(parts[:, :1], parts.shape)))
