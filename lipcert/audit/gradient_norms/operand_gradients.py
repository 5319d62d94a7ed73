"""Which gradient formula belongs to which operand of which op.

What enters: a node and one of its slots. What leaves: an `OperandGradient`. Invariant: an op with
operands that is not known here is refused, never skipped.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lipcert.audit.gradient_norms.convolution import KernelGradient
from lipcert.audit.gradient_norms.dense import DenseWeight
from lipcert.audit.gradient_norms.method import OperandGradient
from lipcert.audit.gradient_norms.normalised import ChannelScale
from lipcert.audit.gradient_norms.reductions import (
    BiasGradient,
    DivisorGradient,
    ScaleGradient,
    SlopeGradient,
)
from lipcert.core.program import Shape
from lipcert.errors import NoVerdictError
from lipcert.ir import Node
from lipcert.ops.affine import Divide, Scale, Shift
from lipcert.ops.conv import Conv, ConvTranspose
from lipcert.ops.entrywise import PRelu
from lipcert.ops.linear import Dense
from lipcert.ops.normalize import BatchNorm


def operand_gradient(node: Node, slot: str, tensors: Mapping[str, Tensor]) -> OperandGradient:
    """The gradient of the operand in `slot`; `tensors`: the node's operands in torch."""
    op = node.op
    operand = op.operands()[slot]
    rank = len(node.shape)
    trailing: Shape = (*[1] * (rank - len(operand.shape)), *operand.shape)
    channel: Shape = (*operand.shape, *[1] * (rank - 1))
    match op, slot:
        case Dense(), "weight":
            return DenseWeight()
        case Conv(geometry=geometry, groups=groups), "weight":
            return KernelGradient(geometry, groups, transposed=False)
        case ConvTranspose(geometry=geometry, groups=groups), "weight":
            return KernelGradient(geometry, groups, transposed=True)
        case ((Conv() | ConvTranspose() | BatchNorm()), "bias"):
            return BiasGradient(channel)
        case ((Dense() | Shift() | Scale()), "bias"):
            return BiasGradient(trailing)
        case Scale(), "scale":
            return ScaleGradient(trailing)
        case Divide(), "divisor":
            return DivisorGradient(trailing, tensors["divisor"])
        case PRelu(), "slope":
            return SlopeGradient(trailing)
        case BatchNorm(mean=mean, inverse=inverse), "scale":
            device = tensors["scale"].device
            return ChannelScale(*(torch.tensor(a, device=device) for a in (mean, inverse)))
        case _:
            raise NoVerdictError(
                f"node {node.name!r} ({op.kind}): no per-example gradient of its {slot} is known, "
                "so this model cannot be audited; report the missing operation"
            )
