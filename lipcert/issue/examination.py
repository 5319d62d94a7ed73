"""Examination: where a bound of the engine is below the checker's, one rule at a time.

What enters: an analysis of a graph, and what the checker derived. What leaves: for each rule that
was applied, by how much the ratio checker/engine of its result exceeds the ratios of what it was
applied to: of values, if that is more than 1, and of cotangents, to which all rules are linear.

A rule that both sides apply in the same way leaves the ratio as it is. Where such a rule of the
engine gives less, one of the two is wrong: a `fault`. Elsewhere the engine may know more, by a
chain, a fusion, a box or a run that the checker has no rule for: a cost, and no fault.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, final

from lipcert.analysis.records import Analysis
from lipcert.core.derive import Derived
from lipcert.core.refinements import VALUES
from lipcert.core.witnesses import Evidence
from lipcert.ir import Graph

_EQUAL: Final = 1.0 + 1e-6
_FAULTY: Final = 1.0 + 1e-3
_LOSS: Final = "loss"
_NONLINEAR: Final = (
    "GroupNormalization",
    "InstanceNormalization",
    "LayerNormalization",
    "LpPool",
    "MaxPool",
    "Softmax",
)
_OPERANDS: Final = (
    "Add.bias",
    "BatchNormalization.bias",
    "Conv.bias",
    "Conv.weight",
    "Gemm.bias",
    "Gemm.weight",
    "GroupNormalization.bias",
    "LayerNormalization.bias",
)
_KINDS: Final = ("bce", "cross-entropy", "huber", "kr", "mae", "mse", "nll")
_AGREED: Final = frozenset(
    {("norm", op) for op in _NONLINEAR}
    | {("cotangent", op) for op in _NONLINEAR}
    | {("gradient", operand) for operand in _OPERANDS}
    | {(_LOSS, kind) for kind in _KINDS}
)
"""Rules in which engine and checker do the same, and that no chain or fusion can sharpen. Linear
maps and activations are not among them, because both can: their norms are proved anyway."""


@final
@dataclass(frozen=True, slots=True)
class Growth:
    """How many times looser one rule of the checker is than the engine's.

    what: "norm", "cotangent", "gradient" or "loss"; op: of the node (for a gradient, with its
    operand; for a loss, its kind); where: the value or the parameter. alone: whether no value that
    the rule was applied to is looser, and no chain or run ends there, so that it is to be compared.
    """

    what: str
    op: str
    where: str
    ratio: float
    alone: bool

    def __str__(self) -> str:
        return f"{self.what} of {self.where} by {self.op}: {self.ratio:.4g} times"


def faults(found: Iterator[Growth]) -> Iterator[Growth]:
    """Where the engine claims less than the same rule gives the checker."""
    for item in found:
        if item.alone and item.ratio > _FAULTY and (item.what, item.op) in _AGREED:
            yield item


def growths(
    graph: Graph,
    analysis: Analysis,
    derived: Derived,
    evidence: Evidence,
    tensors: Mapping[str, str],
) -> Iterator[Growth]:
    """One for each value, cotangent and parameter that both sides bound. tensors: of parameters."""
    values, cotangents = _values(analysis, derived), _cotangents(analysis, derived)
    yield from _of_values(analysis, derived, evidence, values)
    yield from _of_cotangents(analysis, evidence, values, cotangents)
    yield from _of_gradients(graph, analysis, derived, tensors, values, cotangents)


def _values(analysis: Analysis, derived: Derived) -> dict[str, float]:
    """checker/engine by value; a value that only the engine knows inherits its inputs' ratio."""
    found: dict[str, float] = {}
    for node in analysis.nodes:
        fact = derived.facts.get(node.output)
        known = None if fact is None else _ratio(fact.norm, node.output_norm)
        inherited = max((found.get(name, 1.0) for name in node.inputs), default=1.0)
        found[node.output] = inherited if known is None else known
    return found


