"""Lengths of parts of a value: p-norms over windows and axes, p = 1 and 2, and log Σ exp."""

import math

import numpy as np

from lipcert.core.arithmetic import add_up, multiply_up, sqrt_up
from lipcert.core.enclosures import log
from lipcert.core.interval import Interval, absolute, clip, exact, up
from lipcert.core.kinds import ReduceLogSumExp, ReduceNorm
from lipcert.core.rules.base import Rule
from lipcert.core.rules.facts import Fact, root_up
from lipcert.core.rules.windows import overlap, read_axes
from lipcert.core.window_kinds import LpPool


class LpPoolRule(Rule[LpPool]):
    """(Σ |x|^p)^(1/p) over windows."""

    def fact(self) -> Fact:
        """The constant times X, and the lengths of the magnitudes of the box."""
        x, p = self.x, self.op.p
        axes = read_axes(self.op.window, self.before)
        if axes is None or p not in {1, 2}:
            return Fact.of(self.shape)
        powers = _powers(x.box, p).broadcast((*x.box.shape[:2], *self.before[2:]))
        for place, axis in enumerate(axes, start=2):
            ends = []
            for end in (powers.lo, powers.hi):
                last = np.moveaxis(end, place, -1)
                padded = np.append(last, np.zeros((*last.shape[:-1], 1)), axis=-1)
                ends.append(padded[..., axis.reads])
            summed = Interval(*ends).sum((len(self.shape),))
            low, high = (np.moveaxis(end[..., 0], -1, place) for end in (summed.lo, summed.hi))
            powers = Interval(low, high)
        return Fact.of(self.shape, multiply_up(self.lipschitz(0), x.norm), _roots(powers, p))

    def lipschitz(self, _: int) -> float:
        """√overlap for p = 2, √(taps·overlap) for p = 1; the map keeps 0.

        Proof: |‖a‖_p − ‖b‖_p| ≤ ‖a − b‖_p, at most ‖a − b‖₂, or √taps times that; each position is
        read by at most `overlap` windows, so that the squares add up to overlap·‖·‖².
        Attained: windows that do not overlap; p = 1 by equal magnitudes.
        """
        axes, p = read_axes(self.op.window, self.before), self.op.p
        if axes is None or p not in {1, 2}:
            return math.inf
        taps = math.prod(int(np.max(axis.at_outputs.sum(axis=1), initial=1)) for axis in axes)
        return root_up(overlap(axes) * (taps if p == 1 else 1))


class ReduceNormRule(Rule[ReduceNorm]):
    """(Σ |x|^p + floor)^(1/p) over axes."""

    def fact(self) -> Fact:
        """√(X² + S·floor) or √m·X + √S·floor for S slices, and the lengths of the box.

        Proof: squares of lengths add up; the triangle inequality. Attained: p = 2 always.
        """
        op, x, before, steepest = self.op, self.x, self.before, self.lipschitz(0)
        if steepest == math.inf:
            return Fact.of(self.shape)
        slices = math.prod(self.shape)
        if op.p == 2:
            square = add_up(multiply_up(x.norm, x.norm), multiply_up(float(slices), op.floor))
            norm = sqrt_up(square)
        else:
            norm = add_up(multiply_up(steepest, x.norm), multiply_up(root_up(slices), op.floor))
        axes = tuple(axis % len(before) for axis in op.axes)
        full = tuple(
            before[axis] if axis in axes else length for axis, length in enumerate(x.box.shape)
        )
        powers = _powers(x.box, op.p).broadcast(full).sum(axes) + exact(op.floor)
        return Fact.of(self.shape, norm, _roots(powers, op.p))

    def lipschitz(self, _: int) -> float:
        """1 for p = 2, √m for p = 1 and m entries.

        Proof: the length of (x, √floor), or of x plus a constant; |‖a‖ − ‖b‖| ≤ ‖a − b‖ in either
        norm, ‖·‖₁ ≤ √m‖·‖₂, and slices are disjoint. Hypothesis: floor ≥ 0.
        Attained: floor = 0; for p = 1 where no entry is 0.
        """
        if self.op.p not in {1, 2} or not self.op.floor >= 0.0:
            return math.inf
        entries = math.prod(self.before[axis] for axis in self.op.axes)
        return root_up(entries) if self.op.p == 1 else 1.0


def _powers(box: Interval, p: int) -> Interval:
    """|x|^p."""
    magnitude = absolute(box)
    return magnitude if p == 1 else clip(magnitude * magnitude, 0.0, math.inf)


def _roots(powers: Interval, p: int) -> Interval:
    return clip(powers, 0.0, math.inf) if p == 1 else powers.root()


class ReduceLogSumExpRule(Rule[ReduceLogSumExp]):
    """y = ln Σ e^x over axes."""

    def fact(self) -> Fact:
        """√S·ln m + X for S slices of m entries, and max x ≤ y ≤ max x + ln m.

        Proof: y = ln m at x = 0, and the Lipschitz constant is 1; Σ e^x holds m terms, one of which
        is the largest. Attained: at X = 0.
        """
        axes, box = self.op.axes, self.x.box
        count = math.prod(self.before[axis] for axis in axes)
        spread = max(float(log(exact(float(count))).hi), 0.0) if count > 1 else 0.0
        low, high = (np.asarray(np.max(end, axis=axes, keepdims=True)) for end in (box.lo, box.hi))
        norm = add_up(multiply_up(root_up(math.prod(self.shape)), spread), self.x.norm)
        return Fact.of(self.shape, norm, Interval(low, up(high + spread) if spread else high))

    def lipschitz(self, _: int) -> float:
        """1: the gradient of a slice is its softmax p, ‖p‖₂ ≤ ‖p‖₁ = 1, and slices are disjoint.

        Attained: approached where one entry exceeds all others; by m = 1.
        """
        return 1.0
