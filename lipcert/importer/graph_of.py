"""The graph of a program: its steps as nodes, for one example without the axis of the batch.

What enters: the program of a model, the model, and which of its initializers are parameters. What
leaves: an `ir.Graph` of the same values under the same names, but for those between a scaling and
a shift by one node of the file. A value whose first axis has the length 1 stands there without it,
any other as it is; a step that needs that axis stands between two reshapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import final

from lipcert.core import program as p
from lipcert.core.lower.values import indices
from lipcert.core.reader.records import Model
from lipcert.importer.step_ops import IMAGES, StepOp, example, works_on_examples
from lipcert.importer.views import Operands
from lipcert.ir import Graph, Node, Parameter
from lipcert.ops.affine import Scale, Shift
from lipcert.ops.base import Op
from lipcert.ops.move import Move


def graph_of(program: p.Program, model: Model, parameters: Mapping[str, Parameter]) -> Graph:
    """The graph of a program; `parameters` are named by initializers of the model.

    The graph has those of them that an operand shows, in the order of use, and `folded` ones for
    operands that show none but are computed from some (`Operands`).
    """
    operands = Operands(program, model, parameters)
    translation = _Translation(program)
    for number, step in enumerate(program.steps):
        translation.add(number, step, operands)
    nodes = _named(translation.nodes, model)
    used = dict.fromkeys(
        operand.parameter
        for node in nodes
        for operand in node.op.operands().values()
        if operand.parameter is not None
    )
    source = program.input
    shown = {name: operands.parameters[name] for name in used}
    return Graph(source, example(program.shapes[source]), program.output, nodes, shown)


@final
class _Translation:
    """Nodes so far, named by their outputs alone, each with the step that it belongs to."""

    def __init__(self, program: p.Program) -> None:
        self.nodes: list[tuple[p.Step, Node]] = []
        self._program = program
        self._readers = Counter(name for step in program.steps for name in step.inputs)
        self._shapes = {program.input: example(program.shapes[program.input])}

    def add(self, number: int, step: p.Step, operands: Operands) -> None:
        """One more step."""
        given = [self._program.shapes[name] for name in step.inputs]
        if isinstance(step.op, IMAGES) and given[0][0] != 1:
            self._images(StepOp(step, number, given, operands, 0, swapped=True))
            return
        kept = not works_on_examples(step, given)
        op = StepOp(step, number, given, operands, 0 if kept else 1).op()
        pairs = zip(step.inputs, given, strict=True)
        inputs: Sequence[str] = [self._reshaped(step, *pair) if kept else pair[0] for pair in pairs]
        op, inputs = self._merged(step, op, inputs)
        shape = op.output_shape([self._shapes[name] for name in inputs])
        if shape == example(step.shape):
            self._append(step, op, inputs, step.output)
        else:
            found = self._append(step, op, inputs)
            self._append(step, Move(shape, indices(example(step.shape))), [found], step.output)

    def _merged(self, step: p.Step, op: Op, inputs: Sequence[str]) -> tuple[Op, Sequence[str]]:
        """A shift and the scaling before it, by one node of the file, are one op."""
        if not (self.nodes and isinstance(op, Shift)):
            return op, inputs
        before, last = self.nodes[-1]
        alone = last.output == inputs[0] and self._readers[last.output] == 1
        if not (alone and before.node == step.node and isinstance(last.op, Scale)):
            return op, inputs
        self.nodes.pop()
        return Scale(last.op.scale, op.bias), last.inputs

    def _images(self, found: StepOp) -> None:
        """Several images of one example, which stand along an axis behind the channels instead."""
        step, (given,) = found.step, found.given
        turned = self._append(step, Move(given, indices(given).swapaxes(0, 1)), step.inputs)
        result = self._append(step, found.op(), [turned])
        shape = self._shapes[result]
        self._append(step, Move(shape, indices(shape).swapaxes(0, 1)), [result], step.output)

    def _reshaped(self, step: p.Step, name: str, shape: p.Shape) -> str:
        """A value in another shape."""
        own = self._shapes[name]
        return name if own == shape else self._append(step, Move(own, indices(shape)), [name])

    def _append(self, step: p.Step, op: Op, inputs: Sequence[str], output: str = "") -> str:
        """One more node; its output has a new name if it is none of the program."""
        number, name = 1, output
        while name in self._shapes or not (name and (output or name not in self._program.shapes)):
            name, number = f"{step.output}#{number}", number + 1
        self._shapes[name] = op.output_shape([self._shapes[value] for value in inputs])
        self.nodes.append((step, Node(name, op, tuple(inputs), name, self._shapes[name])))
        return name


def _named(nodes: Sequence[tuple[p.Step, Node]], model: Model) -> tuple[Node, ...]:
    """Nodes by the names that they have in the file; several of one node with numbers."""
    owners = [model.nodes[step.node].name or step.output for step, _ in nodes]
    several = Counter(owners)
    taken: set[str] = set()
    found = []
    for owner, (_, node) in zip(owners, nodes, strict=True):
        number, name = 1, owner if several[owner] == 1 else f"{owner}/1"
        while name in taken:
            number += 1
            name = f"{owner}/{number}"
        taken.add(name)
        found.append(replace(node, name=name))
    return tuple(found)
