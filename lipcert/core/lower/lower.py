"""Lower a model to a `Program`.

Contract: in real arithmetic, the steps compute what the file computes for a batch of one example.
The entries of several outputs are then put one after another into one row. Shapes that the file
states for its results are compared with those computed here.

If `batch_proved`, moreover, for a batch of any size N, entry i of the output is this function of
entry i of the input: the first dimension of the input is read as N, and every rule keeps the
examples apart (`values`). A model is refused if a rule finds that it mixes examples. A model whose
sizes are fixed, so that no rule can follow N, is read as one example at a time; so is one whose
batch has the fixed size 1, if its nodes only move entries of the batch, such as x[0].
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

from lipcert.core import program as p
from lipcert.core.budget import spend
from lipcert.core.lower.call import Call, Sink, refused
from lipcert.core.lower.errors import MixingError, ReadsAcrossError, Unsupported
from lipcert.core.lower.operators import JUMPING, JUMPS, rule_of
from lipcert.core.lower.values import Constant, Data, Kind, Value, is_finite, literal, made_entries
from lipcert.core.reader.records import Input, Model, Node, shown, with_nested

if TYPE_CHECKING:
    from lipcert.core.lower.guards import Guards

_VERSIONS: Final = range(7, 27)
_SPELT: Final = frozenset({"untruth", "hiding", "own", "pair"})
"""Kinds of values for which a step computes other numbers than the tensor of the file."""


def lower(model: Model, *outputs: str) -> p.Program:
    """Return the program of one or several outputs; raise `Unsupported` with node and reason."""
    version = model.opset.get("", 0)
    if version not in _VERSIONS:
        raise Unsupported(
            f"operator set {version} of ONNX is not supported; export with one from"
            f" {_VERSIONS.start} to {_VERSIONS.stop - 1}, or convert with onnx.version_converter"
        )
    if not 0 < len(outputs) == len(set(outputs)):
        raise Unsupported("the outputs that the loss reads are not different ones")
    walk = Walk.of(model, *outputs, batched=True)
    try:
        return lowered(walk, outputs)
    except Unsupported as error:
        mixes = isinstance(error, MixingError) and walk.count != 1
        if mixes or isinstance(error, ReadsAcrossError) or not walk.count:
            raise
    return lowered(Walk.of(model, *outputs, batched=False), outputs)


def _live(
    model: Model, outputs: Sequence[str], *, batched: bool
) -> tuple[list[tuple[int, Node]], Set[str]]:
    """Return the nodes that outputs depend on, with their positions, and the names they read."""
    nodes = list(enumerate(model.nodes))
    if any(node.op_type == "If" for node in model.nodes):
        from lipcert.core.lower.branches import Splicer  # noqa: PLC0415  for such models only

        nodes = Splicer(Walk.over(model, batched=batched)).nodes()
    names, kept = set(outputs), []
    for position, node in reversed(nodes):
        if not names.isdisjoint(filter(None, node.outputs)):
            names.update(filter(None, node.inputs))
            kept.append((position, node))
    return kept[::-1], names


def _sources(model: Model, names: Set[str]) -> list[Input]:
    """Return the inputs among these names; their first dimensions agree, all others are fixed."""
    inputs = [item for item in model.inputs if item.name in names]
    if not inputs:
        raise Unsupported("the output depends on 0 inputs instead of one")
    for source in inputs:
        if fault := _fault(source):
            raise Unsupported(f"the input {shown(source.name)} {fault}")
    firsts = [(item.dims or ("",))[0] for item in inputs]
    sizes = {size if isinstance(size, int) else "" for size in firsts}
    if len(sizes) > 1:
        raise Unsupported("the inputs do not hold equally many examples along axis 0")
    return inputs


def _fault(source: Input) -> str:
    """Return what is wrong with an input, or ""."""
    if not source.dtype.startswith(("float", "bfloat", "int", "uint")):
        return "does not hold numbers"
    if source.dtype == "uint64":  # int64, which whole numbers become, would make some negative
        return "is of type uint64; feed int64"
    dims = source.dims
    if not dims or any(not isinstance(size, int) or size < 1 for size in dims[1:]) or dims[0] == 0:
        return "is not of fixed shape behind axis 0"
    return ""


def _starts(sources: Sequence[Input], *, batched: bool) -> Iterator[Data]:
    """Yield the inputs, for one example or for all of a fixed batch."""
    for source in sources:
        first, *rest = source.dims or ("",)
        size = first if isinstance(first, int) and not batched else 1
        dims = [item for item in rest if isinstance(item, int)]
        kind: Kind = "whole" if source.dtype.startswith(("int", "uint")) else "real"
        yield Data(source.name, (size, *dims), p.Place(0) if batched else None, kind)


def lowered(walk: Walk, outputs: Sequence[str]) -> p.Program:
    """Return the program of a walk, which begins here."""
    model, sink, starts = walk.model, walk.sink, walk.starts
    for position, node in walk.nodes:
        walk.node(node, position)
    for name, stated in model.stated:
        if name in walk.values:
            _check_stated(name, walk.values[name], stated, walk.count)
    found = [walk.known(name) for name in outputs]
    results = [value for value in found if isinstance(value, Data)]
    if len(results) < len(found):
        raise Unsupported("the output does not depend on the input")
    if any(not value.is_real for value in results):
        raise Unsupported("the output holds whole numbers or truth values, and has no gradient")
    heads: tuple[p.Part, ...] = ()
    result = results[0]
    if len(results) > 1:
        from lipcert.core.lower.joining import joined_outputs  # noqa: PLC0415  for such alone

        heads, result = joined_outputs(results, outputs, walk.nodes, sink)
    steps = raw = p.needed_steps(sink.steps, result.name)
    if not all(step.op.is_stored or step.op.is_function for step in raw):  # not layers alone
        from lipcert.core.lower.macros import rewritten  # noqa: PLC0415  for such alone

        steps = rewritten(raw, starts, result.name, sink)
    for step in steps:
        _check_finite(step, model)
    start, *more = starts
    program = p.Program(
        input=start.name,
        output=result.name,
        shapes={start.name: start.shape, **{step.output: step.shape for step in steps}},
        steps=steps,
        place=result.place,
        covered=_covered(raw, steps, walk),
        untracked=frozenset(sink.untracked),
        ids=sink.ids.get(start.name),
        heads=heads,
    )
    if not more:
        return program
    from lipcert.core.lower.joining import with_joined_inputs  # noqa: PLC0415  for such alone

    return with_joined_inputs(program, starts, walk.nodes, sink)


class Walk:
    """The values of the nodes so far, starting with initializers and, optionally, inputs.

    nodes: those to walk, with their positions in the file. count: the fixed batch size, if its
    examples are read one by one. guards: handle values that jump, and functions written with them.
    """

    def __init__(
        self,
        model: Model,
        nodes: Iterable[tuple[int, Node]],
        *starts: Data,
        batched: bool,
        count: int | None,
    ) -> None:
        self.model, self.nodes, self.starts, self.count = model, list(nodes), starts, count
        taken = {*(start.name for start in starts), *model.initializers}
        taken.update(name for node in with_nested(model.nodes) for name in node.outputs)
        fixed = count if count is not None and count > 1 else None
        self.sink = Sink(taken, batched, model, fixed)
        self.values: dict[str, Value] = {start.name: start for start in starts}
        for name in sorted({name for _, node in self.nodes for name in node.inputs}):
            if name in model.initializers:
                with suppress(Unsupported):  # which `known` says of one that matters
                    self.values[name] = literal(model.initializers[name], name)
        self.guards: Guards | None = None
        if any(not x.domain and x.op_type in JUMPING for x in with_nested(model.nodes)):
            from lipcert.core.lower.guards import Guards  # noqa: PLC0415  for such models only

            self.guards = Guards(self.values, self.sink)

    @classmethod
    def of(cls, model: Model, *outputs: str, batched: bool) -> Self:
        """Return the walk to these outputs, from the inputs that they depend on."""
        nodes, names = _live(model, outputs, batched=batched)
        sources = _sources(model, names)
        first = (sources[0].dims or ("",))[0]
        starts = _starts(sources, batched=batched)
        count = first if isinstance(first, int) and batched else None
        return cls(model, nodes, *starts, batched=batched, count=count)

    @classmethod
    def over(cls, model: Model, *, batched: bool) -> Walk:
        """Return the walk over all nodes, from all inputs of numbers with fixed shapes."""
        starts = _starts([item for item in model.inputs if not _fault(item)], batched=batched)
        return cls(model, enumerate(model.nodes), *starts, batched=batched, count=None)

    def node(self, node: Node, position: int) -> None:
        """Add the outputs of a node, or those of the branch that a constant condition chooses."""
        if node.op_type == "If" and not node.domain:
            from lipcert.core.lower.branches import lower_branch  # noqa: PLC0415  for such alone

            lower_branch(self, node, position)
        elif self.guards is None:
            self._lower(node, position)
        else:
            self.guards.lower(node, lambda made: self._lower(made, position))

    def known(self, name: str) -> Value:
        """Return a value, or raise the reason for which there is none."""
        if name not in self.values:
            if self.guards is not None and name in self.guards.jumps:
                raise refused(self.guards.jumps[name], Unsupported(JUMPS))
            if name in self.model.initializers:
                try:
                    return literal(self.model.initializers[name], name)
                except Unsupported as error:
                    raise Unsupported(f"the initializer {shown(name)}: {error}") from None
            raise Unsupported(f"{shown(name)} is a result without a bound, as a place is")
        return self.values[name]

    def _lower(self, node: Node, position: int) -> None:
        values, sink = self.values, self.sink
        try:
            inputs = [
                self.known(name) if name and name not in sink.sequences else None
                for name in node.inputs
            ]
            first = int(node.op_type == "Where")  # of whose condition its rule speaks
            for place, item in enumerate(inputs[first:], first):
                if isinstance(item, Constant) and item.sources and not item.is_float:
                    sink.untracked.update(item.sources)
                    inputs[place] = replace(item, sources={})
            if sink.count is not None:
                from lipcert.core.lower.fixed_batch import of_one_example  # noqa: PLC0415  for these

                inputs = of_one_example(node, inputs, sink.count)
            kind = None
            if any(isinstance(value, Data) and not value.is_real for value in inputs):
                from lipcert.core.lower.truth import judged  # noqa: PLC0415  for such alone

                kind, inputs = judged(node, inputs)
            call = Call(node, position, self.model.opset.get("", 0), inputs, sink)
            start = len(sink.steps)
            found = rule_of(node, inputs)(call)
            call.check_read()
        except Unsupported as error:
            raise (refused(node, error) if error.node is None else error) from None
        except (ValueError, IndexError, KeyError, TypeError, OverflowError, ZeroDivisionError):
            raise refused(node, Unsupported("its inputs and attributes do not fit")) from None
        results = found if isinstance(found, list) else [found]
        if kind is not None:
            results = [replace(x, kind=kind) if isinstance(x, Data) else x for x in results]
        spend(sum(map(p.kept_entries, sink.steps[start:])))
        if node.op_type != "Constant":  # which the file holds
            given = [value for value in inputs if isinstance(value, Constant)]
            spend(made_entries([value for value in results if isinstance(value, Constant)], given))
        own = {step.output: place for place, step in enumerate(sink.steps[start:], start)}
        for name, value in zip(node.outputs, results, strict=False):
            if not name:
                continue
            values[name] = value
            if isinstance(value, Data) and value.kind not in _SPELT and value.name in own:
                place = own.pop(value.name)
                sink.steps[place] = replace(sink.steps[place], output=name)
                values[name] = replace(value, name=name)


def _check_stated(name: str, value: Value, stated: Sequence[int], count: int | None) -> None:
    """Refuse a shape that differs from the file's. count: the file's fixed batch size, if any.

    If the batch may be of any size, the file may state the shape for one size.
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


