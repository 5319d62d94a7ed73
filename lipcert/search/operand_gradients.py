"""Per-example gradients by the operands of a step, in float64 and up to rounding.

`operand_gradients` takes a step, the values that it reads and the cotangents at its output, as
stacks of examples. It yields for each operand an `OperandGradient`, which gives norms or sums and
builds the gradient of every single example only on request.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lipcert.core import kinds, token_kinds, window_kinds
from lipcert.core import program as p
from lipcert.core.program import IndexArray
from lipcert.graph.evaluate import behind, by_tap
from lipcert.search.pullbacks import Array, by_channel, squares, summed


class OperandGradient(ABC):
    """The gradients of the losses of several examples by one operand."""

    @abstractmethod
    def squares(self) -> Array:
        """Return ‖·‖² of each example."""

    @abstractmethod
    def each(self) -> Array:
        """Return the gradient of each example: [examples, *shape of the operand]."""

    @abstractmethod
    def total(self, weights: Array) -> Array:
        """Return Σ weight·gradient over the examples, in the shape of the operand."""


def operand_gradients(step: p.Step, x: Array, g: Array) -> Iterator[tuple[str, OperandGradient]]:
    """Yield gradients by field of the op, except for operands that are constants in eval mode."""
    match step.op:
        case p.Dense(_, bias):
            left, right = g.reshape(len(g), -1, g.shape[-1]), x.reshape(len(x), -1, x.shape[-1])
            yield "weight", _Product(left, right)
            if bias is not None:
                yield "bias", _Entries(left.sum(axis=1))
        case kinds.Embedding(table):
            rows = x.reshape(len(x), -1).astype(np.int64) % table.shape[0]
            yield "table", _Rows(rows, g.reshape(*rows.shape, -1), table.shape)
        case window_kinds.Conv(weight, bias):
            ends = (x, g) if step.op.transposed else (g, x)
            yield "weight", _Kernel(*ends, step.op.window, step.op.groups, weight.shape)
            if bias is not None:
                yield "bias", _Entries(_by_channels(g))
        case kinds.BatchNorm(_, _, mean, inverse):
            normalised = (x - by_channel(mean, x)) * by_channel(inverse, x)
            yield "scale", _Entries(_by_channels(normalised * g))
            yield "shift", _Entries(_by_channels(g))
        case token_kinds.Scale(operand):
            yield "factor", _Entries(summed(x * g, operand.shape))
        case token_kinds.Shift(operand):
            yield "offset", _Entries(summed(g, operand.shape))
        case kinds.PRelu(operand):
            yield "slope", _Entries(summed(np.minimum(x, 0.0) * g, operand.shape))


@dataclass(frozen=True, slots=True, eq=False)
class _Entries(OperandGradient):
    """Stored one by one: [examples, *shape]."""

    entries: Array

    def squares(self) -> Array:
        return squares(self.entries)

    def each(self) -> Array:
        return self.entries

    def total(self, weights: Array) -> Array:
        return np.tensordot(weights, self.entries, axes=1)


@dataclass(frozen=True, slots=True, eq=False)
class _Product(OperandGradient):
    """Σ over the positions p of left_p ⊗ right_p: [examples, positions, outputs or inputs]."""

    left: Array
    right: Array

    def squares(self) -> Array:
        if self.left.shape[1] == 1:
            return squares(self.left) * squares(self.right)
        return squares(self.each())

    def each(self) -> Array:
        return np.asarray(self.left.swapaxes(1, 2) @ self.right)

    def total(self, weights: Array) -> Array:
        left = (weights[:, np.newaxis, np.newaxis] * self.left).reshape(-1, self.left.shape[2])
        return np.asarray(left.T @ self.right.reshape(-1, self.right.shape[2]))


@dataclass(frozen=True, slots=True, eq=False)
class _Rows(OperandGradient):
    """Row rows[p] of the table receives g[p] at every position p; contributions to a row add up."""

    rows: IndexArray
    g: Array
    shape: p.Shape

    def squares(self) -> Array:
        """Return Σ of ⟨g_p, g_q⟩ over pairs of positions of one row; no table is stored."""
        same = self.rows[:, :, np.newaxis] == self.rows[:, np.newaxis, :]
        return np.asarray(np.sum((self.g @ self.g.swapaxes(1, 2)) * same, axis=(1, 2)))

    def each(self) -> Array:
        found = np.zeros((len(self.g), *self.shape))
        examples = np.arange(len(self.g))[:, np.newaxis]
        np.add.at(found, (examples, self.rows), self.g)
        return found

    def total(self, weights: Array) -> Array:
        found = np.zeros(self.shape)
        np.add.at(found, self.rows, weights[:, np.newaxis, np.newaxis] * self.g)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Kernel(OperandGradient):
    """Windows on x joined with g, tap by tap: both are [examples, 1, channels, *positions]."""

    g: Array
    x: Array
    window: window_kinds.Window
    groups: int
    shape: p.Shape

    def squares(self) -> Array:
        total = np.zeros(len(self.g))
        for _, left, right in self._taps():
            total += squares(left @ right.swapaxes(-1, -2))
        return total

    def each(self) -> Array:
        found = np.zeros((len(self.g), *self.shape))
        for tap, left, right in self._taps():
            at_tap = left @ right.swapaxes(-1, -2)
            found[behind(3, tap)] = at_tap.reshape(len(self.g), *self.shape[:2])
        return found

    def total(self, weights: Array) -> Array:
        found = np.zeros(self.shape)
        for tap, left, right in self._taps():
            weighted = weights.reshape(-1, 1, 1, 1) * left
            ends = [end.transpose(1, 2, 0, 3) for end in (weighted, right)]
            a, b = (end.reshape(*end.shape[:2], -1) for end in ends)
            found[behind(2, tap)] = (a @ b.swapaxes(1, 2)).reshape(self.shape[:2])
        return found

    def _taps(self) -> Iterator[tuple[p.Shape, Array, Array]]:
        """Yield for each tap what it joins: [examples, groups, channels of a group, positions]."""
        g, x = (end.reshape(len(end), self.groups, -1, *end.shape[3:]) for end in (self.g, self.x))
        for tap, outs, ins in by_tap(self.window, x.shape[3:]):
            left, right = g[behind(3, outs)], x[behind(3, ins)]
            yield (
                tap,
                left.reshape(*left.shape[:3], -1),
                right.reshape(*right.shape[:3], -1),
            )


def _by_channels(g: Array) -> Array:
    """Return Σ over positions of [examples, 1, channels, *positions]: [examples, channels]."""
    total: Array = g.reshape(*g.shape[:3], -1).sum(axis=(1, 3))
    return total
