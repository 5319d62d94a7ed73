"""Reductions over axes, what is left of x without its mean or norm, and softmax along an axis.

Axes count from the first axis of the example. No axes at all: nothing is reduced, whereas torch
would reduce everything.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lipcert.audit.lowering.dispatch import Tensors, lower
from lipcert.ops.reduction import (
    Centre,
    DivideByNorm,
    ReduceLogSumExp,
    ReduceMax,
    ReduceMean,
    ReduceNorm,
    ReduceSum,
)
from lipcert.ops.softmax import LogSoftmax, Softmax


@lower.register
def _reduce_sum(op: ReduceSum, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    del tensors
    (x,) = inputs
    return x.sum(_axes(op, x), keepdim=True) if op.axes else x.view_as(x)


@lower.register
def _reduce_mean(op: ReduceMean, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    del tensors
    (x,) = inputs
    return x.mean(_axes(op, x), keepdim=True) if op.axes else x.view_as(x)


@lower.register
def _centre(op: Centre, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    del tensors
    (x,) = inputs
    return x - x.mean(_axes(op, x), keepdim=True)


@lower.register
def _divide_by_norm(op: DivideByNorm, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    del tensors
    (x,) = inputs
    norms: Tensor = torch.linalg.vector_norm(x, dim=_axes(op, x), keepdim=True)
    return x / (norms / op.radius).clamp(min=op.floor)


@lower.register
def _reduce_norm(op: ReduceNorm, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    del tensors
    (x,) = inputs
    if not op.axes:
        return torch.abs(x)
    if op.floor:
        powers = torch.abs(x) if op.p == 1 else x * x
        summed = powers.sum(_axes(op, x), keepdim=True) + op.floor
        return summed if op.p == 1 else torch.sqrt(summed)
    norms: Tensor = torch.linalg.vector_norm(x, ord=op.p, dim=_axes(op, x), keepdim=True)
    return norms


@lower.register
def _reduce_max(op: ReduceMax, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    """The cotangent goes to one of the largest entries, as pooling has it."""
    del tensors
    (x,) = inputs
    for axis in sorted(_axes(op, x), reverse=True):
        x = (torch.min if op.minimum else torch.max)(x, dim=axis, keepdim=True).values
    return x.view_as(x)


@lower.register
def _log_sum_exp(op: ReduceLogSumExp, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    del tensors
    (x,) = inputs
    return torch.logsumexp(x, _axes(op, x), keepdim=True) if op.axes else x.view_as(x)


@lower.register
def _softmax(op: Softmax, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    del tensors
    (x,) = inputs
    return torch.softmax(x, dim=_axis(op.axis, x))


@lower.register
def _log_softmax(op: LogSoftmax, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    del tensors
    (x,) = inputs
    return torch.log_softmax(x, dim=_axis(op.axis, x))


_OverAxes = (
    ReduceSum | ReduceMean | ReduceNorm | ReduceLogSumExp | ReduceMax | Centre | DivideByNorm
)


def _axes(op: _OverAxes, x: Tensor) -> tuple[int, ...]:
    return tuple(_axis(axis, x) for axis in op.axes)


def _axis(axis: int, x: Tensor) -> int:
    """The axis of the batch for an axis of the example."""
    return axis % (x.dim() - 1) + 1
