"""Edits: another network in place of one, step by step.

What enters: a program or a graph. What leaves: the same with other parameter-free steps in place of
some, or in front of what some read. Invariant: values of the file keep their names and shapes, and
what happens to the program and to the graph is the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, final

import numpy as np

from lipcert.core import program as p
from lipcert.core.program import Shape
from lipcert.graph.ir import Graph, Node
from lipcert.graph.operand import Operand

Ops: TypeAlias = tuple[p.Op, ...]
"""steps in a row, each of which reads the one before"""


@final
@dataclass(frozen=True, slots=True, eq=False)
class StepEdit:
    """An `analysis.bounded.Edit` of some steps, by their outputs.

    instead: ops in place of a step, the first of which reads what the step read; none: who read the
    step reads its first input. before: ops between a step and one of its inputs, by its number.
    """

    instead: Mapping[str, Ops] = field(default_factory=dict)
    before: Mapping[tuple[str, int], Ops] = field(default_factory=dict)

    def program(self, program: p.Program) -> p.Program:
        """The program with these steps."""
        shapes, renamed = dict(program.shapes), dict[str, str]()
        steps: list[p.Step] = []
        for step in program.steps:
            made = self._steps(step, shapes, renamed)
            shapes.update((item.output, item.shape) for item in made)
            steps.extend(made)
        output = renamed.get(program.output, program.output)
        return replace(program, output=output, shapes=shapes, steps=tuple(steps))

    def graph(self, graph: Graph) -> Graph:
        """The graph with these steps; what a step that is gone showed of parameters is gone too."""
        shapes = {name: shape for node in graph.nodes for name, shape in _ends(node)}
        renamed: dict[str, str] = {}
        nodes: list[Node] = []
        for node in graph.nodes:
            made = self._steps(node.step, shapes, renamed)
            shapes.update((item.output, item.shape) for item in made)
            for number, step in enumerate(made):
                is_own = step.op is node.op
                name = node.name if number == len(made) - 1 else f"{node.name}/edit{number + 1}"
                given = tuple(shapes[value] for value in step.inputs)
                operands = node.operands if is_own else _operands(step.op)
                nodes.append(Node(name, step, given, operands))
        output = renamed.get(graph.output_name, graph.output_name)
        return replace(graph, nodes=tuple(nodes), output_name=output)

    def _steps(
        self, step: p.Step, shapes: Mapping[str, Shape], renamed: dict[str, str]
    ) -> list[p.Step]:
        """What becomes of a step. renamed: what its readers read instead, if it is gone."""
        made: list[p.Step] = []
        known = dict(shapes)

        def add(op: p.Op, reads: tuple[str, ...], output: str, shape: Shape) -> str:
            made.append(p.Step(op, reads, output, shape, step.node))
            known[output] = shape
            return output

        def fresh(tag: str) -> str:
            name = f"{step.output}#{tag}"
            while name in known:
                name += "'"
            return name

        inputs = [renamed.get(name, name) for name in step.inputs]
        for index, value in enumerate(inputs):
            for op in self.before.get((step.output, index), ()):
                value = add(op, (value,), fresh(f"in{index}"), _shape(op, known[value]))  # noqa: PLW2901
            inputs[index] = value
        ops = self.instead.get(step.output, (step.op,))
        if not ops:
            renamed[step.output] = inputs[0]
            return made
        reads = tuple(inputs)
        for op in ops[:-1]:
            reads = (add(op, reads, fresh("edit"), _shape(op, known[reads[0]])),)
        add(ops[-1], reads, step.output, step.shape)
        return made


def _shape(op: p.Op, before: Shape) -> Shape:
    """Of the value that an op of an edit computes, which keeps it unless it moves entries."""
    return op.sources.shape if isinstance(op, p.Move) else before


def _ends(node: Node) -> Iterator[tuple[str, Shape]]:
    yield from zip(node.inputs, node.given, strict=True)
    yield node.output, node.step.shape


def _operands(op: p.Op) -> Mapping[str, Operand]:
    return {"scale": Operand(op.factor.lo)} if isinstance(op, p.Scale) else {}


def constant(number: float, rank: int) -> p.Operand:
    """One number, as a step takes it beside a value of this rank."""
    array = np.full((1,) * rank, number)
    return p.Operand(array, array)


def scaling(factor: float, shape: Shape) -> p.Op:
    """Times a number."""
    return p.Scale(constant(factor, len(shape)))


def reshaping(shape: Shape) -> p.Op:
    """The same entries in the same order."""
    return p.Move(np.arange(math.prod(shape), dtype=np.int64).reshape(shape))


def with_floor(op: p.Normalize, shape: Shape, floor: float) -> Ops:
    """(x − m)/max(s, floor), s the root of the mean square of a block: bounded normalisation."""
    entries = math.prod(shape[axis] for axis in op.axes)
    share = constant(entries**-0.5, len(shape))
    divided = p.DivideByNorm(op.axes, share, floor)
    return (p.Centre(op.axes), divided) if op.centred else (divided,)


def of_unit_norm(op: p.Normalize, shape: Shape) -> Ops:
    """(x − m)/√(‖x − m‖² + 1): each block has a norm below 1."""
    entries = math.prod(shape[axis] for axis in op.axes)
    return replace(op, epsilon=1.0 / entries), scaling(entries**-0.5, shape)


def group_normalisation(
    shape: Shape, groups: int, *, floor: float | None = None, epsilon: float = 0.0
) -> Ops:
    """Normalisation of groups of channels of a value [1, channels, ...], with a floor or an ε."""
    blocks = (1, groups, math.prod(shape) // groups)
    normal = p.Normalize((2,), epsilon, centred=True)
    made = (normal,) if floor is None else with_floor(normal, blocks, floor)
    return reshaping(blocks), *made, reshaping(shape)


def max_min(shape: Shape, axis: int) -> Ops:
    """Entry i of the first half of an axis and entry i of the second, the larger one first."""
    half = shape[axis] // 2
    pairs = (*shape[:axis], 2, half, *shape[axis + 1 :])
    entries = np.arange(math.prod(shape), dtype=np.int64).reshape(pairs)
    falling = np.flip(entries, axis=axis).reshape(shape)
    return reshaping(pairs), p.Sort(axis), p.Move(np.ascontiguousarray(falling))


def averaging(op: p.MaxPool) -> Ops:
    """Means in place of maxima, over the same windows; padding does not count."""
    return (p.AveragePool(op.window, counts_padding=False),)


def attention_times(op: p.Op, factor: float) -> Ops:
    """Attention whose scores are so many times as large."""
    if not isinstance(op, p.Attention):
        raise TypeError(f"{op} is no attention")
    return (replace(op, scale=op.scale * factor),)


def cosine(node: Node, makers: Mapping[str, Node]) -> Mapping[tuple[str, int], Ops]:
    """What queries and keys pass on their way into attention: x/max(‖x‖, 1), head by head.

    Before scalings by a number, which are part of the scale of the scores.
    """
    found: dict[tuple[str, int], Ops] = {}
    for index, axis in ((0, -1), (1, -2)):
        reader, place = unscaled(node, index, makers)
        shape = reader.given[place]
        unit = p.DivideByNorm((len(shape) + axis,), constant(1.0, len(shape)), 1.0)
        found[reader.output, place] = (unit,)
    return found


def unscaled(node: Node, index: int, makers: Mapping[str, Node]) -> tuple[Node, int]:
    """The node that reads what a node reads by this number, before scalings by a number, and the
    number by which it does."""
    reader, place = node, index
    while (maker := makers.get(reader.inputs[place])) is not None and _is_number(maker):
        reader, place = maker, 0
    return reader, place


def _is_number(node: Node) -> bool:
    """Whether a node multiplies by one number of the architecture."""
    factor = node.operands.get("scale")
    is_plain = isinstance(node.op, p.Scale) and "bias" not in node.operands
    return is_plain and factor is not None and factor.parameter is None and factor.array.size == 1


def chained(edits: Sequence[StepEdit]) -> StepEdit:
    """Several edits of different steps as one."""
    instead = {name: ops for edit in edits for name, ops in edit.instead.items()}
    before: dict[tuple[str, int], Ops] = {}
    for edit in edits:
        for place, ops in edit.before.items():
            before[place] = (*before.get(place, ()), *ops)
    return StepEdit(instead, before)
