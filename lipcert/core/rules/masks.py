"""Masks computed from whole numbers, and means over what they show."""

import math

import numpy as np

from lipcert.core.interval import Interval
from lipcert.core.kinds import Compare, MaskedMean
from lipcert.core.rules.base import Rule
from lipcert.core.rules.broadcasting import copies
from lipcert.core.rules.facts import Cotangent, Fact


class CompareRule(Rule[Compare]):
    """y = 1 where a comparison holds, and 0 elsewhere."""

    def fact(self) -> Fact:
        """0 or 1, whatever x is."""
        ends = (np.full((1,) * len(self.shape), end) for end in (0.0, 1.0))
        return Fact.of(self.shape, box=Interval(*ends))

    def lipschitz(self, _: int) -> float:
        """None: it jumps from one whole number to the next."""
        return math.inf


class MaskedMeanRule(Rule[MaskedMean]):
    """y = Σ w·x over axes, with w = m/max(Σ m, floor), so that w ≥ 0 and Σ w ≤ 1."""

    def fact(self) -> Fact:
        """The hull of 0 and of what it is a mean of, and no longer than x.

        Proof: with the norm of `lipschitz`. A run of y along the last axis is a mean of runs of x
        where that axis is none of the axes, and the mask the same for all of a run.
        Attained: by a mask that shows one entry.
        """
        x, axes = self.x, self.op.axes
        if not self._is_mean:
            return Fact.of(self.shape)
        low = np.minimum(np.min(x.box.lo, axis=axes, keepdims=True), 0.0)
        high = np.maximum(np.max(x.box.hi, axis=axes, keepdims=True), 0.0)
        is_by_run = len(self.shape) - 1 not in axes and self.shapes[1][-1] == 1
        run = x.row_norm if is_by_run else math.inf
        return Fact.of(self.shape, x.norm, Interval(low, high), row_norm=run)

    def lipschitz(self, index: int) -> float:
        """1 in x, and none in the mask, which jumps.

        Proof: an entry of y is a sum of w·x over entries that no other one reads, and ‖w‖₂ ≤ Σ w.
        Attained: by a mask that shows one entry.
        """
        return 1.0 if index == 0 and self._is_mean else math.inf

    def tokens_pulled(self, index: int, cotangent: Cotangent) -> tuple[int, float] | None:
        """Along the only axis over which the mean is taken.

        Proof: at place i along it w_i∘g goes back, for the weights w_i ≥ 0 that an entry of y gives
        there, which add up to at most 1: Σ_i ‖w_i∘g‖ ≤ Σ_i max w_i·‖g‖, if they are all the same.
        """
        long = [axis for axis in self.op.axes if self.before[axis] > 1]
        mask = self.shapes[1]
        if index or len(long) != 1 or math.prod(mask) != mask[long[0]]:
            return None
        return long[0] - len(self.shape), cotangent.norm

    @property
    def _is_mean(self) -> bool:
        """Whether the mask fits, and its facts are those of a mask."""
        mask, rank = self.inputs[1], len(self.before)
        fits = len(self.shapes[1]) == rank and copies(self.shapes[1], self.before) > 0
        is_mask = bool((mask.box.lo >= 0.0).all() and (mask.box.hi <= 1.0).all())
        return fits and is_mask and self.op.floor > 0.0
