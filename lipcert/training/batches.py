"""Batches: which parts of what a loader gives are the inputs of a module, and which its labels.

What enters: a batch as collate_fn makes it, a module, the number of outputs that have a loss. What
leaves: a tensor for each input, in the order of forward's arguments, and the labels; or a
UsageError that shows the forms that are read. Invariant: a form has one reading. How many inputs
there are is what forward() takes, and names of a mapping are those of its arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, final

from torch import Tensor, nn

from lipcert.audit.observation import unwrapped
from lipcert.data.source import X_NAMES, Y_NAMES
from lipcert.errors import UsageError

_FORMS: Final = (
    "batches are read in these forms: (x, y); of several inputs (a, b, y), ((a, b), y) or "
    '({"a": …, "b": …}, y); {"input_ids": …, "attention_mask": …, "labels": …}, with the names of '
    "forward's arguments; of several outputs, their labels one after the other, or as a tuple, "
    "list or mapping by the names of the outputs; let the data set or collate_fn give one of these"
)


@final
@dataclass(frozen=True, slots=True)
class Arguments:
    """Of a module's forward pass. names: in order; needed: so many of them have no default; many:
    whether any number more may follow."""

    names: tuple[str, ...]
    needed: int
    many: bool

    @classmethod
    def of(cls, model: nn.Module) -> Self:
        """model: the module, or what is wrapped around it."""
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        try:
            found = inspect.signature(unwrapped(model).forward).parameters.values()
        except (TypeError, ValueError):
            return cls((), 0, True)
        own = [item for item in found if item.kind in kinds]
        return cls(
            tuple(item.name for item in own),
            sum(item.default is item.empty for item in own),
            any(item.kind is item.VAR_POSITIONAL for item in found),
        )

    def take(self, count: int) -> bool:
        """Whether there may be so many."""
        return self.needed <= count and (self.many or count <= len(self.names))

    def in_order(self, given: Mapping[Any, object]) -> tuple[object, ...]:
        """What a mapping has of them; nothing where one is missing."""
        names = tuple(name for name in self.names if name in given)
        is_whole = names == self.names[: len(names)] and self.take(len(names))
        return tuple(given[name] for name in names) if is_whole else ()

    def __str__(self) -> str:
        return f"forward({', '.join((*self.names, *(('*inputs',) * self.many)))})"


def parted(batch: Any, model: nn.Module, outputs: int) -> tuple[tuple[Tensor, ...], Any]:
    """The inputs and the labels of a batch. outputs: so many have a loss."""
    arguments = Arguments.of(model)
    if isinstance(batch, Mapping):
        inputs, labels = _of_mapping(batch, arguments, outputs)
    elif isinstance(batch, tuple | list) and len(batch) > 1:
        inputs, labels = _of_sequence(batch, arguments, outputs)
    else:
        inputs, labels = (), None
    is_known = labels is not None and bool(inputs) and arguments.take(len(inputs))
    if not (is_known and all(isinstance(item, Tensor) for item in inputs)):
        raise UsageError(
            f"training: of a batch that is {_told(batch)}, it cannot be told what is an input of "
            f"the module's {arguments}, and what a label; {_FORMS}"
        )
    return inputs, labels


def _of_sequence(
    batch: Sequence[Any], arguments: Arguments, outputs: int
) -> tuple[tuple[Any, ...], Any]:
    """What follows the inputs are labels, of as many outputs as there are, and then other things,
    such as the number of an example."""
    first = batch[0]
    count = len(batch) - outputs
    if isinstance(first, Mapping):
        inputs, rest = arguments.in_order(first), batch[1:]
    elif isinstance(first, tuple | list):
        inputs, rest = tuple(first), batch[1:]
    elif count > 1 and arguments.take(count):
        inputs, rest = tuple(batch[:count]), batch[count:]
    elif arguments.take(1):
        inputs, rest = (first,), batch[1:]
    elif outputs > 1 and arguments.take(len(batch) - 1):  # labels of all outputs as one
        inputs, rest = tuple(batch[:-1]), batch[-1:]
    else:
        return (), None
    is_each = outputs > 1 and len(rest) >= outputs
    return inputs, tuple(rest[:outputs]) if is_each else rest[0]


def _of_mapping(
    batch: Mapping[Any, Any], arguments: Arguments, outputs: int
) -> tuple[tuple[Any, ...], Any]:
    """Under names that are none of an input are labels: one of a usual name, or the only one, or
    those of several outputs."""
    inputs, names = arguments.in_order(batch), set(arguments.names)
    usual = next((name for name in X_NAMES if name in batch), None)
    if not inputs and usual is not None and arguments.take(1):
        inputs, names = (batch[usual],), {usual}
    rest = {key: item for key, item in batch.items() if key not in names}
    known = [key for key in Y_NAMES if key in rest] if len(rest) > 1 else list(rest)
    if len(known) == 1:
        return inputs, rest[known[0]]
    return inputs, rest if outputs > 1 else None


def _told(batch: object) -> str:
    """Its form, in words."""
    if isinstance(batch, Mapping):
        return "{" + ", ".join(f"{key!r}: {_told(item)}" for key, item in batch.items()) + "}"
    if isinstance(batch, tuple | list):
        return f"({', '.join(map(_told, batch))})"
    return "a tensor" if isinstance(batch, Tensor) else f"a {type(batch).__name__}"
