"""Normalizations: over axes, by stored statistics, local."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from lipcert.audit.lowering.signature import Function, Tensors
from lipcert.core.program import BatchNorm, LocalResponse, Normalize
from lipcert.graph.evaluate import member


def normalize(op: Normalize) -> Function:
    """Over the last axes by torch's own functions."""

    def normalized(inputs: Sequence[Tensor], _: Tensors) -> Tensor:
        (x,), axes = inputs, op.axes
        if axes == tuple(range(x.dim()))[-len(axes) :]:
            norm = functional.layer_norm if op.centred else functional.rms_norm
            found: Tensor = norm(x, x.shape[-len(axes) :], eps=op.epsilon)
            return found
        if op.centred:
            x = x - x.mean(axes, keepdim=True)
        return x * torch.rsqrt((x * x).mean(axes, keepdim=True) + op.epsilon)

    return normalized


def batch_norm(op: BatchNorm, like: Tensor) -> Function:
    """By the mean and the deviation of the program."""
    variance = torch.tensor(member(op.inverse) ** -2.0).to(like)

    def normalized(x: Sequence[Tensor], tensors: Tensors) -> Tensor:
        return functional.batch_norm(
            x[0],
            tensors["mean"],
            variance,
            tensors["scale"],
            tensors["bias"],
            training=False,
            eps=0.0,
        )

    return normalized


def local_response(op: LocalResponse) -> Function:
    """By means over the channels around each."""

    def divided(inputs: Sequence[Tensor], _: Tensors) -> Tensor:
        (x,) = inputs
        around = (op.size - 1) // 2
        squares = (x * x).unsqueeze(-1).flatten(2).unsqueeze(1)  # [examples, 1, channels, rest]
        padded = functional.pad(squares, [0, 0, around, op.size - 1 - around])
        means = functional.avg_pool2d(padded, (op.size, 1), stride=1).reshape(x.shape)
        return x / (op.floor + op.strength * means) ** op.power

    return divided
