"""The two questions that every op answers in torch: its value, and the constants it needs.

What enters: an op, tensors [examples, *shape], its operands by slot. What leaves: one tensor
[examples, *shape]. Invariants: examples never meet; nothing is written in place; nothing depends
on the numbers in a tensor, so that autograd and `torch.func.vmap` see through everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import singledispatch

import torch
from torch import Tensor

from lipcert.ops.base import Op

Tensors = Mapping[str, Tensor]


def lowered(op: Op, inputs: Sequence[Tensor], operands: Tensors) -> Tensor:
    """The op on tensors [examples, *shape]; operands by slot, as `op.operands()` has them."""
    like = inputs[0]
    return lower(op, inputs, {**constants(op, like.dtype, like.device), **operands})


@singledispatch
def lower(op: Op, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    """The op, `tensors` being its operands and its constants together."""
    del inputs, tensors
    raise TypeError(f"{type(op).__name__} has no lowering")


@singledispatch
def constants(op: Op, dtype: torch.dtype, device: torch.device) -> Tensors:
    """Fixed tensors that the lowering of this op reads besides its operands."""
    del op, dtype, device
    return {}


@singledispatch
def obstacle(op: Op) -> str | None:
    """Why this very op cannot be lowered although its class can; None: it can."""
    del op
    return None


def aligned(x: Tensor, rank: int) -> Tensor:
    """A tensor [examples, *shape] with unit axes after the first, so that shape has this rank."""
    missing = rank + 1 - x.dim()
    return x if missing == 0 else x.reshape(x.shape[0], *[1] * missing, *x.shape[1:])
