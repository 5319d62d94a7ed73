"""fact/slice: norms of sets of rows of a matrix bound parts of its output."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from lipcert.core.arithmetic import add_up, multiply_up
from lipcert.core.codec import Bound
from lipcert.core.coverage import tensors_read
from lipcert.core.interval import Interval, norm_up
from lipcert.core.line import NotProved
from lipcert.core.lines.norms import matrix_holds
from lipcert.core.lines.proof import Proof
from lipcert.core.lines.steps import FactLine
from lipcert.core.program import Dense, Move, Step
from lipcert.core.rules.facts import Fact
from lipcert.core.rules.moves import has_alike_runs


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SliceFact(FactLine):
    """The value rearranges entries of Wx + b, like the queries, keys and values of heads.

    norms: ≥ ‖W_S‖ for each set S of rows of W that makes up a run, in the order of `row_sets`.
    Hypotheses (checked): those of `row_sets`; training changes no weight.
    Proof: such a run is W_S x_p + b_S. Its distance from W_S c + b_S is at most ‖W_S‖‖x_p − c‖.
    Runs that lie near one point have the same S, and their x_p lie near one point c.
    Attained: b = 0, and x_p along a singular vector of the longest W_S.
    """

    rule: Literal["fact/slice"] = "fact/slice"
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
