"""The weights that are replayed, as the ops see them.

What enters: a graph, and weights of its parameters where they are not those of the file. What
leaves: the array of every operand, node by node.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lipcert.ir import Node
from lipcert.operand import Operand
from lipcert.upper import FloatArray


def replayed_arrays(
    node: Node, weights: Mapping[str, FloatArray] | None
) -> Mapping[str, FloatArray]:
    """The operands of a node by slot, with θ replaced where `weights` names it."""
    operands = node.op.operands()
    return {slot: _array(operand, weights or {}) for slot, operand in operands.items()}


def _array(operand: Operand, weights: Mapping[str, FloatArray]) -> FloatArray:
    if operand.parameter is None or operand.parameter not in weights:
        return operand.array
    theta = np.asarray(weights[operand.parameter], dtype=np.float64).ravel()
    if operand.places is None:
        return operand.scale * theta.reshape(operand.shape)
    picked = np.where(operand.places >= 0, theta[np.maximum(operand.places, 0)], 0.0)
    return operand.scale * picked
