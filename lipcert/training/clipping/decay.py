"""Decay inside the clip (Guo, 2024): bound the norm of ∇ℓ_i + λθ without forming the gradient.

Given the tensors recorded in one pass, squared gradient norms, the weights and λ, this module
computes upper bounds of the squared norms. Invariant: rounding only makes them larger; where it
would hide the angle between ∇ℓ_i and θ, ‖∇ℓ_i‖ + λ‖θ‖ is used instead.

    ‖∇ℓ_i + λθ‖² = ‖∇ℓ_i‖² + 2λ⟨∇ℓ_i, θ⟩ + λ²‖θ‖²

Every operand A of the network is linear in θ, so ⟨∇ℓ_i, θ⟩ = Σ ⟨∂ℓ_i/∂A, A⟩ over its uses; and for
a product y = A·a the term is ⟨b, A·a⟩, b the cotangent of y: one more product for each layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod, sqrt
from typing import Final

import torch
from torch import Tensor

from lipcert.core.window_kinds import Conv
from lipcert.graph.geometry import copies
from lipcert.graph.ir import Node
from lipcert.measure.gradient_norms.engine import Caught
from lipcert.measure.gradient_norms.methods import Pair
from lipcert.measure.gradient_norms.plan import OperandPlan, arranged
from lipcert.measure.gradient_norms.squares import (
    OUTWARD,
    Squares,
    gamma,
    sum_of_squares,
    underflow,
)
from lipcert.measure.lowering import LoweredNetwork

_DOUBLE: Final = torch.float64
_FAST_ALGORITHM: Final = 64
"""Convolution kernels that transform small tiles (Winograd, FFT) are assumed to be at most as
inaccurate as sums of products with this many more additions. This assumption grants them six
bits."""


@dataclass(frozen=True, slots=True, eq=False)
class Inner:
    """One inner product for each example: |value − truth| ≤ error.  # float64 [examples] each"""

    value: Tensor
    error: Tensor

    def plus(self, other: Inner) -> Inner:
        """Return the sum of two inner products; the error covers its one rounding."""
        value = self.value + other.value
        return Inner(value, (self.error + other.error) * OUTWARD + value.abs() * 2.0**-52)


def inner_products(network: LoweredNetwork, caught: Iterable[Caught]) -> Mapping[str, Inner]:
    """Return ⟨∂ℓ_i/∂θ, θ⟩ by name of the trained parameter; a missing name means 0."""
    found: dict[str, Inner] = {}
    for item in caught:
        for trained in item.plan.operands:
            inner, name = _inner(network, item, trained), trained.use.parameter
            found[name] = found[name].plus(inner) if name in found else inner
    return found


def weight_squares(network: LoweredNetwork, names: Iterable[str]) -> Tensor:
    """Return an upper bound of ‖θ‖² of these parameters together.  # float64 []"""
    squares = [sum_of_squares(network.parameters[name].unsqueeze(0)).upper for name in names]
    return torch.cat(squares).sum() * OUTWARD


def decayed_squares(
    gradient: Squares, inner: Inner | None, weights: Tensor, decay: float
) -> Tensor:
    """Return upper bounds of ‖∇ℓ_i + λθ‖².  # float64 [examples]

    weights: ≥ ‖θ‖². inner: None if no gradient reaches θ.

    Proof: with g ≥ ‖∇ℓ_i‖², w ≥ ‖θ‖² and ⟨∇ℓ_i, θ⟩ ≤ v + e the formula holds, and adding three
    terms of these magnitudes costs at most γ_8 of them; the triangle inequality holds as well.
    """
    g = gradient.upper
    longest = (g.sqrt() + decay * weights.sqrt()).square() * OUTWARD
    if inner is None:
        return torch.minimum(longest, (g + decay * decay * weights) * OUTWARD)
    spread = g + 2.0 * decay * (inner.value.abs() + inner.error) + decay * decay * weights
    exact = g + 2.0 * decay * (inner.value + inner.error) + decay * decay * weights
    exact = (exact + spread * gamma(8, _DOUBLE)).clamp_min(0.0) * OUTWARD
    return torch.where(exact < longest, exact, longest)


