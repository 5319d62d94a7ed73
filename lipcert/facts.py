"""What is known of a value or a cotangent of one example: a reduced product of small facts.

What enters: bounds derived by rules. What leaves: immutable facts, each naming the rule that gave
it. Any subset of facts is sound, so a tighter rule only ever adds one; `meet` combines them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import final

import numpy as np

from lipcert.interval import Interval
from lipcert.upper import INFINITE, ONE, Upper, total

Shape = tuple[int, ...]


class Witness:
    """What an independent checker needs, besides the name of a rule and its value, to replay the
    proof without the search that found it. Subclasses are small and immutable.
    """

    __slots__ = ()


@final
@dataclass(frozen=True, slots=True)
class Bound:
    """An upper bound of a norm, the rule that proves it, and why it is infinite if it is.

    `rule` is a dotted name that `lipcert explain` resolves; `reason` and `remedy` are empty for
    a finite bound and say, for an absent one, what stands in the way and what would help.
    `witness` belongs to this rule and this value: whatever makes another bound drops it. It is
    None where rule and value suffice, or where nobody kept it; bounds are equal without it.
    """

    value: Upper
    rule: str
    reason: str = ""
    remedy: str = ""
    witness: Witness | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.value.is_finite and not self.reason:
            raise ValueError(f"rule {self.rule}: an absent bound must state its reason")

    @property
    def is_finite(self) -> bool:
        """Whether there is a bound."""
        return self.value.is_finite

    def scaled(self, factor: Upper) -> Bound:
        """This bound times a factor, under the same rule."""
        if not self.is_finite:
            return self
        if not factor.is_finite:
            raise ValueError("cannot scale a bound by an unknown factor")
        return bound_of(self.value * factor, self.rule)


def no_bound(rule: str, reason: str, remedy: str = "") -> Bound:
    """The honest answer where a rule does not apply."""
    return Bound(INFINITE, rule, reason, remedy)


def bound_of(value: Upper, rule: str) -> Bound:
    """This bound under a rule; an overflow of float64 is no bound."""
    if value.is_finite:
        return Bound(value, rule)
    return no_bound(rule, "the bound exceeds the range of float64")


def product_of(rule: str, *bounds: Bound) -> Bound:
    """The product of bounds under a new rule; the first absent one explains an absent product."""
    value = ONE
    for bound in bounds:
        if not bound.is_finite:
            return bound
        value = value * bound.value
    return bound_of(value, rule)


def sum_of(rule: str, *bounds: Bound) -> Bound:
    """The sum of bounds under a new rule; the first absent one explains an absent sum."""
    for bound in bounds:
        if not bound.is_finite:
            return bound
    return bound_of(total(bound.value for bound in bounds), rule)


def tightest(*bounds: Bound) -> Bound:
    """The smallest of several sound bounds of the same quantity; the first wins a tie."""
    return min(bounds, key=lambda bound: bound.value)


@final
@dataclass(frozen=True, slots=True)
class Runs:
    """No run of entries along one axis has a larger Euclidean norm (tokens, pixels)."""

    axis: int
    norm: Upper


@final
@dataclass(frozen=True, slots=True)
class ValueFacts:
    """Facts about a value of one example, over all admissible inputs and weights in scope.

    norm: bound of the Euclidean norm of the whole tensor.
    box:  entrywise interval, broadcastable to `shape` (infinite ends where nothing is known).
    runs: bound of the norm of every run along one axis, where it is known to be smaller.
    Reduced on construction: the norm is at most that of the box, and every entry is at most the
    norm, also that of its run.
    """

    shape: Shape
    norm: Bound
    box: Interval
    runs: Runs | None = None

    @classmethod
    def of(
        cls, shape: Shape, norm: Bound, box: Interval | None = None, runs: Runs | None = None
    ) -> ValueFacts:
        """Combine a norm bound, a box and runs (None: unknown) into reduced facts."""
        whole_line = Interval.symmetric(INFINITE, shape)
        box = whole_line if box is None else box.broadcast(shape)
        if runs is not None:
            box = box.intersect(Interval.symmetric(runs.norm, shape))
        by_box = box.norm()
        if by_box < norm.value:
            norm = Bound(by_box, "value.norm_of_box")
        if runs is not None and not runs.norm < norm.value:
            runs = None
        return cls(shape, norm, box.intersect(Interval.symmetric(norm.value, shape)), runs)

    def meet(self, other: ValueFacts) -> ValueFacts:
        """Everything that both say about the same value."""
        if self.shape != other.shape:
            raise ValueError(f"facts of shape {self.shape} and {other.shape} do not meet")
        runs = self.runs if other.runs is None else other.runs
        if self.runs is not None and other.runs is not None and self.runs.norm < other.runs.norm:
            runs = self.runs
        return ValueFacts.of(
            self.shape, tightest(self.norm, other.norm), self.box.intersect(other.box), runs
        )

    def run_norm(self, axis: int) -> Upper:
        """Bound of the norm of every run along this axis (negative: from the last)."""
        axis %= len(self.shape)
        if self.runs is not None and self.runs.axis == axis:
            return self.runs.norm
        return self.norm.value

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)

    @property
    def max_abs(self) -> Upper:
        """Bound of the largest magnitude of any entry."""
        return self.box.max_abs()

    @property
    def is_nonnegative(self) -> bool:
        """Whether every entry is known to be ≥ 0."""
        return bool(np.all(self.box.lo >= 0.0))


@final
@dataclass(frozen=True, slots=True)
class PairHull:
    """The cotangent lies in scale · conv{e_j − t_y : j, y classes}, entries along the last axis.

    t_y = (1 − smoothing)·e_y + (smoothing/classes)·1 is the target distribution of label y.
    All members sum to 0. Convex functions of the cotangent are maximal at one of these vertices.
    """

    classes: int
    scale: Upper
    smoothing: float = 0.0


@final
@dataclass(frozen=True, slots=True)
class CotangentFacts:
    """Facts about ∂loss/∂value of one example: a norm bound, and a hull where one is known.

    channel_sums: bound of √Σ_c (Σ_i |g_ci|)², c the first axis, where it is known.
    label: T, where the cotangent is −t at one entry with 0 ≤ t ≤ T, and 0 at all others.
    """

    norm: Bound
    hull: PairHull | None = None
    channel_sums: Bound | None = None
    label: Upper | None = None

    def through(self, lipschitz: Bound) -> CotangentFacts:
        """The cotangent after an op with this Jacobian norm: l·L, the hull is lost."""
        return CotangentFacts(product_of("cotangent.chain_rule", lipschitz, self.norm))

    def capped(self, clip: Bound) -> CotangentFacts:
        """The cotangent after a clip of its norm.

        Proof: a clipped member g of the hull is t·g with t in [0, 1], and the hull is convex and
        holds 0, the average of its vertices with j = y. The only entry of g is at most its norm.
        """
        label = None if self.label is None else min(self.label, clip.value)
        return CotangentFacts(tightest(self.norm, clip), self.hull, label=label)

    def plus(self, other: CotangentFacts) -> CotangentFacts:
        """The sum of the cotangents of two consumers of one value (fan-out adds)."""
        return CotangentFacts(sum_of("cotangent.fan_out", self.norm, other.norm))
