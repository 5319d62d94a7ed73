"""Gradients of dense weights, of embedding tables, and of operands that act entry by entry.

Dense weights: G = Σ_t b_t a_tᵀ over the positions t of one example, with a [examples, ..., in] and
b [examples, ..., out]; ‖G‖² is computed exactly in one of three ways. Tables: row i receives Σ of
b_t over the positions t that read it, with row numbers a [examples, ...] and b [examples, ...,
width]; ‖G‖² is computed without a table for every example, or from the tables themselves.

Entry by entry: G_j = Σ of f·b over the entries that meet j: f = ∂output/∂operand is computed from
the value, b is its cotangent, and operands have any shape that broadcasts. They are biases (f = 1),
scales (f = x), divisors (f = −x/d²), slopes of PRelu, and scales behind a normalisation by stored
statistics (f = (x − m)·r).
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod, sqrt
from typing import Final

import torch
from torch import Tensor

from lipcert.core.program import Shape
from lipcert.measure.gradient_norms.methods import Gradients, Method, OperandGradient, Pair
from lipcert.measure.gradient_norms.squares import (
    OUTWARD,
    Squares,
    from_gram,
    gamma,
    instantiated_distance,
    is_channels_last,
    product_of_grams,
    sum_of_squares,
    underflow,
    widened,
)


@dataclass(frozen=True, slots=True)
class DenseWeight(OperandGradient):
    """The gradient of the weight [out, in] of a `Dense`."""

    def of_norms(self, pair: Pair) -> Squares | None:
        """At a single position the gradient is the outer product, whose norm is the product of the
        norms."""
        return pair.a_squares.product(pair.b_squares) if _is_single(pair) else None

    def methods(self, pair: Pair) -> Sequence[Method]:
        """Return instantiation, and Gram matrices if these are cheaper."""
        positions, read, written = _sizes(pair)
        width = pair.b.element_size()
        size, side = read * written, read + written
        found = [Method("instantiated", size * width, self.instantiated, work=positions * size)]
        if positions * side <= 4 * size:
            scratch, work = 2 * positions**2 * width, positions**2 * side
            found.append(Method("gram", scratch, _gram, cancels=True, work=work))
        return found

    def gradients(self, pair: Pair) -> Gradients:
        """Return G = BᵀA.  # [examples, out, in]"""
        a, b = _matrix(pair.a), _matrix(pair.b)
        positions, read, written = _sizes(pair)
        distance = instantiated_distance(pair.reach, positions, read * written, b.dtype)
        return Gradients(torch.bmm(b.mT, a), distance)

    def gradient_scratch(self, pair: Pair) -> int:
        """Return the bytes of one gradient in float64."""
        _, read, written = _sizes(pair)
        return 8 * read * written


def _gram(pair: Pair) -> Squares:
    """Compute the squares from AAᵀ and BBᵀ, both [positions, positions]."""
    s, q = product_of_grams(_matrix(pair.a).mT, _matrix(pair.b).mT)
    _, read, written = _sizes(pair)
    reaches = (pair.a_squares.upper, pair.b_squares.upper)
    return from_gram(s.unsqueeze(1), q.unsqueeze(1), reaches, (read, written))


def _matrix(tensor: Tensor) -> Tensor:
    """Reshape to [examples, positions, features]."""
    return tensor.reshape(len(tensor), prod(tensor.shape[1:-1]), tensor.shape[-1])


def _is_single(pair: Pair) -> bool:
    """Whether every example has one position."""
    return pair.b.dim() == 2 or prod(pair.b.shape[1:-1]) == 1


def _sizes(pair: Pair) -> tuple[int, int, int]:
    """Return the numbers of positions, features read, and features written."""
    return prod(pair.b.shape[1:-1]), pair.a.shape[-1], pair.b.shape[-1]


