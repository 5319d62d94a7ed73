"""Where the chains of a graph are: paths of linked nodes without a branch.

What enters: a graph, facts of its values, a scope. What leaves: `Chains`, which tighten what the
first nodes of a chain, and those above parameters, pass down to their inputs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lipcert.facts import CotangentFacts, Shape, ValueFacts, tightest
from lipcert.interval import Interval
from lipcert.ir import Graph, Node
from lipcert.links import Link, Matrix
from lipcert.propagation.chain import Chain
from lipcert.scope import Scope
from lipcert.upper import FloatArray

_LARGEST_RUN: Final = 1024
_LARGEST_ENTRIES: Final = 2**24
_LARGEST_WORK: Final = 3e10


@final
@dataclass(frozen=True, slots=True, eq=False)
class Chains:
    """The chains of a graph: for the name of a node, its chain and its number there."""

    places: Mapping[str, tuple[Chain, int]]

    @classmethod
    def of(cls, graph: Graph, facts: Mapping[str, ValueFacts], scope: Scope) -> Chains:
        """Of all chains that are affordable."""
        places = {}
        for chain in chains_of(graph, facts, scope):
            starts = chain.starts()
            if sum(map(chain.work, starts)) <= _LARGEST_WORK:
                places.update({chain.nodes[start].name: (chain, start) for start in starts})
        return cls(places)

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
    """The longest paths of nodes that each are the only reader of the one before."""
    readers = Counter(name for node in graph.nodes for name in node.inputs)
    readers[graph.output_name] += 1
    growing: dict[str, _Path] = {}
    for node in graph.nodes:
        inputs = [facts[name] for name in node.inputs]
        link = node.op.link(inputs, scope) if len(inputs) == 1 else None
        if link is None:
            continue
        step = _Step(node, link, inputs[0].shape)
        below = node.inputs[0] if readers[node.inputs[0]] == 1 else ""
        longer = growing[below].extended(step) if below in growing else None
        if longer is not None:
            del growing[below]
        path = longer or _Path((), (1,)).extended(step)
        if path is not None:
            growing[node.output] = path
    for path in growing.values():
        trimmed = path.trimmed()
        if trimmed.is_useful:
            yield trimmed.chain()


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """A node with its link. shape: of its input."""

    node: Node
    link: Link
    shape: Shape

    @property
    def is_scalar(self) -> bool:
        """Whether it is a diagonal with the same range everywhere: its norm says it all."""
        if isinstance(self.link, Matrix):
            return False
        lo, hi = self.link.range.lo, self.link.range.hi
        return bool(np.min(lo) == np.max(lo) and np.min(hi) == np.max(hi))

    def on_runs(self, size: int) -> FloatArray | Interval:
        """The matrix repeated along a diagonal, or what the slopes of all runs have in common."""
        if isinstance(self.link, Matrix):
            copies = np.eye(size // self.link.before)
            return np.asarray(np.kron(copies, self.link.entries()), dtype=np.float64)
        runs = self.link.range.broadcast(self.shape).map(lambda end: end.reshape(-1, size))
        return Interval(np.min(runs.lo, axis=0), np.max(runs.hi, axis=0))


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Path:
    """A chain that is still growing. sizes: length of the runs below each step, and at the end."""

    steps: tuple[_Step, ...]
    sizes: tuple[int, ...]

    def extended(self, step: _Step) -> _Path | None:
        """With one more step; None where the runs would get too long, or slopes are unknown.

        The runs are as long as the matrices demand: a shorter run is repeated until it fits.
        """
        before, after = 1, 1
        if isinstance(step.link, Matrix):
            before, after = step.link.before, step.link.after
        elif not step.link.range.max_abs().is_finite:
            return None
        run = math.lcm(self.sizes[-1], before)
        longer = run // self.sizes[-1]
        path = _Path(
            (*self.steps, step), (*(longer * size for size in self.sizes), run // before * after)
        )
        is_matrix = isinstance(step.link, Matrix)
        is_small = not is_matrix or run * path.sizes[-1] <= _LARGEST_ENTRIES
        return path if is_small and max(path.sizes[path.first_form :]) <= _LARGEST_RUN else None

    @property
    def first_form(self) -> int:
        """The first value that needs a form: not the scalars at the start, nor a matrix on them."""
        lead = _leading_scalars(self.steps)
        return lead + int(lead < len(self.steps) and isinstance(self.steps[lead].link, Matrix))

    def trimmed(self) -> _Path:
        """Without the scalars at the end, which the product of norms does not overestimate."""
        kept = len(self.steps) - _leading_scalars(self.steps[::-1])
        return _Path(self.steps[:kept], self.sizes[: kept + 1])

    @property
    def is_useful(self) -> bool:
        """Whether a matrix meets something else than scalars."""
        proper = self.steps[_leading_scalars(self.steps) :]
        return len(proper) >= 2 and any(isinstance(step.link, Matrix) for step in proper)

    def chain(self) -> Chain:
        """Every link on runs of its final length."""
        links = tuple(
            step.on_runs(size) for step, size in zip(self.steps, self.sizes[:-1], strict=True)
        )
        return Chain(tuple(step.node for step in self.steps), links, self.sizes)


def _leading_scalars(steps: tuple[_Step, ...]) -> int:
    return next((i for i, step in enumerate(steps) if not step.is_scalar), len(steps))
