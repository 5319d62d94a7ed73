"""Weights within constraints: what is known of operands, over all of them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from lipcert.core.arithmetic import multiply_up
from lipcert.core.interval import Interval, symmetric
from lipcert.core.program import PLUS, Dense, Operand, Shape
from lipcert.core.rules.base import Constraint, Weights
from lipcert.core.rules.facts import root_up
from lipcert.core.rules.windows import kernel_stretch
from lipcert.core.window_kinds import Conv


@dataclass(frozen=True, slots=True, eq=False)
class Constrained(Weights):
    """All weights that satisfy the constraints; initializers that are not trained stay as they are.

    An operand in which a trained initializer takes part is known only if it is a linear function
    of that one alone, with no fixed part, of finite gain g, and a constraint of radius r is stated
    for it: its Euclidean norm is at most g·r under a Frobenius constraint. A spectral one limits
    the steps that use the initializer, so that r bounds them itself, and g·r if it was meant
    before the function; r·max(1, g) covers both.
    """

    constraints: Mapping[str, Constraint]
    trained: frozenset[str]

    def is_fixed(self, operand: Operand) -> bool:
        """Whether none of its sources is trained."""
        return self.trained.isdisjoint(operand.sources)

    def entries(self, operand: Operand) -> Interval:
        """[−radius, radius]: no entry is larger than either norm."""
        if self.is_fixed(operand):
            return Weights.entries(self, operand)
        return symmetric(self._constraint(operand)[1], operand.shape)

    def norm(self, operand: Operand) -> float:
        """The Frobenius radius; √n times the spectral one, for n entries."""
        if self.is_fixed(operand):
            return Weights.norm(self, operand)
        kind, radius = self._constraint(operand)
        size = 1 if kind == "frobenius" else math.prod(operand.shape)
        return multiply_up(root_up(size), radius)

    def max_abs(self, operand: Operand) -> float:
        """The largest magnitude, of weights as in `entries`."""
        if self.is_fixed(operand):
            return Weights.max_abs(self, operand)
        return self._constraint(operand)[1]

    def longest_row(self, table: Operand) -> float:
        """The radius: no row is longer than all entries, and a spectral norm is that of a row."""
        if self.is_fixed(table):
            return Weights.longest_row(self, table)
        return self._constraint(table)[1]

    def operator_norm(self, output: str, op: Dense | Conv, before: Shape, after: Shape) -> float:
        """The spectral radius; κ times the Frobenius one, by `kernel_square` (Dense: κ = 1)."""
        if self.is_fixed(op.weight):
            return Weights.operator_norm(self, output, op, before, after)
        kind, radius = self._constraint(op.weight)
        factor = (
            1.0
            if kind == "spectral" or isinstance(op, Dense)
            else kernel_stretch(op, before, after)
        )
        return multiply_up(factor, radius)

    def gain(self, operand: Operand, name: str) -> float:
        """Of linear functions alone: slopes are those at the numbers of the file."""
        return operand.sources[name]

    def _constraint(self, operand: Operand) -> Constraint:
        """What holds of the operand itself, which some trained initializer takes part in."""
        sources = [name for name in operand.sources if name in self.trained]
        kind, radius = self.constraints.get(sources[0], ("frobenius", math.inf))
        gain = operand.sources[sources[0]]
        known = all(0.0 <= number < math.inf for number in (gain, radius))
        if (
            len(sources) > 1
            or PLUS in operand.sources
            or not known
            or kind not in {"spectral", "frobenius"}
        ):
            return "frobenius", math.inf
        return kind, multiply_up(gain if kind == "frobenius" else max(1.0, gain), radius)
