"""Bound slopes of weights over their norms, block by block of the tensor they are computed from.

Taking the maximum of each factor over the tensor would ignore how rows differ. Proof: entries that
depend on different blocks depend on different entries of the tensor, so that the Jacobian is
block-diagonal up to the order of rows and columns, and its norm is the largest of the norms of the
blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TypeAlias

import numpy as np

from lipcert.core.arithmetic import sqrt_up
from lipcert.core.interval import Interval, exact, up
from lipcert.core.lower.entrywise import quotient
from lipcert.core.lower.slopes import chained, repeated, with_blocks
from lipcert.core.lower.values import Arrange, Array, Constant
from lipcert.core.program import PLUS, IndexArray, Shape
from lipcert.core.reader.records import Tensor

_Tensors: TypeAlias = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """How a constant depends on one tensor w of the file, block by block of that.

    Entry k of the constant depends on no entries of w but those of block cells[k]. group: of each
    entry of w, in row-major order, its block. gains: ≥ the norm of the Jacobian of the entries that
    depend on a block. rates: entry k changes by rates[k]·⟨b, db⟩, b being its block; None: not
    known. squares: ‖b‖² of each block, where rates are known.
    """

    group: IndexArray
    cells: IndexArray
    gains: Array
    rates: Interval | None = None
    squares: Interval | None = None

    def rearranged(self, act: Arrange) -> Blocks:
        """Return the blocks of rearranged entries; an added 0 depends on no entry."""
        rates = None if self.rates is None else self.rates.moved(act)
        return replace(self, cells=act(self.cells), rates=rates)


def of_pair(
    found: Constant, operation: str, first: Constant, second: Constant, stored: _Tensors
) -> Constant:
    """Return `found`, a sum, product or quotient of two constants, with slopes and blocks.

    Proof: d(a + b) = da + db; d(a·b) = b·da + a·db, and a/b is the product of a and 1/b. Where both
    depend on a tensor, blocks are known if one of them is that tensor (`_scaled`).
    """
    shape, is_sum = found.shape, operation in {"Add", "Sub"}
    left, right = Interval(first.lo, first.hi), _factor(second, operation)
    match operation:
        case "Mul":
            derivatives = right, left
        case "Div":
            derivatives = right, -(left * right * right)
        case _:
            derivatives = exact(1.0), exact(1.0 if operation == "Add" else -1.0)
    blocks: dict[str, Blocks | None] = {}
    gains: list[tuple[Constant, float]] = []
    for own, other, derivative in zip((first, second), (second, first), derivatives, strict=True):
        size = derivative.magnitude()
        gains.append((own, repeated(own, shape) if is_sum else met(own.shape, size, shape)))
        for name in own.sources.keys() - {PLUS}:
            item, plain = own.blocks.get(name), None if is_sum else _entries(own, name, stored)
            if name not in other.sources:
                item = item or plain
                blocks[name] = item and passed_on(item, derivative, shape)
            elif plain is not None and own.shape == shape and (own is first or operation == "Mul"):
                rate = other.blocks.get(name)
                blocks[name] = blocks.get(name) or (rate and _scaled(plain, other, rate, operation))
    if first is second and operation == "Mul":
        blocks |= square_blocks(first, stored)
    return with_blocks(found, chained(*gains), {k: item for k, item in blocks.items() if item})


def _factor(value: Constant, operation: str) -> Interval:
    return quotient(value) if operation == "Div" else Interval(value.lo, value.hi)


def square_blocks(value: Constant, stored: _Tensors) -> Mapping[str, Blocks]:
    """Return the blocks of the squares of the entries of a tensor: d(b²) = 2·b·db."""
    name = next(iter(value.sources), "")
    plain = _entries(value, name, stored)
    if plain is None:
        return {}
    known = Interval(value.lo, value.hi)
    gains = _by_cell(plain.cells, 2.0 * known.magnitude())
    squares = (known * known).moved(partial(_by_cell, plain.cells))
    rates = exact(np.full(value.shape, 2.0))
    return {name: replace(plain, gains=gains, rates=rates, squares=squares)}


def _by_cell(cells: IndexArray, entries: Array) -> Array:
    found = np.empty(cells.size, entries.dtype)
    found[cells.ravel()] = entries.ravel()
    return found


def sum_blocks(
    kind: str, value: Constant, found: Interval, axes: tuple[int, ...], stored: _Tensors
) -> Mapping[str, Blocks]:
    """Return the blocks of sums of squares of a tensor along kept axes, or of their roots.

    Proof: the blocks of the entries that are summed become one; d‖b‖² = 2·⟨b, db⟩, and
    d‖b‖ = ⟨b, db⟩/‖b‖, of norm 1. found: of the reduction.
    """
    of_squares = kind in {"ReduceL2", "ReduceSumSquare"}
    terms = square_blocks(value, stored) if of_squares else value.blocks
    summed = {}
    for name, item in terms.items() if of_squares or kind == "ReduceSum" else ():
        if item.rates is None or item.squares is None or not _is_order(item):
            continue
        if (item.rates.lo != 2.0).any() or (item.rates.hi != 2.0).any():
            continue
        cells = np.arange(found.lo.size, dtype=np.int64).reshape(found.shape)
        group = _by_cell(item.cells, np.broadcast_to(cells, value.shape))[item.group]
        squares = item.squares.moved(partial(np.take, indices=item.cells)).sum(axes)
        gains, rates = 2.0 * up(np.sqrt(squares.hi)), exact(np.full(cells.shape, 2.0))
        if kind == "ReduceL2":
            gains, rates = np.ones(cells.shape), found.reciprocal()
        summed[name] = Blocks(group, cells, gains.ravel(), rates, squares.moved(np.ravel))
    return summed


def _is_order(blocks: Blocks) -> bool:
    """Whether each entry is its own block."""
    own = np.arange(len(blocks.gains))
    return np.array_equal(np.sort(blocks.cells, axis=None), own)


def _entries(value: Constant, name: str, stored: _Tensors) -> Blocks | None:
    """Return blocks of one entry each, for a tensor of the file in another order, or None.

    Proof: acts move entries, put a 0 in places, or change signs, and all others make whole numbers
    real ones. Where 1, 2, … are all there after them, no entry has become a 0 or has another sign.
    """
    if value.acts is None or value.sources.keys() != {name} or name not in stored:
        return None
    group, dims = np.arange(value.lo.size, dtype=np.int64), stored[name].dims
    if math.prod(dims) != group.size:
        return None
    moved = reduce(lambda array, act: act(array), value.acts, (group + 1).reshape(dims))
    found = Blocks(group, moved.reshape(value.shape) - 1, np.ones(group.size))
    return found if moved.dtype == group.dtype and _is_order(found) else None


def passed_on(blocks: Blocks, derivative: Interval, shape: Shape | None = None) -> Blocks:
    """Return the blocks of a function of every entry, repeated to a shape, from its derivatives.

    Proof: the chain rule; of the entries of a block the largest factor counts, as in `met`.
    """
    own = blocks.cells.shape
    shape = own if shape is None else shape
    size = np.broadcast_to(derivative.magnitude(), shape)
    if own != shape:
        size = up(np.sqrt(squares_met(own, size, shape)))
    factors = np.zeros_like(blocks.gains)
    np.maximum.at(factors, blocks.cells.ravel(), size.ravel())
    gains = np.where(factors < np.inf, (exact(blocks.gains) * exact(factors)).hi, np.inf)
    rates = blocks.rates * derivative if blocks.rates is not None and own == shape else None
    return replace(blocks, cells=np.broadcast_to(blocks.cells, shape), gains=gains, rates=rates)


def _scaled(plain: Blocks, factor: Constant, blocks: Blocks, operation: str) -> Blocks | None:
    """Return the blocks of w·s or w/s; s is one number per block b of w, with ds = r·⟨b, db⟩.

    Proof: d(s·b) = (s·I + r·b·bᵀ)·db, a symmetric matrix with the eigenvalues s and s + r·‖b‖². It
    is attained where a block has two entries. Of b/‖b‖ they are 1/‖b‖ and 0: of a weight g·b/‖b‖
    the slopes are max |g|/‖b‖ in b, and 1 in g.
    """
    if blocks.rates is None or blocks.squares is None or not _is_order(blocks):
        return None
    own = blocks.group[plain.cells]
    if not (own == blocks.cells).all():
        return None
    scale, rate = _factor(factor, operation), blocks.rates
    if operation == "Div":
        rate = -(rate * scale * scale)
    along = scale + rate * blocks.squares.moved(lambda end: end[blocks.cells])
    gains = np.maximum(scale.magnitude(), along.magnitude())
    return Blocks(blocks.group, own, _by_cell(blocks.cells, gains))


def met(own: Shape, other: Array, shape: Shape) -> float:
    """Bound the norm of x ↦ x·other, both repeated to `shape`, for x of the shape `own`.

    Proof: an entry of x meets those of `other` in whose places it is repeated, and no other entry
    does: the squared norm is the largest sum of their squares. other: magnitudes.
    """
    return sqrt_up(float(np.max(squares_met(own, other, shape), initial=0.0)))


def squares_met(own: Shape, other: Array, shape: Shape) -> Array:
    """Return, for each entry of x as in `met`, an upper bound of the sum of squares it meets."""
    rank = len(shape)
    padded = (1,) * (rank - len(own)) + own
    axes = [axis for axis in range(rank) if padded[axis] == 1]
    places = np.broadcast_to(other, shape)
    return (exact(places) * exact(places)).sum(tuple(axes)).hi
