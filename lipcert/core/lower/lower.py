"""From a model to a `Program`.

Contract: in real arithmetic, the steps compute what the file computes for a batch of one example.
Shapes that the file states of its results are compared with those that its nodes have here.
If `batch_proved`, moreover, for a batch of any size N, entry i of the output is this function of
entry i of the input: the first dimension of the input is read as N, and every rule keeps the
examples apart (`values`). A model of which a rule says that it does not is refused. A model whose
sizes are fixed, so that no rule can follow N, is read as one example at a time; so is one whose
batch has the fixed size 1, if its nodes only move entries of the batch, such as x[0].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Final, final

import numpy as np

from lipcert.core.budget import spend
from lipcert.core.lower.call import Call, Sink
from lipcert.core.lower.errors import MixingError, ReadsAcrossError, Unsupported
from lipcert.core.lower.macros import rewritten
from lipcert.core.lower.operators import JUMPING, rule_of
from lipcert.core.lower.reals import literal
from lipcert.core.lower.rewriter import needed_steps
from lipcert.core.lower.types import has_halves
from lipcert.core.lower.values import Constant, Data, Value
from lipcert.core.program import Attention, Operand, Place, Program, Shape, Step, kept_entries
from lipcert.core.reader.records import Branch, Input, Model, Node, shown, with_nested

if TYPE_CHECKING:
    from lipcert.core.lower.guards import Guards

_VERSIONS: Final = range(7, 27)


def lower(model: Model, output: str) -> Program:
    """The program of one output; `Unsupported` with the node and the reason."""
    version = model.opset.get("", 0)
    if version not in _VERSIONS:
        raise Unsupported(
            f"operator set {version} of ONNX is not supported; export with one from"
            f" {_VERSIONS.start} to {_VERSIONS.stop - 1}, or convert with onnx.version_converter"
        )
    needed, names = _needed(model, output)
    source = _source(model, names)
    dims = source.dims or ()
    try:
        return _lowered(model, output, needed, source, batched=True)
    except Unsupported as error:
        mixes = isinstance(error, ReadsAcrossError) or (
            isinstance(error, MixingError) and dims[0] != 1
        )
        if mixes or not isinstance(dims[0], int):
            raise
    return _lowered(model, output, needed, source, batched=False)


def _needed(model: Model, output: str) -> tuple[list[bool], set[str]]:
    """Which nodes the output is computed from, and all names that are read."""
    names = {output}
    needed = [False] * len(model.nodes)
    for position in reversed(range(len(model.nodes))):
        node = model.nodes[position]
        if names.intersection(filter(None, node.outputs)):
            needed[position] = True
            names.update(filter(None, node.inputs))
    return needed, names


def _source(model: Model, names: set[str]) -> Input:
    """The one input, of which the first dimension may be anything and all others are fixed."""
    inputs = [item for item in model.inputs if item.name in names]
    if len(inputs) != 1:
        raise Unsupported(f"the output depends on {len(inputs)} inputs instead of one")
    (source,) = inputs
    if not source.dtype.startswith(("float", "bfloat")):
        raise Unsupported(f"the input {shown(source.name)} does not hold real numbers")
    dims = source.dims
    if not dims or any(not isinstance(size, int) or size < 1 for size in dims[1:]) or dims[0] == 0:
        raise Unsupported(f"the input {shown(source.name)} is not of fixed shape behind axis 0")
    return source


def _lowered(
    model: Model, output: str, needed: Sequence[bool], source: Input, *, batched: bool
) -> Program:
    if source.dims is None:
        raise Unsupported("it is used in a way that is not understood")
    dims: Shape = tuple(size for size in source.dims[1:] if isinstance(size, int))
    first = source.dims[0] if isinstance(source.dims[0], int) and not batched else 1
    start = Data(source.name, (first, *dims), Place(0) if batched else None)
    values: dict[str, Value] = {source.name: start}
    taken = {source.name, *model.initializers}
    taken.update(name for node in with_nested(model.nodes) for name in node.outputs)
    sink = Sink(taken, batched, has_halves(model))
    read = {
        name for node, use in zip(model.nodes, needed, strict=True) if use for name in node.inputs
    }
    for name in sorted(read & set(model.initializers)):
        try:
            values[name] = literal(model.initializers[name], name)
        except Unsupported as error:
            raise Unsupported(f"the initializer {shown(name)}: {error}") from None
    guards = _guards(model, values, sink.untracked)
    walk = _Walk(model.opset, values, sink, guards)
    for position, node in enumerate(model.nodes):
        if needed[position]:
            walk.node(node, position)
    count = source.dims[0] if batched and isinstance(source.dims[0], int) else None
    for name, stated in model.stated:
        if name in values:
            _check_stated(name, values[name], stated, count)
    result = walk.known(output)
    if not isinstance(result, Data):
        raise Unsupported("the output does not depend on the input")
    raw = needed_steps(sink.steps, result.name)
    steps = rewritten(raw, start, result.name, sink)
    for step in steps:
        _check_finite(step, model)
    shapes = {source.name: start.shape, **{step.output: step.shape for step in steps}}
    covered = _covered(model, needed, raw, steps, walk)
    return Program(
        source.name, result.name, shapes, steps, result.place, covered, frozenset(sink.untracked)
    )


def _where(node: Node) -> str:
    return f"node {shown(node.name)} ({shown(node.op_type)})"


def _guards(model: Model, values: Mapping[str, Value], untracked: set[str]) -> Guards | None:
    """What follows the nodes that jump, where there are any."""
    if all(node.domain or node.op_type not in JUMPING for node in with_nested(model.nodes)):
        return None
    from lipcert.core.lower.guards import Guards  # noqa: PLC0415  for such models only

    return Guards(values, untracked)


@final
class _Walk:
    """Values of the nodes so far; opset: the versions of the operator sets."""

    def __init__(
        self,
        opset: Mapping[str, int],
        values: dict[str, Value],
        sink: Sink,
        guards: Guards | None,
    ) -> None:
        self._opset, self.values, self._sink, self._guards = opset, values, sink, guards
        self.jumps: Mapping[str, str] = {} if guards is None else guards.jumps

    def node(self, node: Node, position: int) -> None:
        """Add the outputs of a node, or of the branch that a constant condition chooses."""
        if node.op_type == "If" and not node.domain:
            self._branch(node, position)
            return
        made = node if self._guards is None else self._guards.taken(node)
        if made is None:
            return
        self._lower(made, position)
        if made is node:
            return
        shape = self.values[node.outputs[0]].shape
        others = [self.values[name].shape for name in node.inputs if name in self.values]
        if np.broadcast_shapes(shape, *others) != shape:
            raise Unsupported(f"{_where(node)}: its inputs have shapes that do not fit")

    def known(self, name: str) -> Value:
        """A value, or why there is none."""
        if name not in self.values:
            why = f"{shown(name)} is a result that is not supported"
            raise Unsupported(self.jumps.get(name, why))
        return self.values[name]

    def _branch(self, node: Node, position: int) -> None:
        condition = self.values.get(node.inputs[0])
        if not isinstance(condition, Constant) or condition.lo.size != 1:
            raise Unsupported(f"{_where(node)}: it branches on the data; export one branch alone")
        condition.check_fixed()
        chosen = node.attributes.get("then_branch" if condition.lo.all() else "else_branch")
        if chosen is None or not isinstance(chosen.value, Branch):
            raise Unsupported(f"{_where(node)}: the branch that it takes is missing")
        if len(chosen.value.outputs) != len(node.outputs):
            raise Unsupported(f"{_where(node)}: its branches have other outputs")
        for inner in chosen.value.nodes:
            self.node(inner, position)
        for name, result in zip(node.outputs, chosen.value.outputs, strict=True):
            self.values[name] = self.known(result)

    def _lower(self, node: Node, position: int) -> None:
        values, sink = self.values, self._sink
        try:
            inputs = [
                self.known(name) if name and name not in sink.sequences else None
                for name in node.inputs
            ]
            call = Call(node, position, self._opset.get("", 0), inputs, sink)
            start = len(sink.steps)
            found = rule_of(node, inputs)(call)
            call.check_read()
        except MixingError as error:
            raise type(error)(f"{_where(node)}: {error}") from None
        except Unsupported as error:
            raise Unsupported(f"{_where(node)}: {error}") from None
        except (ValueError, IndexError, KeyError, TypeError, OverflowError, ZeroDivisionError):
            raise Unsupported(f"{_where(node)}: its inputs and attributes do not fit") from None
        results = found if isinstance(found, list) else [found]
        spend(sum(map(kept_entries, sink.steps[start:])))
        if node.op_type != "Constant":  # which the file holds
            spend(sum(value.lo.size for value in results if isinstance(value, Constant)))
        own = {step.output: place for place, step in enumerate(sink.steps) if place >= start}
        for name, value in zip(node.outputs, results, strict=False):
            if not name:
                continue
            values[name] = value
            if isinstance(value, Data) and value.name in own:
                place = own.pop(value.name)
                sink.steps[place] = replace(sink.steps[place], output=name)
                values[name] = replace(value, name=name)


def _check_stated(name: str, value: Value, stated: Sequence[int], count: int | None) -> None:
    """Refuse a shape other than the file states. count: the fixed size of its batch, if it is one.

    Where the batch may be of any size, the file may state it for one size.
    """
    sizes = list(value.shape)
    own = -1 if value.place is None else value.place.axis
    fits = len(stated) == len(sizes)
    for axis, (size, other) in enumerate(zip(sizes, stated, strict=False)):
        if axis == own and count is None:
            fits = fits and (other < 0 or other % size == 0)
        elif other >= 0:
            fits = fits and other == size * (count or 1 if axis == own else 1)
    if not fits:
        raise Unsupported(
            f"{shown(name)} has the shape {sizes} for one example, the file states {list(stated)}"
        )


def _check_finite(step: Step, model: Model) -> None:
    """Only a mask, which is part of an attention, may hold infinities."""
    if isinstance(step.op, Attention):
        return
    operands = [getattr(step.op, item.name) for item in fields(step.op)]
    for operand in operands:
        if isinstance(operand, Operand) and not np.isfinite((operand.lo, operand.hi)).all():
            node = model.nodes[step.node]
            where = _where(node)
            raise Unsupported(f"{where}: a constant is not finite")


def _covered(
    model: Model,
    needed: Sequence[bool],
    raw: Sequence[Step],
    steps: Sequence[Step],
    walk: _Walk,
) -> tuple[str, ...]:
    """What became of each node; of one that jumps, a part of the function around it."""
    final, used = {step.node for step in steps}, {step.node for step in raw}
    read = {*(step.output for step in raw[-1:]), *(name for step in raw for name in step.inputs)}
    result = []
    for position, node in enumerate(model.nodes):
        outputs = [walk.values.get(name) for name in node.outputs]
        if not needed[position]:
            result.append("unused")
        elif position in final:
            result.append("step")
        elif position in used or not walk.jumps.keys().isdisjoint(node.outputs):
            result.append("part")
        elif all(not isinstance(value, Data) for value in outputs):
            result.append("constant")
        else:
            alias = any(isinstance(v, Data) and (v.name in read) for v in outputs)
            result.append("part" if alias else "unused")
    return tuple(result)
