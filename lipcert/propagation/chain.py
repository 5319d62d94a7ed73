"""Chains: paths of matrices and diagonals without a branch, bounded as a whole.

What enters: the links of a path, resolved to numbers. What leaves: forms along it, and bounds of
the cotangent that reaches its nodes, which take everything up to its end together.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, final

import numpy as np

from lipcert.facts import (
    Bound,
    CotangentFacts,
    Witness,
    bound_of,
    no_bound,
    product_of,
    tightest,
)
from lipcert.forms.multipliers import tuned
from lipcert.forms.quadratic import Multipliers, QuadraticForm
from lipcert.interval import Interval
from lipcert.ir import Node
from lipcert.upper import ONE, FloatArray, Upper

_TUNED_WORK: Final = 3e9


@final
@dataclass(frozen=True, slots=True, eq=False)
class MultiplierWitness(Witness):
    """The nodes of a chain that a form covers, by name from below, and the multipliers of each.

    None for a matrix, and where the default ones of `QuadraticForm.through` serve.
    """

    nodes: tuple[str, ...]
    multipliers: tuple[Multipliers | None, ...]

    def followed_by(self, node: str) -> MultiplierWitness:
        """With one more node at the end, which needs no multipliers, or default ones."""
        return MultiplierWitness((*self.nodes, node), (*self.multipliers, None))


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

    def tuned(self, start: int, stop: int, hull: bool) -> MultiplierWitness:
        """Multipliers for links start, …, stop − 1: the default ones where better cost too much.

        hull: whether class differences are about to enter at the end, or all of a ball.
        """
        proposals: list[Multipliers | None] = [None] * (stop - start)
        beginning = self._beginning(start, stop) if self.work(start) <= _TUNED_WORK else None
        if beginning is not None:
            form, first = beginning
            proposals[first - start :] = tuned(form.matrix, self.links[first:stop], hull)
        return MultiplierWitness(self._names(start, stop), tuple(proposals))

    def form(self, start: int, witness: MultiplierWitness) -> QuadraticForm | None:
        """The form after links start, start + 1, …, for what reaches the input of the first.

        witness: multipliers for all of these links, whatever they are; ValueError where it is
        of other nodes. None for scalars.
        """
        stop = start + len(witness.nodes)
        if witness.nodes != self._names(start, stop):
            raise ValueError("the witness is of other nodes")
        beginning = self._beginning(start, stop)
        if beginning is None:
            return None
        form, first = beginning
        rest = witness.multipliers[first - start :]
        for link, multipliers in zip(self.links[first:stop], rest, strict=True):
            form = form.through(link, multipliers)
        return form

    def _beginning(self, start: int, stop: int) -> tuple[QuadraticForm, int] | None:
        """The form after the first link that is no scalar, and the number of the next."""
        scalars = tuple(itertools.takewhile(_is_scalar, self.links[start:stop]))
        first = start + len(scalars)
        if first == stop:
            return None
        return QuadraticForm.of(self.links[first]).stretched(_stretch(scalars)), first + 1

    def forms(self) -> Iterator[tuple[Node, QuadraticForm | None, MultiplierWitness]]:
        """Each node and the form after it, for what reaches the first; None behind scalars only.

        Made for balls; multipliers are chosen anew for each matrix, by default for a diagonal.
        """
        form: QuadraticForm | None = None
        witness = MultiplierWitness((), ())
        for stop, (node, link) in enumerate(zip(self.nodes, self.links, strict=True), start=1):
            if form is not None and isinstance(link, Interval):
                form = form.through(link, None)
                witness = witness.followed_by(node.name)
            else:
                witness = self.tuned(0, stop, hull=False)
                form = self.form(0, witness)
            yield node, form, witness

    def cotangent(self, start: int, at_end: CotangentFacts) -> Bound:
        """The bound of `cotangent_by` with tuned multipliers, and these as its witness."""
        witness = self.tuned(start, len(self.links), self._meets(at_end))
        return self.cotangent_by(witness, start, at_end)

    def cotangent_by(self, witness: MultiplierWitness, start: int, at_end: CotangentFacts) -> Bound:
        """Returns B ≥ sup ‖δ‖ at the input of link `start`, for these cotangents at the end.

        witness: multipliers from that link to the end, which are not trusted; ValueError where
        it is of other nodes.
        Hypotheses: the slopes hold for all admissible examples, the matrices are those in use.
        Proof: the form at the end bounds ‖δ‖² run by run; the squares of the runs add, so that
        one largest eigenvalue serves a ball of cotangents. A hull lies in a single run, and the
        form, being convex, is largest at one of its vertices.
        Attained: nearly, where the worst diagonals within the slopes can occur together.
        """
        rule = "chain.cotangent"
        if start + len(witness.nodes) != len(self.nodes):
            raise ValueError("the witness does not end where the chain does")
        form = self.form(start, witness)
        if form is None:
            return no_bound(rule, "the chain holds nothing but scalars")
        bound = product_of(rule, bound_of(form.over_ball(), rule), at_end.norm)
        if at_end.hull is not None and self._meets(at_end):
            bound = tightest(bound, bound_of(form.over_hull(at_end.hull), rule))
        return replace(bound, witness=witness) if bound.is_finite else bound

    def _names(self, start: int, stop: int) -> tuple[str, ...]:
        """Of the nodes start, …, stop − 1."""
        return tuple(node.name for node in self.nodes[start:stop])

    def _meets(self, at_end: CotangentFacts) -> bool:
        """Whether the cotangents at the end are a hull that lies in a single run."""
        whole = math.prod(self.nodes[-1].shape)
        return at_end.hull is not None and at_end.hull.classes == whole == self.sizes[-1]


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
