"""From a model to a `Program`.

Contract: in real arithmetic, the steps compute what the file computes for a batch of one example.
Of several outputs, they then put the entries of each one after another, into one row.
Shapes that the file states of its results are compared with those that its nodes have here.
If `batch_proved`, moreover, for a batch of any size N, entry i of the output is this function of
entry i of the input: the first dimension of the input is read as N, and every rule keeps the
examples apart (`values`). A model of which a rule says that it does not is refused. A model whose
sizes are fixed, so that no rule can follow N, is read as one example at a time; so is one whose
batch has the fixed size 1, if its nodes only move entries of the batch, such as x[0].
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Final, final

from lipcert.core.budget import spend
from lipcert.core.lower.call import Call, Sink
from lipcert.core.lower.errors import MixingError, ReadsAcrossError, Unsupported
from lipcert.core.lower.macros import rewritten
from lipcert.core.lower.operators import JUMPING, JUMPS, rule_of
from lipcert.core.lower.values import (
    Constant,
    Data,
    Kind,
    Value,
    is_finite,
    leaves,
    literal,
    made_entries,
)
from lipcert.core.paths import needed_steps
from lipcert.core.program import (
    Attention,
    Head,
    Hide,
    Operand,
    Place,
    Program,
    Step,
    kept_entries,
)
from lipcert.core.reader.records import Branch, Input, Model, Node, Tensor, shown, with_nested

if TYPE_CHECKING:
    from lipcert.core.lower.branches import Splicer
    from lipcert.core.lower.guards import Guards

_VERSIONS: Final = range(7, 27)
_HALVES: Final = frozenset({"float16", "bfloat16"})
_HALF_CODES: Final = frozenset({10, 16})
_SPELT: Final = frozenset({"untruth", "hiding"})
"""kinds of values of which a step has others than the tensor of the file"""


def lower(model: Model, *outputs: str) -> Program:
    """The program of one output, or of several, joined; `Unsupported` with the node and why."""
    version = model.opset.get("", 0)
    if version not in _VERSIONS:
        raise Unsupported(
            f"operator set {version} of ONNX is not supported; export with one from"
            f" {_VERSIONS.start} to {_VERSIONS.stop - 1}, or convert with onnx.version_converter"
        )
    if not 0 < len(outputs) == len(set(outputs)):
        raise Unsupported("the outputs that the loss reads are not different ones")
    walk = Walk.of(model, *outputs, batched=True)
    first = walk.count or ""
    try:
        return _lowered(walk, outputs)
    except Unsupported as error:
        mixes = isinstance(error, ReadsAcrossError) or (
            isinstance(error, MixingError) and first != 1
        )
        if mixes or not isinstance(first, int):
            raise
    return _lowered(Walk.of(model, *outputs, batched=False), outputs)


def has_halves(model: Model) -> bool:
    """Whether a tensor of the file, or one that its nodes compute, may be narrower than float32.

    Proof: the type of a result is that of an input, of a tensor in an attribute, or is named by an
    attribute `to` or `dtype` of its node.
    """
    types = {tensor.dtype for tensor in model.initializers.values()}
    types.update(item.dtype for item in model.inputs)
    codes = set()
    for node in with_nested(model.nodes):
        for name, attribute in node.attributes.items():
            if isinstance(attribute.value, Tensor):
                types.add(attribute.value.dtype)
            if name in {"to", "dtype"}:
                codes.add(attribute.value)
    return not codes.isdisjoint(_HALF_CODES) or not types.isdisjoint(_HALVES)


def branches_taken(model: Model) -> dict[str, Branch]:
    """The branch that each If takes whose condition is a constant, by its first output."""
    if all(node.op_type != "If" for node in model.nodes):
        return {}
    found: dict[str, Branch] = {}
    for batched in (False, True):
        splicer = _splicer(model, batched=batched)
        splicer.nodes()
        found |= splicer.taken
    return found


def _splicer(model: Model, *, batched: bool) -> Splicer:
    """What puts branches in place, with all inputs that hold numbers of fixed shape."""
    from lipcert.core.lower.branches import Splicer  # noqa: PLC0415  for models with an If only

    starts = _starts([item for item in model.inputs if not _fault(item)], batched=batched)
    walk = Walk(model, enumerate(model.nodes), *starts, batched=batched, count=None)
    return Splicer(model, walk.node, walk.chosen)


def _live(
    model: Model, outputs: Sequence[str], *, batched: bool
) -> tuple[list[tuple[int, Node]], Set[str]]:
    """The nodes that outputs are computed from, with their positions, and the names they read."""
    nodes = list(enumerate(model.nodes))
    if any(node.op_type == "If" for node in model.nodes):
        nodes = _splicer(model, batched=batched).nodes()
    names, kept = set(outputs), []
    for position, node in reversed(nodes):
        if not names.isdisjoint(filter(None, node.outputs)):
            names.update(filter(None, node.inputs))
            kept.append((position, node))
    return kept[::-1], names


def _sources(model: Model, names: Set[str]) -> list[Input]:
    """The inputs among these names, of which the first dimensions are one and all others fixed."""
    inputs = [item for item in model.inputs if item.name in names]
    if not inputs:
        raise Unsupported("the output depends on 0 inputs instead of one")
    for source in inputs:
        fault = _fault(source)
        if fault:
            raise Unsupported(f"the input {shown(source.name)} {fault}")
    firsts = [(item.dims or ("",))[0] for item in inputs]
    sizes = {size if isinstance(size, int) else "" for size in firsts}
    if len(sizes) > 1:
        raise Unsupported("the inputs do not hold equally many examples along axis 0")
    return inputs


def _fault(source: Input) -> str:
    """What is wrong with an input; "" for none."""
    if not source.dtype.startswith(("float", "bfloat", "int", "uint")):
        return "does not hold numbers"
    if source.dtype == "uint64":  # int64, which whole numbers become, would make some negative
        return "is of type uint64; feed int64"
    dims = source.dims
    if not dims or any(not isinstance(size, int) or size < 1 for size in dims[1:]) or dims[0] == 0:
        return "is not of fixed shape behind axis 0"
    return ""


def _starts(sources: Sequence[Input], *, batched: bool) -> Iterator[Data]:
    """The inputs for one example, or for all of a fixed batch."""
    for source in sources:
        first, *rest = source.dims or ("",)
        size = first if isinstance(first, int) and not batched else 1
        dims = [item for item in rest if isinstance(item, int)]
        kind: Kind = "whole" if source.dtype.startswith(("int", "uint")) else "real"
        yield Data(source.name, (size, *dims), Place(0) if batched else None, kind)


def _lowered(walk: Walk, outputs: Sequence[str]) -> Program:
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
    heads: tuple[Head, ...] = ()
    (result, *others) = results
    if others:
        from lipcert.core.lower.joining import joined_outputs  # noqa: PLC0415  for such alone

        heads = tuple(
            Head(name, value.shape, value.place)
            for name, value in zip(outputs, results, strict=True)
        )
        result = joined_outputs(results, heads, walk.positions(outputs), sink)
    raw = needed_steps(sink.steps, result.name)
    steps = rewritten(raw, starts, result.name, sink)
    for step in steps:
        _check_finite(step, model)
    start, *more = starts
    program = Program(
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

    return with_joined_inputs(program, starts, walk.readers(program.covered), sink)


def _at(node: Node, error: Unsupported) -> Unsupported:
    """The refusal of a node."""
    where = f"node {shown(node.name)} ({shown(node.op_type)})"
    return type(error)(error.reason, where, node)


def _guards(model: Model, values: dict[str, Value], sink: Sink) -> Guards | None:
    """What follows the nodes that jump, where there are any."""
    if all(node.domain or node.op_type not in JUMPING for node in with_nested(model.nodes)):
        return None
    from lipcert.core.lower.guards import Guards  # noqa: PLC0415  for such models only

    return Guards(values, sink)


@final
class Walk:
    """The values of the nodes so far, beginning with initializers and, optionally, inputs.

    nodes: those that are to be walked, with their positions in the file. count: the fixed size of
    the batch, if examples are read as ones of it.
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
        self.sink = Sink(taken, batched, has_halves(model), fixed)
        self.values: dict[str, Value] = {start.name: start for start in starts}
        for name in sorted({name for _, node in self.nodes for name in node.inputs}):
            if name in model.initializers:
                with suppress(Unsupported):  # which `known` says of one that matters
                    self.values[name] = literal(model.initializers[name], name)
        self._guards = _guards(model, self.values, self.sink)
        self.jumps: Mapping[str, Node] = {} if self._guards is None else self._guards.jumps

    @classmethod
    def of(cls, model: Model, *outputs: str, batched: bool) -> Walk:
        """The walk to outputs, from the inputs that they depend on."""
        nodes, names = _live(model, outputs, batched=batched)
        sources = _sources(model, names)
        first = (sources[0].dims or ("",))[0]
        starts = _starts(sources, batched=batched)
        count = first if isinstance(first, int) and batched else None
        return cls(model, nodes, *starts, batched=batched, count=count)

    @property
    def parts(self) -> Set[str]:
        """The values that jump, or are parts of functions that are written with such."""
        return set() if self._guards is None else self._guards.parts

    def readers(self, covered: Sequence[str]) -> dict[str, int]:
        """For every name, the first node that reads it and computes a value."""
        found: dict[str, int] = {}
        for position, node in self.nodes:
            if covered[position] in {"step", "part"}:
                for name in node.inputs:
                    found.setdefault(name, position)
        return found

    def positions(self, outputs: Sequence[str]) -> list[int]:
        """Of the nodes that compute these outputs; of the last node, for what none computes."""
        makers = {name: position for position, node in self.nodes for name in node.outputs}
        if not makers:
            raise Unsupported("no node computes the output")
        return [makers.get(name, max(makers.values())) for name in outputs]

    def node(self, node: Node, position: int) -> None:
        """Add the outputs of a node, or of the branch that a constant condition chooses."""
        if node.op_type == "If" and not node.domain:
            self._branch(node, position)
            return
        made = [node] if self._guards is None else self._guards.taken(node)
        for item in made:
            self._lower(item, position)
        if not made or made[0] is node:
            return
        result = self.values[node.outputs[0]]
        others = [self.values[name] for name in node.inputs if name in self.values]
        if not all(leaves(other, result) for other in others):
            raise _at(node, Unsupported("its inputs have shapes that do not fit"))

    def known(self, name: str) -> Value:
        """A value, or why there is none."""
        if name not in self.values:
            if name in self.jumps:
                raise _at(self.jumps[name], Unsupported(JUMPS))
            if name in self.model.initializers:
                try:
                    return literal(self.model.initializers[name], name)
                except Unsupported as error:
                    raise Unsupported(f"the initializer {shown(name)}: {error}") from None
            raise Unsupported(f"{shown(name)} is a result that is not supported")
        return self.values[name]

    def chosen(self, node: Node) -> Branch:
        """The branch that an If takes."""
        condition = self.values.get(node.inputs[0])
        if not isinstance(condition, Constant) or condition.lo.size != 1:
            raise _at(node, Unsupported("it branches on the data; export one branch alone"))
        condition.check_fixed()
        chosen = node.attributes.get("then_branch" if condition.lo.all() else "else_branch")
        if chosen is None or not isinstance(chosen.value, Branch):
            raise _at(node, Unsupported("the branch that it takes is missing"))
        if len(chosen.value.outputs) != len(node.outputs):
            raise _at(node, Unsupported("its branches have other outputs"))
        return chosen.value

    def _branch(self, node: Node, position: int) -> None:
        chosen = self.chosen(node)
        for inner in chosen.nodes:
            self.node(inner, position)
        for name, result in zip(node.outputs, chosen.outputs, strict=True):
            self.values[name] = self.known(result)

    @staticmethod
    def _kind(node: Node, inputs: Sequence[Value | None]) -> Kind | None:
        """The kind of a node's result from whole numbers and truth values; None: its rule
        decides."""
        if all(not isinstance(value, Data) or value.is_real for value in inputs):
            return None
        from lipcert.core.lower.truth import kind_made  # noqa: PLC0415  for such values only

        return kind_made(node, inputs)

    def _lower(self, node: Node, position: int) -> None:
        values, sink = self.values, self.sink
        try:
            inputs = [
                self.known(name) if name and name not in sink.sequences else None
                for name in node.inputs
            ]
            if sink.count is not None:
                from lipcert.core.lower.fixed_batch import of_one_example  # noqa: PLC0415  for these

                inputs = of_one_example(node, inputs, sink.count)
            call = Call(node, position, self.model.opset.get("", 0), inputs, sink)
            start = len(sink.steps)
            kind = self._kind(node, inputs)
            found = rule_of(node, inputs)(call)
            call.check_read()
        except Unsupported as error:
            raise (_at(node, error) if error.node is None else error) from None
        except (ValueError, IndexError, KeyError, TypeError, OverflowError, ZeroDivisionError):
            raise _at(node, Unsupported("its inputs and attributes do not fit")) from None
        results = found if isinstance(found, list) else [found]
        if kind is not None:
            results = [
                replace(value, kind=kind) if isinstance(value, Data) else value for value in results
            ]
        spend(sum(map(kept_entries, sink.steps[start:])))
        if node.op_type != "Constant":  # which the file holds
            given = [value for value in inputs if isinstance(value, Constant)]
            spend(made_entries([value for value in results if isinstance(value, Constant)], given))
        own = {step.output: place for place, step in enumerate(sink.steps) if place >= start}
        for name, value in zip(node.outputs, results, strict=False):
            if not name:
                continue
            values[name] = value
            if isinstance(value, Data) and value.kind not in _SPELT and value.name in own:
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
    """Refuse infinities: only a mask, which is part of an attention, may hold infinities."""
    if isinstance(step.op, Attention):
        return
    if isinstance(step.op, Hide):
        raise _at(model.nodes[step.node], Unsupported("a constant is not finite"))
    operands = [getattr(step.op, item.name) for item in fields(step.op)]
    for operand in operands:
        if isinstance(operand, Operand) and not (is_finite(operand.lo) and is_finite(operand.hi)):
            raise _at(model.nodes[step.node], Unsupported("a constant is not finite"))


def _covered(raw: Sequence[Step], steps: Sequence[Step], walk: Walk) -> tuple[str, ...]:
    """What became of each node; of one that jumps, a part of the function around it."""
    final, used = {step.node for step in steps}, {step.node for step in raw}
    read = {*(step.output for step in raw[-1:]), *(name for step in raw for name in step.inputs)}
    result = []
    needed = {position for position, _ in walk.nodes}
    for position, node in enumerate(walk.model.nodes):
        outputs = [walk.values.get(name) for name in node.outputs]
        if position not in needed:
            result.append("unused")
        elif position in final:
            result.append("step")
        elif position in used or not walk.parts.isdisjoint(node.outputs):
            result.append("part")
        elif all(not isinstance(value, Data) for value in outputs):
            result.append("constant")
        else:
            alias = any(isinstance(v, Data) and (v.name in read) for v in outputs)
            result.append("part" if alias else "unused")
    return tuple(result)
