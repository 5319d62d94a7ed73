"""Functions of one number in torch; at a kink the slope is the one of torch's own function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from lipcert.audit.lowering.signature import Function
from lipcert.core.program import Activation

SOFTPLUS_GUARD: Final = 40.0
"""above it ln(1 + e^x) and x are the same number even in float64"""


def _gelu_tanh(x: Tensor, slope: float | None = None, cubic: float = 0.0) -> Tensor:
    if slope is None:
        return functional.gelu(x, approximate="tanh")
    return x * torch.sigmoid(2.0 * slope * (x + cubic * x**3))


def _celu(x: Tensor, alpha: float) -> Tensor:
    # torch's own celu rounds 1/alpha to float32 in its gradient, even in float64
    return alpha * functional.elu(x / alpha)


FUNCTIONS: Final[Mapping[str, Callable[..., Tensor]]] = MappingProxyType(
    {
        "relu": torch.relu,
        "leaky_relu": functional.leaky_relu,
        "abs": torch.abs,
        "clip": torch.clamp,
        "hard_sigmoid": lambda x, slope, offset: torch.clamp(slope * x + offset, 0.0, 1.0),
        "hard_swish": functional.hardswish,
        "elu": functional.elu,
        "selu": lambda x, alpha, gain: gain * functional.elu(x, alpha),
        "celu": _celu,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "atan": torch.atan,
        "softplus": lambda x: functional.softplus(x, threshold=SOFTPLUS_GUARD),
        "softsign": functional.softsign,
        "erf": torch.erf,
        "sin": torch.sin,
        "cos": torch.cos,
        "gelu": functional.gelu,
        "gelu_tanh": _gelu_tanh,
        "silu": functional.silu,
        "quick_gelu": lambda x, alpha: x * torch.sigmoid(alpha * x),
        "mish": functional.mish,
        "exp": torch.exp,
        "log": torch.log,
        "sqrt": torch.sqrt,
        "reciprocal": torch.reciprocal,
        "power": torch.pow,
        "soft_threshold": functional.softshrink,
    }
)
"""by the names of `core.program.Activation`, whose numbers stand behind x"""


def activation(op: Activation) -> Function:
    """The function with its numbers."""
    function = FUNCTIONS[op.name]
    return lambda x, _: function(x[0], *op.numbers)
