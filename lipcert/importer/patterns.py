"""Macro layers: sub-graphs that exporters write in place of one operator, found again.

What enters: the data path. What leaves: the same with normalizations (`norm_patterns`), Gelu,
Swish, Mish, MaxMin and ScaledAttention in place of their spellings. Every match is exact in its
structure, and the macro layer computes with the very numbers of the file.
Invariant: only the node that yields the final value is replaced; what nobody reads any more goes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Final

from lipcert.importer.model import MacroLayer
from lipcert.importer.norm_patterns import NORM_PATTERNS
from lipcert.importer.pattern_matching import FORMULAS, Matcher
from lipcert.importer.raw import RawNode
from lipcert.importer.static_graph import StaticGraph, needed_values

_LEAST: Final = Fraction(1, 2**20)
"""below which, as beyond its inverse, the numbers of a GELU by tanh are those of another layer"""
_QUICK_GELU: Final = 1.702
"""the factor of the logistic approximation of GELU"""
Pattern = Callable[[Matcher, RawNode], RawNode | None]


def recognise(graph: StaticGraph) -> tuple[StaticGraph, tuple[MacroLayer, ...]]:
    """The data path with macro layers, and the nodes that each of them stands for."""
    matcher = Matcher(graph)
    constants = dict(graph.constants)
    nodes: list[RawNode] = []
    live = {graph.output_name}
    for node in reversed(graph.nodes):
        if not live.intersection(node.output_names):
            continue
        found = next(_matches(matcher, node), node)
        constants.update(matcher.take_constants())
        nodes.append(found)
        live.update(found.inputs)
    nodes.reverse()
    kept = needed_values(nodes, graph.output_name)
    nodes = [node for node in nodes if kept.intersection(node.output_names)]
    result = replace(graph, nodes=tuple(nodes), constants=constants)
    return result, _macros(graph, result)


def _macros(before: StaticGraph, after: StaticGraph) -> tuple[MacroLayer, ...]:
    """The nodes that are gone, by the macro node that took their place."""
    known = {id(node) for node in before.nodes}
    producers = {name: node for node in before.nodes for name in node.output_names}
    macros = []
    for macro in after.nodes:
        if id(macro) in known:
            continue
        inner = _between(producers, macro)
        names = tuple(node.name for node in before.nodes if inner.intersection(node.output_names))
        macros.append(MacroLayer(macro.op_type, macro.name, names))
    return tuple(macros)


def _between(producers: Mapping[str, RawNode], macro: RawNode) -> set[str]:
    """Names of the values computed on the way from a macro node's inputs to its output."""
    found: set[str] = set()
    open_names = list(macro.output_names)
    while open_names:
        name = open_names.pop()
        if name in producers and name not in found and name not in macro.inputs:
            found.add(name)
            open_names.extend(producers[name].inputs)
    return found


def _matches(matcher: Matcher, node: RawNode) -> Iterator[RawNode]:
    for pattern in _PATTERNS:
        found = pattern(matcher, node)
        if found is not None:
            yield found


# gates x·g(x) ---------------------------------------------------------------------------------


def _gate(matcher: Matcher, node: RawNode) -> RawNode | None:
    """SiLU, Mish, HardSwish and QuickGelu: the product of x and a function of x."""
    if node.op_type != "Mul":
        return None
    for x, gate in (node.inputs, tuple(reversed(node.inputs))):
        sigmoid = matcher.producer(gate, "Sigmoid")
        if sigmoid is not None:
            inner, factor = matcher.scaled(sigmoid.inputs[0], _QUICK_GELU)
            if sigmoid.inputs[0] == x:
                return matcher.macro(node, "Swish", (x,), {"alpha": 1.0})
            if inner == x and factor > 0:
                return matcher.macro(node, "Swish", (x,), {"alpha": factor})
        tanh = matcher.producer(gate, "Tanh")
        softplus = tanh and matcher.producer(tanh.inputs[0], "Softplus")
        if softplus is not None and softplus.inputs[0] == x:
            return matcher.macro(node, "Mish", (x,), {})
        hard = matcher.producer(gate, "HardSigmoid")
        if hard is not None and hard.inputs[0] == x:
            slope, offset = hard.real("alpha", 0.2), hard.real("beta", 0.5)
            if slope > 0.0 and offset == 0.5:
                attributes = {"slope": Fraction(slope)}
                return matcher.macro(node, "HardSwish", (x,), attributes)
    return None


