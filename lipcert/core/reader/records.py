"""Records of a model as plain data: what the reader returns and every later step uses.

Invariants: every name that is read is an input, an initializer or an output of an earlier node,
and is defined only once; nodes are in an order of computation; no record holds a protobuf object.
Strings come from the file and may contain anything.
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
    """The bytes are not one model with one meaning; the message is one printable line.

    code: the code of the refusal that follows, or "" if the caller supplies it.
    """

    def __init__(self, reason: str, code: str = "") -> None:
        super().__init__(reason)
        self.code = code

    def at(self, where: str, code: str) -> ModelReadError:
        """Return the error with its place added; `code` is used if it has none."""
        return ModelReadError(f"{where}: {self}", self.code or code)


def shown(name: str) -> str:
    """Return a name from a file in printable form, cut to 80 characters."""
    return ascii(name if len(name) <= 80 else name[:80] + "...")


MAX_NODES: Final = 50_000
"""Largest number of nodes of a graph, of its initializers, and of its inputs."""
_STORED_AS: Final = {"bfloat16": "uint16", "unread": "uint8"}
"""Types that numpy lacks, with the numpy type in which their bytes are read."""


def _stored(dtype: str) -> np.dtype[Any]:
    """Return the little-endian numpy type in which numbers of this type are stored."""
    return np.dtype(_STORED_AS.get(dtype, dtype)).newbyteorder("<")


@dataclass(frozen=True)
class Tensor:
    """A tensor of numbers: type, shape, and little-endian bytes in row-major order.

    content: may be a view of a larger file, which is not copied. For the type "unread", it is the
    serialized description of a tensor of text, or of numbers of a type that is not read.
    """

    dtype: str
    dims: tuple[int, ...]
    content: bytes | memoryview

    def __post_init__(self) -> None:
        if len(self.content) != math.prod(self.dims) * self.item_size(self.dtype):
            raise ModelReadError("the data of a tensor do not fit its shape")

    @staticmethod
    def item_size(dtype: str) -> int:
        """Return the size in bytes of one number of this type."""
        return _stored(dtype).itemsize

    def values(self) -> npt.NDArray[Any]:
        """Return the exact numbers: as float64 for float types, else in their own type.

        Every call returns the same read-only array, so that shared memory identifies shared values.
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
        """The number of entries of the tensor."""
        return math.prod(self.dims)

    @property
    def is_float(self) -> bool:
        """Whether the entries have a floating-point type."""
        return self.dtype.startswith(("float", "bfloat"))


@dataclass(frozen=True, slots=True)
class Reference:
    """A placeholder in the body of a function: the attribute of this name of the call."""

    name: str


@dataclass(frozen=True, slots=True)
class Branch:
    """A graph without inputs that reads outer names. initializers: empty once inlined."""

    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    initializers: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Loop:
    """The serialized body of a loop; nodes that have one are not interpreted."""

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
    """One operation; "" among its inputs and outputs marks an omitted one.

    The inputs of an If are its condition and the outer names that its branches read; those of a
    loop end with the outer names that its body reads. metadata: what the exporter noted; no proof
    depends on it.
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
    """A model-local function. defaults: its attributes; None if a call must give the value."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    defaults: Mapping[str, Attribute | None]
    nodes: tuple[Node, ...]


def with_nested(nodes: Iterable[Node]) -> Iterator[Node]:
    """Yield each node, followed by the nodes in its branches."""
    for node in nodes:
        yield node
        for attribute in node.attributes.values():
            if isinstance(attribute.value, Branch):
                yield from with_nested(attribute.value.nodes)


@dataclass(frozen=True, slots=True)
class Input:
    """A graph input; a dimension is a number, a symbol or "" (unknown).

    dims: None if the file states no shape. dtype: "unread …" if the input is not a tensor of
    numbers.
    """

    name: str
    dtype: str
    dims: tuple[int | str, ...] | None


@dataclass(frozen=True, slots=True)
class Model:
    """A model and the identity of the bytes it was read from.

    overridable: initializers that are also graph inputs, so that a caller may replace them.
    stated: shapes that the file states for results; a dimension -1 may be anything.
    producer, metadata (of the graph), value_metadata (by name of value): what the exporter noted.
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
        """The names of all values that nodes compute; a loss may read any of them."""
        return frozenset(name for node in self.nodes for name in node.outputs if name)
