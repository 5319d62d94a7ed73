"""Weights: what is known of operands of steps, over all weights in the scope of a certificate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias, final

import numpy as np

from lipcert.core.arithmetic import multiply_up
from lipcert.core.certificate import ScopeClaim
from lipcert.core.interval import Interval, norm_up, symmetric
from lipcert.core.program import Conv, Dense, Operand, Shape
from lipcert.core.rules.facts import lengths_up, root_up

Constraint: TypeAlias = tuple[str, float]
"""The kind of a norm, and its largest value. spectral: of the linear map of every step that uses
the initializer, which is its largest magnitude for factors and offsets, and the length of the
longest row for the table of an embedding, as every number reads one row; frobenius: of entries."""


class Weights(Protocol):
    """Bounds that hold for all weights in scope; inf where there is none."""

    def entries(self, operand: Operand) -> Interval:
        """An interval around every entry."""

    def norm(self, operand: Operand) -> float:
        """≥ the Euclidean norm of all entries."""

    def max_abs(self, operand: Operand) -> float:
        """≥ every magnitude."""

    def longest_row(self, table: Operand) -> float:
        """≥ the Euclidean norm of every row of a table."""

    def operator_norm(self, output: str, op: Dense | Conv, before: Shape, after: Shape) -> float:
        """≥ the norm of the linear part of the step that computes `output`, between two shapes."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """The weights of the file. norms: of linear steps by their output, verified beforehand."""

    norms: Mapping[str, float]

    def entries(self, operand: Operand) -> Interval:
        """The intervals that the operand states."""
        return Interval(operand.lo, operand.hi)

    def norm(self, operand: Operand) -> float:
        """The norm of the largest magnitudes."""
        return norm_up(self.entries(operand).magnitude())

    def max_abs(self, operand: Operand) -> float:
        """The largest magnitude of any entry."""
        return float(np.max(self.entries(operand).magnitude(), initial=0.0))

    def longest_row(self, table: Operand) -> float:
        """The longest row of the largest magnitudes."""
        return float(np.max(lengths_up(self.entries(table).magnitude()), initial=0.0))

    def operator_norm(self, output: str, op: Dense | Conv, before: Shape, after: Shape) -> float:
        """The verified norm, or κ times the Frobenius norm of the largest group.

        Proof: `kernel_square`; groups are blocks on a diagonal. Dense: κ = 1.
        """
        if output in self.norms:
            return self.norms[output]
        groups = op.groups if isinstance(op, Conv) else 1
        blocks = np.split(self.entries(op.weight).magnitude(), groups)
        return multiply_up(_stretch(op, before, after), max(map(norm_up, blocks)))


@final
@dataclass(frozen=True, slots=True, eq=False)
class Constrained:
    """All weights that satisfy the constraints; initializers that are not trained stay as they are.

    An operand in which a trained initializer takes part is known only if it is a linear function
    of that one alone, of finite gain g, and a constraint of radius r is stated for it: its
    Euclidean norm is at most g·r under a Frobenius constraint. A spectral one limits the steps
    that use the initializer, so that r bounds them itself, and g·r if it was meant before the
    function; r·max(1, g) covers both.
    """

    constraints: Mapping[str, Constraint]
    trained: frozenset[str]
    norms: Mapping[str, float]

    def entries(self, operand: Operand) -> Interval:
        """[−radius, radius]: no entry is larger than either norm."""
        if self._is_fixed(operand):
            return self._fixed.entries(operand)
        return symmetric(self._constraint(operand)[1], operand.shape)

    def norm(self, operand: Operand) -> float:
        """The Frobenius radius; √n times the spectral one, for n entries."""
        if self._is_fixed(operand):
            return self._fixed.norm(operand)
        kind, radius = self._constraint(operand)
        size = 1 if kind == "frobenius" else math.prod(operand.shape)
        return multiply_up(root_up(size), radius)

    def max_abs(self, operand: Operand) -> float:
        """The largest magnitude, of weights as in `entries`."""
        if self._is_fixed(operand):
            return self._fixed.max_abs(operand)
        return self._constraint(operand)[1]

    def longest_row(self, table: Operand) -> float:
        """The radius: no row is longer than all entries, and a spectral norm is that of a row."""
        if self._is_fixed(table):
            return self._fixed.longest_row(table)
        return self._constraint(table)[1]

    def operator_norm(self, output: str, op: Dense | Conv, before: Shape, after: Shape) -> float:
        """The spectral radius; κ times the Frobenius one, by `kernel_square` (Dense: κ = 1)."""
        if self._is_fixed(op.weight):
            return self._fixed.operator_norm(output, op, before, after)
        kind, radius = self._constraint(op.weight)
        stretch = 1.0 if kind == "spectral" else _stretch(op, before, after)
        return multiply_up(stretch, radius)

    @property
    def _fixed(self) -> Point:
        return Point(self.norms)

    def _is_fixed(self, operand: Operand) -> bool:
        return self.trained.isdisjoint(operand.sources)

    def _constraint(self, operand: Operand) -> Constraint:
        """What holds of the operand itself, which some trained initializer takes part in."""
        sources = [name for name in operand.sources if name in self.trained]
        kind, radius = self.constraints.get(sources[0], ("frobenius", math.inf))
        gain = operand.sources[sources[0]]
        known = all(0.0 <= number < math.inf for number in (gain, radius))
        if len(sources) > 1 or not known or kind not in {"spectral", "frobenius"}:
            return "frobenius", math.inf
        return kind, multiply_up(gain if kind == "frobenius" else max(1.0, gain), radius)


def _stretch(op: Dense | Conv, before: Shape, after: Shape) -> float:
    if isinstance(op, Dense):
        return 1.0
    from lipcert.core.rules.windows import convolution_axes, kernel_square  # noqa: PLC0415

    return root_up(kernel_square(convolution_axes(op, before, after)))


def weights_in(scope: ScopeClaim, norms: Mapping[str, float]) -> Weights:
    """All weights in a scope. norms: of linear steps whose weights it leaves as they are."""
    if scope.kind == "point":
        return Point(norms)
    constraints = {item.tensor: (item.kind, item.radius) for item in scope.constraints}
    return Constrained(constraints, frozenset(scope.trained), norms)
