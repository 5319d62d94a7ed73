"""Centred bounds: f(x) is near f(c), where c is an admissible input in the middle.

What enters: a graph, facts about its values, and its chains. What leaves: facts about the values
of the chain that starts at the input: how large f(c) is, and how far a chain can carry x − c.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final, final

import numpy as np

from lipcert.facts import Bound, ValueFacts, bound_of
from lipcert.forms.quadratic import QuadraticForm
from lipcert.interval import Interval
from lipcert.ir import Graph
from lipcert.propagation.chain import MultiplierWitness
from lipcert.propagation.chains import Chains
from lipcert.scope import Scope
from lipcert.upper import FloatArray, Upper, norm

_LARGEST: Final = 2.0**500
"""norm of values whose squares are float64 numbers"""


@final
@dataclass(frozen=True, slots=True, eq=False)
class EnclosingBall:
    """A ball that holds all admissible values, around one of them."""

    centre: FloatArray
    radius: Upper

    @classmethod
    def of(cls, facts: ValueFacts, share: float) -> EnclosingBall | None:
        """Around (1 − share)·middle of the box; None where that is not known to be admissible.

        Proof: for 0 ≤ t ≤ 1 and ‖x‖ ≤ R, ‖x − c‖² ≤ tR² + Σ((x_i − c_i)² − t·x_i²). Each term of
        the sum is convex in x_i, hence largest at an end of the box. Here t is the share.
        Attained: for cubes [0, a]^n, and for t = 0 or 1.
        """
        box, radius = facts.box.broadcast(facts.shape), facts.norm.value
        centre = np.clip((1.0 - share) * (0.5 * box.lo + 0.5 * box.hi), box.lo, box.hi)
        if norm(centre) > radius:
            return None
        ends = [
            _square(_exact(end) - _exact(centre)) - _exact(share) * _square(_exact(end))
            for end in (box.lo, box.hi)
        ]
        worst = _exact(np.maximum(ends[0].hi, ends[1].hi).ravel()).sum((0,))
        square = worst + _exact(share) * _square(_exact(radius.value))
        return cls(centre, Upper(max(float(square.hi), 0.0)).sqrt())

    @classmethod
    def several(cls, facts: ValueFacts) -> list[EnclosingBall]:
        """The smallest of these balls, the one around 0, and one between them.

        None where the norm is unknown or its square is no float64, or where runs of the value are
        bounded besides.
        """
        if not facts.norm.value.value <= _LARGEST or facts.runs is not None:
            return []
        best = _best_share(facts.norm.value.value, facts.box.broadcast(facts.shape))
        balls = [cls.of(facts, share) for share in (best, 0.5 + 0.5 * best, 1.0)]
        return [ball for ball in balls if ball is not None]

    def point(self) -> ValueFacts:
        """Facts of the centre alone."""
        length = Bound(norm(self.centre), "chain.output_norm")
        return ValueFacts.of(self.centre.shape, length, _exact(self.centre))


def _best_share(radius: float, box: Interval) -> float:
    """The t that minimises tR² − (1 − t)·Σ lo·hi + (1 − t)²‖middle‖², the square of the radius."""
    middle = 0.5 * box.lo + 0.5 * box.hi
    curvature = 2.0 * float(np.sum(middle * middle))
    slope = radius * radius + float(np.sum(box.lo * box.hi))
    return 1.0 - min(max(slope, 0.0) / curvature, 1.0) if curvature > 0.0 else 1.0


def centred_facts(
    graph: Graph, facts: Mapping[str, ValueFacts], scope: Scope, chains: Chains
) -> dict[str, ValueFacts]:
    """Returns facts of the values on the chain that starts at the input; none without one.

    Hypotheses: the centre c is admissible, so that the slopes of the chain hold between c and x.
    Proof: f(x) − f(c) = J(x − c), where J is made of the matrices of the chain and of slopes of
    chords, which lie in the ranges of the derivatives. The form Q of the chain bounds JJᵀ: entry i
    moves by at most √Q_ii·‖x − c‖, and for the norm see `QuadraticForm.reach`.
    Witness: a `MultiplierWitness` of Q; the choice of the centre and of λ in `reach` is found again
    in one dimension.
    """
    chain = chains.starting_at(graph.input_name)
    balls = EnclosingBall.several(facts[graph.input_name])
    if chain is None or not balls:
        return {}
    points = [ball.point() for ball in balls]
    found: dict[str, ValueFacts] = {}
    for node, form, witness in chain.forms():
        points = [node.op.output_facts([point], scope) for point in points]
        if form is not None:
            found[node.output] = _around(points, [ball.radius for ball in balls], form, witness)
    return found


def _around(
    points: Sequence[ValueFacts],
    radii: Sequence[Upper],
    form: QuadraticForm,
    witness: MultiplierWitness,
) -> ValueFacts:
    """Facts of y = f(x), from those of several f(c), and the distances of x from these c."""
    shape = points[0].shape
    values = [p.box.broadcast(shape).map(lambda end: end.reshape(-1, form.size)) for p in points]
    boxes = [v + form.swing(radius) for v, radius in zip(values, radii, strict=True)]
    box = reduce(Interval.intersect, boxes).map(lambda end: end.reshape(shape))
    norm_bound = bound_of(form.reach(zip(values, radii, strict=True)), "chain.output_norm")
    if norm_bound.is_finite:
        norm_bound = replace(norm_bound, witness=witness)
    return ValueFacts.of(shape, norm_bound, box)


def _square(interval: Interval) -> Interval:
    return interval * interval


def _exact(array: FloatArray | float) -> Interval:
    return Interval.exact(np.asarray(array, dtype=np.float64))
