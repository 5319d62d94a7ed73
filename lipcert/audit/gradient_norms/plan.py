"""What has to be measured at each node, settled once for a network.

What enters: a lowered network. What leaves: for every node with trained operands, which gradients
to measure and how each counts towards its parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from lipcert.audit.gradient_norms.method import OperandGradient
from lipcert.audit.gradient_norms.operand_gradients import operand_gradient
from lipcert.audit.gradient_norms.shared import Scatter
from lipcert.audit.gradient_norms.uses import ParameterUses, uses_of
from lipcert.audit.lowering import LoweredNetwork
from lipcert.core.program import Conv, Dense
from lipcert.graph.ir import Node, Use


@final
@dataclass(frozen=True, slots=True, eq=False)
class OperandPlan:
    """A trained operand and its gradient.

    scatter: where the entries go in the parameter, for parameters whose uses overlap.
    """

    use: Use
    gradient: OperandGradient
    scatter: Scatter | None


@final
@dataclass(frozen=True, slots=True, eq=False)
class NodePlan:
    """The trained operands of one node.

    keeps_value: whether a gradient needs the node's input. rounds_value: whether the op itself
    rounds its input to the dtype of its output, as products do under autocast. sums_channels:
    whether a gradient comes from sums over the channels of input and output.
    """

    node: Node
    operands: tuple[OperandPlan, ...]
    keeps_value: bool
    rounds_value: bool
    sums_channels: bool


@final
@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Nodes by name, and parameters by name.

    by_channel: names of values whose squares are needed channel by channel, and of values whose
    cotangents' are.
    """

    nodes: Mapping[str, NodePlan]
    parameters: Mapping[str, ParameterUses]
    by_channel: tuple[frozenset[str], frozenset[str]]

    @classmethod
    def of(cls, network: LoweredNetwork) -> Plan:
        """Raises NoVerdictError for an operand whose gradient is not known."""
        parameters = uses_of(network.graph)
        nodes: dict[str, Node] = {}
        operands: dict[str, list[OperandPlan]] = {}
        for parameter in parameters.values():
            for use in parameter.uses:
                gradient = operand_gradient(use.node, use.slot, network.operands(use.node))
                scatter = None if parameter.disjoint else Scatter.of(use, network.device)
                plan = OperandPlan(use, gradient, scatter)
                nodes[use.node.name] = use.node
                operands.setdefault(use.node.name, []).append(plan)
        plans = {name: _node_plan(nodes[name], tuple(found)) for name, found in operands.items()}
        channelled = [plan.node for plan in plans.values() if plan.sums_channels]
        by_channel = (
            frozenset(node.inputs[0] for node in channelled),
            frozenset(node.output for node in channelled),
        )
        return cls(plans, parameters, by_channel)


def _node_plan(node: Node, operands: tuple[OperandPlan, ...]) -> NodePlan:
    sums_channels = any(plan.gradient.sums_channels(node.shape) for plan in operands)
    return NodePlan(
        node,
        operands,
        keeps_value=any(plan.gradient.needs_value for plan in operands),
        rounds_value=isinstance(node.op, Dense | Conv),
        sums_channels=node.in_place and sums_channels,
    )
