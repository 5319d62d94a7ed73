"""Networks evaluated in torch: every op of the graph as a differentiable function of tensors.

What enters: a graph, a dtype and a device. What leaves: a `LoweredNetwork`, whose float64 values
are those of `ir.evaluate` up to rounding. Importing this package registers every op.
"""

from __future__ import annotations

from lipcert.audit.lowering import (
    clips,
    convolutions,
    elementwise,
    functions,
    move,
    normalizations,
    pooling,
    products,
    reductions,
)
from lipcert.audit.lowering.dispatch import Tensors, lowered
from lipcert.audit.lowering.network import LoweredNetwork, Tap
from lipcert.audit.lowering.operands import parameters_of

__all__ = [
    "LoweredNetwork",
    "Tap",
    "Tensors",
    "clips",
    "convolutions",
    "elementwise",
    "functions",
    "lowered",
    "move",
    "normalizations",
    "parameters_of",
    "pooling",
    "products",
    "reductions",
]
