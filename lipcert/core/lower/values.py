"""Values: tensors of the file as lowering represents them, and the place of the batch in them.

Every tensor is represented for a batch of one example, N = 1. A `Place` defines it for any other N:
dimension `axis` is `before`·N·after, all others do not depend on N, and, in row-major order,
element (p·N + i)·S + s of the tensor is element p·S + s of example i's, where P is the product of
the dimensions before the axis, times `before`. Without a place it does not depend on N at all. So a
tensor at N consists of N tensors of examples side by side, and an op keeps the examples apart if
that holds for its output, with example i's output computed from example i's input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from lipcert.core.arithmetic import multiply_up, sqrt_up
from lipcert.core.budget import spend
from lipcert.core.lower.errors import Unsupported
from lipcert.core.program import Acts, Operand, Place, Shape, then
from lipcert.core.reader.records import Tensor

FIXED = "it has sizes that fit one batch size only"
VARIES = "it computes with the size of the batch"
SAME, TIMES, UNKNOWN = 0, -1, -2
"""How an entry of a constant depends on N and the number i < N of its example: it is the stored
number (`SAME`), N times that (`TIMES`), or another function (`UNKNOWN`). p > 0: it is the stored
number plus p·i."""
MAX_SIZE = 1 << 25

Array: TypeAlias = npt.NDArray[Any]
Arrange: TypeAlias = Callable[[Array], Array]
"""Rearranges the entries of an array of a known shape, whatever they are; a view if possible."""
Kind: TypeAlias = Literal[
    "real", "whole", "row", "truth", "untruth", "flag", "count", "hiding", "own", "pair"
]


@dataclass(frozen=True, slots=True)
class Data:
    """A tensor computed from the input: a value of the program, whose entries are described by
    `kind`.

    real: real numbers.
    whole: whole numbers: they are moved, added and multiplied, compared, read as rows of a table
        or as places, or become real numbers.
    row: whole numbers that a type may have wrapped around, so that different tensors of the file
        are the same here: they are used as `whole`, but do not become real numbers.
    truth, untruth: truth values, true where the value of the program is 1, or where it is 0.
    flag: whole numbers that are 0 or 1.
    count: whole numbers from 0 to `MAX_SIZE`, such as sums of flags.
    hiding: 0, or −inf where the value of the program is 1.
    own: rows of the own example, which the file counts through the batch: `below`·i more there.
    pair: the number of the example, and a number; the program holds only the latter.

    below: an exclusive upper bound of whole numbers that are not negative; 0: not known.
    """

    name: str
    shape: Shape
    place: Place | None
    kind: Kind = "real"
    below: int = 0

    @property
    def is_real(self) -> bool:
        """Whether the entries are real numbers, with which rules may compute."""
        return self.kind == "real"


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A tensor that does not depend on the input: every entry lies in [lo, hi].

    For whole numbers and truth values, lo is hi. sources, acts, slopes: as in `Operand`. varies:
    how each entry depends on N and its example: `SAME`, `TIMES`, `UNKNOWN`, or p > 0 (None: all are
    `SAME`). terms: constants of this shape that sum to it; empty if not known. blocks: `Blocks` of
    some sources. once: whether the file holds a number in [lo, hi], or what float32 makes of it.
    """

    lo: Array
    hi: Array
    sources: Mapping[str, float] = field(default_factory=dict)
    place: Place | None = None
    varies: npt.NDArray[np.int64] | None = None
    acts: Acts = None
    terms: tuple[Constant, ...] = ()
    slopes: Mapping[str, float] = field(default_factory=dict)
    blocks: Mapping[str, Any] = field(default_factory=dict)
    once: bool = False

    def __post_init__(self) -> None:
        if self.is_float and (is_undefined(self.lo) or is_undefined(self.hi)):
            raise Unsupported("a constant is not a number")

    @classmethod
    def of(cls, array: Array, place: Place | None = None, varies: Array | None = None) -> Constant:
        """Return the constant of exactly these numbers, which come from no tensor of the file."""
        return cls(array, array, {}, place, varies)

    @property
    def shape(self) -> Shape:
        """The dimensions at N = 1."""
        return self.lo.shape

    @property
    def is_float(self) -> bool:
        """Whether it holds real numbers."""
        return self.lo.dtype.kind == "f"

    def check_fixed(self) -> None:
        """Refuse entries that depend on N, or on which example it is."""
        if self.varies is not None and self.varies.any():
            raise Unsupported(VARIES)

    @property
    def marks(self) -> npt.NDArray[np.int64]:
        """How each entry depends on the batch: `varies`, as an array."""
        return np.full(self.shape, SAME, np.int64) if self.varies is None else self.varies

    def grown(self) -> npt.NDArray[np.bool_]:
        """Return which entries are multiples of N; refuse entries that depend on it otherwise."""
        marks = self.marks
        if ((marks != SAME) & (marks != TIMES)).any():
            raise Unsupported(VARIES)
        return np.asarray(marks == TIMES)

    def sizes(self) -> tuple[list[int], list[bool]]:
        """Return the entries as integers, and which are multiplied by N; refuse a batch axis."""
        if self.lo.dtype.kind not in "iu" or self.lo is not self.hi:
            raise Unsupported("a size or an index is not a whole number")
        if self.place is not None:
            raise Unsupported(FIXED)
        return [int(item) for item in self.lo.reshape(-1)], self.grown().reshape(-1).tolist()

    def whole(self) -> list[int]:
        """Return the entries as integers; refuse entries or sizes that depend on N."""
        self.check_fixed()
        return self.sizes()[0]

    def uniform(self) -> float | None:
        """Return the float64 that all entries equal exactly, or None; it does not depend on N."""
        self.check_fixed()
        if self.lo is not self.hi or not self.lo.size or (self.lo != self.lo.flat[0]).any():
            return None
        number = self.lo.flat[0].item()
        return float(number) if float(number) == number else None

    def operand(self, rank: int) -> Operand:
        """Return the operand of a step on a value of this rank; leading dimensions are 1."""
        self.check_fixed()
        if not self.is_float or len(self.shape) > rank:
            raise Unsupported("a constant of another type or rank is expected")
        shape = (1,) * (rank - len(self.shape)) + self.shape
        low = self.lo.reshape(shape)
        high = low if self.lo is self.hi else self.hi.reshape(shape)
        return Operand(low, high, self.sources, self.acts, self.slopes)

    def rearranged(self, act: Arrange, place: Place | None, copies: int = 1) -> Constant:
        """Return the entries as `act` arranges them, none of them more than `copies` times.

        This is linear with norm at most √copies: each entry's square is added that often.
        """
        low = act(self.lo)
        high = low if self.lo is self.hi else act(self.hi)
        varies = None if self.varies is None else act(self.varies)
        terms = tuple(item.rearranged(act, place, copies) for item in self.terms)
        sources, slopes = (_spread(own, copies) for own in (self.sources, self.slopes))
        acts = then(self.acts, act)
        blocks = {n: own.rearranged(act) for n, own in self.blocks.items() if copies == 1}
        return Constant(low, high, sources, place, varies, acts, terms, slopes, blocks)


