"""Source: examples that are read in blocks of a few MiB, however they are stored.

Blocks of inputs and labels come in one fixed order. A source makes one block at a time; nothing is
unpickled.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lipcert.errors import NoVerdictError, UsageError

Array: TypeAlias = npt.NDArray[Any]
Block: TypeAlias = tuple[Array, Array]
"""Inputs x [examples, ...] and labels y [examples, ...]."""
Shape: TypeAlias = tuple[int, ...]

X_NAMES: Final = ("x", "image", "images", "img", "inputs", "features", "pixel_values", "input_ids")
Y_NAMES: Final = ("y", "label", "labels", "target", "targets")
_BLOCK_BYTES: Final = 1 << 22
_MOST_ROWS: Final = 1 << 13
_SHOWN: Final = 6


def array_of(tensor: Any) -> Array:
    """Return the numbers of a tensor of torch; bfloat16, which numpy lacks, as float32."""
    found = tensor.detach().cpu()
    return np.asarray((found.float() if str(found.dtype) == "torch.bfloat16" else found).numpy())


@dataclass(frozen=True, slots=True)
class Identity:
    """A digest that changes when the data do. of: what was digested, in words."""

    sha256: str
    of: str


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of inputs and labels in a file; None: the usual ones, `X_NAMES` and `Y_NAMES`.

    Several names of x are arrays, one for each of several inputs of the network. Several names of y
    are the labels of several outputs, in the order of their losses. inputs: names and shapes of
    several inputs, in the order of the network. outputs: names of several outputs, in the order of
    their losses, and so of their labels if nothing else is said.
    """

    x: tuple[str, ...] | None = None
    y: tuple[str, ...] | None = None
    inputs: tuple[tuple[str, Shape], ...] = ()
    outputs: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        x: str | None,
        y: str | None,
        inputs: tuple[tuple[str, Shape], ...] = (),
        outputs: Sequence[str] = (),
    ) -> Columns:
        """Parse options: names are separated by commas. inputs, outputs: as the fields."""
        of_x, of_y = (
            None if words is None else tuple(part.strip() for part in words.split(","))
            for words in (x, y)
        )
        if any("" in (found or ()) for found in (of_x, of_y)):
            raise UsageError("--data-x and --data-y: a name is empty")
        return cls(of_x, of_y, inputs, tuple(outputs))

    def one_x(self, there: Iterable[str], where: str) -> str:
        """Return the name of the inputs, if one array holds them."""
        given = self.x or (None,)
        if len(given) > 1:
            raise NoVerdictError(
                f"{where}: --data-x names {len(given)} arrays, and the model has one input"
            )
        return _named(given[0], X_NAMES, list(there), where, "--data-x")

    def labels(self, there: Iterable[str], where: str) -> tuple[str, ...]:
        """Return the names of the labels, of one output or of several."""
        known = list(there)
        given = self.y or self.own_labels(known) or (None,)
        return tuple(_named(name, Y_NAMES, known, where, "--data-y") for name in given)

    def own_labels(self, there: Iterable[str]) -> tuple[str, ...]:
        """Return the names of the outputs if labels have them, and none another usual name."""
        own, known = set(self.outputs), set(there)
        return self.outputs if known.intersection(Y_NAMES) <= own <= known else ()

    def read_x(self, arrays: Mapping[str, Any], where: str) -> Any:
        """Return the inputs among named values: for several inputs, one for each."""
        if not self.inputs:
            return arrays[self.one_x(arrays, where)]
        own = tuple(name for name, _ in self.inputs)
        names = self.x or own
        if len(set(names)) < len(names) or (set(names) == set(own) and names != own):
            raise NoVerdictError(
                f"{where}: --data-x names {', '.join(names)}, and the model reads "
                f"{', '.join(own)}: name another array for each input, in this order"
            )
        missing = [name for name in names if name not in arrays]
        if missing or len(names) != len(self.inputs):
            listed = ", ".join(own)
            raise NoVerdictError(
                f"{where} has no array {(missing or names)[0]!r} beside those of the other inputs; "
                f"the model reads {listed}: name an array for each with --data-x A,B"
            )
        return tuple(arrays[name] for name in names)

    def pair(self, arrays: Mapping[str, Any], where: str) -> tuple[Any, Any]:
        """Return inputs and labels among named values; tuples for several inputs or outputs."""
        labels = tuple(arrays[name] for name in self.labels(arrays, where))
        return self.read_x(arrays, where), labels if len(labels) > 1 else labels[0]

    def inputs_of(self, x: Any, where: str, convert: Callable[[Any, str], Array]) -> Array:
        """Return what is given for x as one array.

        For several inputs, the entries of each follow one another, in a type that holds them all.
        """
        if not self.inputs:
            return convert(x, where)
        if isinstance(x, Mapping):
            x = self.read_x(x, where)
        if not isinstance(x, tuple | list) or len(x) != len(self.inputs):
            listed = ", ".join(name for name, _ in self.inputs)
            raise NoVerdictError(
                f"{where} gives no array for each of the {len(self.inputs)} inputs of the model "
                f"({listed}); give (A, B, y), ((A, B), y), or a mapping with their names"
            )
        found = []
        for item, (name, shape) in zip(x, self.inputs, strict=True):
            array = convert(item, where)
            batch = array.shape[: array.ndim - len(shape)]
            if array.shape != (*batch, *shape) or len(batch) > 1:
                raise NoVerdictError(
                    f"{where} holds the shape {list(array.shape)} for the input {name!r}, which is "
                    f"{list(shape)} in one example"
                )
            found.append(array.reshape(*batch, -1))
        if len({array.shape[:-1] for array in found}) > 1:
            raise NoVerdictError(f"{where} holds different numbers of examples for its inputs")
        return np.concatenate(found, axis=-1)


