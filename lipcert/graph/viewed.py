"""Numbers of parameters: read back from the operands that show them, and shown by these.

Input: a graph, and other numbers of its parameters. Output: its own numbers, and the
same graph whose operands show the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from lipcert.core.program import FloatArray
from lipcert.errors import NoVerdictError
from lipcert.graph.ir import Graph, Operand

_ROUNDINGS: Final = 4 * float(np.finfo(np.float64).eps)


def viewed(operand: Operand, whole: FloatArray) -> FloatArray:
    """What the operand is when its parameter is `whole`: scale · θ[places], else 0, + plus."""
    if operand.places is None:
        view = whole.reshape(operand.shape)
    else:
        view = np.where(operand.places >= 0, whole.reshape(-1)[operand.places], 0.0)
    shown: FloatArray = view if operand.scale == 1.0 else operand.scale * view
    return shown if operand.plus is None else shown + operand.plus


def parameters_of(graph: Graph) -> Mapping[str, FloatArray]:
    """The numbers of every parameter of the graph, in its own shape.

    They are read back from the operands; an entry that no operand reads is 0, for no output
    depends on it. Raises NoVerdictError where two operands show different numbers for one entry.
    """
    found: dict[str, FloatArray] = {
        name: np.zeros(parameter.shape) for name, parameter in graph.parameters.items()
    }
    # plain views last: they hold the numbers of the file without any rounding
    for use in sorted(graph.uses(), key=lambda use: use.operand.is_plain):
        _read_back(use.operand, found[use.parameter])
    for use in graph.uses():
        expected = viewed(use.operand, found[use.parameter])
        if not np.allclose(expected, use.operand.array, rtol=_ROUNDINGS, atol=0.0):
            raise NoVerdictError(
                f"node {use.node.name!r}: its operand is not a view of the parameter "
                f"{use.parameter!r}, "
                "so the network cannot be replayed with other weights; this is a defect of "
                "LipCert: report it with the model"
            )
    return found


def _read_back(operand: Operand, parameter: FloatArray) -> None:
    if operand.scale == 0.0:
        return
    numbers = operand.array if operand.plus is None else operand.array - operand.plus
    numbers = numbers if operand.scale == 1.0 else numbers / operand.scale
    if operand.places is None:
        parameter[...] = numbers.reshape(parameter.shape)
    else:
        read: npt.NDArray[np.bool_] = operand.places >= 0
        np.put(parameter, operand.places[read], numbers[read])


def is_shown(graph: Graph, parameter: str, whole: FloatArray) -> bool:
    """Whether every operand of a parameter holds what it would hold for these numbers."""
    uses = [use.operand for use in graph.uses(parameter)]
    return bool(uses) and all(
        np.allclose(
            viewed(operand, whole),
            operand.array,
            rtol=0.0 if operand.is_plain else _ROUNDINGS,
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
