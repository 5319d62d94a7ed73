"""Which operands are a trained parameter itself, whose gradient is known from one use."""

from __future__ import annotations

from collections import Counter

from lipcert.ir import Graph, Node
from lipcert.upper import ONE


def trained_slots(graph: Graph, node: Node) -> frozenset[str]:
    """The slots of a node that hold a trained parameter, or some view of one."""
    return frozenset(
        slot
        for slot, operand in node.op.operands().items()
        if operand.parameter is not None and graph.parameters[operand.parameter].trainable
    )


def plain_slots(graph: Graph) -> dict[str, frozenset[str]]:
    """By node: the trained slots that hold all entries of a parameter once, used nowhere else.

    Then the norms of the operand and of its gradient are those of the parameter.
    """
    operands = [operand for node in graph.nodes for operand in node.op.operands().values()]
    uses = Counter(operand.parameter for operand in operands)
    return {
        node.name: frozenset(
            slot
            for slot in trained_slots(graph, node)
            for operand in [node.op.operands()[slot]]
            if uses[operand.parameter] == 1
            and operand.gain == ONE
            and operand.array.size == graph.parameters[str(operand.parameter)].size
        )
        for node in graph.nodes
    }
