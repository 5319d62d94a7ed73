"""Examples, read from data and checked against the model, or admissible random ones.

Input: a source and the shape of one example, or what is known of inputs and labels. Output:
`Examples`, or a NoVerdictError that names what is wrong and where. Nothing is skipped or rescaled
silently.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, final

import numpy as np
import numpy.typing as npt

from lipcert.core.losses.base import Loss
from lipcert.core.losses.joint import Joint
from lipcert.core.losses.tokens import scores_of
from lipcert.core.program import Shape
from lipcert.data.opening import open_source
from lipcert.data.source import Block, Columns, Identity, Source, joined, require_pair
from lipcert.errors import NoVerdictError
from lipcert.graph.domain import Domain
from lipcert.graph.ir import example
from lipcert.losses import Targets, targets_of

RANDOM: Final = "random admissible inputs"
_FLOATS: Final = frozenset({"f"})
_MOST_BYTES: Final = 1 << 28
"""of the examples that a measurement holds at once"""
_TINY: Final = float(np.finfo(np.float64).tiny)
_INWARD: Final = 1e-12


@final
@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """Inputs [examples, *shape] of a float or integer type, and their labels [examples, ...].

    source: where they come from, for messages.
    is_private: whether what is learned from them costs privacy, as it does of all but drawn ones.
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
        """Those from start to stop − 1."""
        return replace(self, x=self.x[start:stop], y=self.y[start:stop])

    def take(self, index: npt.NDArray[np.int64]) -> Examples:
        """Those of these numbers, in this order."""
        return replace(self, x=self.x[index], y=self.y[index])


@final
class DataSet:
    """The examples of a source, checked as they are read; no more than are asked for are held.

    source: its name, for messages. count: how many there are; None: only the end tells.
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
        """Those from start to stop − 1, or to the end of the data.

        A caller that goes on where the last call ended reads the source once.
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
        """Those of these numbers, in this order; the count must be known, and above all of them."""
        return self._checked(self._source.take(index)) if len(index) else self._nothing()

    def some(self) -> Examples:
        """As many as a measurement can hold, at equal distances; the first of what has no count."""
        most = max(_MOST_BYTES // (8 * math.prod(self._shape)), 1)
        if self.count is None or self.count <= most:
            return self.read(0, most)
        return self.take(np.linspace(0, self.count - 1, most).astype(np.int64))

    def _checked(self, block: Block, first: int = 0) -> Examples:
        return checked_examples(*block, self._shape, self.source, first)

    def _nothing(self) -> Examples:
        return Examples(np.zeros((0, *self._shape)), np.zeros(0, np.int64), self.source)


Readable: TypeAlias = Examples | DataSet
"""what is read by numbers of examples"""


def open_data(
    where: object, shape: Shape, columns: Columns | None = None, name: str = "the examples"
) -> DataSet:
    """The data that a word names or an object holds, as examples of the given shape."""
    return DataSet(open_source(where, columns or Columns(), name), shape)


def checked_examples(
    x: npt.NDArray[Any], y: npt.NDArray[Any], shape: Shape, source: str, first: int = 0
) -> Examples:
    """The arrays as examples of the given shape; values must be finite numbers.

    first: the number of the first example, for messages.
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
            "remove it, or find out where training got it from"
        )
    return Examples(x, y, source)


def _first_bad(x: npt.NDArray[Any]) -> int | None:
    """Index of the first example with an entry that is not finite."""
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
    """So many examples of this shape, the same for one seed, as `Domain.uniform` draws them.

    None: admissible labels are unknown.
    """
    random = np.random.default_rng(seed)
    labels = _random_labels(loss, output_shape, count, random)
    if labels is None:
        return None
    x = domain.uniform(count, random)
    return Examples(x.reshape(count, *shape), labels, RANDOM, is_private=False, is_drawn=True)


def _random_labels(
    loss: Loss, output_shape: Shape, count: int, random: np.random.Generator
) -> npt.NDArray[Any] | None:
    """Classes, ends of the range of targets, or directions; of unlimited targets normal ones."""
    if isinstance(loss, Joint):
        parts = [
            _random_labels(part.loss, example(part.shape), count, random) for part in loss.parts
        ]
        known = [part.reshape(count, -1).astype(np.float64) for part in parts if part is not None]
        return np.concatenate(known, axis=1) if len(known) == len(parts) else None
    scores = scores_of(loss, output_shape)
    if loss.of_classes and scores is not None and scores.classes > 1:
        shape = (count, scores.tokens) if scores.token_shape else (count,)
        return random.integers(scores.classes, size=shape)
    targets = None if loss.of_classes and scores is None else targets_of(loss)
    bell = random.standard_normal((count, *output_shape))
    match targets:
        case Targets(norm=radius) if radius < np.inf:
            lengths = np.sqrt(np.sum(bell**2, axis=tuple(range(1, bell.ndim)), keepdims=True))
            return np.asarray((1.0 - _INWARD) * radius * bell / np.maximum(lengths, _TINY))
        case Targets(low=low, high=high) if low > -np.inf:
            return np.where(bell < 0.0, low, high)
        case Targets():
            return bell
    return None
