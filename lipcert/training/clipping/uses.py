"""TrainedUse: every operand of a graph that is trained, with the formula of its gradient.

What enters: a network. What leaves: its trained uses by name of the node. Invariant: the order is
that of the graph, and none is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from lipcert.audit.gradient_norms.method import OperandGradient
from lipcert.audit.gradient_norms.operand_gradients import operand_gradient
from lipcert.audit.lowering import LoweredNetwork
from lipcert.ir import Node
from lipcert.operand import Operand


@final
@dataclass(frozen=True, slots=True, eq=False)
class TrainedUse:
    """The operand in one slot of one node, a view of the trained `parameter`."""

    node: Node
    slot: str
    operand: Operand
    parameter: str
    gradient: OperandGradient


def trained_uses(network: LoweredNetwork) -> Mapping[str, tuple[TrainedUse, ...]]:
    """By node; nodes without any are missing. Raises NoVerdictError for an unknown gradient."""
    graph = network.graph
    found: dict[str, list[TrainedUse]] = {}
    for node in graph.nodes:
        tensors = network.operands(node)
        for slot, operand in node.operands.items():
            name = operand.parameter
            if name is not None and graph.parameters[name].trainable:
                gradient = operand_gradient(node, slot, tensors)
                use = TrainedUse(node, slot, operand, name, gradient)
                found.setdefault(node.name, []).append(use)
    return {name: tuple(uses) for name, uses in found.items()}
