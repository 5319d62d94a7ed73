"""Products of matrices: dense layers, products of two values, dot-product attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from lipcert.audit.lowering.dispatch import Tensors, aligned, constants, lower
from lipcert.ops.attention import Attention
from lipcert.ops.combine import MatMul
from lipcert.ops.linear import Dense


@lower.register
def _dense(op: Dense, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    del op
    return functional.linear(inputs[0], tensors["weight"], tensors.get("bias"))


@lower.register
def _matmul(op: MatMul, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    del op, tensors
    rank = max(x.dim() for x in inputs) - 1
    a, b = (aligned(x, rank) for x in inputs)
    return a @ b


@lower.register
def _attention(op: Attention, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    q, k, v = inputs
    mask = tensors.get("mask")
    if q.dim() == 4:  # one axis of heads: the layout of the fused kernels
        return functional.scaled_dot_product_attention(
            q, k.transpose(-2, -1), v, attn_mask=mask, scale=float(op.scale)
        )
    scores = float(op.scale) * (q @ k)
    if mask is not None:
        scores = scores + mask
    return torch.softmax(scores, dim=-1) @ v


@constants.register
def _attention_constants(op: Attention, dtype: torch.dtype, device: torch.device) -> Tensors:
    if op.mask is None:
        return {}
    return {"mask": torch.tensor(op.mask, dtype=dtype, device=device)}
