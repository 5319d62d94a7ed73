"""Find the inputs and labels in a batch of the loader, and check that inputs are admissible.

Each supported form of batch has exactly one reading; for any other form a UsageError lists the
supported ones. The number of inputs is the number of arguments that forward() takes, and keys of a
mapping are matched with the names of these arguments.

An example that lies outside the declared domain only by rounding is scaled into it (norms are
computed in float64). Any other example outside raises a NoVerdictError that names it.
"""

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import torch
from torch import Tensor, nn

from lipcert.audit.observation import unwrapped
from lipcert.data.source import X_NAMES, Y_NAMES, array_of
from lipcert.errors import NoVerdictError, UsageError
from lipcert.gradient_stats.examples import DRAWN_IN, outside, settled
from lipcert.measure.gradient_norms.squares import gamma
from lipcert.settings.settings import Settings

_FORMS: Final = (
    "batches are read in these forms: (x, y); of several inputs (a, b, y), ((a, b), y) or "
    '({"a": …, "b": …}, y); {"input_ids": …, "attention_mask": …, "labels": …}, with the names of '
    "forward's arguments; of several outputs, their labels one after the other, or as a tuple, "
    "list or mapping by the names of the outputs; let the data set or collate_fn give one of these"
)


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a module's forward pass.

    names: in order. needed: how many have no default. many: whether forward takes `*args`.
    """

    names: tuple[str, ...]
    needed: int
    many: bool

    @classmethod
    def of(cls, model: nn.Module) -> Self:
        """Read the signature of `forward` of a module, or of the module inside a wrapper."""
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
        """Whether forward() accepts this number of arguments."""
        return self.needed <= count and (self.many or count <= len(self.names))

    def in_order(self, given: Mapping[Any, object]) -> tuple[object, ...]:
        """Return the arguments that a mapping holds, in order; empty if a required one is
        missing."""
        names = tuple(name for name in self.names if name in given)
        is_whole = names == self.names[: len(names)] and self.take(len(names))
        return tuple(given[name] for name in names) if is_whole else ()

    def __str__(self) -> str:
        return f"forward({', '.join((*self.names, *(('*inputs',) * self.many)))})"


def parted(batch: Any, model: nn.Module, outputs: int) -> tuple[tuple[Tensor, ...], Any]:
    """Return the inputs and the labels of a batch.

    outputs: the number of outputs that have a loss.
    """
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
            f"training: in a batch that is {_described(batch)}, it is unclear what is an input of "
            f"the module's {arguments}, and what a label; {_FORMS}"
        )
    return inputs, labels


def _of_sequence(
    batch: Sequence[Any], arguments: Arguments, outputs: int
) -> tuple[tuple[Any, ...], Any]:
    """Split a tuple or list: inputs first, then one label per output; further items are ignored,
    such as the index of an example."""
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
    """Split a mapping: keys that name no input hold labels: the one with a usual name, the only
    one, or those of several outputs. If forward() takes all keys, usual names are labels'."""
    names = set(arguments.names)
    if names >= batch.keys():  # forward() would compute the loss, too
        names -= set(Y_NAMES)
    inputs = arguments.in_order({key: item for key, item in batch.items() if key in names})
    usual = next((name for name in X_NAMES if name in batch), None)
    if not inputs and usual is not None and arguments.take(1):
        inputs, names = (batch[usual],), {usual}
    rest = {key: item for key, item in batch.items() if key not in names}
    known = [key for key in Y_NAMES if key in rest] if len(rest) > 1 else list(rest)
    if len(known) == 1:
        return inputs, rest[known[0]]
    return inputs, rest if outputs > 1 else None


def _described(batch: object) -> str:
    """Describe the form of a batch in words."""
    if isinstance(batch, Mapping):
        return "{" + ", ".join(f"{key!r}: {_described(item)}" for key, item in batch.items()) + "}"
    if isinstance(batch, tuple | list):
        return f"({', '.join(map(_described, batch))})"
    return "a tensor" if isinstance(batch, Tensor) else f"a {type(batch).__name__}"


