"""fact/gain: what a larger kernel says of a ReLU, where no entry below it is negative."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from lipcert.core.arithmetic import multiply_up, sqrt_up
from lipcert.core.budget import spend
from lipcert.core.codec import Bound
from lipcert.core.coverage import is_relu, tensors_read
from lipcert.core.interval import Array, Interval, exact
from lipcert.core.line import NotProved
from lipcert.core.lines.proof import Proof
from lipcert.core.lines.steps import FactLine
from lipcert.core.norms.claim import NormWitness, all_at_most, matrix_of
from lipcert.core.norms.raised import raised_entries, raised_kernel
from lipcert.core.program import Dense, Shape, Step
from lipcert.core.rules.facts import Fact


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GainFact(FactLine):
    """Of a ReLU behind a run of affine steps from a value without negative entries.

    values: of the run, or of one linear step. numbers: p, q and τ of `norms.raised`, which are not
    trusted. gain: ‖K'‖, proved by method, twists and counts as in lines `norm/…`.
    Proof: `norms.raised`. z has τ at no more entries of a group than one channel of the output has
    positions. A matrix acts on runs of x, each with a τ of its own, and their squares add up.
    """

    values: tuple[str, ...]
    numbers: tuple[tuple[Bound, ...], ...]
    gain: Bound
    method: str
    twists: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()

    def evaluate(self, proof: Proof) -> Fact:
        """From the norm of what the run reads, and those of its rows."""
        spend()
        steps = tuple(proof.step(value) for value in self.values)
        above = proof.step(self.value)
        if not (steps and is_relu(above) and above.inputs == self.values[-1:]):
            raise NotProved("it is not of a ReLU behind a run")
        if proof.free & tensors_read(steps):
            raise NotProved("weights of the run may change")
        below = proof.facts[steps[0].inputs[0]]
        if not (below.box.lo >= 0.0).all():
            raise NotProved("an entry below the run may be negative")
        copies, square = self._copies(steps, proof), Fraction(self.numbers[2][0]) ** 2
        norm = self._times(below.norm, square * copies)
        row = self._times(below.row_norm, square) if has_matrix(steps) else math.inf
        return Fact.of(above.shape, norm, row_norm=row)

    def _copies(self, steps: Sequence[Step], proof: Proof) -> int:
        """How many entries of z are τ at most, where the gain is proved."""
        check, step, shapes = proof.engine.norms, steps[0], proof.program.shapes
        constants = constants_of(steps, proof)
        if len(steps) == 1 and isinstance(step.op, Dense) and self.method == "dense":
            upper = matrix_of(step.op, shapes[step.inputs[0]], step.shape).hi
            matrix = raised_entries(upper, 1, (), constants, self.numbers)
            if all_at_most(exact(matrix), 1.0, self.gain, check):
                return copies_of(step.shape, len(upper))
        else:
            from lipcert.core.norms.convolution import kernel_of  # noqa: PLC0415  for these only

            witness = NormWitness(self.method, self.twists, self.counts)
            raised = raised_kernel(kernel_of(steps, shapes), constants, self.numbers)
            if raised.norm_at_most(self.gain, witness, check):
                return copies_of(steps[-1].shape, len(raised.frame.kernel), raised.frame.groups)
        raise NotProved("its numbers prove nothing")

    def _times(self, norm: float, square: Fraction) -> float:
        """gain·√(norm² + square)."""
        if not math.isfinite(norm):
            return math.inf
        return multiply_up(self.gain, sqrt_up(Fraction(norm) ** 2 + square))


def has_matrix(steps: Sequence[Step]) -> bool:
    """Whether a run acts on the last axis of a value, not on axis 1."""
    return any(isinstance(step.op, Dense) for step in steps)


def constants_of(steps: Sequence[Step], proof: Proof) -> Array:
    """Upper limits of what a run makes of 0, for every channel of the output."""
    return image_of_zero(steps, proof).hi


def image_of_zero(steps: Sequence[Step], proof: Proof) -> Interval:
    """What a run makes of 0, for every channel of the output."""
    end, axis = steps[-1], -1 if has_matrix(steps) else 1
    box = proof.images(steps, steps[0].inputs[0])[end.output].box.broadcast(end.shape)
    lo, hi = (np.moveaxis(part, axis, 0).reshape(end.shape[axis], -1) for part in (box.lo, box.hi))
    return Interval(lo.min(axis=1), hi.max(axis=1))


def copies_of(shape: Shape, outputs: int, groups: int = 1) -> int:
    """How many entries of z are τ at most: positions of the output, for each group."""
    return math.prod(shape) * groups // outputs