def _gelu(matcher: Matcher, node: RawNode) -> RawNode | None:
    """c·x·(1 + g), the factors in any order, with g = erf(a·x) or its tanh approximation."""
    if node.op_type != "Mul":
        return None
    for gate in matcher.factors(node.outputs[0]):
        inner = matcher.plus_one(gate)
        if inner is None:
            continue
        x, numbers = _gelu_argument(matcher, inner)
        if not x:
            continue
        number, rest = matcher.product(node.outputs[0], frozenset({x, gate}))
        gain = 2 * number
        if sorted(rest) == sorted((x, gate)) and gain and _is_factor(gain):
            return matcher.macro(node, "Gelu", (x,), {"numbers": numbers, "gain": gain})
    return None


def _is_factor(number: Fraction) -> bool:
    """Whether a multiplication or a division by one float64 is one by this number."""
    return any(Fraction(float(item)) == item for item in (number, 1 / number))


def _gelu_argument(matcher: Matcher, name: str) -> tuple[str, tuple[Fraction, ...]]:
    """x and a for erf(a·x), x, a and b for tanh(a·(x + b·x³)); "" where it is neither."""
    erf = matcher.producer(name, "Erf")
    if erf is not None:
        x, slope = matcher.scaled(erf.inputs[0], *FORMULAS)
        return (x, (slope,)) if slope > 0 else ("", ())
    tanh = matcher.producer(name, "Tanh")
    if tanh is None:
        return "", ()
    total, slope = matcher.scaled(tanh.inputs[0], *FORMULAS)
    add = matcher.producer(total, "Add")
    if add is None:
        return "", ()
    for x, cubic in (add.inputs, tuple(reversed(add.inputs))):
        number, rest = matcher.product(cubic, frozenset({x}))
        is_moderate = all(_LEAST <= item <= 1 / _LEAST for item in (slope, number))
        if rest == [x, x, x] and is_moderate:
            return x, (slope, number)
    return "", ()


# sorting --------------------------------------------------------------------------------------


def _max_min(matcher: Matcher, node: RawNode) -> RawNode | None:
    """Concat of Max(a, b) and Min(a, b), where a and b are the halves of one value."""
    if node.op_type != "Concat" or len(node.inputs) != 2:
        return None
    axis = node.integer("axis", 1) % len(matcher.graph.shape(node.outputs[0]))
    for first, second, largest in (("Max", "Min", 1), ("Min", "Max", 0)):
        upper = matcher.producer(node.inputs[0], first)
        lower = matcher.producer(node.inputs[1], second)
        if upper is None or lower is None or set(upper.inputs) != set(lower.inputs):
            continue
        x = matcher.whole_of_halves(upper.inputs, axis)
        if x:
            return matcher.macro(node, "MaxMin", (x,), {"axis": axis, "largest": largest})
    return None


# attention ------------------------------------------------------------------------------------


def _attention(matcher: Matcher, node: RawNode) -> RawNode | None:
    """Softmax(scale·Q·Kᵀ + mask)·V with a constant mask, if any."""
    if node.op_type != "MatMul":
        return None
    softmax = matcher.producer(matcher.unchanged(node.inputs[0]), "Softmax")
    if softmax is None or not matcher.is_last_axis(softmax):
        return None
    scores, mask = matcher.masked(softmax.inputs[0])
    scores, scale = matcher.scaled(scores, *_usual_scales(matcher, scores))
    product = matcher.producer(scores, "MatMul")
    if product is None:
        return None
    inputs = (*product.inputs, node.inputs[1])
    values = matcher.graph.values
    if any(name not in values for name in inputs):
        return None
    heads = {values[name].shape[:-2] for name in inputs}
    if len(heads) != 1 or len(values[inputs[0]].shape) < 3:
        return None
    return matcher.macro(node, "ScaledAttention", (*inputs, mask), {"scale": scale})


def _usual_scales(matcher: Matcher, scores: str) -> tuple[float, ...]:
    """√d and 1/√d for the scores of queries of dimension d, perhaps scaled; no numbers else."""
    scaling = matcher.producer(scores, "Mul") or matcher.producer(scores, "Div")
    for name in scaling.inputs if scaling is not None else ():
        product = matcher.producer(name, "MatMul")
        if product is not None:
            root = math.sqrt(matcher.graph.shape(product.inputs[0])[-1])
            return root, 1.0 / root
    return ()


_PATTERNS: Final[tuple[Pattern, ...]] = (
    _gate,
    _gelu,
    *NORM_PATTERNS,
    _max_min,
    _attention,
)
