"""Clips of a private training run: of a layer's input, and of its upstream cotangent.

What enters: x, a radius. What leaves: x within the radius, differentiated as the function it is;
or x itself, whose cotangent the backward pass clips example by example.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.autograd.function import Function as AutogradFunction
from torch.autograd.function import FunctionCtx

from lipcert.audit.lowering.signature import Function
from lipcert.core.program import CotangentClip, InputClip


def clip(op: InputClip | CotangentClip) -> Function:
    """The step in torch; what is clipped by channel is [examples, channels, ...]."""
    if isinstance(op, InputClip):
        return lambda x, _: clipped(x[0], op.radius)
    return lambda x, _: with_clipped_cotangent(x[0], op.radius, by_channel=op.by_channel)


def with_clipped_cotangent(x: Tensor, radius: float, *, by_channel: bool = False) -> Tensor:
    """x, whose cotangent g becomes g·min(1, radius/|g|) in the backward pass, per example."""
    if math.isinf(radius):
        return x.view_as(x)
    found: Tensor = _ClippedCotangent.apply(x, radius, by_channel)  # type: ignore[no-untyped-call]
    return found


def clipped(x: Tensor, radius: float, *, by_channel: bool = False) -> Tensor:
    """x·min(1, radius/|x|) for each example; NaN where the norm is NaN."""
    exact = torch.promote_types(x.dtype, torch.float32)  # norms overflow in half precision
    flat = x.unsqueeze(-1).flatten(1)
    if by_channel and x.dim() > 2:
        flat = torch.linalg.vector_norm(x.flatten(2), ord=1, dim=2, dtype=exact)
    lengths = torch.linalg.vector_norm(flat, dim=1, dtype=exact)
    factors = radius / torch.clamp(lengths, min=radius)
    return (x * factors.reshape(-1, *[1] * (x.dim() - 1))).to(x.dtype)


class _ClippedCotangent(AutogradFunction):
    """The identity with a clipped backward pass."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, radius: float, by_channel: bool) -> Tensor:
        """x, as a tensor of its own."""
        del radius, by_channel
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Tensor, float, bool], output: Tensor) -> None:
        """Keeps the radius and the norm."""
        del output
        _, ctx.radius, ctx.by_channel = inputs  # type: ignore[attr-defined]

    @staticmethod
    def backward(ctx: FunctionCtx, *cotangents: Tensor) -> tuple[Tensor, None, None]:
        """The clipped cotangent."""
        (cotangent,) = cotangents
        radius, by_channel = ctx.radius, ctx.by_channel  # type: ignore[attr-defined]
        return clipped(cotangent, radius, by_channel=by_channel), None, None
