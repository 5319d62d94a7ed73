"""Activation functions, Clip and PRelu."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Final

import numpy as np

from lipcert.importer.build.builder import Builder, Handler, RefusedNodeError
from lipcert.importer.opsets import MICROSOFT
from lipcert.importer.raw import RawNode
from lipcert.operand import Operand
from lipcert.ops.activation import Activation, PRelu
from lipcert.ops.affine import Divide, Scale
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

Read = Callable[[RawNode], ScalarFunction]


def _applied(read: Read) -> Handler:
    return lambda builder, node: builder.emit(Activation(read(node)), builder.value(node.inputs[0]))


def _plain(function: ScalarFunction) -> Handler:
    return lambda builder, node: builder.emit(Activation(function), builder.value(node.inputs[0]))


def _gelu(builder: Builder, node: RawNode) -> str:
    if "numbers" in node.attributes:
        return _spelled_gelu(builder, node)
    is_approximate = node.text("approximate", "none") == "tanh"
    value = builder.value(node.inputs[0])
    if node.domain == MICROSOFT and len([name for name in node.inputs if name]) > 1:
        raise RefusedNodeError("Gelu with a built-in bias is not supported")
    return builder.emit(Activation(Gelu(approximate=is_approximate)), value)


def _spelled_gelu(builder: Builder, node: RawNode) -> str:
    """Macro layer: gain·f(x) with the numbers of the file; the gain is nearly always 1."""
    numbers, gain = node.attributes["numbers"], node.attributes["gain"]
    function = ErfGate(*numbers) if len(numbers) == 1 else TanhGate(*numbers)
    value = builder.emit(Activation(function), builder.value(node.inputs[0]))
    if gain == 1:
        return value
    if Fraction(float(gain)) == gain:
        return builder.emit(Scale(Operand(np.array(float(gain)))), value)
    return builder.emit(Divide(Operand(np.array(float(1 / gain)))), value)


def _fast_gelu(builder: Builder, node: RawNode) -> str:
    if len([name for name in node.inputs if name]) > 1:
        raise RefusedNodeError("FastGelu with a built-in bias is not supported")
    return builder.emit(Activation(Gelu(approximate=True)), builder.value(node.inputs[0]))


def _swish(builder: Builder, node: RawNode) -> str:
    sharpness = Fraction(node.attributes.get("alpha", 1))  # exact in a macro layer
    function = Silu() if sharpness == 1 else QuickGelu(sharpness)
    return builder.emit(Activation(function), builder.value(node.inputs[0]))


def _clip(builder: Builder, node: RawNode) -> str:
    low, high = node.real("min", -math.inf), node.real("max", math.inf)
    if node.since_version >= 11:
        low = _limit(builder, node, 1, -math.inf)
        high = _limit(builder, node, 2, math.inf)
    return builder.emit(Activation(Clip(low, high)), builder.value(node.inputs[0]))


def _limit(builder: Builder, node: RawNode, position: int, default: float) -> float:
    name = node.input(position)
    if not name:
        return default
    constant = builder.constant(name, "limit")
    limit = constant.entry()
    if limit is None:
        raise RefusedNodeError("a limit of Clip must be one constant number")
    return limit


def _hard_swish(node: RawNode) -> ScalarFunction:
    """A macro layer has the slope of the file."""
    return HardGate(node.attributes["slope"]) if "slope" in node.attributes else HardSwish()


def _prelu(builder: Builder, node: RawNode) -> str:
    slope = builder.aligned(node.inputs[1], node)
    operand = builder.weight(slope, node.inputs[1])
    return builder.emit(PRelu(operand), builder.value(node.inputs[0]))


def _selu(node: RawNode) -> ScalarFunction:
    """Version 1 has shorter default constants."""
    scale, gain = 1.67326319217681884765625, 1.05070102214813232421875
    if node.since_version < 6:
        scale, gain = 1.6732, 1.0507
    return Selu(node.real("alpha", scale), node.real("gamma", gain))


HANDLERS: Final[Mapping[str, Handler]] = MappingProxyType(
    {
        "Abs": _plain(Abs()),
        "Atan": _plain(Atan()),
        "Celu": _applied(lambda node: Celu(node.real("alpha", 1.0))),
        "Clip": _clip,
        "Cos": _plain(Cos()),
        "Elu": _applied(lambda node: Elu(node.real("alpha", 1.0))),
        "Erf": _plain(Erf()),
        "FastGelu": _fast_gelu,
        "Gelu": _gelu,
        "HardSigmoid": _applied(
            lambda node: HardSigmoid(node.real("alpha", 0.2), node.real("beta", 0.5))
        ),
        "HardSwish": _applied(_hard_swish),
        "LeakyRelu": _applied(lambda node: LeakyRelu(node.real("alpha", 0.01))),
        "Mish": _plain(Mish()),
        "PRelu": _prelu,
        "QuickGelu": _applied(lambda node: QuickGelu(node.real("alpha", 1.702))),
        "Relu": _plain(Relu()),
        "RootMultiple": _applied(lambda node: RootMultiple(node.attributes["square"])),
        "Selu": _applied(_selu),
        "Sigmoid": _plain(Sigmoid()),
        "Sin": _plain(Sin()),
        "SoftThreshold": _applied(lambda node: SoftThreshold(node.attributes["limit"])),
        "Softplus": _plain(Softplus()),
        "Softsign": _plain(Softsign()),
        "Swish": _swish,
        "Tanh": _plain(Tanh()),
    }
)
