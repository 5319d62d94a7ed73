"""Summary: from proved bounds to the plain records of an `Analysis`.

What enters: bounds, groups and their release. What leaves: numbers, None where there is no bound.
No algebra beyond root-sum-squares.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import numpy as np

from lipcert.analysis.absence import Absence
from lipcert.analysis.bounded import Bounded, kept_in_eval_mode
from lipcert.analysis.groups import Group, first_uses
from lipcert.analysis.records import (
    AllocationReport,
    Assumptions,
    GroupReport,
    ModelReport,
    NetworkReport,
    NodeReport,
    ParameterReport,
)
from lipcert.analysis.release import Release, planned_sensitivity
from lipcert.analysis.scopes import constraints_of
from lipcert.core.accounting.sensitivity import total_sensitivity
from lipcert.core.coverage import rule_of
from lipcert.core.program import (
    Conv,
    Dense,
    IndexArray,
    Move,
    Op,
    ReduceMax,
    Step,
)
from lipcert.graph.ir import Graph, name_of
from lipcert.importer.model import ImportedModel
from lipcert.search.lower_bounds import Witness
from lipcert.settings.settings import Settings
from lipcert.upper import Upper, root_sum_square


def allocation_reports(released: Release) -> tuple[AllocationReport, ...]:
    """The three allocations side by side; empty where a bound is absent."""
    return tuple(
        AllocationReport(way.value, allocated.energy.value, way is released.chosen)
        for way, allocated in released.allocated.items()
        if allocated is not None
    )


def _number(bound: Upper | None) -> float | None:
    """A bound as reports print it: None where there is none."""
    return bound.value if bound is not None and bound.is_finite else None


def model_report(model: ImportedModel, graph: Graph) -> ModelReport:
    """Which file was analysed."""
    trained = sum(p.size for p in graph.parameters.values() if p.trainable)
    return ModelReport(model.path, model.sha256, trained, model.opset, model.producer)


def assumptions(
    model: ImportedModel, settings: Settings, found: Bounded, *, multiplier: float
) -> Assumptions:
    """Everything the bounds are conditional on."""
    graph, loss = found.graph, found.loss
    at_input = found.derived.facts[found.program.input].norm
    constraints = constraints_of(graph, settings) if settings.scope == "constraint-set" else {}
    return Assumptions(
        input_norm=_finite(at_input),
        input_box=settings.effective_input_box,
        loss={**loss.record(), "reduction": settings.reduction, **_clip(settings)},
        scope=settings.scope,
        constraints={name: str(spec) for name, spec in constraints.items()},
        neighbours=settings.neighbours,
        reduction=settings.reduction,
        batch_size=settings.batch_size,
        allocation=settings.allocation,
        noise_multiplier=multiplier,
        mechanism=found.premises.mechanism.record(),
        batch=model.batch.status.value,
        tier=settings.tier,
        arithmetic="real arithmetic: the rounding of the training run itself is not included",
        notes=(),
        eval_layers=kept_in_eval_mode(graph, settings),
        input_ids=graph.ids or 0,
        input_parts=settings.input_parts,
        frozen=tuple(sorted(n for n, p in model.graph.parameters.items() if not p.trainable)),
        fixed=graph.fixed,
    )


def _clip(settings: Settings) -> Mapping[str, float]:
    return {} if settings.loss_clip is None else {"clip": settings.loss_clip}


def node_reports(found: Bounded, absence: Absence) -> tuple[NodeReport, ...]:
    """Bounds at every step, under the names of the nodes of the file: `norm#1`, `norm#2`, …
    where one of them is several steps."""
    steps = found.program.steps
    totals, counts = Counter(map(found.name_of, steps)), Counter[str]()
    reports = []
    for step in steps:
        name = found.name_of(step)
        counts[name] += 1
        shown = name if totals[name] == 1 else f"{name}#{counts[name]}"
        reports.append(_node_report(step, shown, found, absence))
    return tuple(reports)


def _node_report(step: Step, name: str, found: Bounded, absence: Absence) -> NodeReport:
    derived, shapes = found.derived, found.program.shapes
    facts = [derived.facts[value] for value in step.inputs]
    cotangent = derived.cotangents.get(step.output)
    lipschitz = found.stretches(step)
    norms = [derived.facts[step.output].norm, 0.0 if cotangent is None else cotangent.norm]
    lost = not all(map(math.isfinite, (*lipschitz, *norms)))
    why = absence.value(step.output) or absence.cotangent(step.output) if lost else None
    reason, remedy = (why or absence.at(step)) if lost else ("", "")
    is_linear = isinstance(step.op, Dense | Conv)
    return NodeReport(
        name=name,
        op=kind_of(step.op, found.program.size(step.inputs[0])),
        inputs=step.inputs,
        output=step.output,
        shape=shapes[step.output][1:] if shapes[step.output][:1] == (1,) else shapes[step.output],
        input_norm=_finite(total_sensitivity([fact.norm for fact in facts])),
        output_norm=_finite(norms[0]),
        operator_norm=_finite(lipschitz[0]) if is_linear else None,
        input_lipschitz=tuple(map(_finite, lipschitz)),
        cotangent_norm=_finite(norms[1]),
        rule=rule_of(step.op),
        reason=reason,
        remedy=remedy,
    )


def kind_of(op: Op, size: int) -> str:
    """What a step is called whose first input has `size` entries, in words of frameworks.

    A function of every entry has its own name; entries that are moved, that of how they move.
    """
    match op:
        case Move(sources):
            return _kind_of_move(sources.ravel(), size)
        case ReduceMax(minimum=True):
            return "ReduceMin"
    return name_of(op)


def _kind_of_move(sources: IndexArray, size: int) -> str:
    """Whether entries keep their order, change places, are dropped, repeated or set to 0."""
    if sources.min(initial=0) < 0:
        return "Pad"
    ordered = bool((np.diff(sources) > 0).all())
    if ordered:
        return "Reshape" if sources.size == size else "Slice"
    once = np.bincount(sources, minlength=size).max() == 1
    return "Permute" if once and sources.size == size else "Gather"


def parameter_reports(
    found: Bounded, released: Release, settings: Settings
) -> tuple[ParameterReport, ...]:
    """One record per parameter, in the order of first use."""
    graph = found.graph
    group_of = {p.name: group.name for group in found.groups for p in group.parameters}
    grad_norms = found.clipped_grad_norms
    reports = []
    for name, node in first_uses(graph).items():
        parameter, group = graph.parameters[name], group_of.get(name)
        grad_norm = Upper(grad_norms[name])
        noise = released.noise(group) if group is not None else None
        reports.append(
            ParameterReport(
                name=name,
                shape=parameter.shape,
                node=node,
                trainable=parameter.trainable,
                group=group,
                grad_norm=_number(grad_norm),
                sensitivity=_number(planned_sensitivity(grad_norm, settings))
                if group is not None
                else None,
                noise_std=_number(noise.noise_std) if noise is not None else None,
            )
        )
    return tuple(reports)


def group_reports(groups: tuple[Group, ...], released: Release) -> tuple[GroupReport, ...]:
    """One record per group of parameters noised together."""
    reports = []
    for group in groups:
        noise = released.noise(group.name)
        reports.append(
            GroupReport(
                name=group.name,
                parameters=tuple(p.name for p in group.parameters),
                dimension=group.dimension,
                grad_norm=_number(group.grad_norm),
                sensitivity=_number(released.sensitivities[group.name]),
                noise_std=_number(noise.noise_std) if noise is not None else None,
                noise_energy_share=noise.energy_share if noise is not None else None,
            )
        )
    return tuple(reports)


def network_report(found: Bounded, released: Release, witness: Witness) -> NetworkReport:
    """Bounds of the whole network, and what was found to reach them."""
    derived, output = found.derived, found.program.output
    return NetworkReport(
        lipschitz=_finite(derived.lipschitz),
        output_norm=_finite(derived.facts[output].norm),
        loss_cotangent_norm=_finite(derived.cotangents[output].norm),
        grad_norm=_number(root_sum_square(group.grad_norm for group in found.groups)),
        sensitivity=_number(released.total_sensitivity),
        grad_norm_witness=witness.grad_norm,
        lipschitz_witness=witness.lipschitz,
    )


def _finite(bound: float) -> float | None:
    return bound if math.isfinite(bound) else None
