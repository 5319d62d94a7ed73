"""The scalar functions that `Activation` applies entry by entry, under one roof."""

from __future__ import annotations

from lipcert.ops.gates import Gelu, HardSwish, Mish, QuickGelu, Silu
from lipcert.ops.kinks import (
    Abs,
    Celu,
    Clip,
    Elu,
    HardSigmoid,
    LeakyRelu,
    Relu,
    Selu,
    SoftThreshold,
)
from lipcert.ops.multiple import RootMultiple
from lipcert.ops.own_gates import ErfGate, HardGate, TanhGate
from lipcert.ops.scalar import ScalarFunction
from lipcert.ops.smooth import Atan, Cos, Erf, Sigmoid, Sin, Softplus, Softsign, Tanh

__all__ = [
    "Abs",
    "Atan",
    "Celu",
    "Clip",
    "Cos",
    "Elu",
    "Erf",
    "ErfGate",
    "Gelu",
    "HardGate",
    "HardSigmoid",
    "HardSwish",
    "LeakyRelu",
    "Mish",
    "QuickGelu",
    "Relu",
    "RootMultiple",
    "ScalarFunction",
    "Selu",
    "Sigmoid",
    "Silu",
    "Sin",
    "SoftThreshold",
    "Softplus",
    "Softsign",
    "Tanh",
    "TanhGate",
]
