"""Convolutions with constant kernels."""

from __future__ import annotations

from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.values import Data, Value
from lipcert.core.lower.windows import windows
from lipcert.core.program import Conv, Operand


def images(call: Call) -> Data:
    """The first input: examples on axis 0, channels on axis 1, positions behind."""
    value = call.data()
    if len(value.shape) < 2 or (value.place is not None and value.place.axis != 0):
        raise Unsupported("the batch does not lie on axis 0")
    return value


def norm_order(call: Call) -> int:
    """The p of a pool."""
    p = call.integer("p", 2)
    if p not in {1, 2}:
        raise Unsupported("only the norms 1 and 2 are supported")
    return p


def conv(call: Call) -> Value:
    """Conv and ConvTranspose of one image of each example, or of several."""
    value, weight = images(call), call.constant(1)
    transposed = call.node.op_type == "ConvTranspose"
    groups = call.integer("group", 1)
    channels, sizes, taps = value.shape[1], value.shape[2:], weight.shape[2:]
    declared = call.integers("kernel_shape")
    if declared is not None and tuple(declared) != taps:
        raise Unsupported("kernel_shape contradicts the weight")
    if len(sizes) == 0 or weight.place is not None:
        raise Unsupported("a convolution without positions, or with a kernel for each example")
    if transposed:
        from lipcert.core.lower.adjoint_windows import adjoint_windows  # noqa: PLC0415

        window, spatial = adjoint_windows(call, sizes, taps)
        inputs, outputs = weight.shape[0], weight.shape[1] * groups
    else:
        window, _ = windows(call, sizes, taps)
        spatial, inputs, outputs = window.outputs, weight.shape[1] * groups, weight.shape[0]
    if inputs != channels or groups < 1 or weight.shape[0] % groups:
        raise Unsupported("the weight does not fit the channels")
    bias: Operand | None = None
    if call.has(2):
        bias = call.constant(2).operand(1)
        if bias.shape != (outputs,):
            raise Unsupported("the bias does not fit the channels")
    op = Conv(weight.operand(len(weight.shape)), bias, window, groups, transposed)
    if value.shape[0] == 1:
        return call.step(op, value, shape=(1, outputs, *spatial), place=value.place)
    from lipcert.core.lower.stacks import of_several_images  # noqa: PLC0415  for such alone

    return of_several_images(call, op, value, weight, (outputs, *spatial))
