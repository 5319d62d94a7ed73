"""Entry by entry: operands broadcast into a value, and values among themselves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from operator import mul, truediv
from typing import Final

import torch
from torch import Tensor

from lipcert.audit.lowering.signature import Function, Tensors, of_one_rank
from lipcert.core.program import Add, Divide, Multiply, PRelu, Scale, Shift

Elementwise: Final = Scale | Shift | PRelu | Multiply | Divide | Add


def elementwise(op: Scale | Shift | PRelu | Multiply | Divide | Add) -> Function:
    """The step in torch."""
    match op:
        case Scale():
            return _scaled
        case Shift():
            return lambda x, tensors: x[0] + tensors["bias"]
        case PRelu():
            return lambda x, tensors: torch.where(x[0] > 0.0, x[0], tensors["slope"] * x[0])
        case Multiply():
            return lambda x, _: reduce(mul, of_one_rank(x))
        case Divide():
            return lambda x, _: reduce(truediv, of_one_rank(x))
        case Add(signs):
            return partial(_sum, signs)


def _scaled(x: Sequence[Tensor], tensors: Tensors) -> Tensor:
    if "divisor" in tensors:
        return x[0] / tensors["divisor"]
    if "bias" in tensors:
        return torch.addcmul(tensors["bias"], x[0], tensors["scale"])
    return x[0] * tensors["scale"]


def _sum(signs: Sequence[int], x: Sequence[Tensor], _: Tensors) -> Tensor:
    first, *others = of_one_rank(x)
    # never the tensor itself: a value and the input of its node have their own cotangents
    result = first.view_as(first) if signs[0] == 1 else signs[0] * first
    for sign, term in zip(signs[1:], others, strict=True):
        result = torch.add(result, term, alpha=sign)
    return result
