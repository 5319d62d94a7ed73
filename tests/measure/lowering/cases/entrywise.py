"""Functions of one number by their names, against their definitions in torch."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from tests.measure.lowering.cases.case import Case
from tests.ops import Activation


def exponential(gain, scale, width):
    def apply(x):
        below = scale * torch.expm1(torch.clamp(x, max=0.0) / width)
        return gain * torch.where(x > 0, x, below)

    return apply


def tanh_gate(slope, cubic):
    return lambda x: 0.5 * x * (1.0 + torch.tanh(slope * (x + cubic * x**3)))


TORCH = {
    ("relu", ()): torch.relu,
    ("abs", ()): torch.abs,
    ("leaky_relu", (0.1,)): lambda x: torch.where(x > 0, x, 0.1 * x),
    ("leaky_relu", (3.0,)): lambda x: torch.where(x > 0, x, 3.0 * x),
    ("leaky_relu", (-2.0,)): lambda x: torch.where(x > 0, x, -2.0 * x),
    ("clip", (-0.5, 1.0)): lambda x: torch.minimum(torch.maximum(x, x * 0 - 0.5), x * 0 + 1),
    ("clip", (0.5, 1.0)): lambda x: torch.clamp(x, 0.5, 1.0),
    ("clip", (0.5, math.inf)): lambda x: torch.clamp(x, min=0.5),
    ("clip", (-math.inf, 0.5)): lambda x: torch.clamp(x, max=0.5),
    ("soft_threshold", (0.3,)): lambda x: torch.sign(x) * torch.relu(x.abs() - 0.3),
    ("hard_sigmoid", (1 / 6, 0.5)): lambda x: torch.clamp(x / 6 + 0.5, 0, 1),
    ("hard_sigmoid", (-3.0, 0.2)): lambda x: torch.clamp(0.2 - 3 * x, 0, 1),
    ("hard_swish", ()): lambda x: x * torch.clamp(x / 6.0 + 0.5, 0.0, 1.0),
    ("elu", (2.5,)): exponential(1.0, 2.5, 1.0),
    ("elu", (-1.5,)): exponential(1.0, -1.5, 1.0),
    ("selu", (-2.0, -0.7)): exponential(-0.7, -2.0, 1.0),
    ("celu", (0.4,)): exponential(1.0, 0.4, 0.4),
    ("sigmoid", ()): lambda x: 1.0 / (1.0 + torch.exp(-x)),
    ("tanh", ()): torch.tanh,
    ("atan", ()): torch.atan,
    ("softplus", ()): lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    ("softsign", ()): lambda x: x / (1.0 + x.abs()),
    ("erf", ()): torch.erf,
    ("sin", ()): torch.sin,
    ("cos", ()): torch.cos,
    ("gelu", ()): lambda x: 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0))),
    ("gelu_tanh", ()): tanh_gate(math.sqrt(2.0 / math.pi), 0.044715),
    ("gelu_tanh", (0.9, 0.1)): tanh_gate(0.9, 0.1),
    ("silu", ()): lambda x: x / (1.0 + torch.exp(-x)),
    ("quick_gelu", (1.702,)): lambda x: x / (1.0 + torch.exp(-1.702 * x)),
    ("quick_gelu", (-0.8,)): lambda x: x / (1.0 + torch.exp(0.8 * x)),
    ("mish", ()): lambda x: x * torch.tanh(functional.softplus(x)),
    ("exp", ()): torch.exp,
    ("power", (0.0,)): torch.ones_like,
    ("power", (2.0,)): lambda x: x * x,
    ("power", (3.0,)): lambda x: x * x * x,
}
POSITIVE = {
    ("log", ()): torch.log,
    ("sqrt", ()): lambda x: x**0.5,
    ("reciprocal", ()): lambda x: 1.0 / x,
    ("power", (-0.5,)): lambda x: 1.0 / torch.sqrt(x),
    ("power", (2.5,)): lambda x: x * x * torch.sqrt(x),
}
NEGATIVE = {
    ("reciprocal", ()): lambda x: 1.0 / x,
    ("power", (-2.0,)): lambda x: 1.0 / (x * x),
}
BOXES = {"ball": None, "positive": (0.25, 1.5), "negative": (-2.0, -0.125), "mixed": (-0.5, 4.0)}


def case(key, reference, boxed) -> Case:
    name, numbers = key
    op = Activation(name, numbers)
    title = f"{name}_{numbers}_{boxed}"
    return Case(title, op, ((2, 3),), lambda x, _: reference(x[0]), BOXES[boxed])


CASES = [case(key, own, boxed) for key, own in TORCH.items() for boxed in BOXES]
CASES += [case(key, own, "positive") for key, own in POSITIVE.items()]
CASES += [case(key, own, "negative") for key, own in NEGATIVE.items()]
