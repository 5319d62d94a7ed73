"""Masks computed from whole numbers, and means over what they show."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lipcert.audit.lowering.signature import Function, Tensors
from lipcert.core.program import Compare, MaskedMean


def masking(op: Compare | MaskedMean, like: Tensor) -> Function:
    """The step in torch."""
    if isinstance(op, MaskedMean):
        return lambda x, _: _mean(op, x[0], x[1])
    limits = torch.tensor(op.limits, dtype=torch.float64, device=like.device)

    def compared(x: Sequence[Tensor], _: Tensors) -> Tensor:
        return (x[0] > limits if op.above else x[0] == limits).to(like.dtype)

    return compared


def _mean(op: MaskedMean, x: Tensor, mask: Tensor) -> Tensor:
    if not op.axes:
        return x * mask / mask.clamp(min=op.floor)
    mask = mask.expand_as(x)
    total, count = ((part).sum(op.axes, keepdim=True) for part in (x * mask, mask))
    return total / count.clamp(min=op.floor)
