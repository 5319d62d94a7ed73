"""Gradients of one node's operands, summed over a batch, from its value and a scaled cotangent.

What enters: a [examples, ...] and c_i·b_i of the same examples. What leaves: Σ_i c_i ∂ℓ_i/∂A in
the shape of the operand A, and from there to its place in the parameter θ. One product for each
matrix or kernel, no forward pass; other operands are small, and differentiated by autograd.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lipcert.audit.gradient_norms.reductions import BiasGradient
from lipcert.audit.gradient_norms.windows import library_gradient, readable
from lipcert.audit.lowering import lowered
from lipcert.audit.lowering.operands import operand_tensor
from lipcert.operand import Operand
from lipcert.ops.conv import Conv, ConvTranspose
from lipcert.ops.linear import Dense
from lipcert.training.clipping.uses import TrainedUse


def summed_gradient(
    use: TrainedUse, value: Tensor | None, cotangent: Tensor, operands: Mapping[str, Tensor]
) -> Tensor:
    """Σ_i ∂⟨cotangent_i, output_i⟩/∂operand, of the operand's shape.

    value: None only where the gradient needs none.
    """
    op = use.node.op
    if isinstance(use.gradient, BiasGradient):
        placed = (1, *use.gradient.placed)
        return cotangent.sum_to_size(placed).reshape(use.operand.shape)
    if value is None:
        raise ValueError(f"node {use.node.name!r}: its value was not kept")
    value = value.to(cotangent.dtype)
    match op, use.slot:
        case Dense(), "weight":
            return cotangent.flatten(0, -2).mT @ value.flatten(0, -2)
        case Conv(geometry=geometry, groups=groups), "weight":
            read = readable(value, geometry)
            return library_gradient(read, cotangent, use.operand.shape, geometry, groups)
        case ConvTranspose(geometry=geometry, groups=groups), "weight":
            read = readable(cotangent, geometry)
            return library_gradient(read, value, use.operand.shape, geometry, groups)
    with torch.enable_grad():
        operand = operands[use.slot].detach().clone().requires_grad_()
        output = lowered(op, [value], {**operands, use.slot: operand})
        (gradient,) = torch.autograd.grad(output, operand, cotangent)
    return gradient


def in_parameter(operand: Operand, gradient: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The gradient of an operand as one of its parameter: the adjoint of the view."""
    if operand.places is None:
        moved = gradient.reshape(shape)
        return moved if operand.scale == 1.0 else moved * operand.scale
    with torch.enable_grad():
        whole = gradient.new_zeros(shape).requires_grad_()
        view = operand_tensor(operand, {operand.parameter or "": whole}, gradient)
        (moved,) = torch.autograd.grad(view, whole, gradient)
    return moved
