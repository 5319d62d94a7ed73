"""Entry by entry: operands broadcast into a value, and values among themselves."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lipcert.audit.lowering.dispatch import Tensors, aligned, lower
from lipcert.ops.affine import Divide, Scale, Shift
from lipcert.ops.combine import Add, Multiply, Quotient
from lipcert.ops.entrywise import PRelu


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


def _of_one_rank(inputs: Sequence[Tensor]) -> list[Tensor]:
    rank = max(x.dim() for x in inputs) - 1
    return [aligned(x, rank) for x in inputs]
