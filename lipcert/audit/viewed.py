"""The graph with other numbers: what its operands show when its parameters have changed.

What enters: a graph, and θ by the names of its parameters. What leaves: the same graph whose
operands show these numbers, for rules that read weights. Torch has no part in this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from lipcert.ir import Graph
from lipcert.operand import Operand
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
    uses = [use.operand for use in graph.uses(parameter)]
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
    """The graph at other weights; parameters that are not named keep their numbers.

    Its operands show them; its steps hold the numbers of the file.
    """
    nodes = tuple(
        replace(node, operands={k: _at(item, weights) for k, item in node.operands.items()})
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes)


def _at(operand: Operand, weights: Mapping[str, FloatArray]) -> Operand:
    whole = None if operand.parameter is None else weights.get(operand.parameter)
    return operand if whole is None else replace(operand, array=viewed(operand, whole))
