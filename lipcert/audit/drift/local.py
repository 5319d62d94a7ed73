"""Local errors: what one op adds to the drift, given exactly what it reads.

What enters: an op and its `Site`. What leaves: `LocalErrors`: with computed inputs â, upstream
cotangent b and Jacobian J of the op at â, bounds of ‖fl(f(â)) − f(â)‖, of ‖fl(Jᵀb) − Jᵀb‖ for each
input, and of the same for each operand. Errors of cotangents are affine in ‖b‖. An op without a
rule is a TypeError, never silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Final, final

from lipcert.audit.drift.rounding import Rounding, root
from lipcert.facts import CotangentFacts, ValueFacts
from lipcert.ops.base import Op
from lipcert.scope import Scope
from lipcert.upper import ZERO, FloatArray, Upper


@final
@dataclass(frozen=True, slots=True)
class Growth:
    """An error of at most relative·‖b‖ + floor, for a cotangent b of the output."""

    relative: Upper = ZERO
    floor: Upper = ZERO

    def at(self, cotangent: Upper) -> Upper:
        """The error for cotangents up to this norm."""
        if self == EXACT:
            return ZERO
        return self.relative * cotangent + self.floor


EXACT: Final = Growth()


@final
@dataclass(frozen=True, slots=True)
class LocalErrors:
    """Of one op: its output, and the cotangents of its inputs and operands.

    reached: what is known of the computed output besides. Where the rule of a Jacobian is the plain
    chain rule, an error may be what the *norm* exceeds L·‖b‖ by.
    """

    output: Upper
    inputs: tuple[Growth, ...]
    operands: Mapping[str, Growth] = field(default_factory=dict)
    reached: ValueFacts | None = None


@final
@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """Where an op acts: what it reads and makes in floating-point arithmetic, and how that rounds.

    inputs: facts about the computed inputs. output: about f of these, not rounded yet. arrays:
    the operands that are replayed, by slot.
    """

    inputs: Sequence[ValueFacts]
    output: ValueFacts
    arrays: Mapping[str, FloatArray]
    scope: Scope
    rounding: Rounding

    def lipschitz(self, op: Op, index: int = 0) -> Upper:
        """‖J‖ with respect to an input."""
        return op.input_lipschitz(index, self.inputs, self.scope).value

    def param_lipschitz(self, op: Op) -> Mapping[str, Upper]:
        """‖J‖ with respect to the operands."""
        found = op.param_lipschitz(self.inputs, self.scope)
        return {slot: bound.value for slot, bound in found.items()}


@singledispatch
def local_errors(op: Op, site: Site) -> LocalErrors:
    """The local errors of an op."""
    del site
    raise TypeError(f"{type(op).__name__} has no rule for its rounding errors")


@singledispatch
def carried(op: Op, index: int, site: Site, cotangent: CotangentFacts, error: Upper) -> Upper:
    """How large an error f of the output's cotangent is at an input: ‖Jᵀf‖ ≤ L·‖f‖.

    cotangent: facts of the cotangent without the error.
    """
    del cotangent
    return ZERO if error == ZERO else site.lipschitz(op, index) * error


def linear_growth(
    mass: Upper, terms: int, sizes: tuple[int, int], rounding: Rounding, relative: Upper
) -> Growth:
    """The error of x ↦ Tx with so many terms each, in ‖x‖. sizes: entries of x and of Tx.

    Proof: |fl(Tx) − Tx| ≤ relative·|T||x| + absolute errors: those of reading x, tiny·|T|1; of
    reading T, tiny·Σ|x| over the terms; of products and of the result.
    """
    before, after = sizes
    reading = rounding.tiny * root(after) * root(terms)
    floor = rounding.tiny * mass * root(before) + rounding.floor(after, terms + 2)
    return Growth(relative * mass + reading, floor)
