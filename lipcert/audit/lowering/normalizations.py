"""Normalizations: over axes, by stored statistics, local."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from lipcert.audit.lowering.dispatch import Tensors, constants, lower
from lipcert.ops.normalize import BatchNorm, Lrn, Normalize


@lower.register
def _normalize(op: Normalize, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    del tensors
    (x,) = inputs
    axes, rank = tuple(axis + 1 for axis in op.axes), x.dim()
    if axes == tuple(range(rank - len(axes), rank)):
        norm = functional.layer_norm if op.centred else functional.rms_norm
        normalised: Tensor = norm(x, x.shape[-len(axes) :], eps=op.epsilon)
        return normalised
    if op.centred:
        x = x - x.mean(axes, keepdim=True)
    return x * torch.rsqrt((x * x).mean(axes, keepdim=True) + op.epsilon)


@lower.register
def _batch_norm(op: BatchNorm, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    del op
    return functional.batch_norm(
        inputs[0],
        tensors["mean"],
        tensors["variance"],
        tensors["scale"],
        tensors["bias"],
        training=False,
        eps=0.0,
    )


@constants.register
def _batch_norm_constants(op: BatchNorm, dtype: torch.dtype, device: torch.device) -> Tensors:
    return {
        "mean": torch.tensor(op.mean, dtype=dtype, device=device),
        "variance": torch.tensor(op.inverse**-2.0, dtype=dtype, device=device),
    }


@lower.register
def _lrn(op: Lrn, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    del tensors
    (x,) = inputs
    before = (op.size - 1) // 2  # torch's own function puts the larger half before
    squares = (x * x).unsqueeze(-1).flatten(2).unsqueeze(1)  # [examples, 1, channels, rest]
    padded = functional.pad(squares, [0, 0, before, op.size - 1 - before])
    means = functional.avg_pool2d(padded, (op.size, 1), stride=1).reshape(x.shape)
    return x / (op.floor + op.strength * means) ** op.power
