"""The logarithm of a sum of exponentials over axes."""

from __future__ import annotations

import math
from typing import final

import numpy as np

from lipcert.core.arithmetic import add_up, multiply_up
from lipcert.core.interval import Interval, exact, up
from lipcert.core.program import ReduceLogSumExp
from lipcert.core.rules.base import WithoutOperands
from lipcert.core.rules.enclosures import log
from lipcert.core.rules.facts import Fact, root_up


@final
class ReduceLogSumExpRule(WithoutOperands[ReduceLogSumExp]):
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

    def lipschitz(self, index: int) -> float:
        """1: the gradient of a slice is its softmax p, ‖p‖₂ ≤ ‖p‖₁ = 1, and slices are disjoint.

        Attained: approached where one entry exceeds all others; by m = 1.
        """
        del index
        return 1.0
