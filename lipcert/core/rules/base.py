"""Rule: what is proved of one step in its surroundings; one class for each kind of step.

The class of a kind holds every answer about it, with the proof beside each. Whatever is asked has
to be answered: an answer that is missing is an abstract method, or "no bound". What is known of the
operands of a step, over all weights in the scope of a certificate, is asked of `Weights`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import numpy as np

from lipcert.core.arithmetic import multiply_up
from lipcert.core.interval import Interval, norm_up
from lipcert.core.program import Dense, Op, Operand, Shape, operands
from lipcert.core.rules.facts import Cotangent, Fact, lengths_up

if TYPE_CHECKING:
    from lipcert.core.window_kinds import Conv

Constraint: TypeAlias = tuple[str, float]
"""The kind of a norm, and its largest value. spectral: of the linear map of every step that uses
the initializer, which is its largest magnitude for factors and offsets, and the length of the
longest row for the table of an embedding, as every number reads one row; frobenius: of entries."""


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """Bounds that hold for all weights in scope: here those of the file. norms: of linear steps by
    their output, verified beforehand. inf where there is no bound."""

    norms: Mapping[str, float]

    def is_fixed(self, _: Operand) -> bool:
        """Whether no trained initializer takes part in it: its entries are those of the file."""
        return True

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

    def gain(self, operand: Operand, name: str) -> float:
        """≥ ‖∂operand/∂initializer‖, of an initializer that it is computed from.

        Proof: the norm of a linear function is that of its Jacobian; of another function there may
        be a slope at the numbers of the file, which are all the weights in scope here.
        """
        linear = operand.sources[name]
        return linear if linear < math.inf else operand.slopes.get(name, math.inf)

    def operator_norm(self, output: str, op: Dense | Conv, before: Shape, after: Shape) -> float:
        """≥ that of the linear part of the step that computes `output`, between two shapes.

        The verified norm, or the Frobenius norm of a matrix, or that of `windows.kernel_norm`.
        """
        if output in self.norms:
            return self.norms[output]
        if isinstance(op, Dense):
            return norm_up(self.entries(op.weight).magnitude())
        from lipcert.core.rules.windows import kernel_norm  # noqa: PLC0415  for these only

        return kernel_norm(op, self.entries(op.weight), before, after)


OpT = TypeVar("OpT", bound=Op)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Rule(ABC, Generic[OpT]):
    """A step: what is known of its inputs, of these shapes, and of the weights in scope.

    shape, output: of the value that the step computes. behind: the rule of the step that computes
    the only input, if that step has one input too.
    """

    op: OpT
    inputs: Sequence[Fact]
    shapes: Sequence[Shape]
    shape: Shape
    weights: Weights
    output: str
    behind: Rule[Any] | None = None

    @property
    def x(self) -> Fact:
        """What is known of the first input."""
        return self.inputs[0]

    @property
    def before(self) -> Shape:
        """The shape of the first input."""
        return self.shapes[0]

    @abstractmethod
    def fact(self) -> Fact:
        """What is known of the output."""

    @abstractmethod
    def lipschitz(self, index: int) -> float:
        """≥ ‖∂output/∂input‖₂ for the input at `index`, wherever the facts hold."""

    def reaches(self) -> Iterator[tuple[Operand, float]]:
        """Each operand, with a bound of the norm of operand ↦ output, the inputs being fixed: none
        where a kind of step says nothing of its operands, such as a mask that may be −inf."""
        for operand in operands(self.op):
            yield operand, math.inf

    def pulled(self, index: int, cotangent: Cotangent) -> Cotangent:
        """What the input at `index` receives from the cotangent l of the output.

        Proof: L·l, by the chain rule. What else is known of the cotangent is lost.
        """
        return Cotangent(multiply_up(self.lipschitz(index), cotangent.norm))

    def is_apart(self, index: int, axis: int) -> bool:
        """Whether the output at each place along an axis, counted from the last, depends on what
        the input at `index` has at that place alone, so that the Jacobian has one block for each.
        """
        del index, axis
        return False

    def tokens_pulled(self, index: int, cotangent: Cotangent) -> tuple[int, float] | None:
        """The tokens of what `pulled` says of; None where nothing is known.

        Proof: no block of the Jacobian has a larger norm than the whole.
        """
        if cotangent.tokens is None or not self.is_apart(index, cotangent.tokens[0]):
            return None
        axis, total = cotangent.tokens
        return axis, multiply_up(self.lipschitz(index), total)

    def slopes(self) -> Interval | None:
        """The derivative of each entry, broadcastable to the shape; None: it is not diagonal."""
        return None

    def operand_gradients(self, cotangent: Cotangent) -> Iterator[tuple[Operand, float]]:
        """Each operand, with a bound ≥ ‖∂loss/∂operand‖.

        Proof: ∂loss/∂operand = (∂output/∂operand)ᵀ·cotangent.
        """
        for operand, reach in self.reaches():
            yield operand, multiply_up(reach, cotangent.norm)

    def gradients(
        self, cotangent: Cotangent, first: float = math.inf
    ) -> Iterator[tuple[str, float]]:
        """For each operand and each initializer in it: ≥ ‖∂loss/∂initializer‖ through this step.

        first: a bound for the first operand that is known besides.
        Proof: from operand to initializer a gradient grows by at most the gain.
        """
        for operand, gradient in self.operand_gradients(cotangent):
            for name in operand.sources:
                gain = self.weights.gain(operand, name)
                yield name, multiply_up(gain, min(gradient, first))
            first = math.inf

    def longest_part(self, operand: Shape) -> float:
        """≥ the norm of what one entry of an operand of this shape meets in the output.

        The operand has the rank of the output; what it meets lies along its axes of length 1. Asked
        by the step that reads the output, which knows the fact already: inf is "nothing more".
        """
        del operand
        return math.inf


class Entrywise(Rule[OpT]):
    """Of a step with a diagonal Jacobian: its slopes say all of it."""

    @abstractmethod
    def slopes(self) -> Interval:
        """The derivative of each entry, broadcastable to the shape."""

    def lipschitz(self, _: int) -> float:
        """The steepest slope: the norm of a diagonal matrix."""
        return float(np.max(self.slopes().magnitude(), initial=0.0))

    def is_apart(self, *_: int) -> bool:
        """Always, since no entry depends on another."""
        return True
