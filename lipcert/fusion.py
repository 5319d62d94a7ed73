"""Fusion: linear nodes around a convolution, bounded as the one convolution that they are.

What enters: a graph and a scope. What leaves: `Fusions`, which tighten what the last node of such
a run passes up, and what the first one passes down to its input. The norm of a composite is at
most the product of the norms of its parts, and often far below it: the largest factor of a
BatchNorm seldom meets the largest singular value of the convolution before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, final

import numpy as np

from lipcert.facts import (
    Bound,
    CotangentFacts,
    ValueFacts,
    no_bound,
    product_of,
    sum_of,
    tightest,
)
from lipcert.interval import Interval
from lipcert.ir import Graph, Node
from lipcert.links import Slopes
from lipcert.norms.composite import Composite
from lipcert.norms.reads import Border
from lipcert.ops.combine import Add
from lipcert.ops.conv import Conv
from lipcert.ops.pooling import AveragePool
from lipcert.ops.shape import Pad, PadMode
from lipcert.scope import Scope
from lipcert.upper import ZERO

_NARROW: Final = 2.0**-20
_RULE: Final = "value.fused"


@final
@dataclass(frozen=True, slots=True, eq=False)
class Around:
    """The runs of one convolution with their norms, and the sum they end in (as in `Fusions`)."""

    runs: Sequence[tuple[tuple[Node, ...], Bound]] = ()
    sums: Mapping[str, tuple[str, Bound]] = field(default_factory=dict)


Spread = Callable[[Callable[[Node], Around], Sequence[Node]], Iterable[Around]]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Fusions:
    """What is known of runs of affine nodes, each read only by the next.

    runs: for the first node of a run, the value at its end and the norm from its input to there.
    sums: the same for a value that is read by a run and by the sum of it with the run's end only.
    ends: for the value at the end of a run, its nodes and its norm.
    """

    runs: Mapping[str, tuple[str, Bound]]
    sums: Mapping[str, tuple[str, Bound]]
    ends: Mapping[str, tuple[tuple[Node, ...], Bound]]

    @classmethod
    def of(cls, graph: Graph, scope: Scope, spread: Spread = map) -> Fusions:
        """Of every run of at least two nodes, one of them a convolution by known numbers.

        What counts as linear is linear for every input, so that runs say something about values,
        too, and not only about derivatives. spread: applies a function to all nodes, in order.
        """
        facts = _anything(graph)
        surroundings = _Surroundings.of(graph, facts, scope)
        runs: dict[str, tuple[str, Bound]] = {}
        sums: dict[str, tuple[str, Bound]] = {}
        ends: dict[str, tuple[tuple[Node, ...], Bound]] = {}
        for found in spread(surroundings.around, graph.nodes):
            for nodes, norm in found.runs:
                runs[nodes[0].name] = (nodes[-1].output, norm)
                ends.setdefault(nodes[-1].output, (nodes, norm))
            sums |= found.sums
        return cls(runs, sums, ends)

    def reached(
        self, node: Node, found: ValueFacts, facts: Mapping[str, ValueFacts], scope: Scope
    ) -> ValueFacts:
        """The output of a node, with what the run that ends there tells.

        Proof: a run is an affine map x ↦ Mx + c of every x, and c is its value at x = 0.
        """
        if node.output not in self.ends:
            return found
        nodes, norm = self.ends[node.output]
        below = facts[nodes[0].inputs[0]]
        at_zero = ValueFacts.of(below.shape, Bound(ZERO, _RULE), Interval.exact(np.zeros(())))
        for each in nodes:
            at_zero = each.op.output_facts([at_zero], scope)
        bound = sum_of(_RULE, product_of(_RULE, norm, below.norm), at_zero.norm)
        if not bound.value < found.norm.value:
            return found
        return ValueFacts.of(found.shape, bound, found.box, found.runs)

    def refined(
        self, node: Node, share: CotangentFacts, cotangents: Mapping[str, CotangentFacts]
    ) -> CotangentFacts:
        """What the input of a node receives from it, with what its run knows."""
        return _met(share, self.runs.get(node.name), cotangents)

    def whole(
        self, value: str, found: CotangentFacts, cotangents: Mapping[str, CotangentFacts]
    ) -> CotangentFacts:
        """The cotangent of a value, with what the sum of a run and the value itself knows."""
        return _met(found, self.sums.get(value), cotangents)


def fused(nodes: Sequence[Node], facts: Mapping[str, ValueFacts], scope: Scope) -> Composite | None:
    """Nodes in a row, of which exactly one is a convolution, as one map; None where they are not.

    Hypotheses: each node reads the one before. The kernel is known exactly.
    Proof: every node is linear up to a constant, and `Composite` follows them step by step.
    """
    kinds = [isinstance(node.op, Conv) for node in nodes]
    if kinds.count(True) != 1:
        return None
    middle = kinds.index(True)
    composite = _convolution(nodes[middle], scope)
    for node in reversed(nodes[:middle]):
        composite = None if composite is None else _preceded(composite, node, facts, scope)
    for node in nodes[middle + 1 :]:
        composite = None if composite is None else _followed(composite, node, facts, scope)
    return composite


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Surroundings:
    """Which nodes can be folded into the convolutions next to them."""

    producers: Mapping[str, Node]
    consumers: Mapping[str, Sequence[Node]]
    facts: Mapping[str, ValueFacts]
    scope: Scope
    output: str

    @classmethod
    def of(cls, graph: Graph, facts: Mapping[str, ValueFacts], scope: Scope) -> _Surroundings:
        """Of a graph."""
        consumers: dict[str, list[Node]] = {}
        for node in graph.nodes:
            for name in node.inputs:
                consumers.setdefault(name, []).append(node)
        producers = {node.output: node for node in graph.nodes}
        return cls(producers, consumers, facts, scope, graph.output_name)

    def around(self, node: Node) -> Around:
        """The whole run of a convolution, and the part of it that the convolution begins."""
        if not isinstance(node.op, Conv):
            return Around()
        nodes = (*self.before(node), node, *self.after(node))
        whole = fused(nodes, self.facts, self.scope)
        if whole is None:
            return Around()
        runs = []
        for start in sorted({0, nodes.index(node)}):
            part = whole if start == 0 else fused(nodes[start:], self.facts, self.scope)
            if part is not None and len(nodes) - start > 1:
                runs.append((nodes[start:], part.norm(self.scope.operator_norm)))
        beside = self.beside(nodes)
        if beside is None:
            return Around(runs)
        add, through, around = beside
        joint = whole.scaled(_constant(through, whole)).plus_identity(around)
        if joint is None:
            return Around(runs)
        return Around(
            runs, {nodes[0].inputs[0]: (add.output, joint.norm(self.scope.operator_norm))}
        )

    def before(self, node: Node) -> tuple[Node, ...]:
        """Pads and diagonals whose only reader is this run."""
        found: list[Node] = []
        while True:
            (below, *_) = node.inputs
            producer = self.producers.get(below)
            if producer is None or not self._is_inner(below):
                break
            if not (isinstance(producer.op, Pad) or self._is_diagonal(producer)):
                break
            node = producer
            found.insert(0, node)
        return tuple(found)

    def after(self, node: Node) -> tuple[Node, ...]:
        """Diagonals and averages that follow."""
        found: list[Node] = []
        while self._is_inner(node.output):
            (node,) = self.consumers[node.output]
            if not (isinstance(node.op, AveragePool) or self._is_diagonal(node)):
                break
            found.append(node)
        return tuple(found)

    def beside(self, nodes: Sequence[Node]) -> tuple[Node, float, float] | None:
        """A sum of end and input that is their only other use, and the two coefficients."""
        value, end = nodes[0].inputs[0], nodes[-1].output
        readers = [node.name for node in self.consumers[value]]
        if value == self.output or not self._is_inner(end):
            return None
        (add,) = self.consumers[end]
        if not isinstance(add.op, Add) or Counter(readers) != Counter([nodes[0].name, add.name]):
            return None
        if sorted(add.inputs) != sorted([value, end]):
            return None
        through, around = (add.op.coefficients[add.inputs.index(name)] for name in (end, value))
        return add, through, around

    def _is_inner(self, value: str) -> bool:
        return value != self.output and len(self.consumers.get(value, ())) == 1

    def _is_diagonal(self, node: Node) -> bool:
        return _slopes(node, self.facts, self.scope) is not None


def _convolution(node: Node, scope: Scope) -> Composite | None:
    if not isinstance(node.op, Conv):
        return None
    kernel = scope.entries(node.op.weight)
    if not kernel.is_exact:
        return None
    return Composite(kernel.lo, node.op.geometry, node.op.groups)


def _preceded(
    composite: Composite, node: Node, facts: Mapping[str, ValueFacts], scope: Scope
) -> Composite | None:
    """The composite behind a node."""
    if isinstance(node.op, Pad):
        (channels, *pads) = zip(node.op.begin, node.op.end, strict=True)
        if any(channels):
            return None
        if node.op.mode is PadMode.CONSTANT:
            return composite.after_zeros(pads)
        return composite.after_border(pads, Border(node.op.mode.value))
    slopes = _slopes(node, facts, scope)
    return None if slopes is None else composite.after_scaling(slopes)


def _followed(
    composite: Composite, node: Node, facts: Mapping[str, ValueFacts], scope: Scope
) -> Composite | None:
    """The composite before a node."""
    if isinstance(node.op, AveragePool):
        return composite.averaged(node.op.geometry, node.op.divisors)
    slopes = _slopes(node, facts, scope)
    return None if slopes is None else composite.scaled(slopes)


def _slopes(node: Node, facts: Mapping[str, ValueFacts], scope: Scope) -> Interval | None:
    """The slopes of a diagonal node, one narrow range per channel; None where it is no such.

    A node that changes the shape (a Reshape) may move entries to other channels.
    """
    inputs = [facts[name] for name in node.inputs]
    if len(inputs) != 1 or not inputs[0].shape or node.shape != inputs[0].shape:
        return None
    link = node.op.link(inputs, scope)
    if not isinstance(link, Slopes):
        return None
    (x,) = inputs
    rank, channels = len(x.shape), x.shape[0]
    shape = (1,) * (rank - len(link.range.shape)) + link.range.shape
    if any(length != 1 for length in shape[1:]):
        return None
    slopes = link.range.map(lambda end: np.broadcast_to(end.reshape(shape[:1]), (channels,)))
    largest, width = slopes.max_abs(), (slopes - slopes).max_abs()
    is_narrow = largest.is_finite and width.value <= _NARROW * largest.value
    return slopes if is_narrow else None


def _anything(graph: Graph) -> dict[str, ValueFacts]:
    """Of every value: nothing but its shape."""
    shapes = {graph.input_name: graph.input_shape}
    shapes |= {node.output: node.shape for node in graph.nodes}
    unknown = no_bound(_RULE, "nothing is known of the value")
    return {name: ValueFacts.of(shape, unknown) for name, shape in shapes.items()}


def _constant(value: float, composite: Composite) -> Interval:
    return Interval.exact(np.full(len(composite.kernel), value))


def _met(
    found: CotangentFacts,
    known: tuple[str, Bound] | None,
    cotangents: Mapping[str, CotangentFacts],
) -> CotangentFacts:
    """A cotangent, if the one at the end of a run and the norm of the run tell more."""
    if known is None:
        return found
    end, norm = known
    through = product_of("cotangent.fused", norm, cotangents[end].norm)
    return CotangentFacts(tightest(found.norm, through), found.hull)
