"""Comparing: whether tensors hold the same numbers, or finite ones, as fast as memory is read.

What enters: tensors. What leaves: yes or no. Invariant: a yes is never wrong, however sums are
rounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

_MANY: Final = 2**16
"""entries from which numpy is faster, by up to five times"""
_PLAIN: Final = frozenset({torch.float32, torch.float64})


def are_equal(one: Tensor, other: Tensor) -> bool:
    """Whether all entries are the same numbers, of the same type; NaN is no number."""
    if one.dtype is not other.dtype:
        return False
    if one.numel() < _MANY or not (_is_plain(one) and _is_plain(other)):
        return torch.equal(one, other)
    return np.array_equal(one.numpy(force=True), other.numpy(force=True))


def first_difference(ones: Sequence[Tensor], others: Sequence[Tensor]) -> int | None:
    """The place of the first pair that is not equal; a GPU, which stops at every question, is asked
    once for all pairs."""
    pairs = list(zip(ones, others, strict=True))
    if not pairs or _are_here(ones):
        return next((place for place, pair in enumerate(pairs) if not are_equal(*pair)), None)
    differ = [
        torch.ne(one, other).any()
        if one.shape == other.shape and one.dtype is other.dtype
        else torch.ones((), dtype=torch.bool, device=one.device)
        for one, other in pairs
    ]
    places = torch.stack([item.to(ones[0].device) for item in differ]).nonzero()
    return int(places[0]) if len(places) else None


def is_finite(tensor: Tensor) -> bool:
    """Whether all entries are numbers.

    Proof: a sum that holds NaN or an infinite number is none of the finite ones. Finite numbers
    whose sum overflows in their own type are added up in float64.
    """
    return math.isfinite(tensor.sum()) or math.isfinite(tensor.sum(dtype=torch.float64))


def _is_plain(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype in _PLAIN


def _are_here(tensors: Sequence[Tensor]) -> bool:
    return all(item.device.type == "cpu" for item in tensors)
