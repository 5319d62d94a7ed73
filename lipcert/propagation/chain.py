"""Chains: paths of matrices and diagonals without a branch, bounded as a whole.

What enters: the links of a path, resolved to numbers. What leaves: forms along it, and bounds of
the cotangent that reaches its nodes, which take everything up to its end together.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lipcert.facts import Bound, CotangentFacts, bound_of, no_bound, product_of, tightest
from lipcert.forms.multipliers import tuned
from lipcert.forms.quadratic import QuadraticForm
from lipcert.interval import Interval
from lipcert.ir import Node
from lipcert.upper import ONE, FloatArray, Upper

__all__ = ["Chain"]

_TUNED_WORK: Final = 3e9


@final
@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """Nodes of which each reads only the one before, whose output has no other reader.

    links: one per node, a matrix [after, before] or slopes [run], for each run of entries of the
    values in row-major order. sizes: length of the runs before each link, and at the end.
    """

    nodes: tuple[Node, ...]
    links: tuple[FloatArray | Interval, ...]
    sizes: tuple[int, ...]

    def starts(self) -> list[int]:
        """The links from which on a bound is of use: the first, and those above parameters."""
        return [
            start
            for start in range(len(self.links) - 1)
            if start == 0 or self.nodes[start - 1].op.operands()
        ]

    def work(self, start: int) -> float:
        """Floating-point operations, roughly, of the form from a link to the end."""
        operations = 0.0
        for link, size in zip(self.links[start:], self.sizes[start:-1], strict=True):
            if isinstance(link, Interval):
                operations += 0.0 if _is_scalar(link) and not operations else 30.0 * size**3
            else:
                operations += 2.0 * len(link) * size * (len(link) + (size if operations else 0.0))
        return operations

    def form(self, start: int, stop: int, hull: bool) -> QuadraticForm | None:
        """The form after links start, …, stop − 1, for what reaches the input of the first.

        hull: whether class differences are about to enter it, or all of a ball. None for scalars.
        """
        scalars = tuple(itertools.takewhile(_is_scalar, self.links[start:stop]))
        links = self.links[start + len(scalars) : stop]
        if not links:
            return None
        form = QuadraticForm.of(links[0]).stretched(_stretch(scalars))
        rest = links[1:]
        tune = self.work(start) <= _TUNED_WORK
        proposals = tuned(form.matrix, rest, hull) if tune else [None] * len(rest)
        for link, proposal in zip(rest, proposals, strict=True):
            form = form.through(link, proposal)
        return form

    def forms(self) -> Iterator[tuple[Node, QuadraticForm | None]]:
        """Each node and the form after it, for what reaches the first; None behind scalars only.

        Made for balls; multipliers are chosen anew for each matrix, by default for a diagonal.
        """
        form: QuadraticForm | None = None
        for stop, (node, link) in enumerate(zip(self.nodes, self.links, strict=True), start=1):
            if form is not None and isinstance(link, Interval):
                form = form.through(link, None)
            else:
                form = self.form(0, stop, hull=False)
            yield node, form

    def cotangent(self, start: int, at_end: CotangentFacts) -> Bound:
        """Returns B ≥ sup ‖δ‖ at the input of link `start`, for these cotangents at the end.

        Hypotheses: the slopes hold for all admissible examples, the matrices are those in use.
        Proof: the form at the end bounds ‖δ‖² run by run; the squares of the runs add, so that
        one largest eigenvalue serves a ball of cotangents. A hull lies in a single run, and the
        form, being convex, is largest at one of its vertices.
        Attained: nearly, where the worst diagonals within the slopes can occur together.
        """
        rule = "chain.cotangent"
        hull, whole = at_end.hull, math.prod(self.nodes[-1].shape)
        meets = hull is not None and hull.classes == whole == self.sizes[-1]
        form = self.form(start, len(self.links), meets)
        if form is None:
            return no_bound(rule, "the chain holds nothing but scalars")
        bound = product_of(rule, bound_of(form.over_ball(), rule), at_end.norm)
        if hull is not None and meets:
            bound = tightest(bound, bound_of(form.over_hull(hull), rule))
        return bound


def _is_scalar(link: FloatArray | Interval) -> bool:
    """Whether it is a diagonal with the same range for all entries."""
    if not isinstance(link, Interval):
        return False
    return bool(np.all(link.lo == link.lo[0]) and np.all(link.hi == link.hi[0]))


def _stretch(scalars: Iterable[FloatArray | Interval]) -> Upper:
    """Bound of the norm of such diagonals together."""
    stretch = ONE
    for link in scalars:
        if isinstance(link, Interval):
            stretch = stretch * link.max_abs()
    return stretch
