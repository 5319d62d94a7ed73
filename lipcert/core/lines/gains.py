"""fact/gain: what a larger kernel says of a ReLU, where no entry below it is negative."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, final

import numpy as np

from lipcert.core.arithmetic import multiply_up, sqrt_up
from lipcert.core.budget import spend
from lipcert.core.codec import Bound
from lipcert.core.coverage import is_relu, tensors_read
from lipcert.core.interval import Array
from lipcert.core.line import NotProved
from lipcert.core.lines.facts import FactLine
from lipcert.core.lines.proof import Proof
from lipcert.core.norms.claim import NormWitness
from lipcert.core.norms.kernels import Kernel
from lipcert.core.norms.raised import raised_kernel
from lipcert.core.program import Conv, Dense, Shape, Step
from lipcert.core.rules.facts import Fact


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GainFact(FactLine):
    """Of a ReLU behind a run of affine steps from a value without negative entries.

    values: of the run, or of one linear step. numbers: p, q and τ of `norms.raised`, which are not
    trusted. gain: ‖K'‖, proved by method, twists and counts as in lines `norm/…`.
    Proof: `norms.raised`. z has τ at no more entries of a group than one channel of the output has
    positions. A matrix acts on runs of x, each with a τ of its own, and their squares add up.
    """

    rule: Literal["fact/gain"] = "fact/gain"
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
        kernel = kernel_of(steps, proof.program.shapes)
        raised = None
        if kernel is not None:
            raised = raised_kernel(kernel, constants_of(kernel, steps, proof), self.numbers)
        if raised is None or not self._is_proved(raised, proof):
            raise NotProved("its numbers prove nothing")
        shape, square = above.shape, Fraction(self.numbers[2][0]) ** 2
        norm = self._times(below.norm, square * copies_of(raised, shape))
        row = self._times(below.row_norm, square) if raised.is_matrix else math.inf
        return Fact.of(shape, norm, row_norm=row)

    def _is_proved(self, raised: Kernel, proof: Proof) -> bool:
        witness = NormWitness(self.method, self.twists, self.counts)
        try:
            return raised.norm_at_most(self.gain, witness, proof.engine.norms)
        except ValueError:  # beyond the limits of a proof
            return False

    def _times(self, norm: float, square: Fraction) -> float:
        """gain·√(norm² + square)."""
        if not math.isfinite(norm):
            return math.inf
        return multiply_up(self.gain, sqrt_up(Fraction(norm) ** 2 + square))


def kernel_of(steps: Sequence[Step], shapes: Mapping[str, Shape]) -> Kernel | None:
    """A run as one kernel; None where it is none, or one beyond the limits of a proof."""
    first = steps[0]
    try:
        if len(steps) > 1:
            from lipcert.core.norms.fused import fused_kernel  # noqa: PLC0415  runs only

            return fused_kernel(steps, shapes)
        if isinstance(first.op, Dense | Conv):
            return Kernel.of(first.op, shapes[first.inputs[0]], first.shape)
    except ValueError:
        pass
    return None


def constants_of(kernel: Kernel, steps: Sequence[Step], proof: Proof) -> Array:
    """Upper limits of what steps make of 0, for every channel of the output."""
    end = steps[-1]
    box = proof.images(steps, steps[0].inputs[0])[end.output].box.broadcast(end.shape)
    channels = np.moveaxis(box.hi, -1 if kernel.is_matrix else 1, 0)
    found: Array = channels.reshape(len(channels), -1).max(axis=1)
    return found


def copies_of(raised: Kernel, shape: Shape) -> int:
    """How many entries of z are τ at most: positions of the output, for each group."""
    return math.prod(shape) * raised.frame.groups // len(raised.frame.kernel)
