"""Exponentials, logarithms, powers and quotients: bounded where the domain allows it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from lipcert.importer.build.builder import Builder, Handler, RefusedNodeError
from lipcert.importer.raw import RawNode
from lipcert.ops.activation import Activation
from lipcert.ops.affine import Divide, Scale
from lipcert.ops.combine import Quotient
from lipcert.ops.functions import Exp, Exponential, Log, Power, ScalarFunction


def _applied(function: ScalarFunction) -> Handler:
    return lambda builder, node: builder.emit(Activation(function), builder.value(node.inputs[0]))


def _power(builder: Builder, node: RawNode) -> str:
    """x^p or b^x with one constant number; x^0 is 1 everywhere."""
    base, exponent = node.inputs
    if builder.is_data(base) and builder.is_data(exponent):
        raise RefusedNodeError(
            "a power of two values that depend on the data is not supported",
            remedy="write it as Exp(y * Log(x))",
        )
    is_base = builder.is_data(base)
    constant = builder.constant(exponent if is_base else base, "exponent or base")
    number = constant.uniform()
    if number is None:
        raise RefusedNodeError("an exponent or base that differs from entry to entry")
    if is_base and number == 1.0:
        value = builder.value(base)
    else:
        function = Power(number) if is_base else Exponential(number)
        value = builder.emit(Activation(function), builder.value(base if is_base else exponent))
    return builder.expand(value, builder.layout(node.outputs[0]).example_shape)


def _divide(builder: Builder, node: RawNode) -> str:
    data, divisor = node.inputs
    if builder.is_data(data) and builder.is_data(divisor):
        return builder.emit(Quotient(), builder.value(data), builder.value(divisor))
    if builder.is_data(divisor):
        inverse = builder.emit(Activation(Power(-1.0)), builder.value(divisor))
        inverse = builder.expand(inverse, builder.layout(node.outputs[0]).example_shape)
        return builder.emit(Scale(builder.operand(builder.aligned(data, node))), inverse)
    constant = builder.aligned(divisor, node)
    if not np.all(constant.array):
        raise RefusedNodeError("division by zero", "LC016")
    value = builder.expand(builder.value(data), builder.layout(node.outputs[0]).example_shape)
    return builder.emit(Divide(builder.operand(constant)), value)


HANDLERS: Final[Mapping[str, Handler]] = MappingProxyType(
    {
        "Div": _divide,
        "Exp": _applied(Exp()),
        "Log": _applied(Log()),
        "Pow": _power,
        "Reciprocal": _applied(Power(-1.0)),
        "Sqrt": _applied(Power(0.5)),
    }
)