@dataclass(frozen=True, slots=True)
class TableGradient(OperandGradient):
    """The gradient of the table [rows, width] of an `Embedding`."""

    rows: int

    def of_norms(self, pair: Pair) -> Squares | None:
        """At a single position there is nothing to add up: the squares are those of the
        cotangent."""
        return pair.b_squares if _is_single(pair) else None

    def methods(self, pair: Pair) -> Sequence[Method]:
        """Return the one method: sums over the positions that read the same row."""
        positions, width = self._sizes(pair)
        return [Method("rows", 8 * positions * (2 * positions + 2 * width), self._squares)]

    def gradients(self, pair: Pair) -> Gradients:
        """Return the gradients as tables.  # [examples, rows, width]"""
        return self._added(pair, self._numbers(pair), self.rows, pair.b.dtype)

    def gradient_scratch(self, pair: Pair) -> int:
        """Return the bytes of one table in float64."""
        return 8 * self.rows * self._sizes(pair)[1]

    def _squares(self, pair: Pair) -> Squares:
        """Sum each row at the first position that reads it; all other positions are 0."""
        numbers = self._numbers(pair)
        same = numbers[:, :, None] == numbers[:, None, :]
        found = self._added(pair, same.int().argmax(2), numbers.shape[1], torch.float64)
        return widened(sum_of_squares(found.gradient), found.distance)

    def _added(self, pair: Pair, places: Tensor, count: int, dtype: torch.dtype) -> Gradients:
        """Add up b_t by places [examples, positions].

        Proof of the distance: a sum of at most P entries is off by γ_P Σ|b_t|, and (Σ over the
        positions of a row of |b_t|)² ≤ P·Σ|b_t|².
        """
        positions, width = self._sizes(pair)
        b = pair.b.reshape(len(pair), positions, width).to(dtype)
        added = b.new_zeros(len(pair), count, width)
        added.scatter_add_(1, places[:, :, None].expand_as(b), b)
        share = gamma(positions, dtype) * sqrt(positions) if positions > 1 else 0.0
        lost = positions * width * underflow(dtype)
        return Gradients(added, (pair.b_squares.upper.sqrt() * share + lost) * OUTWARD)

    def _numbers(self, pair: Pair) -> Tensor:
        """Return row numbers from 0; negative numbers count from the end."""
        return pair.a.reshape(len(pair), -1).long() % self.rows

    def _sizes(self, pair: Pair) -> tuple[int, int]:
        return prod(pair.b.shape[1:-1]), pair.b.shape[-1]


_BLOCK: Final = 64
_INVERSE_OFF: Final = 2.0**-48


def reduced(tensor: Tensor, operand: Shape) -> Tensor:
    """Sum over the entries of [examples, *shape] that meet one entry of the operand.

    operand: as many axes as `shape`, 1 where it is repeated. Result: [examples, *operand], float64
    unless nothing was summed. Its error is at most `summing` times the sums of magnitudes.
    """
    pairs = zip(operand, tensor.shape[1:], strict=True)
    axes = [axis for axis, (own, full) in enumerate(pairs, 1) if own != full]
    if not axes:
        return tensor
    if is_channels_last(tensor) and not tensor.is_contiguous():
        channels, *grid = operand
        return reduced(tensor.permute(0, 2, 3, 1), (*grid, channels)).permute(0, 3, 1, 2)
    first, last = axes[0], axes[-1]
    if len(axes) != last - first + 1:
        return tensor.sum(axes, keepdim=True, dtype=torch.float64)
    joined = tensor.flatten(first, last)  # [..., summed, ...]
    length = joined.shape[first]
    if length <= _BLOCK:
        return joined.sum(first).double().reshape(len(tensor), *operand)
    whole = length // _BLOCK * _BLOCK
    total = joined.narrow(first, whole, length - whole).sum(first).double()
    if whole:
        total = total + _blocks(joined.narrow(first, 0, whole), first).sum(
            first, dtype=torch.float64
        )
    return total.reshape(len(tensor), *operand)


def _blocks(tensor: Tensor, axis: int) -> Tensor:
    """Sum 64 entries along an axis: neighbours, or others where neighbours are far apart in
    memory."""
    before, after = tensor.shape[:axis], tensor.shape[axis + 1 :]
    blocks = tensor.shape[axis] // _BLOCK
    if tensor.stride(axis) == 1:
        return tensor.view(*before, blocks, _BLOCK, *after).sum(axis + 1)
    return tensor.view(*before, _BLOCK, blocks, *after).sum(axis)


