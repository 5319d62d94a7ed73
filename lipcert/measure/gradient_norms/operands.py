"""Gradients of dense weights, kernels, embedding tables, and operands that act entry by entry.

Dense weights: G = Σ_t b_t a_tᵀ over the positions t of one example, with a [examples, ..., in] and
b [examples, ..., out]; ‖G‖² is computed exactly in one of three ways. Tables: row i receives Σ of
b_t over the positions t that read it, with row numbers a [examples, ...] and b [examples, ...,
width]; ‖G‖² is computed without a table for every example, or from the tables themselves.

Entry by entry: G_j = Σ of f·b over the entries that meet j: f = ∂output/∂operand is computed from
the value, b is its cotangent, and operands have any shape that broadcasts. They are biases (f = 1),
scales (f = x), divisors (f = −x/d²), slopes of PRelu, and scales behind a normalisation by stored
statistics (f = (x − m)·r).

Kernels of convolutions: G[o, i, tap] = Σ_t b[o, t] · a[i, place that tap reads at t], with a
[examples, channels read, *grid] and b [examples, channels written, *outputs], in any number of
dimensions, for the geometry of the convolution from a's grid to b's. ‖G‖² is computed exactly in
one of several ways. A transposed convolution is the adjoint: value and cotangent exchange their
roles, and the formula is the same.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod, sqrt
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from lipcert.core.program import Shape
from lipcert.graph.geometry import Geometry, copies
from lipcert.measure.gradient_norms.methods import Gradients, Method, OperandGradient, Pair
from lipcert.measure.gradient_norms.squares import (
    OUTWARD,
    Squares,
    dense,
    from_gram,
    gamma,
    instantiated_distance,
    is_channels_last,
    product,
    product_of_grams,
    sum_of_squares,
    underflow,
    widened,
    with_distance,
)
from lipcert.measure.lowering.functions import pad_widths, shared_pads


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


def pads(geometry: Geometry) -> bool:
    """Whether the geometry has any padding."""
    return any(window.pad_begin or window.pad_end for window in geometry)


def padded(value: Tensor, geometry: Geometry) -> Tensor:
    """Return the value with its zero padding written out, in the same memory order."""
    return pad(value, pad_widths(geometry)) if pads(geometry) else dense(value)


def readable(value: Tensor, geometry: Geometry) -> Tensor:
    """Return the input of `library_gradient`: padded explicitly only if the library cannot do
    it."""
    return padded(value, geometry) if shared_pads(geometry) is None else dense(value)


def unfolded_view(value: Tensor, geometry: Geometry) -> Tensor:
    """View a padded value as its windows: [examples, channels, *taps, *outputs]."""
    grid = value.stride()[2:]
    steps = zip(geometry, grid, strict=True)
    strides = [(w.dilation * step, w.stride * step) for w, step in steps]
    shape = (*value.shape[:2], *(w.taps for w in geometry), *(w.outputs for w in geometry))
    by_tap, by_output = zip(*strides, strict=True)
    return value.as_strided(shape, (*value.stride()[:2], *by_tap, *by_output))


def library_gradient(
    value: Tensor, cotangent: Tensor, kernel: Sequence[int], geometry: Geometry, groups: int
) -> Tensor:
    """Return the library's gradient of a kernel of this shape.

    value: as `readable` returns it.
    """
    ranks = len(geometry)
    found: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
        cotangent,
        value,
        value.new_zeros(1).expand(*kernel),
        None,
        [window.stride for window in geometry],
        shared_pads(geometry) or [0] * ranks,
        [window.dilation for window in geometry],
        False,
        [0] * ranks,
        groups,
        [False, True, False],
    )
    return found[1]


_MANY_CHANNELS: Final = 8


@dataclass(frozen=True, slots=True)
class KernelGradient(OperandGradient):
    """The gradient of the kernel [written, read/groups, *taps] of a convolution, plain or
    transposed."""

    geometry: Geometry
    groups: int
    transposed: bool

    def methods(self, pair: Pair) -> Sequence[Method]:
        """Return all methods that can run on this device.

        The library's kernels are included only where they sum directly. They are faster on many
        channels, unless one tap leaves nothing to unfold.
        """
        pair = self._oriented(pair)
        width = pair.b.element_size()
        read, written = pair.a.shape[1], pair.b.shape[1]
        positions, taps = self._positions, self._taps
        pixels = prod(w.size + w.pad_begin + w.pad_end for w in self.geometry)
        copy = read * pixels if pads(self.geometry) else 0
        gradient = written * read // self.groups * taps
        columns = read * taps * positions
        grams = 2 * self.groups * positions**2
        direct = gradient * positions
        scratch = (copy + columns + gradient) * width
        found = [Method("unfolded", scratch, self.instantiated, work=direct)]
        rows = written // self.groups + read * taps // self.groups
        if positions * rows < 4 * written * read * taps // self.groups**2:
            scratch = (copy + columns + grams) * width
            work = positions**2 * rows * self.groups
            found.append(Method("gram", scratch, self._gram, cancels=True, work=work))
        is_known = len(self.geometry) <= 3 and pair.b.device.type == "cpu"
        if is_known and not self._by_pixels(pair):
            scratch = (copy + gradient) * width
            grouped = Method("grouped", scratch, self._grouped, work=direct)
            found.insert(0 if read >= _MANY_CHANNELS and taps > 1 else 1, grouped)
        return found

    def gradients(self, pair: Pair) -> Gradients:
        """Return the gradients, by unfolding.  # [examples, written, read/groups, *taps]"""
        pair = self._oriented(pair)
        return Gradients(self._instantiated(pair), self._distance(pair))

    def gradient_scratch(self, pair: Pair) -> int:
        """Return the bytes of padded and unfolded values, and of the gradient."""
        pair = self._oriented(pair)
        read, written = pair.a.shape[1], pair.b.shape[1]
        pixels = prod(w.size + w.pad_begin + w.pad_end for w in self.geometry)
        gradient = written * read // self.groups * self._taps
        return 8 * (read * pixels + read * self._taps * self._positions + gradient)

    @property
    def _taps(self) -> int:
        return prod(window.taps for window in self.geometry)

    @property
    def _positions(self) -> int:
        return prod(window.outputs for window in self.geometry)

    def _oriented(self, pair: Pair) -> Pair:
        """Return the pair with a as the tensor that is read; both tensors with channels last, or
        neither."""
        pair = pair.swapped() if self.transposed else pair
        return pair if self._by_pixels(pair) else pair.contiguous()

    def _by_pixels(self, pair: Pair) -> bool:
        """Whether the channels of a pixel are adjacent in memory, and form one group."""
        return self.groups == 1 and is_channels_last(pair.a) and is_channels_last(pair.b)

    def _distance(self, pair: Pair) -> Tensor:
        """Bound the rounding error of the gradient.

        The unfolded value is at most √copies·‖a‖ long, copies being the windows per entry.
        """
        entries = pair.b.shape[1] * pair.a.shape[1] // self.groups * self._taps
        reach = pair.reach * sqrt(copies(self.geometry))
        return instantiated_distance(reach, self._positions, entries, pair.b.dtype)

    def _unfolds_pixels(self, pair: Pair) -> bool:
        """Whether whole pixels are copied, which pays off if they have many channels."""
        return self._by_pixels(pair) and pair.a.shape[1] >= _MANY_CHANNELS

    def _columns(self, pair: Pair) -> Tensor:
        """Return the cotangent as [examples·groups, written/groups, positions]."""
        if self._by_pixels(pair):
            return pair.b.flatten(2)
        return pair.b.reshape(
            len(pair) * self.groups, pair.b.shape[1] // self.groups, self._positions
        )

    def _rows(self, pair: Pair) -> Tensor:
        """Return the unfolded value as [examples·groups, read/groups·taps, positions]."""
        unfolded = unfolded_view(padded(pair.a, self.geometry), self.geometry)
        rows = pair.a.shape[1] // self.groups * self._taps
        if self._unfolds_pixels(pair):  # [examples, *outputs, *taps, channels] in memory
            by_pixels = unfolded.permute(0, 4, 5, 2, 3, 1)
            return by_pixels.reshape(len(pair), self._positions, rows).mT
        return unfolded.reshape(len(pair) * self.groups, rows, self._positions)

    def _instantiated(self, pair: Pair) -> Tensor:
        """Compute the gradients of all taps in one product.  # [examples, written, read/groups,
        *taps]"""
        found = product(self._columns(pair), self._rows(pair))
        taps = tuple(window.taps for window in self.geometry)
        written, read = pair.b.shape[1], pair.a.shape[1] // self.groups
        if self._unfolds_pixels(pair):
            return found.reshape(len(pair), written, *taps, read).movedim(-1, 2)
        return found.reshape(len(pair), written, read, *taps)

    def _gram(self, pair: Pair) -> Squares:
        """Compute the squares from Gram matrices of the unfolded value and of the cotangent."""
        pair = self._oriented(pair)
        s, q = product_of_grams(self._rows(pair), self._columns(pair))
        reaches = (pair.a_squares.upper * copies(self.geometry), pair.b_squares.upper)
        terms = (pair.a.shape[1] // self.groups * self._taps, pair.b.shape[1] // self.groups)
        shape = (len(pair), self.groups, *s.shape[1:])
        return from_gram(s.reshape(shape), q.reshape(shape), reaches, terms)

    def _grouped(self, pair: Pair) -> Squares:
        """Compute the squares by one call of the library, in which every example is a group of its
        own."""
        pair = self._oriented(pair)
        value = readable(pair.a, self.geometry)
        examples, taps = len(pair), [window.taps for window in self.geometry]
        gradient = library_gradient(
            value.reshape(1, -1, *value.shape[2:]),
            pair.b.reshape(1, -1, *pair.b.shape[2:]),
            (examples * pair.b.shape[1], pair.a.shape[1] // self.groups, *taps),
            self.geometry,
            examples * self.groups,
        )
        gradient = gradient.reshape(examples, -1, *gradient.shape[1:])
        return with_distance(gradient, self._distance(pair), pair.b)