def _cotangents(analysis: Analysis, derived: Derived) -> dict[str, float]:
    found = {}
    for node in analysis.nodes:
        cotangent = derived.cotangents.get(node.output)
        known = None if cotangent is None else _ratio(cotangent.norm, node.cotangent_norm)
        if known is not None:
            found[node.output] = known
    return found


def _of_values(
    analysis: Analysis, derived: Derived, evidence: Evidence, values: Mapping[str, float]
) -> Iterator[Growth]:
    ends = {item.stop for item in evidence.chains if item.use == VALUES}
    ends |= {run.values[-1] for run in evidence.runs}
    for node in analysis.nodes:
        if node.output in derived.facts:
            before = _largest(values, node.inputs)
            alone = before <= _EQUAL and node.output not in ends
            ratio = values[node.output] / before
            yield Growth("norm", node.op, node.output, ratio, alone)


def _of_cotangents(
    analysis: Analysis,
    evidence: Evidence,
    values: Mapping[str, float],
    cotangents: Mapping[str, float],
) -> Iterator[Growth]:
    """A cotangent has the rules of all readers; of two or more readers no single one is judged."""
    starts = {item.start for item in evidence.chains if item.use != VALUES}
    starts |= {value for run in evidence.runs for value in run.values}
    ops = {node.output: node.op for node in analysis.nodes}
    makers = {node.output: node.inputs for node in analysis.nodes}
    readers: dict[str, list[str]] = {}
    for node in analysis.nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node.output)
    for run in evidence.runs:
        starts.update(makers.get(run.values[0], ()))
    for value, ratio in cotangents.items():
        behind = readers.get(value, [])
        facts = values.get(value, 1.0) <= _EQUAL
        if not behind:
            kind = str(analysis.assumptions.loss["kind"])
            yield Growth(_LOSS, kind, value, ratio, facts)
        elif all(name in cotangents for name in behind):
            before = max(cotangents[name] for name in behind)
            alone = facts and value not in starts and len(behind) == 1
            op = ops[behind[0]] if len(behind) == 1 else "sum"
            yield Growth("cotangent", op, value, ratio / before, alone)


def _of_gradients(  # noqa: PLR0917 (all that this module speaks of)
    graph: Graph,
    analysis: Analysis,
    derived: Derived,
    tensors: Mapping[str, str],
    values: Mapping[str, float],
    cotangents: Mapping[str, float],
) -> Iterator[Growth]:
    bases: dict[str, float] = {}
    apart: set[str] = set()
    ops: dict[str, str] = {}
    for node in graph.nodes:
        base = _largest(values, node.inputs) * cotangents.get(node.output, 1.0)
        for slot, operand in node.op.operands().items():
            if operand.parameter is not None:
                bases[operand.parameter] = max(bases.get(operand.parameter, 0.0), base)
                ops[operand.parameter] = f"{node.op.kind}.{slot}"
                known = node.output in cotangents
                if not known or _largest(values, node.inputs) > _EQUAL:
                    apart.add(operand.parameter)
    uses = [tensor for name, tensor in tensors.items() if name in bases]
    for item in analysis.parameters:
        tensor = tensors.get(item.name)
        found = None if tensor is None else derived.gradients.get(tensor)
        ratio = None if found is None else _ratio(found, item.grad_norm)
        if ratio is not None and item.name in bases and tensor is not None:
            alone = item.name not in apart and uses.count(tensor) == 1
            yield Growth("gradient", ops[item.name], item.name, ratio / bases[item.name], alone)


def _largest(ratios: Mapping[str, float], names: tuple[str, ...]) -> float:
    """At least 1: rules need not pass on what the checker knows better about values."""
    return max([1.0, *(ratios.get(name, 1.0) for name in names)])


def _ratio(checker: float, engine: float | None) -> float | None:
    if engine is None or not engine > 0.0 or not math.isfinite(checker):
        return None
    return checker / engine
