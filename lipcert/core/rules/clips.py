"""Clips that training puts round a layer: of what it reads, and of the gradient behind it."""

import math
from dataclasses import replace

from lipcert.core.interval import exact, hull
from lipcert.core.kinds import CotangentClip, InputClip
from lipcert.core.rules.base import Rule
from lipcert.core.rules.facts import Cotangent, Fact


class InputClipRule(Rule[InputClip]):
    """y = x·min(1, radius/‖x‖₂)."""

    def fact(self) -> Fact:
        """x where ‖x‖ ≤ radius; otherwise the radius, and the box drawn to 0.

        Proof: y = t·x with t in [0, 1], so that every entry lies between 0 and that of x, and no
        run grows. Attained: by every x with ‖x‖ ≥ radius.
        """
        x, radius = self.x, self.op.radius
        if x.norm <= radius:
            return x
        return Fact.of(self.shape, radius, hull(x.box, exact(0.0)), x.row_norm, x.column_norm)

    def lipschitz(self, _: int) -> float:
        """1, whether t is differentiated or taken as a constant.

        Proof: y is the projection onto a ball, a convex set. Attained: where ‖x‖ < radius.
        """
        return 1.0


class CotangentClipRule(Rule[CotangentClip]):
    """y = x; the gradient g at y goes back as g·min(1, radius/|g|)."""

    def fact(self) -> Fact:
        """That of x: the clip acts on gradients."""
        return self.x

    def lipschitz(self, _: int) -> float:
        """1, of the function. Attained always."""
        return 1.0

    def is_apart(self, *_: int) -> bool:
        """Always: gradients become shorter at all places alike."""
        return True

    def pulled(self, _: int, cotangent: Cotangent) -> Cotangent:
        """min(l, radius), by channel also for the sums; a hull stays one.

        Proof: the clip multiplies g by a t in [0, 1], after which |g| is at most the radius. A root
        of a sum of squares is at most the sum of magnitudes, so that ‖g‖₂ ≤ |g| also by channel.
        With a member a hull holds its shorter multiples.
        Attained: by every g with |g| ≥ radius.
        """
        radius = self.op.radius
        sums = radius if self.op.by_channel else math.inf
        norm = min(cotangent.norm, radius)
        return replace(cotangent, norm=norm, sums=min(cotangent.sums, sums))


def clipped(cotangent: Cotangent, radius: float) -> Cotangent:
    """A gradient times min(1, radius/‖·‖).

    Proof: a clipped member of a hull that holds 0 is a shorter multiple of it, hence a member;
    no entry, part or row of a gradient is longer than it, and all are shortened alike.
    """
    label, rows = cotangent.label, cotangent.rows
    return replace(
        cotangent,
        norm=min(cotangent.norm, radius),
        label=None if label is None else min(label, radius),
        parts=tuple((size, clipped(part, radius)) for size, part in cotangent.parts),
        rows=None if rows is None else (rows[0], clipped(rows[1], radius)),
    )
