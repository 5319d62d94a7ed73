"""What one example is: the batch axis, the proof of independence, or the weaker statement.

What enters: a raw model. What leaves: its data path at one batch size, the layout of every value
and how it is known that examples do not meet. A file of fixed batch size is rewritten to other
sizes; only where its shapes are hard-coded does it stay as it is, as one example at a time. Where
sizes then do not tell the batch from other axes, every tensor belongs to that example as a whole:
a file that holds one example is a function of one example, whatever its axes mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, final

import numpy as np

from lipcert.core.program import Shape
from lipcert.diagnostics import Diagnostic, Level
from lipcert.errors import Refusal, UnsupportedModelError
from lipcert.importer.batch import moves_alone, prove_independence
from lipcert.importer.fold import fold
from lipcert.importer.layout import Layout
from lipcert.importer.metadata import Provenance
from lipcert.importer.raw import RawInput, RawModel, RawNode
from lipcert.importer.static_graph import StaticGraph, Value
from lipcert.importer.survey import distinct, translation_refusals
from lipcert.ir import BatchProof, BatchStatus

_PRIMES: Final = (
    11,
    13,
    17,
    19,
    23,
    29,
    31,
    37,
    41,
    43,
    47,
    53,
    59,
    61,
    67,
    71,
    73,
    79,
    83,
    89,
    97,
)


_FACTORS: Final = (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 32)
"""which multiples of a prime batch size are tried for a Reshape that needs a multiple"""
_FIXED: Final = frozenset({"LC002", "LC008", "LC016"})
"""refusals of a graph that fits one batch size only"""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """The data path, seen from one example."""

    graph: StaticGraph
    layouts: dict[str, Layout]
    proof: BatchProof
    diagnostics: tuple[Diagnostic, ...]


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Attempt:
    """The data path at one batch size; graph is None where it could not be followed to its end.

    further: what else is to be refused, apart from what decides how the file is read.
    """

    graph: StaticGraph | None
    layouts: dict[str, Layout]
    refusals: tuple[Refusal, ...]
    further: tuple[Refusal, ...] = ()

    @property
    def all_refusals(self) -> tuple[Refusal, ...]:
        """Every reason."""
        return distinct((*self.refusals, *self.further))


def separate_examples(
    model: RawModel, provenance: Provenance, source: RawInput, output: str
) -> Examples:
    """Find out what one example is, or refuse."""
    dtype, dims = _checked(source)
    ends = source.name, output

    def attempt(batch: int) -> _Attempt:
        shape = (batch, *dims[1:])
        return _attempt(model, provenance, ends, Value(shape, dtype), batch)

    smaller, larger = _batch_sizes(model, dims)
    other = attempt(larger)  # first, so that only one graph is held at a time
    other = replace(other, graph=None)
    first = attempt(smaller)
    if first.graph is not None and not first.refusals and not other.refusals:
        _check_agreement(first.layouts, other.layouts)
        return Examples(first.graph, first.layouts, _proof(), _fixed_batch_note(dims))
    failed = first if first.refusals else other
    mixing = () if isinstance(dims[0], int) else _mixing_reshape(attempt, failed.refusals)
    if mixing:
        raise UnsupportedModelError(mixing)
    codes = {refusal.code for refusal in failed.refusals}
    is_vector = len(dims) == 1  # rather one example than many numbers
    if is_vector or (dims[0] == 1 and moves_alone(failed.refusals)):  # x[0] of one example is x
        codes -= {"LC007"}
    if isinstance(dims[0], str):
        raise UnsupportedModelError(failed.all_refusals)
    one = _attempt(model, provenance, ends, Value((dims[0], *dims[1:]), dtype), 1)
    if not codes <= _FIXED:  # at the size of the file, where its shapes fit
        mixing = tuple(item for item in failed.refusals if item.code == "LC007")
        raise UnsupportedModelError(distinct((*mixing, *one.all_refusals)) or failed.all_refusals)
    return _one_at_a_time(one, (dims[0], *dims[1:]))


def _mixing_reshape(
    attempt: Callable[[int], _Attempt], failed: tuple[Refusal, ...]
) -> tuple[Refusal, ...]:
    """The Reshape nodes that join examples, where a prime number of examples does not fit them.

    They are tried again at multiples of a prime: a node that then keeps the examples apart is not
    among them.
    """
    nodes = {item.node for item in failed if (item.code, item.op) == ("LC008", "Reshape")}
    if not nodes:
        return ()
    for factor in _FACTORS:
        batch = _PRIMES[0] * factor
        found = attempt(batch)
        mixing = [item for item in found.refusals if item.code == "LC007" and item.node in nodes]
        if mixing:
            return tuple(
                replace(item, reason=f"{item.reason}, for example in a batch of {batch}")
                for item in mixing
            )
        if found.graph is not None:
            return ()
    return ()


def _attempt(
    model: RawModel, provenance: Provenance, ends: tuple[str, str], example: Value, batch: int
) -> _Attempt:
    folded = fold(model, provenance, ends, example, batch)
    layout = Layout(example.shape, batch, 0, 1, example.shape[0] // batch)
    layouts, mixing = prove_independence(folded.graph, layout)
    if not folded.refusals and not mixing:
        return _Attempt(folded.graph, layouts, ())
    further = tuple(translation_refusals(folded.graph, layouts))
    if folded.refusals:
        mixing = tuple(item for item in mixing if batch > 1 or item.code != "LC008")
        return _Attempt(None, layouts, folded.refusals, (*mixing, *further))
    return _Attempt(folded.graph, layouts, mixing, further)


def _checked(source: RawInput) -> tuple[np.dtype[Any], tuple[int | str, *tuple[int, ...]]]:
    def refuse(code: str, reason: str, remedy: str) -> UnsupportedModelError:
        return UnsupportedModelError((Refusal(code, "", "", reason, remedy),))

    where = f"the input {source.name!r}"
    if source.dtype is None or source.dtype.kind != "f":
        kind = "no tensor of numbers" if source.dtype is None else f"of type {source.dtype}"
        raise refuse("LC006", f"{where} is {kind}", "feed floats, for example after the embedding")
    if not source.dims:
        raise refuse("LC008", f"{where} has no declared shape", "export with a fixed shape")
    rest = source.dims[1:]
    fixed = tuple(size for size in rest if isinstance(size, int))
    if len(fixed) < len(rest):
        reason = f"{where} has the shape {source.dims}: only the batch axis 0 may be symbolic"
        raise refuse("LC008", reason, "export with fixed sizes for all other axes")
    return source.dtype, (source.dims[0], *fixed)


def _batch_sizes(model: RawModel, dims: tuple[int | str, ...]) -> tuple[int, int]:
    """Two primes that divide no dimension of any tensor of the file."""
    sizes = {size for tensor in model.graph.tensors.values() for size in tensor.shape}
    sizes.update(size for size in dims if isinstance(size, int))
    free = [p for p in _PRIMES if all(size % p for size in sizes if size)]
    first, second, *_ = [*free, *_PRIMES[-2:]]
    return first, second


def _check_agreement(layouts: dict[str, Layout], others: dict[str, Layout]) -> None:
    """Both batch sizes must tell the same story of every value."""
    for name, layout in layouts.items():
        other = others.get(name)
        if other is None or (layout.axis, layout.full_example_shape) != (
            other.axis,
            other.full_example_shape,
        ):
            reason = f"the shape of {name!r} for one example depends on the size of the batch"
            raise UnsupportedModelError((Refusal("LC007", "", "", reason),))


def _proof() -> BatchProof:
    witness = "every operator keeps the examples apart, shown at two prime batch sizes"
    return BatchProof(BatchStatus.PROVED, 0, witness)


def _fixed_batch_note(dims: tuple[int | str, ...]) -> tuple[Diagnostic, ...]:
    if isinstance(dims[0], str) or dims[0] == 1:
        return ()
    message = f"axis 0 of the input, of fixed size {dims[0]}, is taken for the batch axis"
    return (Diagnostic("LC022", Level.WARNING, "", message, "export with a symbolic batch axis"),)


def _one_at_a_time(found: _Attempt, shape: Shape) -> Examples:
    """The file as a function of one example, which it is whatever its axes mean."""
    graph, layouts = found.graph, found.layouts
    is_untold = bool(found.refusals) and all(item.code == "LC008" for item in found.refusals)
    if graph is not None and is_untold:
        graph, layouts = _as_a_whole(graph, layouts[graph.input_name])
    elif graph is None or found.refusals:
        raise UnsupportedModelError(found.all_refusals)
    message = (
        f"the file holds one example of shape {shape} at a time; it is assumed that the"
        " network is applied to each example separately"
    )
    note = Diagnostic(
        "LC021", Level.WARNING, "", message, "export with a symbolic batch axis (dynamic_shapes)"
    )
    proof = BatchProof(BatchStatus.PER_EXAMPLE, 0, "the shapes in the file are fixed")
    return Examples(graph, layouts, proof, (note,))


def _as_a_whole(graph: StaticGraph, source: Layout) -> tuple[StaticGraph, dict[str, Layout]]:
    """Every tensor with all its axes as part of one example, but for the input and the output.

    The example itself has no batch axis, and its output has none where axis 0 has the size 1.
    """
    names = {name: f"{name}@example" for name in (graph.input_name, graph.output_name)}
    nodes = tuple(
        replace(
            node,
            inputs=tuple(names.get(name, name) for name in node.inputs),
            outputs=tuple(names.get(name, name) for name in node.outputs),
        )
        for node in graph.nodes
    )
    first = _renaming(graph.input_name, names[graph.input_name])
    last = _renaming(names[graph.output_name], graph.output_name)
    values = {**graph.values, **{new: graph.values[old] for old, new in names.items()}}
    layouts = {name: Layout.whole_of(value.shape) for name, value in values.items()}
    layouts[graph.input_name] = source
    shape = graph.shape(graph.output_name)
    if shape[:1] == (1,):
        layouts[graph.output_name] = Layout(shape, 1, 0)
    return replace(graph, nodes=(first, *nodes, last), values=values), layouts


def _renaming(old: str, new: str) -> RawNode:
    return RawNode("Identity", "", 1, new, (old,), (new,), {})
