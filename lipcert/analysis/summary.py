"""Summary: from proved bounds to the plain records of an `Analysis`.

What enters: bounds, groups and their release. What leaves: numbers, None where there is no bound.
No algebra beyond root-sum-squares.
"""

from __future__ import annotations

from collections.abc import Mapping

from lipcert.analysis.groups import Group, first_uses
from lipcert.analysis.mechanism import mechanism_record
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
from lipcert.analysis.witness.search import Witness
from lipcert.facts import ValueFacts
from lipcert.importer.model import ImportedModel
from lipcert.ir import Graph, Node
from lipcert.losses.base import Loss
from lipcert.modes import EvalLayer
from lipcert.propagation.propagate import NetworkBounds
from lipcert.scope import Scope
from lipcert.settings import Settings
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
    model: ImportedModel,
    graph: Graph,
    settings: Settings,
    loss: Loss,
    at_input: ValueFacts,
    *,
    multiplier: float,
) -> Assumptions:
    """Everything the bounds are conditional on."""
    constraints = constraints_of(graph, settings) if settings.scope == "constraint-set" else {}
    return Assumptions(
        input_norm=_number(at_input.norm.value),
        input_box=settings.effective_input_box,
        loss={**loss.record(), "reduction": settings.reduction, **_clip(settings)},
        scope=settings.scope,
        constraints={name: str(spec) for name, spec in constraints.items()},
        neighbours=settings.neighbours,
        reduction=settings.reduction,
        batch_size=settings.batch_size,
        allocation=settings.allocation,
        noise_multiplier=multiplier,
        mechanism=mechanism_record(settings),
        batch=model.batch.status.value,
        tier=settings.tier,
        arithmetic="real arithmetic: the rounding of the training run itself is not included",
        notes=(),
        eval_layers=kept_in_eval_mode(graph, settings),
    )


def kept_in_eval_mode(graph: Graph, settings: Settings) -> tuple[EvalLayer, ...]:
    """The layers that training has to keep in eval mode; a clipped run may drop what it likes."""
    is_clipped = settings.mechanism == "gradient-clipping"
    return tuple(layer for layer in graph.eval_layers if not (is_clipped and layer.is_dropout))


def _clip(settings: Settings) -> Mapping[str, float]:
    return {} if settings.loss_clip is None else {"clip": settings.loss_clip}


def node_report(node: Node, bounds: NetworkBounds, scope: Scope) -> NodeReport:
    """Bounds at one node."""
    inputs = [bounds.facts[name] for name in node.inputs]
    lipschitz = [node.op.input_lipschitz(i, inputs, scope) for i in range(len(inputs))]
    output, cotangent = bounds.facts[node.output], bounds.cotangents[node.output]
    operator = node.op.operator_norm(scope)
    absent = next((b for b in (*lipschitz, output.norm, cotangent.norm) if not b.is_finite), None)
    return NodeReport(
        name=node.name,
        op=node.op.kind,
        inputs=node.inputs,
        output=node.output,
        shape=node.shape,
        input_norm=_number(root_sum_square(facts.norm.value for facts in inputs)),
        output_norm=_number(output.norm.value),
        operator_norm=_number(operator.value if operator is not None else None),
        input_lipschitz=tuple(_number(bound.value) for bound in lipschitz),
        cotangent_norm=_number(cotangent.norm.value),
        rule=(operator or lipschitz[0]).rule,
        reason=absent.reason if absent is not None else "",
        remedy=absent.remedy if absent is not None else "",
    )


def parameter_reports(
    graph: Graph,
    groups: tuple[Group, ...],
    bounds: NetworkBounds,
    released: Release,
    settings: Settings,
) -> tuple[ParameterReport, ...]:
    """One record per parameter, in the order of first use."""
    group_of = {p.name: group.name for group in groups for p in group.parameters}
    reports = []
    for name, node in first_uses(graph).items():
        parameter, group = graph.parameters[name], group_of.get(name)
        grad_norm = bounds.grad_norms[name].value
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


def network_report(
    graph: Graph,
    bounds: NetworkBounds,
    groups: tuple[Group, ...],
    released: Release,
    witness: Witness,
) -> NetworkReport:
    """Bounds of the whole network, and what was found to reach them."""
    return NetworkReport(
        lipschitz=_number(bounds.lipschitz.value),
        output_norm=_number(bounds.facts[graph.output_name].norm.value),
        loss_cotangent_norm=_number(bounds.cotangents[graph.output_name].norm.value),
        grad_norm=_number(root_sum_square(group.grad_norm for group in groups)),
        sensitivity=_number(released.total_sensitivity),
        grad_norm_witness=witness.grad_norm,
        lipschitz_witness=witness.lipschitz,
    )
