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
from lipcert.core.budget import spend
from lipcert.core.interval import Interval, norm_up
from lipcert.core.lower.errors import Unsupported
from lipcert.core.program import Dense, Op, Operand, Program, Shape, Step, operands
from lipcert.core.rules import STEPS
from lipcert.core.rules.facts import Cotangent, Fact, Joined, lengths_up

if TYPE_CHECKING:
    from lipcert.core.window_kinds import Conv

Constraint: TypeAlias = tuple[str, float]
"""The kind of a norm, and its largest value. spectral: of the linear map of every step that uses
the initializer, which is its largest magnitude for factors and offsets, and the length of the
longest row for the table of an embedding, as every number reads one row; frobenius: of entries."""


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """Bounds that hold for all weights in scope; in this class, these are the weights of the file.

    norms: verified norms of linear steps, by their outputs. A method returns inf without a bound.
    """

    norms: Mapping[str, float]

    def is_fixed(self, _: Operand) -> bool:
        """Whether the entries are those of the file, since no trained initializer takes part."""
        return True

    def entries(self, operand: Operand) -> Interval:
        """Return intervals of all entries: those that the operand states."""
        return Interval(operand.lo, operand.hi)

    def norm(self, operand: Operand) -> float:
        """Bound the Euclidean norm of all entries by that of the largest magnitudes."""
        return norm_up(self.entries(operand).magnitude())

    def max_abs(self, operand: Operand) -> float:
        """Return the largest magnitude of all entries."""
        return float(np.max(self.entries(operand).magnitude(), initial=0.0))

    def longest_row(self, table: Operand) -> float:
        """Bound the norm of every row of a table, by the largest magnitudes."""
        return float(np.max(lengths_up(self.entries(table).magnitude()), initial=0.0))

    def gain(self, operand: Operand, name: str) -> float:
        """Return a bound of ‖∂operand/∂initializer‖, for an initializer of the operand.

        Proof: the norm of a linear function is that of its Jacobian. For another function the
        operand may state a slope at the numbers of the file, which are all weights in scope here.
        """
        linear = operand.sources[name]
        return linear if linear < math.inf else operand.slopes.get(name, math.inf)

    def operator_norm(self, output: str, op: Dense | Conv, before: Shape, after: Shape) -> float:
        """Return a bound of the norm of the linear part of the step that computes `output`.

        It is the verified norm, or else the Frobenius norm of a matrix, or `windows.kernel_norm`.
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
    """A step of a program, with facts of its inputs and bounds of the weights in scope.

    shapes: of the inputs. shape, output: the shape and the name of the computed value. behind: the
    rule of the step that computes the only input, if that step has a single input, too.
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
        """The fact of the first input."""
        return self.inputs[0]

    @property
    def before(self) -> Shape:
        """The shape of the first input."""
        return self.shapes[0]

    @abstractmethod
    def fact(self) -> Fact:
        """Return a fact of the output."""

    @abstractmethod
    def lipschitz(self, index: int) -> float:
        """Return a bound of ‖∂output/∂input‖₂ for the input at `index`, wherever the facts hold."""

    def reaches(self) -> Iterator[tuple[Operand, float]]:
        """Yield each operand with a bound of the norm of operand ↦ output, for fixed inputs.

        This default knows no bound, as for a mask that may be −inf.
        """
        for operand in operands(self.op):
            yield operand, math.inf

    def pulled(self, index: int, cotangent: Cotangent) -> Cotangent:
        """Return the cotangent that the step passes down to the input at `index`.

        Proof: its norm is at most L·l, by the chain rule, for the cotangent l of the output. Other
        properties of l are lost.
        """
        return Cotangent(multiply_up(self.lipschitz(index), cotangent.norm))

    def is_apart(self, index: int, axis: int) -> bool:
        """Whether the Jacobian has one block for each place along an axis, counted from the last.

        The output at a place then depends only on the entries of the input at the same place.
        """
        del index, axis
        return False

    def tokens_pulled(self, index: int, cotangent: Cotangent) -> tuple[int, float] | None:
        """Return the `tokens` of the cotangent that `pulled` returns; None if they are not known.

        Proof: no block of the Jacobian has a larger norm than the whole.
        """
        if cotangent.tokens is None or not self.is_apart(index, cotangent.tokens[0]):
            return None
        axis, total = cotangent.tokens
        return axis, multiply_up(self.lipschitz(index), total)

    def joined_pulled(self, index: int, cotangent: Cotangent) -> Joined | None:
        """Return `joined` of the cotangent that `pulled` returns; None if it is not known.

        Proof: the chain rule.
        """
        if cotangent.joined is None:
            return None
        (name, shares), longest = cotangent.joined, self.lipschitz(index)
        return name, tuple(multiply_up(longest, share) for share in shares)

    def operand_gradients(self, cotangent: Cotangent) -> Iterator[tuple[Operand, float]]:
        """Yield each operand with a bound of ‖∂loss/∂operand‖.

        Proof: ∂loss/∂operand = (∂output/∂operand)ᵀ·cotangent.
        """
        for operand, reach in self.reaches():
            yield operand, multiply_up(reach, cotangent.norm)

    def gradients(
        self, cotangent: Cotangent, first: float = math.inf
    ) -> Iterator[tuple[str, float]]:
        """Yield each initializer of each operand with a bound of its gradient through this step.

        first: another bound for the first operand.
        Proof: the gradient of an initializer is at most the gain times that of the operand.
        """
        for operand, gradient in self.operand_gradients(cotangent):
            for name in operand.sources:
                gain = self.weights.gain(operand, name)
                yield name, multiply_up(gain, min(gradient, first))
            first = math.inf

    def longest_part(self, operand: Shape) -> float:
        """Bound the norm of the entries of the output that one entry of an operand multiplies.

        The operand of the next step has this shape, and the rank of the output; one of its entries
        multiplies all entries along its axes of length 1. inf adds nothing to the fact.
        """
        del operand
        return math.inf


class Entrywise(Rule[OpT]):
    """The rule of a step whose Jacobian is diagonal, and given by its slopes."""

    @abstractmethod
    def slopes(self) -> Interval:
        """Return the derivatives of all entries, for broadcasting to the shape."""

    def lipschitz(self, _: int) -> float:
        """Return the largest slope, which is the norm of a diagonal matrix."""
        return float(np.max(self.slopes().magnitude(), initial=0.0))

    def is_apart(self, *_: int) -> bool:
        """Always, since no entry depends on another."""
        return True


def rule_class(kind: type[Op]) -> type[Rule[Any]]:
    """Return the rule of a kind of step; raise Unsupported if there is none."""
    if kind.__name__ not in STEPS:
        raise Unsupported(f"there is no rule for {kind.__name__}")
    found: type[Rule[Any]] = STEPS[kind.__name__]
    return found


def rule_at(
    shapes: Mapping[str, Shape],
    step: Step,
    facts: Mapping[str, Fact],
    weights: Weights,
    behind: Rule[Any] | None = None,
) -> Rule[Any]:
    """Return the rule of a step of a program. shapes, facts: of the inputs of the step."""
    return rule_class(type(step.op))(
        op=step.op,
        inputs=tuple(facts[name] for name in step.inputs),
        shapes=tuple(shapes[name] for name in step.inputs),
        shape=step.shape,
        weights=weights,
        output=step.output,
        behind=behind,
    )


def step_fact(program: Program, step: Step, facts: Mapping[str, Fact], weights: Weights) -> Fact:
    """Return the fact that the rule of a step proves of its output."""
    spend()
    return rule_at(program.shapes, step, facts, weights).fact()
