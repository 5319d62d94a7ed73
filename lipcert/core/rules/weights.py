"""Weights: what is known of operands of steps, over all weights in the scope of a certificate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from lipcert.core.arithmetic import multiply_up
from lipcert.core.interval import Interval, norm_up
from lipcert.core.program import Conv, Dense, Operand, Shape
from lipcert.core.rules.facts import lengths_up, root_up

Constraint: TypeAlias = tuple[str, float]
"""The kind of a norm, and its largest value. spectral: of the linear map of every step that uses
the initializer, which is its largest magnitude for factors and offsets, and the length of the
longest row for the table of an embedding, as every number reads one row; frobenius: of entries."""


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """Bounds that hold for all weights in scope: here those of the file. norms: of linear steps by
    their output, verified beforehand. inf where there is no bound."""

    norms: Mapping[str, float]

    def entries(self, operand: Operand) -> Interval:
        """Around every entry: the intervals that the operand states."""
        return Interval(operand.lo, operand.hi)

    def norm(self, operand: Operand) -> float:
        """≥ the Euclidean norm of all entries: that of the largest magnitudes."""
        return norm_up(self.entries(operand).magnitude())

    def max_abs(self, operand: Operand) -> float:
        """≥ every magnitude: the largest."""
        return float(np.max(self.entries(operand).magnitude(), initial=0.0))

    def longest_row(self, table: Operand) -> float:
        """≥ the norm of every row of a table: the longest of the largest magnitudes."""
        return float(np.max(lengths_up(self.entries(table).magnitude()), initial=0.0))

    def operator_norm(self, output: str, op: Dense | Conv, before: Shape, after: Shape) -> float:
        """≥ that of the linear part of the step that computes `output`, between two shapes.

        The verified norm, or κ times the Frobenius norm of the largest group.
        Proof: `kernel_square`; groups are blocks on a diagonal. Dense: κ = 1.
        """
        if output in self.norms:
            return self.norms[output]
        groups = op.groups if isinstance(op, Conv) else 1
        blocks = np.split(self.entries(op.weight).magnitude(), groups)
        return multiply_up(stretch(op, before, after), max(map(norm_up, blocks)))


def stretch(op: Dense | Conv, before: Shape, after: Shape) -> float:
    """κ with ‖the linear map of a kernel w‖ ≤ κ‖w‖_F; Dense: κ = 1."""
    if isinstance(op, Dense):
        return 1.0
    from lipcert.core.rules.windows import convolution_axes, kernel_square  # noqa: PLC0415

    return root_up(kernel_square(convolution_axes(op, before, after)))
