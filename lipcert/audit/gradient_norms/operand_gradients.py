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
from lipcert.audit.gradient_norms.rows import TableGradient
from lipcert.core.program import BatchNorm, Conv, Dense, Embedding, PRelu, Scale, Shape, Shift
from lipcert.errors import NoVerdictError
from lipcert.graph.evaluate import member
from lipcert.graph.ir import Node


def arranged(node: Node, value: Tensor | None, cotangent: Tensor) -> tuple[Tensor | None, Tensor]:
    """What a node read and received, as the gradients of its operands have it.

    That is [examples, *shape] with the axes of the program, but for an axis 0 that the examples
    stand along; what a BatchNorm reads has its channels first.
    """
    if node.in_place:
        return value, cotangent
    read = None if value is None else _placed(node, value, node.given[0])
    return read, _placed(node, cotangent, node.step.shape)


def _placed(node: Node, tensor: Tensor, shape: Shape) -> Tensor:
    whole = tensor.reshape(len(tensor), *shape)
    return whole.swapaxes(1, 2) if isinstance(node.op, BatchNorm) else whole


def operand_gradient(node: Node, slot: str, tensors: Mapping[str, Tensor]) -> OperandGradient:
    """The gradient of the operand in `slot`; `tensors`: the node's operands in torch.

    It is one of tensors that are `arranged`.
    """
    operand = node.operands[slot]
    first = 1 if node.in_place else 0
    rank = len(node.step.shape) - first
    match node.op, slot:
        case Dense(), "weight":
            return DenseWeight()
        case Embedding(), "weight":
            return TableGradient(operand.shape[0])
        case Conv(groups=groups, transposed=transposed), "weight":
            return KernelGradient(node.geometry, groups, transposed)
        case ((Conv() | BatchNorm()), "bias"):
            return BiasGradient((*operand.shape, *[1] * (rank - 1)))
        case Dense(), "bias":
            return BiasGradient((*[1] * (rank - 1), *operand.shape))
        case ((Shift() | Scale()), "bias"):
            return BiasGradient(operand.shape[first:])
        case Scale(), "scale":
            return ScaleGradient(operand.shape[first:])
        case Scale(), "divisor":
            return DivisorGradient(operand.shape[first:], tensors["divisor"])
        case PRelu(), "slope":
            return SlopeGradient(operand.shape[first:])
        case BatchNorm(mean=mean, inverse=inverse), "scale":
            device = tensors["scale"].device
            numbers = (torch.tensor(member(item), device=device) for item in (mean, inverse))
            return ChannelScale(*numbers)
        case _:
            raise NoVerdictError(
                f"node {node.name!r} ({node.kind}): no per-example gradient of its {slot} is "
                "known, so this model cannot be audited; report the missing operation"
            )
