"""The graph of a program: its steps under the names of the file, with views of the parameters.

The graph has the values of the program under the same names, but for those between a scaling and a
shift by one node of the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

from lipcert.core import program as p
from lipcert.core.reader.records import Model
from lipcert.graph.evaluate import member
from lipcert.graph.ir import JOINED, ROLES, Graph, Node, Operand, Parameter, example
from lipcert.importer.views import Operands


def graph_of(program: p.Program, model: Model, parameters: Mapping[str, Parameter]) -> Graph:
    """The graph of a program; `parameters` are named by initializers of the model.

    The graph has those of them that an operand shows, in the order of use, and `folded` ones for
    operands that show none but are computed from some (`Operands`).
    """
    operands = Operands(program, model, parameters)
    readers = Counter(name for step in program.steps for name in step.inputs)
    nodes: list[Node] = []
    for number, step in enumerate(program.steps):
        given = tuple(program.shapes[name] for name in step.inputs)
        node = Node(step.output, step, given, _operands(number, step, operands))
        if nodes and _is_one_affine_map(nodes[-1], node, readers):
            last = nodes.pop()
            joined = replace(last.step, output=step.output, shape=step.shape)
            node = replace(last, step=joined, operands={**last.operands, **node.operands})
        nodes.append(node)
    used = dict.fromkeys(use.parameter for node in nodes for use in node.uses())
    shape = example(program.shapes[program.input])
    shown = {name: operands.parameters[name] for name in used}
    made = {part.name: part.name for part in program.parts}
    if program.heads:
        made[program.output] = JOINED
    named = _named(nodes, model, made)
    return Graph(
        program.input,
        shape,
        program.output,
        named,
        shown,
        ids=program.ids,
        heads=program.heads,
        parts=program.parts,
    )


def _operands(number: int, step: p.Step, operands: Operands) -> Mapping[str, Operand]:
    """The operands of a step by their roles."""
    found: dict[str, Operand] = {}
    for item in fields(step.op):
        operand = getattr(step.op, item.name)
        if isinstance(operand, p.Operand) and item.name in ROLES:
            slot, role = (number, item.name), ROLES[item.name]
            role = "divisor" if operands.is_inverted(slot) else role
            found[role] = operands.of(slot, operand)
    if isinstance(step.op, p.BatchNorm):
        found["mean"] = Operand(member(step.op.mean))
        variance = operands.stored(step.op.inverse)
        if variance is not None:
            found["variance"] = Operand(variance)
    return found


def _is_one_affine_map(scale: Node, shift: Node, readers: Mapping[str, int]) -> bool:
    """Whether a shift and the scaling before it are one node of the file."""
    alone = scale.output == shift.inputs[0] and readers[scale.output] == 1
    return (
        alone
        and isinstance(shift.op, p.Shift)
        and scale.operands.keys() == {"scale"}
        and scale.step.node == shift.step.node
    )


def _named(nodes: Sequence[Node], model: Model, made: Mapping[str, str]) -> tuple[Node, ...]:
    """Nodes by the names that they have in the file; several of one node with numbers.

    made: names for what computes values that no node of the file does: several outputs, joined, and
    each of several inputs.
    """
    owners = [
        made.get(node.output) or model.nodes[node.step.node].name or node.output for node in nodes
    ]
    several = Counter(owners)
    taken: set[str] = set()
    found = []
    for owner, node in zip(owners, nodes, strict=True):
        number, name = 1, owner if several[owner] == 1 else f"{owner}/1"
        while name in taken:
            number += 1
            name = f"{owner}/{number}"
        taken.add(name)
        found.append(replace(node, name=name))
    return tuple(found)
