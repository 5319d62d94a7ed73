"""Networks evaluated in torch: every step of the program as a differentiable function of tensors.

What enters: a graph, a dtype and a device. What leaves: a `LoweredNetwork`, whose float64 values
are those of `evaluate.evaluate_batch` up to rounding.
"""

from __future__ import annotations

from lipcert.audit.lowering.dispatch import lowered
from lipcert.audit.lowering.network import LoweredNetwork, Tap
from lipcert.audit.lowering.signature import Tensors

__all__ = ["LoweredNetwork", "Tap", "Tensors", "lowered"]
