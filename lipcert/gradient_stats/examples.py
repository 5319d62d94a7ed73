"""Examples: read from data and checked against model and loss, or drawn at random.

`DataSet` reads a source; `random_examples` draws admissible inputs and labels. Both give
`Examples`; a NoVerdictError says what is wrong and where. Nothing is skipped or rescaled silently.

`outside` compares inputs, as they were fed to the network, with the declared domain, to which alone
the bounds apply. Numbers are compared exactly: every float type embeds in float64, and a norm
counts as too large only if rounding cannot be the reason. `settled` moves into the domain what only
rounding left outside.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lipcert.core.losses.base import Loss
from lipcert.core.program import FloatArray, Part, Shape
from lipcert.data.opening import open_source
from lipcert.data.source import Block, Columns, Identity, Source, joined, require_pair
from lipcert.errors import NoVerdictError
from lipcert.gradient_stats.labels import label_set
from lipcert.graph.domain import Domain
from lipcert.graph.ir import places_of
from lipcert.settings.settings import Settings

RANDOM: Final = "random admissible inputs"
_FLOATS: Final = frozenset({"f"})
_MOST_BYTES: Final = 1 << 28
"""Most bytes of examples that a measurement holds at once."""


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """Inputs [examples, *shape] of a float or integer type, and their labels [examples, ...].

    source: where they come from, for messages.
    is_private: whether what is learned from them costs privacy; true for all that are read.
    is_drawn: whether they were drawn instead of read, with random labels.
    """

    x: npt.NDArray[Any]
    y: npt.NDArray[Any]
    source: str
    is_private: bool = True
    is_drawn: bool = False

    def __len__(self) -> int:
        return len(self.x)

    @property
    def count(self) -> int:
        """The number of examples read."""
        return len(self.x)

    def read(self, start: int, stop: int) -> Examples:
        """Return examples start to stop − 1."""
        return replace(self, x=self.x[start:stop], y=self.y[start:stop])

    def take(self, index: npt.NDArray[np.int64]) -> Examples:
        """Return the examples with these numbers, in this order."""
        return replace(self, x=self.x[index], y=self.y[index])


class DataSet:
    """The examples of a source, checked as they are read; only requested ones are held in memory.

    source: its name, for messages. count: how many there are; None if unknown before the end.
    """

    def __init__(self, source: Source, shape: Shape) -> None:
        self.source = source.name
        self.count = source.count
        self._source, self._shape = source, shape
        self._blocks: Iterator[Block] = iter(())
        self._rest: list[Block] = []
        self._at = -1

    @property
    def identity(self) -> Identity:
        """A digest that changes when the data do."""
        return self._source.identity()

    def read(self, start: int, stop: int) -> Examples:
        """Return examples start to stop − 1, or to the end of the data.

        If each call begins where the last one ended, the source is read once.
        """
        if start != self._at:
            self._blocks, self._rest, self._at = self._source.blocks(start), [], start
        wanted = stop - start
        while sum(len(x) for x, _ in self._rest) < wanted:
            block = next(self._blocks, None)
            if block is None:
                break
            self._rest.append(block)
        if not self._rest:
            return self._nothing()
        x, y = joined(self._rest)
        self._rest = [(x[wanted:], y[wanted:])] if len(x) > wanted else []
        self._at = start + min(len(x), wanted)
        return self._checked((x[:wanted], y[:wanted]), start)

    def take(self, index: npt.NDArray[np.int64]) -> Examples:
        """Return the examples with these numbers, in this order; the count must be known."""
        return self._checked(self._source.take(index)) if len(index) else self._nothing()

    def some(self) -> Examples:
        """Return as many as a measurement can hold: evenly spaced, or the first without a count."""
        most = max(_MOST_BYTES // (8 * math.prod(self._shape)), 1)
        if not self.count and not len(self.read(0, 1)):
            raise NoVerdictError(f"{self.source} holds no examples; give one or more")
        if self.count is None or self.count <= most:
            return self.read(0, most)
        return self.take(np.linspace(0, self.count - 1, most).astype(np.int64))

    def _checked(self, block: Block, first: int = 0) -> Examples:
        return checked_examples(*block, self._shape, self.source, first)

    def _nothing(self) -> Examples:
        return Examples(np.zeros((0, *self._shape)), np.zeros(0, np.int64), self.source)


Readable: TypeAlias = Examples | DataSet
"""Anything that is read by example numbers."""


def open_data(
    where: object, shape: Shape, columns: Columns | None = None, name: str = "the examples"
) -> DataSet:
    """Open the data that a path or word names or an object holds, as examples of this shape."""
    return DataSet(open_source(where, columns or Columns(), name), shape)


def checked_examples(
    x: npt.NDArray[Any], y: npt.NDArray[Any], shape: Shape, source: str, first: int = 0
) -> Examples:
    """Return the arrays as examples of the given shape.

    first: the number of the first example, for messages.

    Raises:
        NoVerdictError: if shapes or types do not fit, or a value of x is not finite.
    """
    if x.dtype.kind not in "fiu" or y.dtype.kind not in "fiub":
        raise NoVerdictError(
            f"{source} holds x of type {x.dtype} and y of type {y.dtype}; numbers are needed"
        )
    require_pair(x, y, source)
    if x.shape[1:] != tuple(shape):
        raise NoVerdictError(
            f"{source} holds examples of shape {list(x.shape[1:])}, but the model reads "
            f"{list(shape)}; reshape x to [examples, {', '.join(map(str, shape))}]"
        )
    bad = _first_bad(x)
    if bad is not None:
        raise NoVerdictError(
            f"{source}, x: example {first + bad} holds NaN or infinity; no bound covers it, so "
            "remove it, or find out how it got into the data"
        )
    return Examples(x, y, source)


def _first_bad(x: npt.NDArray[Any]) -> int | None:
    """Return the index of the first example with an entry that is not finite."""
    if x.dtype.kind not in _FLOATS:
        return None
    finite = np.isfinite(x).all(axis=tuple(range(1, x.ndim)))
    return None if finite.all() else int(np.argmin(finite))


@np.errstate(all="ignore")
def random_examples(
    shape: Shape,
    domain: Domain,
    loss: Loss,
    output_shape: Shape,
    count: int,
    *,
    seed: int = 0,
) -> Examples | None:
    """Draw examples of this shape by `Domain.uniform`; the same seed gives the same ones.

    The result is None if the admissible labels are unknown.
    """
    random = np.random.default_rng(seed)
    try:
        labels = label_set(loss, output_shape).drawn(count, random)
    except NoVerdictError:
        return None
    x = domain.uniform(count, random)
    return Examples(x.reshape(count, *shape), labels, RANDOM, is_private=False, is_drawn=True)


DRAWN_IN: Final = 1.0 - 2.0**-20
"""Share of the radius to which training scales examples; rounding the result adds less than the
rest."""
_ROUNDING: Final = 2.0**-52


@np.errstate(over="ignore")
def outside(
    x: npt.NDArray[Any], settings: Settings, inputs: Sequence[Part] = ()
) -> list[tuple[int, str]]:
    """Return each inadmissible example of x [examples, ...] with the reason, in order.

    inputs: those of the file; inputs of ids admit only whole numbers.

    An example that was scaled to the radius R and then stored may have a norm of (1 + u)·R, u the
    largest relative error of rounding an entry to its type: it counts as admissible. So does the
    possible error n·2^-52 of the sum of n squares, and an entry that is an end of the box as
    rounded to the type of x.
    """
    flat, dtype = _flat(x), _type(x, settings)
    found: dict[int, str] = {}
    for entries in _whole(inputs):
        found |= _fractions(flat[:, entries])
    for domain in settings.domains:
        numbers = flat[:, domain.entries]
        found |= _of(domain.input, _beyond_box(numbers, domain.box, dtype))
        found |= _of(domain.input, _beyond_norm(numbers, domain.norm, dtype))
    return sorted(found.items())


def _type(x: npt.NDArray[Any], settings: Settings) -> np.dtype[Any]:
    """Return the type in which the examples were stored.

    Several inputs, ids among them, are joined in float64, whatever type each had.
    """
    if settings.input_parts and x.dtype == np.float64:
        single = x.astype(np.float32)
        return single.dtype if np.array_equal(single, x) else x.dtype
    return x.dtype


def _of(name: str, found: dict[int, str]) -> dict[int, str]:
    """Add the name of the input to each reason, if there are several inputs."""
    return {i: f"in its input {name!r} {why}" for i, why in found.items()} if name else found


def _beyond_box(
    flat: FloatArray, box: tuple[float, float] | None, dtype: np.dtype[Any]
) -> dict[int, str]:
    if box is None:
        return {}
    low, high = _stored_ends(box, dtype)
    least, most = flat.min(axis=1, initial=low), flat.max(axis=1, initial=high)
    found = {}
    for index in np.flatnonzero((least < low) | (most > high)):
        worst = least[index] if least[index] < low else most[index]
        found[int(index)] = f"has the entry {worst:.6g} outside [{low:.6g}, {high:.6g}]"
    return found


def _fractions(flat: FloatArray) -> dict[int, str]:
    found = {}
    for index in np.flatnonzero((flat != np.rint(flat)).any(axis=1)):
        worst = flat[index][flat[index] != np.rint(flat[index])][0]
        found[int(index)] = f"has the entry {worst:.6g}, which is not a whole number"
    return found


def _beyond_norm(flat: FloatArray, radius: float | None, dtype: np.dtype[Any]) -> dict[int, str]:
    if radius is None:
        return {}
    norms = np.sqrt(np.sum(flat * flat, axis=1))
    rounding = flat.shape[1] * _ROUNDING + _unit(dtype)
    return {
        int(index): f"has the norm {norms[index]:.9g}, above the radius {radius:.9g}"
        for index in np.flatnonzero(norms > radius * (1.0 + rounding))
    }


def settled(
    x: npt.NDArray[Any],
    radius: float,
    settings: Settings,
    inputs: Sequence[Part] = (),
    share: float = 1.0,
) -> FloatArray:
    """Return admissible examples in float64: what rounding left outside of box or ball is moved
    inside.

    radius: bound of the norm of an admissible example. inputs: those of the file; ids are not
    changed. share: the share of each radius within which the results must lie.

    Proof: the computed norm of n entries is off by less than a factor of 1 + (n + 8)·2^-52, and as
    much is left free. No entry grows where `Domain.projected` shrinks an example into a ball, so
    that several inputs stay within theirs when all are shrunk together.
    """
    given = _flat(x)
    size = given.shape[1]
    low, high, real = np.full(size, -math.inf), np.full(size, math.inf), np.zeros(size, bool)
    free, parts = share * (1.0 - (size + 8) * _ROUNDING), []
    for item in settings.domains:
        where, norm = item.entries, math.inf if item.norm is None else item.norm
        if item.box is not None:
            low[where], high[where] = item.box
        if item.input:
            parts.append((where, Domain(low[where], high[where], norm * free, real[where])))
    flat = Domain(low, high, radius * free, real, tuple(parts)).projected(given)
    for entries in _whole(inputs):
        flat[:, entries] = given[:, entries]
    return flat.reshape(x.shape)


def _whole(inputs: Sequence[Part]) -> Iterator[slice]:
    """Yield the entries of an example that are ids."""
    return (where for part, where in places_of(inputs) if part.ids is not None)


def _stored_ends(box: tuple[float, float], dtype: np.dtype[Any]) -> tuple[float, float]:
    """Return the box with its ends rounded to a type, where that is further out."""
    if dtype.kind != "f":
        return box
    low, high = np.asarray(box).astype(dtype).astype(np.float64).tolist()
    return min(box[0], low), max(box[1], high)


def _flat(x: npt.NDArray[Any]) -> FloatArray:
    """Return one row for each example, in float64, exactly."""
    return np.asarray(x, dtype=np.float64).reshape(len(x), math.prod(x.shape[1:]))


def _unit(dtype: np.dtype[Any]) -> float:
    """Return the relative error of one rounding to a type; 0 for integers, which are exact."""
    return float(np.finfo(dtype).eps) if dtype.kind == "f" else 0.0
