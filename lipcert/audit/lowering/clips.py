"""Clips of a private training run: of a layer's input, and of its upstream cotangent.

What enters: x, a radius. What leaves: x within the radius, differentiated as the function it is;
or x itself, whose cotangent the backward pass clips example by example.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.function import Function, FunctionCtx

from lipcert.audit.lowering.dispatch import Tensors, lower
from lipcert.ops.clip import ClipNorm, CotangentClip, InputClip


def with_clipped_cotangent(x: Tensor, radius: float, norm: ClipNorm = ClipNorm.L2) -> Tensor:
    """x, whose cotangent g becomes g·min(1, radius/|g|) in the backward pass, per example."""
    if math.isinf(radius):
        return x.view_as(x)
    clipped: Tensor = _ClippedCotangent.apply(x, radius, norm)  # type: ignore[no-untyped-call]
    return clipped


@lower.register
def _cotangent_clip(op: CotangentClip, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    del tensors
    return with_clipped_cotangent(inputs[0], op.radius.value, op.norm)


@lower.register
def _input_clip(op: InputClip, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    del tensors
    return _clipped(inputs[0], op.radius.value, ClipNorm.L2)


class _ClippedCotangent(Function):
    """The identity with a clipped backward pass."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, radius: float, norm: ClipNorm) -> Tensor:
        """x, as a tensor of its own."""
        del radius, norm
        return x.view_as(x)

    @staticmethod
    def setup_context(
        ctx: FunctionCtx, inputs: tuple[Tensor, float, ClipNorm], output: Tensor
    ) -> None:
        """Keeps the radius and the norm."""
        del output
        _, ctx.radius, ctx.norm = inputs  # type: ignore[attr-defined]

    @staticmethod
    def backward(ctx: FunctionCtx, *cotangents: Tensor) -> tuple[Tensor, None, None]:
        """The clipped cotangent."""
        (cotangent,) = cotangents
        radius, norm = ctx.radius, ctx.norm  # type: ignore[attr-defined]
        return _clipped(cotangent, radius, norm), None, None


def _clipped(x: Tensor, radius: float, norm: ClipNorm) -> Tensor:
    """x·min(1, radius/|x|) for each example; NaN where the norm is NaN."""
    exact = torch.promote_types(x.dtype, torch.float32)  # norms overflow in half precision
    flat = x.unsqueeze(-1).flatten(1)
    if norm is ClipNorm.L15 and x.dim() > 2:
        flat = torch.linalg.vector_norm(x.flatten(2), ord=1, dim=2, dtype=exact)
    lengths = torch.linalg.vector_norm(flat, dim=1, dtype=exact)
    factors = radius / torch.clamp(lengths, min=radius)
    return (x * factors.reshape(-1, *[1] * (x.dim() - 1))).to(x.dtype)
