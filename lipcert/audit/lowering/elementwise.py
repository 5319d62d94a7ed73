"""Entry by entry: scalar functions, operands broadcast into a value, and values among themselves.

At a kink the slope is the one that torch's own function has.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce, singledispatch
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from lipcert.audit.lowering.dispatch import Tensors, aligned, lower
from lipcert.ops.activation import Activation, PRelu
from lipcert.ops.affine import Divide, Scale, Shift
from lipcert.ops.combine import Add, Extremum, Multiply, Quotient
from lipcert.ops.functions import (
    Abs,
    Atan,
    Celu,
    Clip,
    Cos,
    Elu,
    Erf,
    ErfGate,
    Exp,
    Exponential,
    Gelu,
    HardGate,
    HardSigmoid,
    HardSwish,
    LeakyRelu,
    Log,
    Mish,
    Power,
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

SOFTPLUS_GUARD: Final = 40.0
"""above it ln(1 + e^x) and x are the same number even in float64"""


@lower.register
def _activation(op: Activation, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    del tensors
    return scalar_function(op.function, inputs[0])


@singledispatch
def scalar_function(function: ScalarFunction, x: Tensor) -> Tensor:
    """The function entry by entry; NaN or infinite where it is not defined."""
    del x
    raise TypeError(f"{type(function).__name__} has no implementation in torch")


@scalar_function.register
def _relu(function: Relu, x: Tensor) -> Tensor:
    del function
    return torch.relu(x)


@scalar_function.register
def _abs(function: Abs, x: Tensor) -> Tensor:
    del function
    return torch.abs(x)


@scalar_function.register
def _leaky_relu(function: LeakyRelu, x: Tensor) -> Tensor:
    return functional.leaky_relu(x, function.slope)


@scalar_function.register
def _clip(function: Clip, x: Tensor) -> Tensor:
    return torch.clamp(x, function.low, function.high)


@scalar_function.register
def _hard_sigmoid(function: HardSigmoid, x: Tensor) -> Tensor:
    return torch.clamp(function.slope * x + function.offset, 0.0, 1.0)


@scalar_function.register
def _soft_threshold(function: SoftThreshold, x: Tensor) -> Tensor:
    return functional.softshrink(x, function.limit)


@scalar_function.register
def _elu(function: Elu, x: Tensor) -> Tensor:
    return functional.elu(x, function.scale)


@scalar_function.register
def _selu(function: Selu, x: Tensor) -> Tensor:
    return function.gain * functional.elu(x, function.scale)


@scalar_function.register
def _celu(function: Celu, x: Tensor) -> Tensor:
    # torch's own celu rounds 1/scale to float32 in its gradient, even in float64
    return function.scale * functional.elu(x / function.scale)


@scalar_function.register
def _sigmoid(function: Sigmoid, x: Tensor) -> Tensor:
    del function
    return torch.sigmoid(x)


@scalar_function.register
def _tanh(function: Tanh, x: Tensor) -> Tensor:
    del function
    return torch.tanh(x)


@scalar_function.register
def _atan(function: Atan, x: Tensor) -> Tensor:
    del function
    return torch.atan(x)


@scalar_function.register
def _softplus(function: Softplus, x: Tensor) -> Tensor:
    del function
    return functional.softplus(x, threshold=SOFTPLUS_GUARD)


@scalar_function.register
def _softsign(function: Softsign, x: Tensor) -> Tensor:
    del function
    return functional.softsign(x)


@scalar_function.register
def _erf(function: Erf, x: Tensor) -> Tensor:
    del function
    return torch.erf(x)


@scalar_function.register
def _sin(function: Sin, x: Tensor) -> Tensor:
    del function
    return torch.sin(x)


@scalar_function.register
def _cos(function: Cos, x: Tensor) -> Tensor:
    del function
    return torch.cos(x)


@scalar_function.register
def _gelu(function: Gelu, x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh" if function.approximate else "none")


@scalar_function.register
def _silu(function: Silu, x: Tensor) -> Tensor:
    del function
    return functional.silu(x)


@scalar_function.register
def _quick_gelu(function: QuickGelu, x: Tensor) -> Tensor:
    return x * torch.sigmoid(float(function.sharpness) * x)


@scalar_function.register
def _erf_gate(function: ErfGate, x: Tensor) -> Tensor:
    result: Tensor = 0.5 * x * torch.special.erfc(-float(function.slope) * x)
    return result


@scalar_function.register
def _tanh_gate(function: TanhGate, x: Tensor) -> Tensor:
    inner = float(function.slope) * (x + float(function.cubic) * x**3)
    return x * torch.sigmoid(2.0 * inner)


@scalar_function.register
def _hard_gate(function: HardGate, x: Tensor) -> Tensor:
    return x * torch.clamp(float(function.slope) * x + 0.5, 0.0, 1.0)


@scalar_function.register
def _root_multiple(function: RootMultiple, x: Tensor) -> Tensor:
    return function.factor * x


@scalar_function.register
def _mish(function: Mish, x: Tensor) -> Tensor:
    del function
    return functional.mish(x)


@scalar_function.register
def _hard_swish(function: HardSwish, x: Tensor) -> Tensor:
    del function
    return functional.hardswish(x)


@scalar_function.register
def _exp(function: Exp, x: Tensor) -> Tensor:
    del function
    return torch.exp(x)


@scalar_function.register
def _exponential(function: Exponential, x: Tensor) -> Tensor:
    return torch.pow(function.base, x)


@scalar_function.register
def _log(function: Log, x: Tensor) -> Tensor:
    del function
    return torch.log(x)


@scalar_function.register
def _power(function: Power, x: Tensor) -> Tensor:
    return torch.pow(x, function.exponent)


@lower.register
def _prelu(op: PRelu, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    del op
    (x,) = inputs
    return torch.where(x > 0.0, x, tensors["slope"] * x)


@lower.register
def _scale(op: Scale, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    del op
    if "bias" in tensors:
        return torch.addcmul(tensors["bias"], inputs[0], tensors["scale"])
    return inputs[0] * tensors["scale"]


@lower.register
def _divide(op: Divide, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    del op
    return inputs[0] / tensors["divisor"]


@lower.register
def _shift(op: Shift, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    del op
    return inputs[0] + tensors["bias"]


@lower.register
def _multiply(op: Multiply, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    del op, tensors
    a, b = _of_one_rank(inputs)
    return a * b


@lower.register
def _quotient(op: Quotient, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    del op, tensors
    a, b = _of_one_rank(inputs)
    return a / b


@lower.register
def _add(op: Add, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    del tensors
    first, *others = _of_one_rank(inputs)
    coefficient, *coefficients = op.coefficients
    # never the tensor itself: a value and the input of its node have their own cotangents
    result = first.view_as(first) if coefficient == 1.0 else coefficient * first
    for factor, term in zip(coefficients, others, strict=True):
        result = torch.add(result, term, alpha=factor)
    return result


@lower.register
def _extremum(op: Extremum, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    del tensors
    first, *others = _of_one_rank(inputs)
    return reduce(torch.maximum if op.largest else torch.minimum, others, first.view_as(first))


def _of_one_rank(inputs: Sequence[Tensor]) -> list[Tensor]:
    rank = max(x.dim() for x in inputs) - 1
    return [aligned(x, rank) for x in inputs]
