"""Activations against their torch definitions, with attributes that frameworks rarely use."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch
from torch.nn import functional

from lipcert.operand import Operand
from lipcert.ops.activation import Activation, PRelu
from lipcert.ops.functions import (
    Abs,
    Atan,
    Celu,
    Clip,
    Cos,
    Elu,
    Erf,
    ErfGate,
    Gelu,
    HardGate,
    HardSigmoid,
    HardSwish,
    LeakyRelu,
    Mish,
    QuickGelu,
    Relu,
    RootMultiple,
    ScalarFunction,
    Selu,
    Sigmoid,
    Silu,
    Sin,
    Softplus,
    Softsign,
    SoftThreshold,
    Tanh,
    TanhGate,
)
from tests.audit.lowering.cases.case import Case


def elu(scale, gain=1.0, width=1.0):
    return lambda x: (
        gain * torch.where(x > 0, x, scale * torch.expm1(torch.clamp(x, max=0.0) / width))
    )


TORCH = {
    "relu": (Relu(), torch.relu),
    "abs": (Abs(), torch.abs),
    "leaky": (LeakyRelu(0.1), lambda x: functional.leaky_relu(x, 0.1)),
    "leaky_steep": (LeakyRelu(3.0), lambda x: torch.where(x > 0, x, 3.0 * x)),
    "leaky_negative": (LeakyRelu(-2.0), lambda x: torch.where(x > 0, x, -2.0 * x)),
    "clip": (Clip(-0.5, 1.0), lambda x: torch.clamp(x, -0.5, 1.0)),
    "soft_threshold": (SoftThreshold(0.3), lambda x: functional.softshrink(x, 0.3)),
    "clip_away_from_zero": (Clip(0.5, 1.0), lambda x: torch.clamp(x, 0.5, 1.0)),
    "hard_sigmoid": (HardSigmoid(1 / 6, 0.5), lambda x: torch.clamp(x / 6 + 0.5, 0, 1)),
    "hard_sigmoid_falling": (HardSigmoid(-3.0, 0.2), lambda x: torch.clamp(0.2 - 3 * x, 0, 1)),
    "elu": (Elu(1.0), functional.elu),
    "elu_steep": (Elu(2.5), elu(2.5)),
    "elu_negative": (Elu(-1.5), elu(-1.5)),
    "selu": (Selu(), torch.selu),
    "selu_custom": (Selu(-2.0, -0.7), elu(-2.0, gain=-0.7)),
    "celu": (Celu(0.4), elu(0.4, width=0.4)),
    "sigmoid": (Sigmoid(), torch.sigmoid),
    "tanh": (Tanh(), torch.tanh),
    "atan": (Atan(), torch.atan),
    "softplus": (Softplus(), lambda x: torch.logaddexp(x, torch.zeros_like(x))),
    "softsign": (Softsign(), functional.softsign),
    "erf": (Erf(), torch.erf),
    "gelu": (Gelu(), functional.gelu),
    "gelu_tanh": (Gelu(approximate=True), lambda x: functional.gelu(x, approximate="tanh")),
    "erf_gate": (
        ErfGate(Fraction(0.6)),
        lambda x: 0.5 * x * (1.0 + torch.erf(0.6 * x)),
    ),
    "tanh_gate": (
        TanhGate(Fraction(0.9), Fraction(0.1)),
        lambda x: 0.5 * x * (1.0 + torch.tanh(0.9 * (x + 0.1 * x**3))),
    ),
    "hard_gate": (HardGate(Fraction(0.2)), lambda x: x * torch.clamp(0.2 * x + 0.5, 0.0, 1.0)),
    "root_multiple": (RootMultiple(Fraction(2)), lambda x: x * 2.0**0.5),
    "silu": (Silu(), functional.silu),
    "quick_gelu": (QuickGelu(1.702), lambda x: x * torch.sigmoid(1.702 * x)),
    "quick_gelu_mirrored": (QuickGelu(-0.8), lambda x: x * torch.sigmoid(-0.8 * x)),
    "mish": (Mish(), functional.mish),
    "hard_swish": (HardSwish(), functional.hardswish),
    "sin": (Sin(), torch.sin),
    "cos": (Cos(), torch.cos),
}
BOXES = {"ball": None, "positive": (0.25, 1.5), "negative": (-2.0, -0.125), "mixed": (-0.5, 4.0)}


def activation_case(name: str, function: ScalarFunction, reference, boxed: str) -> Case:
    name = f"{name}_{boxed}"
    return Case(
        name=name,
        op=Activation(function),
        inputs=((2, 3),),
        reference=lambda inputs, _: reference(inputs[0]),
        box=BOXES[boxed],
    )


def prelu_case(name: str, slope, shape, box=None) -> Case:
    return Case(
        name=f"prelu_{name}",
        op=PRelu(Operand(np.array(slope, dtype=float), "slope")),
        inputs=(shape,),
        reference=lambda inputs, operands: torch.where(
            inputs[0] >= 0, inputs[0], operands["slope"] * inputs[0]
        ),
        box=box,
    )


CASES = [
    activation_case(name, function, reference, boxed)
    for name, (function, reference) in TORCH.items()
    for boxed in BOXES
] + [
    prelu_case("shared", [0.25], (3, 2, 2)),
    prelu_case("per_channel", [[[0.25]], [[-1.75]], [[0.0]]], (3, 2, 2)),
    prelu_case("per_entry", [[0.5, -0.5, 2.0]], (1, 3)),
    prelu_case("bounded", [[[3.0]], [[0.5]]], (2, 2, 3), box=(-0.25, 1.0)),
    prelu_case("positive", [[[3.0]], [[0.5]]], (2, 2, 3), box=(0.125, 0.75)),
]
