"""Gradient of a dense weight: G = Σ_t b_t a_tᵀ over the positions t of one example.

What enters: a [examples, ..., in], b [examples, ..., out]. What leaves: three exact ways to ‖G‖².
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import prod
from typing import final

import torch
from torch import Tensor

from lipcert.audit.gradient_norms.matrices import (
    from_gram,
    instantiated_distance,
    product_of_grams,
    with_distance,
)
from lipcert.audit.gradient_norms.method import Gradients, Method, OperandGradient
from lipcert.audit.gradient_norms.pair import Pair
from lipcert.audit.gradient_norms.rounding import OUTWARD
from lipcert.audit.gradient_norms.squares import Squares


@final
@dataclass(frozen=True, slots=True)
class DenseWeight(OperandGradient):
    """The weight [out, in] of a `Dense`."""

    @property
    def key(self) -> Hashable:
        """Shapes say it all."""
        return "dense"

    def methods(self, pair: Pair) -> Sequence[Method]:
        """At one position the outer product; otherwise whatever is cheaper."""
        positions, read, written = _sizes(pair)
        if positions == 1:
            return [Method("product", 0, _product)]
        width = pair.b.element_size()
        instantiated = Method(
            "instantiated",
            read * written * width,
            self._instantiated,
            work=positions * read * written,
        )
        gram = Method(
            "gram",
            2 * positions**2 * width,
            _gram,
            cancels=True,
            work=positions**2 * (read + written),
        )
        if positions * (read + written) > 4 * read * written:
            return [instantiated]
        return [instantiated, gram]

    def gradients(self, pair: Pair) -> Gradients:
        """G = BᵀA.  # [examples, out, in]"""
        a, b = _matrix(pair.a), _matrix(pair.b)
        positions, read, written = _sizes(pair)
        distance = instantiated_distance(pair.reach, positions, read * written, b.dtype)
        return Gradients(torch.bmm(b.mT, a), distance)

    def gradient_scratch(self, pair: Pair) -> int:
        """The gradient."""
        _, read, written = _sizes(pair)
        return 8 * read * written

    def _instantiated(self, pair: Pair) -> Squares:
        found = self.gradients(pair)
        return with_distance(found.gradient, len(pair), found.distance)


def _product(pair: Pair) -> Squares:
    """‖b aᵀ‖ = ‖b‖‖a‖. Proof of the error: (p ± e)(q ± f) is off by at most pf + qe + ef."""
    p, q = pair.a_squares, pair.b_squares
    value = p.value * q.value
    error = p.value * q.error + q.value * p.error + p.error * q.error
    return Squares(value, error * OUTWARD + value * 2.0**-52)


def _gram(pair: Pair) -> Squares:
    """From AAᵀ and BBᵀ, both [positions, positions]."""
    s, q = product_of_grams(_matrix(pair.a).mT, _matrix(pair.b).mT)
    _, read, written = _sizes(pair)
    reaches = (pair.a_squares.upper, pair.b_squares.upper)
    return from_gram(s.unsqueeze(1), q.unsqueeze(1), reaches, (read, written))


def _matrix(tensor: Tensor) -> Tensor:
    """[examples, positions, features]"""
    return tensor.reshape(len(tensor), prod(tensor.shape[1:-1]), tensor.shape[-1])


def _sizes(pair: Pair) -> tuple[int, int, int]:
    """Positions, features read, features written."""
    return prod(pair.b.shape[1:-1]), pair.a.shape[-1], pair.b.shape[-1]
