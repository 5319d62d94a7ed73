"""Normalisation layers against torch."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from lipcert.operand import Operand
from lipcert.ops.normalization import BatchNorm, GroupNorm, LayerNorm, RmsNorm
from tests.audit.lowering.cases.case import Case

RANDOM = np.random.default_rng(0)


def operand(name: str, shape, spread: float = 1.0) -> Operand:
    return Operand(1.0 + spread * RANDOM.standard_normal(shape), name)


def column(tensor: torch.Tensor, rank: int) -> torch.Tensor:
    return tensor.reshape(-1, *[1] * (rank - 2))


def batch_norm_case(name, shape, mean, box=None) -> Case:
    channels = shape[0]
    op = BatchNorm(
        Operand(np.full(channels, mean)),
        Operand(RANDOM.random(channels) + 0.1),
        1e-3,
        operand("scale", channels),
        Operand(np.zeros(channels) if mean == 0.0 else RANDOM.standard_normal(channels), "bias"),
    )

    def reference(inputs, operands):
        return functional.batch_norm(
            inputs[0],
            torch.tensor(op.mean.array),
            torch.tensor(op.variance.array),
            operands["scale"],
            operands["bias"],
            eps=op.epsilon,
        )

    return Case(f"batch_norm_{name}", op, (shape,), reference, box)


def layer_norm_case(name, shape, axes, epsilon, scale=None, bias=None):
    op = LayerNorm(axes, epsilon, scale, bias)

    def reference(inputs, operands):
        normalised = functional.layer_norm(inputs[0], shape[-axes:], eps=epsilon)
        return normalised * operands.get("scale", 1.0) + operands.get("bias", 0.0)

    return Case(f"layer_norm_{name}", op, (shape,), reference)


def group_norm_case(name, shape, groups, epsilon, affine) -> Case:
    scale = operand("scale", shape[0]) if affine else None
    bias = operand("bias", shape[0]) if affine else None
    op = GroupNorm(groups, epsilon, scale, bias)

    def reference(inputs, operands):
        return functional.group_norm(
            inputs[0], groups, operands.get("scale"), operands.get("bias"), epsilon
        )

    return Case(f"group_norm_{name}", op, (shape,), reference)


def rms_norm_case(name, shape, axes, epsilon, scale=None) -> Case:
    def reference(inputs, operands):
        normalised = functional.rms_norm(inputs[0], shape[-axes:], eps=epsilon)
        return normalised * operands.get("scale", 1.0)

    op = RmsNorm(axes, epsilon, scale)
    return Case(f"rms_norm_{name}", op, (shape,), reference)


PARAMETERS = ("param:scale", "param:bias")
CASES = [
    batch_norm_case("line", (3,), 0.7),
    batch_norm_case("centred", (3, 2, 2), 0.0),
    batch_norm_case("image", (2, 3, 2), 0.7),
    batch_norm_case("boxed", (2, 3), -0.4, box=(-0.25, 0.5)),
    layer_norm_case("plain", (8,), 1, 1e-2),
    layer_norm_case("small_input", (16,), 1, 1e-5),
    layer_norm_case(
        "affine",
        (3, 6),
        1,
        0.1,
        operand("scale", 6),
        operand("bias", 6),
    ),
    layer_norm_case("two_axes", (2, 3, 4), 2, 0.05, operand("scale", (3, 4))),
    layer_norm_case(
        "shared_scale",
        (2, 3, 4),
        2,
        0.05,
        operand("scale", (3, 1)),
        operand("bias", (1,)),
    ),
    layer_norm_case("single", (3, 1), 1, 0.1, operand("scale", 1)),
    group_norm_case("plain", (4, 2, 2), 2, 0.05, False),
    group_norm_case("affine", (4, 2, 3), 2, 0.05, True),
    group_norm_case("instance", (3, 4), 3, 0.2, True),
    group_norm_case("vector", (6,), 2, 0.2, True),
    rms_norm_case("plain", (2, 5), 1, 0.05),
    rms_norm_case("scale", (2, 5), 1, 0.05, operand("scale", 5)),
]