def _check_finite(step: p.Step, model: Model) -> None:
    """Refuse infinities, except in a mask that is part of an attention."""
    if step.op.hides:
        return
    known = all(is_finite(x.lo) and is_finite(x.hi) for x in p.operands(step.op))
    if not (step.op.is_final and known):
        raise refused(model.nodes[step.node], Unsupported("a constant is not finite"))


def _covered(raw: Sequence[p.Step], steps: Sequence[p.Step], walk: Walk) -> tuple[str, ...]:
    """Return what became of each node; one that jumps is a part of the function around it."""
    final, used = {step.node for step in steps}, {step.node for step in raw}
    read = {*(step.output for step in raw[-1:]), *(name for step in raw for name in step.inputs)}
    result = []
    needed = {position for position, _ in walk.nodes}
    parts = frozenset[str]() if walk.guards is None else walk.guards.parts
    for position, node in enumerate(walk.model.nodes):
        made = [value for value in map(walk.values.get, node.outputs) if isinstance(value, Data)]
        if position not in needed:
            result.append("unused")
        elif position in final:
            result.append("step")
        elif position in used or not parts.isdisjoint(node.outputs):
            result.append("part")
        elif made:
            result.append("part" if any(value.name in read for value in made) else "unused")
        else:
            result.append("constant")
    return tuple(result)