def _inner(network: LoweredNetwork, item: Caught, trained: OperandPlan) -> Inner:
    slot = trained.use.slot
    if trained.use.is_linear_map:
        return _of_product(network, item)
    if slot == "divisor":
        return _of_quotient(network, item)
    value, b = arranged(item.node, *item.pair)
    a = b if value is None else value
    pair = Pair.of(a, b) if a.dtype is b.dtype else Pair.of(a.double(), b.double())
    found = trained.gradient.gradients(pair)
    rows = found.gradient.reshape(len(b), -1).double()
    operand = network.operands(item.node)[slot].reshape(-1).double()
    length = sum_of_squares(operand.unsqueeze(0)).upper.sqrt()
    reach = sum_of_squares(rows).upper.sqrt() * length
    summing = gamma(len(operand) + 2, _DOUBLE)
    lost = len(operand) * underflow(_DOUBLE)
    error = found.distance * length + reach * summing + lost
    return Inner(rows @ operand, error * OUTWARD)


def _of_quotient(network: LoweredNetwork, item: Caught) -> Inner:
    """Return −⟨b, y⟩ for y = a/d, since ∂y/∂d = −a/d².

    Proof: each entry of y is rounded once, and each product once more.
    """
    a, b = _pair(item)
    y = network.lowered(item.node, [a], network.operands(item.node))
    entries = prod(b.shape[1:])
    reach = sum_of_squares(b).upper.sqrt() * sum_of_squares(y).upper.sqrt()
    summing = gamma(4, b.dtype) + gamma(entries + 2, _DOUBLE)
    lost = underflow(b.dtype) * (entries + sqrt(entries) * sum_of_squares(b).upper.sqrt())
    return Inner(-_dot(b, y), (reach * summing + lost) * OUTWARD)


def _of_product(network: LoweredNetwork, item: Caught) -> Inner:
    """Return ⟨b, y⟩ for y = W·a, which is computed again from the value a.

    Proof: with n terms in an entry, |ŷ − y| ≤ γ_n|W||a| entry by entry, and the root of the sum of
    their squares is at most γ_n‖W‖_F·√m·‖a‖ where an entry of a is read by at most m windows: the
    matrix |W| of one position has norm ≤ ‖W‖_F, and the adjoint has the norm of the map. Hence ⟨b,
    ŷ⟩ is off by ‖b‖ times that; forming it rounds each product once and adds in float64.
    """
    a, b = _pair(item)
    weight = network.operands(item.node)["weight"]
    y = network.lowered(item.node, [a], {"weight": weight})
    terms, copies = _terms(item.node)
    dtype, entries = b.dtype, prod(b.shape[1:])
    lengths = [sum_of_squares(tensor).upper.sqrt() for tensor in (a, b, y)]
    whole = sum_of_squares(weight.unsqueeze(0)).upper.sqrt()
    off = gamma(terms + _FAST_ALGORITHM, dtype) * whole * sqrt(copies) * lengths[0]
    off = off + terms * sqrt(entries) * underflow(dtype)
    summing = gamma(2, dtype) + gamma(entries + 2, _DOUBLE)
    error = lengths[1] * off + lengths[1] * lengths[2] * summing + entries * underflow(dtype)
    return Inner(_dot(b, y), error * OUTWARD)


def _pair(item: Caught) -> tuple[Tensor, Tensor]:
    value, cotangent = item.pair
    if value is None:
        raise ValueError(f"node {item.node.name!r}: its value was not kept")
    return value.to(cotangent.dtype), cotangent


def _dot(b: Tensor, y: Tensor) -> Tensor:
    """Return ⟨b_i, y_i⟩: products in their own dtype, their sum in float64.  # [examples]"""
    return (b * y).unsqueeze(-1).flatten(1).sum(1, dtype=_DOUBLE)


def _terms(node: Node) -> tuple[int, int]:
    """Return the number of terms in an entry of a product, and of windows that read an entry of its
    value."""
    shape = node.operands["weight"].shape
    if not isinstance(node.op, Conv):
        return prod(shape[1:]), 1
    read = shape[0] // node.op.groups if node.op.transposed else shape[1]
    return read * prod(shape[2:]), copies(node.geometry)
