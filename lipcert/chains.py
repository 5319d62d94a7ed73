"""Chains: paths of matrices and diagonals without a branch, bounded as a whole.

What enters: a graph, facts of its values, a scope. What leaves: for nodes on such a path, a bound
of the cotangent at their input that takes everything up to the end of the path together.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lipcert.facts import (
    Bound,
    CotangentFacts,
    Shape,
    ValueFacts,
    bound_of,
    product_of,
    tightest,
)
from lipcert.interval import Interval
from lipcert.ir import Graph, Node
from lipcert.links import IDENTITY, Link, Matrix
from lipcert.multipliers import tuned
from lipcert.quadratic import QuadraticForm
from lipcert.scope import Scope
from lipcert.upper import FloatArray

__all__ = ["Chain", "Chains", "chains_of"]

_LARGEST_RUN: Final = 1024
_LARGEST_WORK: Final = 3e10
_TUNED_WORK: Final = 1e9


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
            after = len(link.lo) if isinstance(link, Interval) else len(link)
            factor = 30.0 if isinstance(link, Interval) else 2.0
            if not _is_identity(link):
                operations += factor * size * after * max(size if operations else 0, after)
        return operations

    def form(self, start: int, stop: int, hull: bool) -> QuadraticForm:
        """The form after links start, …, stop − 1, for what reaches the input of the first.

        hull: whether class differences are about to enter it, or all of a ball.
        """
        links = tuple(itertools.dropwhile(_is_identity, self.links[start:stop]))
        if links and not isinstance(links[0], Interval):
            form, links = QuadraticForm.gram(links[0]), links[1:]
        else:
            form = QuadraticForm.identity(self.sizes[stop - len(links)])
        tune = self.work(start) <= _TUNED_WORK
        proposals = tuned(form.matrix, links, hull) if tune else [None] * len(links)
        for link, proposal in zip(links, proposals, strict=True):
            if isinstance(link, Interval):
                form = form.through_slopes(link, proposal)
            else:
                form = form.through_matrix(link)
        return form

    def forms(self) -> Iterator[tuple[Node, QuadraticForm | None]]:
        """Each node and the form after it, for what reaches the first; None while nothing moves.

        Made for balls; multipliers are chosen anew for each matrix, by default for a diagonal.
        """
        form: QuadraticForm | None = None
        for stop, (node, link) in enumerate(zip(self.nodes, self.links, strict=True), start=1):
            if form is not None and isinstance(link, Interval):
                form = form.through_slopes(link, None)
            elif not _is_identity(link):
                form = self.form(0, stop, hull=False)
            yield node, form

    def cotangent(self, start: int, at_end: CotangentFacts) -> Bound:
        """Returns B ≥ sup ‖δ‖ at the input of link `start`, for these cotangents at the end.

        Hypotheses: the slopes hold for all admissible examples, the matrices are exact.
        Proof: the form at the end bounds ‖δ‖² run by run; the squares of the runs add, so that
        one largest eigenvalue serves a ball of cotangents. A hull lies in a single run, and the
        form, being convex, is largest at one of its vertices.
        Attained: nearly, where the worst diagonals within the slopes can occur together.
        """
        rule = "chain.cotangent"
        hull, whole = at_end.hull, math.prod(self.nodes[-1].shape)
        meets = hull is not None and hull.classes == whole == self.sizes[-1]
        form = self.form(start, len(self.links), meets)
        bound = product_of(rule, bound_of(form.over_ball(), rule), at_end.norm)
        if hull is not None and meets:
            bound = tightest(bound, bound_of(form.over_hull(hull), rule))
        return bound


@final
@dataclass(frozen=True, slots=True, eq=False)
class Chains:
    """The chains of a graph: for the name of a node, its chain and its number there."""

    places: Mapping[str, tuple[Chain, int]]

    @classmethod
    def of(cls, graph: Graph, facts: Mapping[str, ValueFacts], scope: Scope) -> Chains:
        """Of all chains that are affordable."""
        return cls(
            {
                chain.nodes[start].name: (chain, start)
                for chain in chains_of(graph, facts, scope)
                for start in chain.starts()
                if sum(map(chain.work, chain.starts())) <= _LARGEST_WORK
            }
        )

    def first_links(self) -> Chains:
        """Only what tells something about the values below the chains."""
        return Chains({name: place for name, place in self.places.items() if place[1] == 0})

    def starting_at(self, value: str) -> Chain | None:
        """The chain whose first node reads a value."""
        for chain, start in self.places.values():
            if start == 0 and chain.nodes[0].inputs == (value,):
                return chain
        return None

    def refined(
        self, node: Node, share: CotangentFacts, cotangents: Mapping[str, CotangentFacts]
    ) -> CotangentFacts:
        """What the input of a node receives from it, with all that its chain knows."""
        if node.name not in self.places:
            return share
        chain, start = self.places[node.name]
        bound = chain.cotangent(start, cotangents[chain.nodes[-1].output])
        return CotangentFacts(tightest(share.norm, bound), share.hull)


def chains_of(graph: Graph, facts: Mapping[str, ValueFacts], scope: Scope) -> Iterator[Chain]:
    """The longest chains of at least two links with a matrix among them."""
    readers = Counter(name for node in graph.nodes for name in node.inputs)
    readers[graph.output_name] += 1
    growing: dict[str, _Path] = {}
    for node in graph.nodes:
        inputs = [facts[name] for name in node.inputs]
        link = node.op.link(inputs, scope) if len(inputs) == 1 else None
        if link is None or not _is_finite(link):
            continue
        below = node.inputs[0]
        path = growing.get(below) if readers[below] == 1 else None
        longer = path.extended(node, link, inputs[0].shape) if path is not None else None
        if longer is not None:
            del growing[below]
        else:
            longer = _Path((), (), (), (1,)).extended(node, link, inputs[0].shape)
        if longer is not None:
            growing[node.output] = longer
    for path in growing.values():
        if len(path.nodes) >= 2 and any(isinstance(link, Matrix) for link in path.links):
            yield path.chain()


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Path:
    """A chain that is still growing. shapes: of the value below each link."""

    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    shapes: tuple[Shape, ...]
    sizes: tuple[int, ...]

    def extended(self, node: Node, link: Link, shape: Shape) -> _Path | None:
        """With one more link; None where the runs would get too long.

        The runs are as long as the matrices demand: a shorter run is repeated until it fits.
        """
        before, after = link.weight.shape[::-1] if isinstance(link, Matrix) else (1, 1)
        run = math.lcm(self.sizes[-1], before)
        sizes = (*(size * (run // self.sizes[-1]) for size in self.sizes), run // before * after)
        links = (*self.links, link)
        lead = next((i for i, link in enumerate(links) if link is not IDENTITY), len(links))
        gram = lead < len(links) and isinstance(links[lead], Matrix)
        if max(sizes[lead + gram :]) > _LARGEST_RUN:
            return None
        return _Path((*self.nodes, node), links, (*self.shapes, shape), sizes)

    def chain(self) -> Chain:
        """Every link on runs of its final length."""
        links = tuple(map(_on_runs, self.links, self.shapes, self.sizes))
        return Chain(self.nodes, links, self.sizes)


def _on_runs(link: Link, shape: Shape, size: int) -> FloatArray | Interval:
    """The matrix repeated along a diagonal, or what the slopes of all runs have in common."""
    if isinstance(link, Matrix):
        copies = np.eye(size // link.weight.shape[1])
        return np.asarray(np.kron(copies, link.weight), dtype=np.float64)
    runs = link.range.broadcast(shape).map(lambda end: end.reshape(-1, size))
    return Interval(np.min(runs.lo, axis=0), np.max(runs.hi, axis=0))


def _is_identity(link: FloatArray | Interval) -> bool:
    return isinstance(link, Interval) and bool(np.all((link.lo == 1.0) & (link.hi == 1.0)))


def _is_finite(link: Link) -> bool:
    return isinstance(link, Matrix) or link.range.max_abs().is_finite