def summing(terms: int, dtype: torch.dtype) -> float:
    """Return the relative error of `reduced`: blocks use the tensor's dtype, sums of blocks
    float64."""
    return gamma(_BLOCK, dtype) + gamma(terms // _BLOCK + 4, torch.float64)


class EntrywiseGradient(OperandGradient):
    """The gradient of an operand that multiplies, divides or shifts entry by entry.

    placed: the operand's shape with as many axes as the value, 1 where it is repeated.
    """

    __slots__ = ()
    placed: Shape

    @abstractmethod
    def _products(self, pair: Pair) -> tuple[Tensor, Tensor]:
        """Return f·b, and a bound η of ‖fl(f·b) − f·b‖ + ‖f‖‖b‖·(error of the sums)."""

    def methods(self, pair: Pair) -> Sequence[Method]:
        """Return the one method: multiply, then add up."""
        return [Method("reduced", self._scratch(pair), self.instantiated)]

    def gradients(self, pair: Pair) -> Gradients:
        """Return the sums of the products.  # [examples, *placed]"""
        products, distance = self._products(pair)
        return Gradients(reduced(products, self.placed), distance * OUTWARD)

    def gradient_scratch(self, pair: Pair) -> int:
        """Return the bytes of products and factors."""
        return 8 * self._scratch(pair)

    def _scratch(self, pair: Pair) -> int:
        return 3 * prod(pair.b.shape[1:]) * pair.b.element_size()

    def _terms(self, pair: Pair) -> int:
        return prod(pair.b.shape[1:]) // max(prod(self.placed), 1)

    def _multiplied(
        self, pair: Pair, factor: Tensor, size: Tensor, roundings: int
    ) -> tuple[Tensor, Tensor]:
        """Return f·b for a computed factor within γ_roundings·s of f, where size ≥ ‖s‖ and s ≥ |f|.

        Proof: Σ over a slice of s|b| ≤ ‖s‖‖b‖ on it (Cauchy–Schwarz), and slices are disjoint: the
        root sum of squares over slices is at most ‖s‖‖b‖.
        """
        reach = size * pair.b_squares.upper.sqrt()
        dtype = pair.b.dtype
        relative = summing(self._terms(pair), dtype) + gamma(roundings + 2, dtype)
        lost = prod(pair.b.shape[1:]) * underflow(dtype)
        return factor * pair.b, (reach * relative * (1.0 + 2.0 * relative) + lost) * OUTWARD


@dataclass(frozen=True, slots=True)
class BiasGradient(EntrywiseGradient):
    """The gradient of a bias: f = 1."""

    placed: Shape

    @property
    def needs_value(self) -> bool:
        """False: only the cotangent is needed."""
        return False

    def of_norms(self, pair: Pair) -> Squares | None:
        """If nothing is repeated, there is nothing to add up: the squares are those of the
        cotangent."""
        return pair.b_squares if self._terms(pair) == 1 else None

    def methods(self, pair: Pair) -> Sequence[Method]:
        """Return the one method: sums over repeated entries."""
        del pair
        return [Method("reduced", prod(self.placed) * 8, self.instantiated)]

    def _products(self, pair: Pair) -> tuple[Tensor, Tensor]:
        """Proof: Σ|b| over m entries ≤ √m‖b‖ on them."""
        terms = self._terms(pair)
        relative = summing(terms, pair.b.dtype) * sqrt(terms) if terms > 1 else 0.0
        return pair.b, pair.b_squares.upper.sqrt() * relative


@dataclass(frozen=True, slots=True)
class ScaleGradient(EntrywiseGradient):
    """The gradient of a scale: f = x."""

    placed: Shape

    def _products(self, pair: Pair) -> tuple[Tensor, Tensor]:
        return self._multiplied(pair, pair.a, pair.a_squares.upper.sqrt(), 0)


@dataclass(frozen=True, slots=True, eq=False)
class DivisorGradient(EntrywiseGradient):
    """The gradient of a divisor: f = −x/d²."""

    placed: Shape
    divisor: Tensor

    def _products(self, pair: Pair) -> tuple[Tensor, Tensor]:
        divisor = self.divisor.to(pair.b.dtype).reshape(self.placed)
        factor = -(pair.a / divisor / divisor)
        return self._multiplied(pair, factor, sum_of_squares(factor).upper.sqrt(), 2)


@dataclass(frozen=True, slots=True)
class SlopeGradient(EntrywiseGradient):
    """The gradient of a slope of PRelu: f = x where x < 0, otherwise 0; NaN stays."""

    placed: Shape

    def _products(self, pair: Pair) -> tuple[Tensor, Tensor]:
        factor = pair.a.clamp_max(0.0)
        return self._multiplied(pair, factor, sum_of_squares(factor).upper.sqrt(), 0)


@dataclass(frozen=True, slots=True, eq=False)
class NormalizedGradient(EntrywiseGradient):
    """The gradient of the scale of a layer that normalises by stored statistics: f = (x −
    mean)·inverse.

    mean, inverse: float64 [channels]; inverse within 2⁻⁴⁸ of 1/√(variance + ε). f is computed again
    from x; what the network itself rounded does not enter.
    """

    placed: Shape
    mean: Tensor
    inverse: Tensor

    def _products(self, pair: Pair) -> tuple[Tensor, Tensor]:
        """Proof: f is off by γ_8(|x| + |mean|)·inverse at most, by what its inverse is off, and by
        what underflows."""
        numbers = (self.mean, self.inverse)
        mean, inverse = (item.to(pair.b.dtype).reshape(self.placed) for item in numbers)
        size = sum_of_squares((pair.a.abs() + mean.abs()) * inverse).upper.sqrt()
        roundings = 8 + ceil(_INVERSE_OFF / torch.finfo(pair.b.dtype).eps * 2.0)
        products, distance = self._multiplied(pair, (pair.a - mean) * inverse, size, roundings)
        entries = prod(pair.b.shape[1:])
        lost = sqrt(entries) * underflow(pair.b.dtype) * (2.0 + self.inverse.max())
        return products, distance + lost * pair.b_squares.upper.sqrt() * OUTWARD
