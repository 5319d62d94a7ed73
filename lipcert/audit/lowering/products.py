"""Products of matrices: dense layers, products of two values, dot-product attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from lipcert.audit.lowering.signature import Function, Tensors, of_one_rank
from lipcert.core.program import Attention
from lipcert.graph.evaluate import member


def dense(x: Sequence[Tensor], tensors: Tensors) -> Tensor:
    """`Dense`."""
    return functional.linear(x[0], tensors["weight"], tensors.get("bias"))


def embedding(x: Sequence[Tensor], tensors: Tensors) -> Tensor:
    """`Embedding`; NaN for numbers of which the table has no row."""
    table, numbers = tensors["weight"], x[0].long()
    found = functional.embedding(numbers % len(table), table)
    known = (numbers >= -len(table)) & (numbers < len(table))
    return found.masked_fill(~known.unsqueeze(-1), torch.nan)


def matmul(x: Sequence[Tensor], _: Tensors) -> Tensor:
    """`MatMul`."""
    a, b = of_one_rank(x)
    return a @ b


def attention(op: Attention, like: Tensor) -> Function:
    """`Attention`."""
    mask = None if op.mask is None else torch.tensor(member(op.mask)).to(like)

    def attended(x: Sequence[Tensor], _: Tensors) -> Tensor:
        q, k, v, *hidden = x
        if hidden:
            return _hidden(op, mask, of_one_rank(x))
        if q.dim() == 4:  # one axis of heads: the layout of the fused kernels
            return functional.scaled_dot_product_attention(
                q, k.transpose(-2, -1), v, attn_mask=mask, scale=op.scale
            )
        scores = op.scale * (q @ k)
        if mask is not None:
            scores = scores + mask
        return torch.softmax(scores, dim=-1) @ v

    return attended


def _hidden(op: Attention, mask: Tensor | None, x: Sequence[Tensor]) -> Tensor:
    """With scores hidden by a value; 0 for a query that sees nothing, as in torch's attention."""
    q, k, v, hidden = x
    scores = op.scale * (q @ k)
    if mask is not None:
        scores = scores + mask
    scores = scores.masked_fill(hidden == 1.0, torch.finfo(scores.dtype).min)
    return (torch.softmax(scores, dim=-1) * (hidden == 0.0)) @ v
