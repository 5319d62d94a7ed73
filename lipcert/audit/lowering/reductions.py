"""Reductions over axes, what is left of x without its mean or norm, and softmax along an axis.

No axes at all: nothing is reduced, whereas torch would reduce everything.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lipcert.audit.lowering.signature import Function
from lipcert.core import program as p
from lipcert.graph.evaluate import member


def reduction(op: p.Op) -> Function:
    """The step in torch; TypeError for other kinds of steps."""
    if isinstance(op, p.DivideByNorm):
        radius = 1.0 / member(op.share).item()
        return lambda x, _: _divided(x[0], op, radius)
    return lambda x, _: _along(x[0], op)


def _along(x: Tensor, op: p.Op) -> Tensor:
    match op:
        case p.ReduceSum(axes, mean):
            reduce = x.mean if mean else x.sum
            return reduce(axes, keepdim=True) if axes else x.view_as(x)
        case p.ReduceMax():
            return _extreme(x, op)
        case p.ReduceNorm():
            return _norm(x, op)
        case p.ReduceLogSumExp(axes):
            return torch.logsumexp(x, axes, keepdim=True) if axes else x.view_as(x)
        case p.Centre(axes):
            return x - x.mean(axes, keepdim=True)
        case p.Softmax(axis, logarithm):
            return (torch.log_softmax if logarithm else torch.softmax)(x, dim=axis)
    raise TypeError(f"{type(op).__name__} has no implementation in torch")


def _divided(x: Tensor, op: p.DivideByNorm, radius: float) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(x, dim=op.axes, keepdim=True)
    return x / (norms / radius).clamp(min=op.floor)


def _norm(x: Tensor, op: p.ReduceNorm) -> Tensor:
    if not op.axes:
        return torch.abs(x)
    if op.floor:
        powers = torch.abs(x) if op.p == 1 else x * x
        summed = powers.sum(op.axes, keepdim=True) + op.floor
        return summed if op.p == 1 else torch.sqrt(summed)
    norms: Tensor = torch.linalg.vector_norm(x, ord=op.p, dim=op.axes, keepdim=True)
    return norms


def _extreme(x: Tensor, op: p.ReduceMax) -> Tensor:
    """The cotangent goes to one of the largest entries, as pooling has it."""
    for axis in sorted(op.axes, reverse=True):
        x = (torch.min if op.minimum else torch.max)(x, dim=axis, keepdim=True).values
    return x.view_as(x)
