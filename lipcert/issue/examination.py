"""Examination: where the engine's bound of something is below the checker's, one rule at a time.

What enters: an analysis of a graph, and what the checker derived. What leaves: for each rule that
was applied, how much more of the ratio checker/engine its result has than what it was applied to.
A rule that both apply in the same way adds nothing: where it does, the engine or the checker is at
fault. Elsewhere the checker's rule may just be looser.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import final

from lipcert.analysis.records import Analysis
from lipcert.checker.derivation import Derived
from lipcert.ir import Graph

__all__ = ["Growth", "growths"]


@final
@dataclass(frozen=True, slots=True)
class Growth:
    """How much looser one rule of the checker is than the engine's, on what it was applied to.

    what: "norm", "cotangent", "gradient" or "loss"; rule: the op, and what the engine calls its
    rule; where: the value or the parameter.
    """

    what: str
    op: str
    rule: str
    where: str
    ratio: float


@final
class _Ratios:
    """checker/engine of values and cotangents, by value; what is not known to both counts as 1."""

    def __init__(self, analysis: Analysis, derived: Derived) -> None:
        self.values = {derived_input(analysis): 1.0}
        self.cotangents: dict[str, float] = {}
        for node in analysis.nodes:
            fact, cotangent = derived.facts.get(node.output), derived.cotangents.get(node.output)
            inherited = max((self.values.get(name, 1.0) for name in node.inputs), default=1.0)
            known = None if fact is None else _ratio(fact.norm, node.output_norm)
            self.values[node.output] = inherited if known is None else known
            known = None if cotangent is None else _ratio(cotangent.norm, node.cotangent_norm)
            if known is not None:
                self.cotangents[node.output] = known


def derived_input(analysis: Analysis) -> str:
    """The value that the first node reads."""
    outputs = {node.output for node in analysis.nodes}
    return next(
        (name for node in analysis.nodes for name in node.inputs if name not in outputs), ""
    )


def growths(
    graph: Graph, analysis: Analysis, derived: Derived, tensors: Mapping[str, str]
) -> Iterator[Growth]:
    """One for each value, cotangent and trained parameter that both bound."""
    ratios = _Ratios(analysis, derived)
    readers: dict[str, list[str]] = {}
    for node in analysis.nodes:
        before = max((ratios.values.get(name, 1.0) for name in node.inputs), default=1.0)
        if node.output in derived.facts:
            ratio = ratios.values[node.output] / max(1.0, before)
            yield Growth("norm", node.op, node.rule, node.output, ratio)
        for name in node.inputs:
            readers.setdefault(name, []).append(node.output)
    rules = {node.output: (node.op, node.rule) for node in analysis.nodes}
    for value, ratio in ratios.cotangents.items():
        behind = readers.get(value, [])
        if not behind:
            yield Growth("loss", "Loss", str(analysis.assumptions.loss["kind"]), value, ratio)
        elif all(name in ratios.cotangents for name in behind):
            base = max(ratios.cotangents[name] for name in behind)
            op, rule = rules[behind[0]] if len(behind) == 1 else ("Several", "cotangent.fan_out")
            yield Growth("cotangent", op, rule, value, ratio / max(1.0, base))
    yield from _gradients(graph, analysis, derived, tensors, ratios)


def _gradients(
    graph: Graph,
    analysis: Analysis,
    derived: Derived,
    tensors: Mapping[str, str],
    ratios: _Ratios,
) -> Iterator[Growth]:
    uses: dict[str, list[float]] = {}
    ops: dict[str, str] = {}
    for node in graph.nodes:
        before = max((ratios.values.get(name, 1.0) for name in node.inputs), default=1.0)
        base = max(1.0, before) * max(1.0, ratios.cotangents.get(node.output, 1.0))
        for slot, operand in node.op.operands().items():
            if operand.parameter is not None:
                uses.setdefault(operand.parameter, []).append(base)
                ops[operand.parameter] = f"{node.op.kind}.{slot}"
    for item in analysis.parameters:
        found = derived.gradients.get(tensors.get(item.name, ""), None)
        ratio = None if found is None else _ratio(found, item.grad_norm)
        if ratio is not None and item.name in uses:
            growth = ratio / max(uses[item.name])
            yield Growth("gradient", ops[item.name], "parameter", item.name, growth)


def _ratio(checker: float, engine: float | None) -> float | None:
    if engine is None or not engine > 0.0 or not math.isfinite(checker):
        return None
    return checker / engine
