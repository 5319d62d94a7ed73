"""Networks evaluated in torch: every step of the program as a differentiable function of tensors.

The float64 values of a `LoweredNetwork` are those of `graph.evaluate` up to rounding.
"""

from lipcert.measure.lowering.functions import Tensors
from lipcert.measure.lowering.network import LoweredNetwork, Tap, lowered

__all__ = ["LoweredNetwork", "Tap", "Tensors", "lowered"]
