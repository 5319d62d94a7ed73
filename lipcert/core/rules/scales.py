"""Factors and offsets of every entry: Scale and Shift."""

import math
from collections.abc import Iterator

import numpy as np

from lipcert.core.arithmetic import add_up, multiply_up
from lipcert.core.interval import Interval
from lipcert.core.program import Operand, Shape
from lipcert.core.rules.base import Entrywise, Rule
from lipcert.core.rules.broadcasting import copies, longest_part, scaled, summed
from lipcert.core.rules.facts import Cotangent, Fact, longest_run, root_up, token_axis
from lipcert.core.token_kinds import Scale, Shift


class ScaleRule(Entrywise[Scale]):
    """y = factor·x entry by entry."""

    def fact(self) -> Fact:
        """max|s|·X, also for runs, and for spreads of runs that meet the same factors.

        Attained where X may sit on the entry of the largest factor.
        """
        copies(self.op.factor.shape, self.shape)
        x, largest = self.x, self.weights.max_abs(self.op.factor)
        norm, run, column = (
            multiply_up(largest, length) for length in (x.norm, x.row_norm, x.column_norm)
        )
        spreads = (
            multiply_up(largest, spread)
            for spread in spreads_kept(x, self.op.factor.shape, self.shape)
        )
        return Fact.of(self.shape, norm, x.box * self.slopes(), run, column, *spreads)

    def slopes(self) -> Interval:
        """The factors themselves. Attained always."""
        return self.weights.entries(self.op.factor)

    def lipschitz(self, _: int) -> float:
        """The largest factor. Attained always."""
        return self.weights.max_abs(self.op.factor)

    def pulled(self, index: int, cotangent: Cotangent) -> Cotangent:
        """L·l; one positive number c makes of a hull c times it: it holds shorter multiples. So it
        does of the rows."""
        largest = self.lipschitz(index)
        if not _is_one_positive_number(self.slopes()):
            return Cotangent(multiply_up(largest, cotangent.norm))
        kept = Cotangent(cotangent.norm, cotangent.hull, rows=cotangent.rows)
        return scaled(kept, largest)

    def operand_gradients(self, cotangent: Cotangent) -> Iterator[tuple[Operand, float]]:
        """The longest part of x that one factor multiplies, times the norm; also ‖x‖ times the
        peaks, where each entry of a run along the last axis has a factor of its own; and the sum
        of the cotangents that a factor meets, times the largest entry of x.

        Proof: the gradient is a sum of x_r∘g_r over runs, some side by side, no longer than
        Σ ‖x_r‖·max|g_r|, and Cauchy–Schwarz.
        Attained: the first by equal runs of one entry, the other by equal runs whose cotangents
        have entries of one magnitude.
        """
        ((factor, reach),) = self.reaches()
        found = multiply_up(reach, cotangent.norm)
        if factor.shape[-1:] == self.shape[-1:]:
            found = min(found, multiply_up(self.x.norm, cotangent.peak))
        total = summed(cotangent, self.shape, factor.shape)
        yield factor, min(found, multiply_up(self.x.max_abs, total))

    def reaches(self) -> Iterator[tuple[Operand, float]]:
        """The longest part of x that one factor multiplies: disjoint columns. Attained always."""
        parts = self.op.factor.shape
        found = min(self.x.norm, longest_part(self.x, self.x.box, self.shape, parts))
        if self.behind is not None:
            found = min(found, self.behind.longest_part(parts))
        yield self.op.factor, found


class ShiftRule(Rule[Shift]):
    """y = x + offset entry by entry."""

    def fact(self) -> Fact:
        """X + √m·‖b‖ for an offset repeated m times. Attained where x is parallel to it.

        Proof for a run: it meets a run of the offset, repeated m times if that has one entry. What
        is added to runs alike moves the point that they are near.
        """
        x, shape, norm = self.x, self.shape, self.weights.norm(self.op.offset)
        (_, repeated), offset = next(self.reaches()), self.weights.entries(self.op.offset)
        added = multiply_up(repeated, norm)
        run, column = (
            min(
                added,
                multiply_up(root_up(shape[axis] // offset.shape[axis]), norm),
                longest_run(offset, shape, axis),
            )
            if len(shape) >= -axis
            else added
            for axis in (-1, -2)
        )
        lengths = add_up(x.row_norm, run), add_up(x.column_norm, column)
        spreads = spreads_kept(x, self.op.offset.shape, shape)
        return Fact.of(shape, add_up(x.norm, added), x.box + offset, *lengths, *spreads)

    def lipschitz(self, _: int) -> float:
        """1, since x ↦ x + c. Attained always."""
        return 1.0

    def pulled(self, _: int, cotangent: Cotangent) -> Cotangent:
        """The same, with its hull and its rows."""
        peaks = cotangent.peaks
        return Cotangent(cotangent.norm, cotangent.hull, peaks=peaks, rows=cotangent.rows)

    def is_apart(self, *_: int) -> bool:
        """Always, since no entry depends on another."""
        return True

    def operand_gradients(self, cotangent: Cotangent) -> Iterator[tuple[Operand, float]]:
        """√m·l, and the sum of the cotangents that an offset meets."""
        for operand, found in super().operand_gradients(cotangent):
            yield operand, min(found, summed(cotangent, self.shape, operand.shape))

    def reaches(self) -> Iterator[tuple[Operand, float]]:
        """√m for an offset that is added at m places: disjoint columns of ones. Attained always."""
        yield self.op.offset, root_up(copies(self.op.offset.shape, self.shape))


def spreads_kept(x: Fact, operand: Shape, shape: Shape) -> tuple[float, float]:
    """Those of the runs of x that meet the same entries of an operand; inf else."""
    alike = len(operand) == len(shape) >= 2 and operand[token_axis(shape)] == 1
    column = x.column_spread if operand[-1:] == (1,) else math.inf
    return x.row_spread if alike else math.inf, column


def _is_one_positive_number(entries: Interval) -> bool:
    """Whether all entries are the same, whichever member of the interval they are."""
    low, high = float(np.min(entries.lo)), float(np.max(entries.hi))
    return low > 0.0 and (entries.lo.size == 1 or low == high)
