"""Join values (perhaps with constants between them), several outputs, and several inputs."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from lipcert.core.kinds import Concat
from lipcert.core.lower.call import Call, Sink
from lipcert.core.lower.entrywise import combined
from lipcert.core.lower.errors import MixingError, Unsupported
from lipcert.core.lower.moves import gathered, indices, moved
from lipcert.core.lower.values import Constant, Data, Value, check_size
from lipcert.core.program import IndexArray, Move, Part, Place, Program, Step
from lipcert.core.reader.records import Node

Numbered: TypeAlias = Sequence[tuple[int, Node]]
"""Nodes with their positions in the file."""


def concat(call: Call) -> Value:
    """Lower Concat: join the data, with zeros where constants stand, then add the constants."""
    values = call.values()
    if isinstance(values[0], Constant) and values[0].marks.any():
        from lipcert.core.lower.truth import paired  # noqa: PLC0415  for such numbers only

        return paired(call)
    if any(isinstance(value, Data) and value.kind in {"truth", "untruth"} for value in values):
        from lipcert.core.lower.truth import numbers_of  # noqa: PLC0415  for such values only

        return replace(_joined(call, numbers_of(call, values)), kind="truth")
    return _joined(call, values)


def _joined(call: Call, values: Sequence[Value]) -> Data:
    rank = len(values[0].shape)
    axis = call.integer("axis", 1)
    if not -rank <= axis < rank or any(len(value.shape) != rank for value in values):
        raise Unsupported("the axis or the ranks do not fit")
    axis %= rank
    places = {value.place for value in values}
    others = {(*value.shape[:axis], *value.shape[axis + 1 :]) for value in values}
    if len(places) > 1 or len(others) > 1:
        raise Unsupported("its inputs carry the batch in different ways, or do not fit")
    (place,) = places
    if place is not None and place.axis == axis:
        raise Unsupported("it joins along the batch axis")
    values = [value for value in values if isinstance(value, Data) or value.lo.size]
    data = [value for value in values if isinstance(value, Data)]
    total = data[0]
    if len(data) > 1:
        shape = (*total.shape[:axis], sum(v.shape[axis] for v in data), *total.shape[axis + 1 :])
        total = call.step(Concat(axis), *data, shape=shape, place=place)
    if len(data) == len(values):
        return total
    source = np.moveaxis(indices(total.shape), axis, 0)
    return _filled(call, total, values, axis, source)


def joined_outputs(
    values: Sequence[Data], names: Sequence[str], nodes: Numbered, sink: Sink
) -> tuple[tuple[Part, ...], Data]:
    """Return the entries of several outputs of one example, one after another: [1, entries].

    The steps belong to the nodes that compute the outputs. Examples that are apart in every output,
    each at its own place, are rows of the result. Raise MixingError if they are not apart in one.
    """
    pairs = zip(names, values, strict=True)
    heads = tuple(Part(name, value.shape, value.place) for name, value in pairs)
    positions = _positions(nodes, names)
    place = Place(0) if sink.batched else None
    flat: list[Data] = []
    for value, head, position in zip(values, heads, positions, strict=True):
        if sink.batched and value.place is None:
            raise MixingError("the examples of a batch cannot be told apart")
        call = Call(Node("", "Flatten", "", (), (head.name,), {}), position, 0, (), sink)
        flat.append(moved(call, value, indices((1, head.size)), place))
    last = max(range(len(heads)), key=positions.__getitem__)  # what it reads stands before it
    node = Node("", "Concat", "", (), (heads[last].name,), {})
    call = Call(node, positions[last], 0, (), sink)
    shape = (1, sum(head.size for head in heads))
    return heads, call.step(Concat(1), *flat, shape=shape, place=place)


def _positions(nodes: Numbered, outputs: Sequence[str]) -> list[int]:
    """Return the positions of the nodes that compute these outputs; the last node's for others."""
    makers = {name: position for position, node in nodes for name in node.outputs}
    if not makers:
        raise Unsupported("no node computes the output")
    return [makers.get(name, max(makers.values())) for name in outputs]


def with_joined_inputs(
    program: Program, starts: Sequence[Data], nodes: Numbered, sink: Sink
) -> Program:
    """Return the program with one input [1, entries] that holds several inputs in turn.

    The steps that take an input from it belong to the first node that reads this input. Examples
    that are apart in every input are rows of the one input.
    """
    readers = _readers(nodes, program.covered)
    name = "inputs" if "inputs" not in sink.taken else sink.fresh("inputs")
    total = sum(math.prod(check_size(start.shape)) for start in starts)
    entries = indices((1, total))[0]
    steps, parts, begin = [], [], 0
    for start in starts:
        part = Part(start.name, start.shape, None, sink.ids.get(start.name), start.kind == "whole")
        if start.name not in readers:
            raise Unsupported("the output does not depend on one of the inputs")
        sources = entries[begin : begin + part.size].reshape(part.shape)
        steps.append(Step(Move(sources), (name,), part.name, part.shape, readers[part.name]))
        parts.append(part)
        begin += part.size
    shapes = {name: (1, total), **{start.name: start.shape for start in starts}, **program.shapes}
    return replace(
        program,
        input=name,
        shapes=shapes,
        steps=(*steps, *program.steps),
        ids=None,
        parts=tuple(parts),
    )


def _readers(nodes: Numbered, covered: Sequence[str]) -> dict[str, int]:
    """Return, for every name, the first node that reads it and computes a value."""
    found: dict[str, int] = {}
    for position, node in nodes:
        if covered[position] in {"step", "part"}:
            for name in node.inputs:
                found.setdefault(name, position)
    return found


def _filled(
    call: Call, total: Data, values: Sequence[Value], axis: int, source: IndexArray
) -> Data:
    """Put zeros between the data where constants stand, and add each constant padded by zeros."""
    length = sum(value.shape[axis] for value in values)
    whole = np.full((length, *source.shape[1:]), -1, dtype=np.int64)
    slabs: list[Constant] = []
    position = taken = 0
    for value in values:
        size = value.shape[axis]
        if isinstance(value, Data):
            whole[position : position + size] = source[taken : taken + size]
            taken += size
        else:
            slab = np.full(whole.shape, -1, dtype=np.int64)
            slab[position : position + size] = np.moveaxis(indices(value.shape), axis, 0)
            slabs.append(gathered(value, np.moveaxis(slab, 0, axis), value.place))
        position += size
    result = moved(call, total, np.moveaxis(whole, 0, axis), total.place)
    return combined(call, [result, *slabs], (1,) * (1 + len(slabs)))
