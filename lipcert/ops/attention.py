"""Scaled dot-product attention, as one op: y_i = Σ_j P_ij·v_j, P = softmax(scale·QKᵀ + mask)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np

from lipcert.core.program import Shape
from lipcert.ops.base import Op
from lipcert.upper import FloatArray


@final
@dataclass(frozen=True, slots=True, eq=False)
class Attention(Op):
    """Q [..., n, d], Kᵀ [..., d, m], V [..., m, e] with equal leading axes, the heads.

    scale: the factor of the scores. mask: fixed numbers [..., n, m] (broadcast) that are added to
    the scores; a token with −∞ is hidden from the query, and every query sees some token.
    """

    scale: float | Fraction
    mask: FloatArray | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.scale):
            raise ValueError(f"the scale of the scores must be a finite number: {self.scale}")
        if self.mask is None:
            return
        mask = np.array(self.mask, dtype=np.float64, ndmin=2)
        if not np.all(mask < math.inf) or np.any(np.all(np.isneginf(mask), axis=-1)):
            raise ValueError("a mask holds numbers or −∞, and hides not every token from a query")
        mask.setflags(write=False)
        object.__setattr__(self, "mask", mask)

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """[..., n, e]."""
        q, k, v = inputs
        fits = min(map(len, inputs)) >= 2 and q[:-2] == k[:-2] == v[:-2]
        if not fits or q[-1] != k[-2] or k[-1] != v[-2] or k[-1] == 0:
            raise ValueError(f"queries {q}, transposed keys {k} and values {v} do not fit")
        scores = (*q[:-1], k[-1])
        if self.mask is not None and np.broadcast_shapes(self.mask.shape, scores) != scores:
            raise ValueError(f"a mask of shape {self.mask.shape} does not fit scores {scores}")
        return (*q[:-1], v[-1])

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Plain float64."""
        q, k, v = inputs
        scores = float(self.scale) * (q @ k)
        if self.mask is not None:
            scores = scores + self.mask
        powers = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
        result: FloatArray = powers / np.sum(powers, axis=-1, keepdims=True) @ v
        return result
