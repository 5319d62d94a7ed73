"""The graph with other numbers: what its operands show when its parameters have changed.

What enters: a graph, and θ by the names of its parameters. What leaves: the same graph whose
operands show these numbers, for rules that read weights. Torch has no part in this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final

import numpy as np

from lipcert.errors import NoVerdictError
from lipcert.ir import Graph, Node
from lipcert.operand import Operand
from lipcert.ops.base import Op
from lipcert.upper import FloatArray

_ROUNDINGS: Final = 4 * float(np.finfo(np.float64).eps)


def viewed(operand: Operand, whole: FloatArray) -> FloatArray:
    """What the operand is when its parameter is `whole`: scale · θ[places], else 0."""
    if operand.places is None:
        view = whole.reshape(operand.shape)
    else:
        view = np.where(operand.places >= 0, whole.reshape(-1)[operand.places], 0.0)
    shown: FloatArray = view if operand.scale == 1.0 else operand.scale * view
    return shown


def is_shown(graph: Graph, parameter: str, whole: FloatArray) -> bool:
    """Whether every operand of a parameter holds what it would hold for these numbers."""
    uses = [
        operand
        for node in graph.nodes
        for operand in node.op.operands().values()
        if operand.parameter == parameter
    ]
    return bool(uses) and all(
        np.allclose(
            viewed(operand, whole),
            operand.array,
            rtol=0.0 if operand.scale == 1.0 else _ROUNDINGS,
            atol=0.0,
        )
        for operand in uses
    )


def graph_at(graph: Graph, weights: Mapping[str, FloatArray]) -> Graph:
    """The graph at other weights; parameters that are not named keep their numbers."""
    nodes = tuple(replace(node, op=_op_at(node, weights)) for node in graph.nodes)
    return replace(graph, nodes=nodes)


def _op_at(node: Node, weights: Mapping[str, FloatArray]) -> Op:
    """The op with the operands of these weights."""
    used = {
        operand
        for operand in node.op.operands().values()
        if operand.parameter is not None and operand.parameter in weights
    }
    op: Any = node.op
    if not used:
        return node.op
    own = {field.name: getattr(op, field.name) for field in fields(op)}
    held = {name: item for name, item in own.items() if isinstance(item, Operand) and item in used}
    if set(held.values()) != used:
        raise NoVerdictError(
            f"node {node.name!r}: its weights cannot be exchanged; this is a defect of LipCert: "
            "report it with the model"
        )
    changed = {
        name: replace(item, array=viewed(item, weights[str(item.parameter)]))
        for name, item in held.items()
    }
    changed_op: Any = replace(op, **changed)
    found: Op = changed_op
    return found
