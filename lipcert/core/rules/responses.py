"""Local response normalization: every entry divided by a power of the squares around it."""

import math

from lipcert.core.arithmetic import add_up, multiply_up, sqrt_up
from lipcert.core.enclosures import exp, log
from lipcert.core.interval import Interval, clip, exact
from lipcert.core.kinds import LocalResponse
from lipcert.core.rules.base import Rule
from lipcert.core.rules.facts import Fact


class LocalResponseRule(Rule[LocalResponse]):
    """y = x·s^−β, s = floor + (strength/size)·Σ x_j² over the channels j around each; β = power."""

    def fact(self) -> Fact:
        """X·floor^−β, and every entry between 0 and floor^−β times it, because s ≥ floor.

        Attained: approached as X → 0; exactly at strength 0.
        """
        shrink = self._shrink()
        if shrink == math.inf:
            return Fact.of(self.shape)
        largest = self.x.box * exact(shrink)
        box = Interval(clip(largest, -math.inf, 0.0).lo, clip(largest, 0.0, math.inf).hi)
        return Fact.of(self.shape, multiply_up(shrink, self.x.norm), box)

    def lipschitz(self, _: int) -> float:
        """floor^−β·(1 + 2√size·(1 + 1/β)^−(β+1)).

        Proof: J = D − B with 0 < D = diag(s^−β) ≤ floor^−β and, for the channels j around i,
        B_ij = (2β·strength/size)·x_i·x_j·s_i^−(β+1). With a = (strength/size)·Σ_j x_j², which is
        s_i − floor, row i has the norm at most 2β·a/(floor + a)^(β+1), because |x_i| is one of the
        |x_j|; this is largest at a = floor/β, where it is r = 2·floor^−β·(1 + 1/β)^−(β+1). Each
        entry of x occurs in at most `size` rows, so ‖Bv‖² ≤ Σ_i r²·‖v around i‖² ≤ r²·size·‖v‖².
        Hypotheses: size ≥ 1, strength ≥ 0, β ≥ 0, floor > 0. Attained: at x = 0 up to the second
        term.
        """
        op, steepness = self.op, 1.0
        if op.power > 0.0 and op.strength > 0.0:
            base = exact(1.0) + exact(op.power).reciprocal()
            falls = exp(-((exact(op.power) + exact(1.0)) * log(base)))
            rise = multiply_up(2.0 * float(falls.hi), sqrt_up(float(op.size)))
            steepness = add_up(1.0, rise)
        return multiply_up(self._shrink(), steepness)

    def _shrink(self) -> float:
        """≥ floor^−β, by e^(−β·ln floor); inf for numbers that the proofs do not cover."""
        op = self.op
        if not (op.size >= 1 and op.strength >= 0.0 and op.power >= 0.0 and op.floor > 0.0):
            return math.inf
        if op.power == 0.0 or op.floor == 1.0:
            return 1.0
        return float(exp(exact(-op.power) * log(exact(op.floor))).hi)