_ROUNDED: Final = 1.0 + 2.0**-16
"""Relative to the radius: a norm above this is not explained by rounding. (A norm computed in
float32 over thousands of entries can be off by 1e-6 and more.)"""
_MOST_ENTRIES: Final = 2**24
_UNDERFLOW: Final = 2.0**-62
"""More than the root of any square that underflows to 0 in float32."""


def admitted(x: Tensor, settings: Settings) -> Tensor:
    """Return the batch [examples, …] as it may enter the network, scaled into the domain if needed.

    Proof: the computed norm of n ≤ 2^24 entries is off by less than a factor of 1 + 2^-27, and
    rounding an entry to float32 by one of 1 + 2^-24; so an example that is scaled to (1 − 2^-20) of
    the radius lies within it. Scaling towards 0 stays within a box that contains 0. A norm computed
    in float32 is off by a factor of 1 + γ_n and by what underflows; an example that is inside even
    with this error needs no other test.
    """
    if not len(x):
        return x
    flat = x.detach().reshape(len(x), -1)
    box, radius = settings.effective_input_box, settings.input_norm
    if settings.input_parts:
        return x if _is_inside(flat, settings) else _drawn_in(x, settings)
    if radius is None:
        return x if _is_in_box(flat, box) else _drawn_in(x, settings)
    if flat.shape[1] > _MOST_ENTRIES or not (box is None or _is_in_box(flat, box)):
        return _drawn_in(x, settings)
    if flat.is_cpu and flat.dtype is torch.float32:
        off, lost = gamma(flat.shape[1] + 8, flat.dtype), math.sqrt(flat.shape[1]) * _UNDERFLOW
        longest = float(torch.linalg.vector_norm(flat, dim=1).max())
        if longest * (1.0 + off) + lost <= radius * DRAWN_IN:
            return x
    norms = torch.linalg.vector_norm(flat, dim=1, dtype=torch.float64)
    longest = float(norms.max())  # NaN or infinite if an entry is
    if longest <= radius * DRAWN_IN:
        return x
    is_half = torch.finfo(x.dtype).bits < 32 if x.is_floating_point() else True
    holds_zero = box is None or box[0] <= 0.0 <= box[1]
    if is_half or not holds_zero or not longest <= radius * _ROUNDED:
        return _drawn_in(x, settings)
    factors = (radius * DRAWN_IN / norms).clamp(max=1.0)
    drawn: Tensor = x.detach() * factors.reshape(-1, *[1] * (x.dim() - 1))
    return drawn.to(x.dtype)


def _is_inside(flat: Tensor, settings: Settings) -> bool:
    """Whether each of several inputs lies within its domain, rounding included."""
    if flat.shape[1] > _MOST_ENTRIES or not math.isfinite(flat.sum(dtype=torch.float64)):
        return False
    for domain in settings.domains:
        part = flat[:, domain.entries]
        if not _is_in_box(part, domain.box):
            return False
        if domain.norm is not None:
            norms = torch.linalg.vector_norm(part.double(), dim=1)
            if not float(norms.max()) <= domain.norm * DRAWN_IN:
                return False
    return True


def _is_in_box(flat: Tensor, box: tuple[float, float] | None) -> bool:
    least, most = flat.aminmax()  # NaN if an entry is
    if box is None:
        return math.isfinite(least) and math.isfinite(most)
    return bool(least >= box[0]) and bool(most <= box[1])


def _drawn_in(x: Tensor, settings: Settings) -> Tensor:
    """Scale into the domain what rounding alone left outside; raise NoVerdictError for the rest."""
    inadmissible = outside(array_of(x), settings)
    if not bool(torch.isfinite(x).all()):
        raise NoVerdictError("training: the batch holds NaN or infinity; repair the data")
    if inadmissible:
        index, why = inadmissible[0]
        raise NoVerdictError(
            f"training: example {index} of the batch {why}; {len(inadmissible)} of {len(x)} "
            "examples lie outside the declared input domain: clip or rescale them in the data "
            "set, or declare the domain that the pipeline enforces, with input_norm or input_box "
            "(ids choose rows of the smallest table that reads their input: give each column of "
            "categories an input of its own, or all of them one table)"
        )
    radius = float("inf") if settings.input_norm is None else settings.input_norm
    return torch.from_numpy(settled(array_of(x.double()), radius, settings, share=DRAWN_IN)).to(x)