def _spread(gains: Mapping[str, float], copies: int) -> Mapping[str, float]:
    if not gains or copies == 1:
        return gains
    gain = sqrt_up(float(copies))
    return {name: multiply_up(own, gain) for name, own in gains.items()}


Value: TypeAlias = Data | Constant


def literal(tensor: Tensor, name: str) -> Constant:
    """Return a tensor of the file as a constant."""
    if tensor.dtype == "unread":
        raise Unsupported("it holds text, or numbers of a type that is not read")
    values = tensor.values()
    if values.dtype.kind != "f":
        return Constant.of(values)
    return Constant(values, values, {name: 1.0}, acts=())


def only_data(value: Value) -> Data:
    """Return the value as data; refuse a constant."""
    if isinstance(value, Constant):
        raise Unsupported("it is used in a way that is not understood")
    return value


def is_undefined(array: Array) -> bool:
    """Whether an entry is NaN, found without making another array of that size."""
    return bool(np.isnan(array.min(initial=np.inf)))


def is_finite(array: Array) -> bool:
    """Whether all entries are finite, found without making another array of that size."""
    return bool(np.isfinite(array.min(initial=0.0)) and np.isfinite(array.max(initial=0.0)))


def owner(array: Array) -> Array:
    """Return the array that owns the memory of an array: itself, if it is not a view."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def made_entries(constants: Sequence[Constant], given: Sequence[Constant]) -> int:
    """Count the entries of these constants in memory that none of the given ones owns."""
    constants = [own for item in constants for own in (item, *item.terms)]
    given = [own for item in given for own in (item, *item.terms)]
    known = {id(owner(array)) for item in given for array in (item.lo, item.hi)}
    made = {id(own): own.size for item in constants for own in map(owner, (item.lo, item.hi))}
    return sum(size for place, size in made.items() if place not in known)


def check_size(shape: Shape) -> Shape:
    """Return the shape; refuse one with more than `MAX_SIZE` entries."""
    spend()
    if math.prod(shape) > MAX_SIZE:
        raise Unsupported(f"a tensor has more than {MAX_SIZE} entries")
    return shape


def is_of_batch(shape: Shape, count: int | None) -> bool:
    """Whether a constant, in a file with batches of `count`, is too large except for one example.

    It is the same along axis 0, which is then taken for the batch axis: example i has entry i.
    """
    return count is not None and math.prod(shape) > MAX_SIZE and shape[:1] == (count,)
