"""Gradients of one node's operands, summed over a batch, from its value and a scaled cotangent.

What enters: a [examples, ...] and c_i·b_i of the same examples. What leaves: Σ_i c_i ∂ℓ_i/∂A in
the shape of the operand A, and from there to its place in the parameter θ. One product for each
matrix or kernel, no forward pass; other operands are small, and differentiated by autograd.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lipcert.graph.operand import Operand
from lipcert.measure.gradient_norms.convolution import KernelGradient, library_gradient, readable
from lipcert.measure.gradient_norms.dense import DenseWeight
from lipcert.measure.gradient_norms.entrywise import BiasGradient
from lipcert.measure.gradient_norms.plan import OperandPlan, arranged
from lipcert.measure.lowering import LoweredNetwork
from lipcert.measure.lowering.network import operand_tensor


def summed_gradient(
    network: LoweredNetwork, trained: OperandPlan, value: Tensor | None, cotangent: Tensor
) -> Tensor:
    """Σ_i ∂⟨cotangent_i, output_i⟩/∂operand, of the operand's shape.

    value: None only where the gradient needs none.
    """
    use, value = trained.use, None if value is None else value.to(cotangent.dtype)
    a, b = arranged(use.node, value, cotangent)
    shape = use.operand.shape
    if isinstance(trained.gradient, BiasGradient):
        return b.sum_to_size((1, *trained.gradient.placed)).reshape(shape)
    if value is None or a is None:
        raise ValueError(f"node {use.node.name!r}: its value was not kept")
    match trained.gradient:
        case DenseWeight():
            return b.flatten(0, -2).mT @ a.flatten(0, -2)
        case KernelGradient(geometry, groups, transposed):
            a, b = (b, a) if transposed else (a, b)
            return library_gradient(readable(a, geometry), b, shape, geometry, groups)
    with torch.enable_grad():
        operand = network.operands(use.node)[use.slot].detach().clone().requires_grad_()
        operands = {**network.operands(use.node), use.slot: operand}
        output = network.lowered(use.node, [value], operands)
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
