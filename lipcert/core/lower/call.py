"""Call: one node of the file as a rule reads it, and the steps that the rule adds.

A rule must read every attribute, with its declared kind: an unknown attribute may change the
meaning of the node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lipcert.core.lower.errors import MixingError, Unsupported
from lipcert.core.lower.values import Constant, Data, Value, check_size
from lipcert.core.program import Op, Place, Shape, Step
from lipcert.core.reader.records import Model, Node, Tensor, shown


def refused(node: Node, error: Unsupported) -> Unsupported:
    """Return the same refusal with this node as its place."""
    where = f"node {shown(node.name)} ({shown(node.op_type)})"
    return type(error)(error.reason, where, node)


@dataclass(slots=True)
class Sink:
    """The steps so far.

    taken: names in use. model: the model that is read. count: the batch size above 1 that the file
    fixes, if its examples are read one by one. untracked: as in `Program`. ids: as in `Program`, by
    input. sequences: the parts of each sequence, by name. halves: whether a tensor may be narrower
    than float32; None until a rule asks.
    """

    taken: set[str]
    batched: bool
    model: Model
    count: int | None = None
    steps: list[Step] = field(default_factory=list)
    untracked: set[str] = field(default_factory=set)
    ids: dict[str, int] = field(default_factory=dict)
    stacks: dict[tuple[str, str], Data] = field(default_factory=dict)
    sequences: dict[str, list[Value]] = field(default_factory=dict)
    halves: bool | None = None

    def fresh(self, name: str) -> str:
        """Return a new name for a further value of the node that computes `name`."""
        number = 1
        while f"{name}#{number}" in self.taken:
            number += 1
        self.taken.add(f"{name}#{number}")
        return f"{name}#{number}"


class Call:
    """Inputs and attributes of a node; `version` is that of its operator set."""

    def __init__(
        self, node: Node, position: int, version: int, inputs: Sequence[Value | None], sink: Sink
    ) -> None:
        self.node = node
        self.version = version
        self.sink = sink
        self._position = position
        self._inputs = inputs
        self._unread = set(node.attributes)

    def inner(self, node: Node, version: int, inputs: Sequence[Value | None]) -> Call:
        """Return the call of one of the nodes that this node stands for."""
        return Call(node, self._position, version, inputs, self.sink)

    # inputs -----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._inputs)

    def has(self, place: int) -> bool:
        """Whether an optional input is given."""
        return place < len(self._inputs) and self._inputs[place] is not None

    def value(self, place: int) -> Value:
        """Return an input, whatever it is computed from."""
        found = self._inputs[place] if place < len(self._inputs) else None
        if found is None:
            raise Unsupported(f"its input {place} is missing")
        return found

    def values(self) -> list[Value]:
        """Return all inputs; refuse a missing one."""
        return [self.value(place) for place in range(len(self._inputs))]

    def data(self, place: int = 0) -> Data:
        """Return an input that depends on the data."""
        found = self.value(place)
        if isinstance(found, Constant):
            raise Unsupported(f"its input {place} is constant")
        return found

    def constant(self, place: int) -> Constant:
        """Return an input that does not depend on the data."""
        found = self.value(place)
        if isinstance(found, Data):
            raise Unsupported(f"its input {place} depends on the data")
        return found

    def whole(self, place: int) -> list[int]:
        """Return the integers of a constant input."""
        return self.constant(place).whole()

    def number(self, place: int) -> float:
        """Return a constant input of one real number, which no longer counts as a parameter."""
        found = self.constant(place)
        number = found.uniform()
        if number is None or found.lo.size != 1 or found.place is not None:
            raise Unsupported(f"its input {place} is not one exact number")
        self.sink.untracked.update(found.sources)
        return number

    # attributes -------------------------------------------------------------------------------

    def given(self, name: str) -> bool:
        """Whether an attribute is present."""
        return name in self.node.attributes

    def _read(self, name: str, kind: str, default: Any = None) -> Any:
        self._unread.discard(name)
        found = self.node.attributes.get(name)
        if found is not None and found.kind != kind:
            raise Unsupported(f"its attribute {shown(name)} is of the kind {found.kind}")
        return default if found is None else found.value

    def integer(self, name: str, default: int) -> int:
        """Return an attribute that is an integer."""
        return int(self._read(name, "INT", default))

    def real(self, name: str, default: float, *, finite: bool = True) -> float:
        """Return an attribute that is a number; refuse an infinite one unless `finite` is false.

        ONNX declares defaults as float32 numbers, so a node that states its default and one that
        omits it compute the same.
        """
        number = float(self._read(name, "FLOAT", np.float32(default)))
        if finite and not math.isfinite(number) and self.given(name):
            raise Unsupported(f"its attribute {shown(name)} is not finite")
        return number

    def text(self, name: str, default: str) -> str:
        """Return an attribute that is a word."""
        return bytes(self._read(name, "STRING", default.encode())).decode("ascii")

    def texts(self, name: str) -> list[str]:
        """Return an attribute that is a list of words."""
        return [bytes(item).decode("ascii") for item in self._read(name, "STRINGS", ())]

    def integers(self, name: str) -> list[int] | None:
        """Return an attribute that is a list of integers; None if it is absent."""
        return None if (found := self._read(name, "INTS")) is None else list(found)

    def reals(self, name: str) -> list[float] | None:
        """Return an attribute that is a list of numbers; None if it is absent."""
        return None if (found := self._read(name, "FLOATS")) is None else list(found)

    def tensor(self, name: str) -> Tensor | None:
        """Return an attribute that is a tensor; None if it is absent."""
        found: Tensor | None = self._read(name, "TENSOR")
        return found

    def check_read(self) -> None:
        """Refuse a node with an attribute that its rule did not read."""
        if self._unread:
            raise Unsupported(f"its attribute {shown(min(self._unread))} is not understood")

    def axes(self, place: int, since: int) -> list[int] | None:
        """Return the axes, or None: an attribute before operator set `since`, then an input."""
        if self.version < since:
            return self.integers("axes")
        return self.whole(place) if self.has(place) else None

    # results ----------------------------------------------------------------------------------

    def step(self, op: Op, *inputs: Data, shape: Shape, place: Place | None) -> Data:
        """Add a step and return its output, in which `place` says where the examples lie."""
        if 0 in check_size(shape):
            raise Unsupported("a tensor has no entries")
        if self.sink.batched and place is None:
            raise MixingError("the examples of a batch cannot be told apart")
        name = self.sink.fresh(next(filter(None, self.node.outputs)))
        names = tuple(value.name for value in inputs)
        self.sink.steps.append(Step(op, names, name, shape, self._position))
        return Data(name, shape, place)
