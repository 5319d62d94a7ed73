"""norm/stack, pull/stack and fact/slice: matrices one above the other, and sets of their rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from lipcert.core.arithmetic import add_up, multiply_up, sqrt_up
from lipcert.core.codec import Bound
from lipcert.core.coverage import tensors_read
from lipcert.core.interval import Interval, exact, norm_up
from lipcert.core.line import Line, NotProved
from lipcert.core.lines.chains import ShareLine
from lipcert.core.lines.norms import matrix_holds
from lipcert.core.lines.proof import Proof
from lipcert.core.lines.steps import FactLine, received
from lipcert.core.program import Dense, Move, Step
from lipcert.core.rules.facts import Fact
from lipcert.core.rules.moves import has_alike_runs


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StackNorm(Line[float]):
    """‖[W_1; …; W_k]‖₂ ≤ bound, of matrices that read one value. values: what they compute.

    Hypotheses (checked): no weight may change.
    """

    about: ClassVar[str] = "values"
    values: tuple[str, ...]

    def evaluate(self, proof: Proof) -> float:
        """Return the bound, if it is proved for the matrix of all rows."""
        steps = tuple(proof.step(value) for value in self.values)
        if self.bound is None or proof.free & tensors_read(steps):
            raise NotProved("it states no norm, or weights may change")
        if not matrix_holds(stacked(steps), self.bound, proof.engine.norms):
            raise NotProved("it is not proved of matrices that read one value")
        return self.bound

    def keep(self, proof: Proof, found: float) -> None:
        """Keep the norm for lines that name the stack."""
        proof.stacks[self.values] = found


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StackPull(ShareLine):
    """The norm of a stack bounds the cotangent of the value that its matrices read.

    Proof: the matrices pass down W_1ᵀg_1 + … + W_kᵀg_k, the transpose of the stack times all g_i,
    one after another, whose norm is √Σ‖g_i‖². The shares of other readers are added.
    Attained: by g_i of the largest norms that lie along a singular vector of the stack.
    """

    about: ClassVar[str] = "values"
    values: tuple[str, ...]

    def evaluate(self, proof: Proof) -> float:
        """Return the norm of the stack times that of the cotangents, plus the other shares."""
        norm, own, start = proof.stacks[self.values], proof.passes[self.of], self.entry(proof)[0]
        square = 0.0
        for step in own.readers.get(start, ()):
            if step.output in self.values:
                length = own.cotangents[step.output].norm
                square = add_up(square, multiply_up(length, length))
        rest = received(own, start, proof.facts, proof.weights, self.values)
        return add_up(multiply_up(norm, sqrt_up(square)), rest.norm)

    def entry(self, proof: Proof) -> tuple[str, str | None]:
        """Return the value that the stack reads; the bound holds for all its readers together."""
        return proof.step(self.subject).inputs[0], None


def stacked(steps: Sequence[Step]) -> Interval:
    """The rows of matrices that read one value, one above the other."""
    rows = [
        step.op.weight
        for step in steps
        if isinstance(step.op, Dense) and step.inputs == steps[0].inputs
    ]
    if not 0 < len(rows) == len(steps):
        raise NotProved("it is not of matrices that read one value")
    if all(weight.is_exact for weight in rows):
        return exact(np.concatenate([weight.lo for weight in rows]))
    low, high = (np.concatenate([getattr(row, end) for row in rows]) for end in ("lo", "hi"))
    return Interval(low, high)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SliceFact(FactLine):
    """The value rearranges entries of Wx + b, like the queries, keys and values of heads.

    norms: ≥ ‖W_S‖ for each set S of rows of W that makes up a run, in the order of `row_sets`.
    Hypotheses (checked): those of `row_sets`; training changes no weight.
    Proof: such a run is W_S x_p + b_S. Its distance from W_S c + b_S is at most ‖W_S‖‖x_p − c‖.
    Runs that lie near one point have the same S, and their x_p lie near one point c.
    Attained: b = 0, and x_p along a singular vector of the longest W_S.
    """

    norms: tuple[Bound, ...]

    def evaluate(self, proof: Proof) -> Fact:
        """Return the fact that follows from the runs of the input of the matrix."""
        step = proof.step(self.value)
        maker = proof.step(step.inputs[0])
        found = row_sets(step, maker)
        if found is None or not isinstance(maker.op, Dense):
            raise NotProved("it is not of runs of what a matrix computes from one run")
        axis, sets = found
        if len(sets) != len(self.norms) or proof.free & tensors_read((maker,)):
            raise NotProved("it has not one norm for each set of rows, or weights may change")
        weight, bias, below = maker.op.weight, maker.op.bias, proof.facts[maker.inputs[0]]
        longest = spread = shift = 0.0
        for rows, norm in zip(sets, self.norms, strict=True):
            part = Interval(weight.lo[rows], weight.hi[rows])
            if not matrix_holds(part, norm, proof.engine.norms):
                raise NotProved("the norm of rows of the matrix is not proved")
            if bias is not None:
                shift = norm_up(Interval(bias.lo[rows], bias.hi[rows]).magnitude())
            longest = max(longest, add_up(multiply_up(norm, below.row_norm), shift))
            spread = max(spread, multiply_up(norm, below.row_spread))
        if axis == -1:
            return Fact.of(step.shape, row_norm=longest, row_spread=spread)
        return Fact.of(step.shape, column_norm=longest, column_spread=spread)

    def keep(self, proof: Proof, found: Fact) -> None:
        """Keep the fact, and the largest of the norms."""
        super(SliceFact, self).keep(proof, found)
        proof.slices[self.value] = max(self.norms)


def row_sets(step: Step, maker: Step) -> tuple[int, npt.NDArray[np.int64]] | None:
    """Return the axis of the runs of a rearranged matrix product, and the rows that make up a run.

    Each set of rows occurs once, in lexicographic order. Return None unless all runs along the last
    axis, or else along the last but one, consist of entries that the matrix computes from one run,
    as `has_alike_runs` requires.
    """
    if not (isinstance(step.op, Move) and isinstance(maker.op, Dense)):
        return None
    sources = step.op.sources
    for axis in (-1, -2):
        if has_alike_runs(sources, axis, maker.shape, -1) and (sources >= 0).all():
            runs = np.moveaxis(sources, axis, -1) % maker.shape[-1]
            return axis, np.unique(runs.reshape(-1, runs.shape[-1]), axis=0)
    return None
