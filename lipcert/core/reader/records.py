"""A model as plain data: what the reader leaves for every later step.

Invariants: every name that is read is an input, an initializer or an output of an earlier node,
and of one only; nodes stand in an order of computation; no protobuf object stands behind any of
these records. Strings come from the file and may hold anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lipcert.core.certificate import ExternalFile


class ModelReadError(ValueError):
    """Bytes that are not one model with one meaning; the message is one printable line.

    code: of the refusal that follows from it, "" where the caller knows that.
    """

    def __init__(self, reason: str, code: str = "") -> None:
        super().__init__(reason)
        self.code = code

    def at(self, where: str, code: str) -> ModelReadError:
        """The same error with its place; code: of one that has none."""
        return ModelReadError(f"{where}: {self}", self.code or code)


def shown(name: str) -> str:
    """A name from a file, made printable and short."""
    return ascii(name if len(name) <= 80 else name[:80] + "...")


MAX_NODES: Final = 50_000
"""nodes of a graph, and also initializers and inputs"""
_STORED_AS: Final = {"bfloat16": "uint16", "unread": "uint8"}
"""types that numpy lacks, and those of their bytes"""


def _stored(dtype: str) -> np.dtype[Any]:
    """The numpy type of the bytes of such numbers."""
    return np.dtype(_STORED_AS.get(dtype, dtype)).newbyteorder("<")


@dataclass(frozen=True)
class Tensor:
    """Numbers: their type, their shape, and their little-endian bytes in row-major order.

    content: perhaps a part of a larger file, which is not copied. Of the type "unread", what the
    file says of a tensor of text, or of numbers of a type that is not read.
    """

    dtype: str
    dims: tuple[int, ...]
    content: bytes | memoryview

    def __post_init__(self) -> None:
        if len(self.content) != math.prod(self.dims) * self.item_size(self.dtype):
            raise ModelReadError("the data of a tensor do not fit its shape")

    @staticmethod
    def item_size(dtype: str) -> int:
        """The bytes of one number of this type."""
        return _stored(dtype).itemsize

    def values(self) -> npt.NDArray[Any]:
        """The numbers, exactly: float64 for every float type, the type itself for the others.

        One array for all who ask, which cannot be written to: what shares its memory shows it.
        """
        return self._values

    @cached_property
    def _values(self) -> npt.NDArray[Any]:
        stored = np.frombuffer(self.content, dtype=_stored(self.dtype)).reshape(self.dims)
        if self.dtype == "bfloat16":  # the upper half of a float32
            stored = (stored.astype(np.uint32) << 16).view(np.float32)
        wanted = np.float64 if stored.dtype.kind == "f" else stored.dtype.newbyteorder("=")
        values = stored.astype(wanted, copy=not stored.flags.aligned)
        values.setflags(write=False)
        return values

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return math.prod(self.dims)

    @property
    def is_float(self) -> bool:
        """Whether they are real numbers."""
        return self.dtype.startswith(("float", "bfloat"))


@dataclass(frozen=True, slots=True)
class Reference:
    """In the body of a function: the attribute of the call that stands here."""

    name: str


@dataclass(frozen=True, slots=True)
class Branch:
    """A graph without inputs, which reads the names around it. initializers: of a file only."""

    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    initializers: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Loop:
    """The body of a loop, as the file says it; no node that has one is followed."""

    content: bytes


AttributeValue: TypeAlias = (
    "int | float | bytes | Tensor | tuple[int, ...] | tuple[float, ...] | tuple[bytes, ...]"
    " | Branch | Loop | Reference"
)


@dataclass(frozen=True, slots=True)
class Attribute:
    """A value with its declared kind: FLOAT, INT, STRING, TENSOR, GRAPH, FLOATS, INTS, STRINGS."""

    kind: str
    value: AttributeValue


@dataclass(frozen=True, slots=True)
class Node:
    """One operation; "" among its inputs and outputs stands for one that is left out.

    The inputs of an If are its condition and what its branches read from around it; those of a
    loop end with what its body reads from around it. metadata: what the exporter noted, of which
    nothing that is proved depends.
    """

    name: str
    op_type: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute]
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Function:
    """A model-local function; defaults: its attributes, None where a call has to give the value."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    defaults: Mapping[str, Attribute | None]
    nodes: tuple[Node, ...]


def with_nested(nodes: Iterable[Node]) -> Iterator[Node]:
    """Nodes, and those in their branches behind each."""
    for node in nodes:
        yield node
        for attribute in node.attributes.values():
            if isinstance(attribute.value, Branch):
                yield from with_nested(attribute.value.nodes)


@dataclass(frozen=True, slots=True)
class Input:
    """A graph input; a dimension is a number, a symbol or "" (unknown).

    dims: None where the file states no shape. dtype: "unread …" for one that is not a tensor of
    numbers.
    """

    name: str
    dtype: str
    dims: tuple[int | str, ...] | None


@dataclass(frozen=True, slots=True)
class Model:
    """A model and the identity of the bytes it was read from.

    `overridable` are initializers that are graph inputs too, which a caller may replace; `stated`
    are shapes that the file gives of results, where -1 is a dimension that may be anything.
    producer, metadata (of the graph) and value_metadata (by the name of a value) are what the
    exporter noted.
    """

    opset: Mapping[str, int]
    inputs: tuple[Input, ...]
    initializers: Mapping[str, Tensor]
    overridable: tuple[str, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    stated: tuple[tuple[str, tuple[int, ...]], ...]
    sha256: str
    size: int
    external: tuple[ExternalFile, ...]
    producer: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    value_metadata: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def computed(self) -> frozenset[str]:
        """The names of all values that nodes compute: a loss may read any of them."""
        return frozenset(name for node in self.nodes for name in node.outputs if name)