def _named(
    given: str | None, usual: Sequence[str], there: Sequence[str], where: str, option: str
) -> str:
    """Return the given name, or the first of the usual ones, or the only other one of them."""
    if given is not None and given in there:
        return given
    found = [name for name in usual if name in there]
    if given is None and (usual[0] in found or len(found) == 1):
        return found[0]
    shown = ", ".join(map(repr, there[:_SHOWN])) + (", …" if len(there) > _SHOWN else "")
    if found and given is None:
        raise NoVerdictError(
            f"{where} holds {' and '.join(map(repr, found))}: choose one with {option} NAME"
        )
    raise NoVerdictError(
        f"{where} has no array {given or usual[0]!r}; it has {shown or 'none'}: name it with "
        f"{option}, or write it"
    )


class Source(ABC):
    """Examples in a fixed order.

    name: for messages and reports. count: how many there are; None if unknown before the end.
    """

    name: str
    count: int | None

    @abstractmethod
    def blocks(self, start: int = 0) -> Iterator[Block]:
        """Yield the examples from number `start` on; every block has at least one."""

    @abstractmethod
    def identity(self) -> Identity:
        """Return the identity of the data; of a stream, without reading all of it."""

    def take(self, index: npt.NDArray[np.int64]) -> Block:
        """Return the examples with these numbers, in this order, if their count is known."""
        del index
        raise NoVerdictError(f"{self.name} can only be read in order")


class Arrays(Source):
    """Two arrays in memory. sha256: of the file that they were read from; "": of the arrays."""

    def __init__(self, x: Array, y: Array, name: str, sha256: str = "") -> None:
        require_pair(x, y, name)
        self.name = name
        self.count = len(x)
        self._x, self._y = x, y
        self._sha256 = sha256

    def blocks(self, start: int = 0) -> Iterator[Block]:
        """Yield views of the arrays, from an example on."""
        rows = rows_of_block(self._x)
        for at in range(start, len(self._x), rows):
            yield self._x[at : at + rows], self._y[at : at + rows]

    def take(self, index: npt.NDArray[np.int64]) -> Block:
        """Return the examples with these numbers, in this order."""
        return self._x[index], self._y[index]

    def identity(self) -> Identity:
        """Return a digest of every byte."""
        if self._sha256:
            return Identity(self._sha256, "the file")
        return Identity(digest_of([(self._x, self._y)], [len(self._x)]), "the arrays")


def require_pair(x: Array, y: Array, name: str) -> None:
    """Raise NoVerdictError unless the first axes have the same number of examples."""
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise NoVerdictError(
            f"{name} holds x of shape {list(x.shape)} and y of shape {list(y.shape)}; "
            "their first axes must count the same examples"
        )


def side_by_side(labels: Sequence[Array], name: str) -> Array:
    """Join the labels of several outputs [examples, …] into a row of numbers per example."""
    if len(labels) == 1:
        return labels[0]
    if not all(part.ndim and len(part) == len(labels[0]) for part in labels):
        shapes = " and ".join(str(list(part.shape)) for part in labels)
        raise NoVerdictError(
            f"{name} holds labels of shape {shapes}; their first axes must count the same examples"
        )
    rows = [part.reshape(len(part), -1).astype(np.float64) for part in labels]
    return np.concatenate(rows, axis=1)


def rows_of_block(x: Array) -> int:
    """Return how many examples of this array make a block."""
    return max(1, min(_MOST_ROWS, _BLOCK_BYTES // max(1, x.itemsize * int(np.prod(x.shape[1:])))))


def joined(blocks: Sequence[Block]) -> Block:
    """Join blocks into a single one."""
    if len(blocks) == 1:
        return blocks[0]
    return np.concatenate([x for x, _ in blocks]), np.concatenate([y for _, y in blocks])


def stacked(examples: Iterable[Block], name: str) -> Iterator[Block]:
    """Gather single examples into blocks; NoVerdictError for a different shape."""
    held: list[Block] = []
    first: Block | None = None
    most = 1
    for number, (x, y) in enumerate(examples):
        if first is None:
            first, most = (x, y), rows_of_block(x[np.newaxis])
        if (x.shape, y.shape) != (first[0].shape, first[1].shape):
            raise NoVerdictError(
                f"{name}: example {number} has x {list(x.shape)} and y {list(y.shape)}, the first "
                f"x {list(first[0].shape)} and y {list(first[1].shape)}; all must be of one shape"
            )
        held.append((x, y))
        if len(held) == most:
            yield np.stack([x for x, _ in held]), np.stack([y for _, y in held])
            held = []
    if held:
        yield np.stack([x for x, _ in held]), np.stack([y for _, y in held])


def digest_of(blocks: Iterable[Block], about: object) -> str:
    """Return the SHA-256 of arrays with shapes and types, and of a value written as JSON."""
    digest = hashlib.sha256(json.dumps(about).encode())
    for block in blocks:
        for array in block:
            digest.update(f"{array.dtype.str} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
