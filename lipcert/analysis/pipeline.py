"""Pipeline: `analyze` turns an `ImportedModel` and `Settings` into an `Analysis`.

The data flow: bounds of the network → noise → records. Every number in the result is a certified
upper bound, or None with a diagnostic.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from lipcert.analysis.bounded import Bounded, Progress, bounded, kept_in_eval_mode
from lipcert.analysis.findings import Absence, absence_of, findings, unexplained, unknown_of
from lipcert.analysis.observing import (
    findings_on_examples,
    left_out,
    observed_at,
    observed_at_random,
)
from lipcert.analysis.premises import constraints_of
from lipcert.analysis.records import (
    AllocationReport,
    Analysis,
    Assumptions,
    GroupReport,
    ModelReport,
    NetworkReport,
    NodeReport,
    ParameterReport,
)
from lipcert.analysis.release import (
    Release,
    account_of,
    check_complete,
    first_uses,
    plan_of,
    planned_multiplier,
    planned_sensitivity,
)
from lipcert.analysis.usefulness import gated_numbers, usefulness_of
from lipcert.core.claims import total_sensitivity
from lipcert.core.coverage import rule_of, tensors
from lipcert.core.kinds import ReduceMax
from lipcert.core.program import Dense, IndexArray, Move, Op, Program, Step
from lipcert.core.reader.records import Tensor
from lipcert.core.window_kinds import Conv
from lipcert.diagnostics import Diagnostic
from lipcert.gradient_stats.examples import Examples
from lipcert.gradient_stats.measure import Observed
from lipcert.graph.ir import name_of
from lipcert.importer.model import ImportedModel
from lipcert.losses import loss_record
from lipcert.privacy.noise import Group
from lipcert.process.threads import one_thread
from lipcert.search.lower_bounds import NO_WITNESS, Witness, aligned_program, find_witness
from lipcert.settings.gates import NO_GATES, Gates
from lipcert.settings.settings import Settings
from lipcert.text.numbers import finite


@one_thread()
def analyze(
    model: ImportedModel,
    settings: Settings,
    observe: Progress | None = None,
    *,
    examples: Examples | None = None,
    gates: Gates = NO_GATES,
) -> Analysis:
    """Return certified bounds, sensitivities and noise of a planned private training run.

    While it runs, linear algebra uses one thread, in the whole process (see `threads`).

    Args:
        model: the imported network.
        settings: the settings of the run.
        observe: is called with progress.
        examples: examples at which gradients are measured, to compare with the bounds. What is
            learned from private ones costs privacy that no ε of the run covers. None: random
            admissible ones, if that is quick.
        gates: limits, each of which gets a result.

    Raises:
        NoVerdictError: for examples that do not fit.
        UsageError, UnsupportedModelError: as `bounded` does.
    """
    settings = settings.with_inputs(model.graph.inputs)
    check_complete(settings)  # now, not after the work
    found = bounded(model, settings, observe)
    if examples is None:
        observed = observed_at_random(found, settings)
        analysis = reported(model, settings, found, observed, left_out(found))
    else:
        observed = observed_at(found, settings, examples)
        about = findings_on_examples(examples, observed, settings)
        analysis = reported(model, settings, found, observed, about)
    return replace(analysis, gates=gates.judged(**gated_numbers(analysis)))


def reported(
    model: ImportedModel,
    settings: Settings,
    found: Bounded,
    observed: Observed | None = None,
    about_data: tuple[Diagnostic, ...] = (),
) -> Analysis:
    """Return the analysis for given bounds: their cost in noise and privacy, and witnesses.

    observed: gradients of examples; about_data: what a reader must know of these.
    """
    plan, absence = plan_of(settings), absence_of(found)
    trained = sum(item.size for item in found.graph.parameters.values() if item.trainable)
    multiplier = planned_multiplier(plan, settings, found.groups)
    released = Release.of(found.groups, settings, multiplier)
    account = None if plan is None else account_of(plan, multiplier, settings)
    parameters = _parameter_reports(found, released, settings)
    grouped = tuple(map(_group_report, released.groups))
    network = _network_report(found, released, _witness(found, settings))
    noted = tuple(findings(found, absence, settings))
    return Analysis(
        model=ModelReport(model.path, model.sha256, trained, model.opset, model.producer),
        assumptions=_assumptions(model, settings, found, multiplier=multiplier),
        nodes=_node_reports(found, absence),
        parameters=parameters,
        groups=grouped,
        allocations=tuple(
            AllocationReport(way.value, energy, way is released.chosen)
            for way, energy in released.energies.items()
            if energy is not None
        ),
        network=network,
        privacy=account,
        diagnostics=(
            *model.diagnostics,
            *noted,
            *about_data,
            *unexplained(parameters, grouped, network, absence.lipschitz(), noted),
            *(account.diagnostics if account is not None else ()),
        ),
        usefulness=usefulness_of(released, settings, plan, observed, unknown_of(found)),
    )


def _witness(found: Bounded, settings: Settings) -> Witness:
    """Return what admissible examples reach, at the file's weights or at some in constraints."""
    if settings.tier == "quick" or not settings.enforced.fills_scope:
        return NO_WITNESS
    if found.scope.kind != settings.scope:  # training would scale down the weights first
        return NO_WITNESS
    program, trained = found.program, _trained(found)
    if settings.scope == "constraint-set":
        moved = aligned(found)
        if moved is None:
            return NO_WITNESS
        program, trained = moved, dict.fromkeys(trained)
    return find_witness(program, found.loss, found.derived.facts, settings.loss_clip, trained)


def aligned(found: Bounded) -> Program | None:
    """Return the program at weights in their constraints that stretch the most, if any."""
    program, radii = found.program, {item.tensor: item.radius for item in found.scope.constraints}
    return aligned_program(program, radii, found.derived.facts, _trained(found))


def _trained(found: Bounded) -> Mapping[str, Tensor | None]:
    stored = tensors(found.reading.model)
    return {name: stored.get(name) for name in found.scope.trained}


def _assumptions(
    model: ImportedModel, settings: Settings, found: Bounded, *, multiplier: float
) -> Assumptions:
    """Return everything that the bounds are conditional on."""
    graph, loss = found.graph, found.loss
    at_input = found.derived.facts[found.program.input].norm
    constraints = constraints_of(graph, settings) if settings.scope == "constraint-set" else {}
    clip = {} if settings.loss_clip is None else {"clip": settings.loss_clip}
    return Assumptions(
        input_norm=finite(at_input),
        input_box=settings.effective_input_box,
        loss={**loss_record(loss), "reduction": settings.reduction, **clip},
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
        arithmetic="real arithmetic: the rounding of the training run is not included, nor is 0/0",
        notes=(),
        eval_layers=kept_in_eval_mode(graph, settings),
        input_ids=graph.ids or 0,
        input_parts=settings.input_parts,
        frozen=tuple(sorted(n for n, p in model.graph.parameters.items() if not p.trainable)),
        fixed=graph.fixed,
    )


def _node_reports(found: Bounded, absence: Absence) -> tuple[NodeReport, ...]:
    """Return bounds at every step, under the names of the nodes of the file.

    If a node is several steps, they are `norm#1`, `norm#2`, …
    """
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
        input_norm=finite(total_sensitivity([fact.norm for fact in facts])),
        output_norm=finite(norms[0]),
        operator_norm=finite(lipschitz[0]) if is_linear else None,
        input_lipschitz=tuple(map(finite, lipschitz)),
        cotangent_norm=finite(norms[1]),
        rule=rule_of(step.op),
        reason=reason,
        remedy=remedy,
    )


def kind_of(op: Op, size: int) -> str:
    """Return the name of a step whose first input has `size` entries, as frameworks call it.

    A function of every entry has its own name; a move is named after what it does to entries.
    """
    match op:
        case Move(sources):
            return _kind_of_move(sources.ravel(), size)
        case ReduceMax(minimum=True):
            return "ReduceMin"
    return name_of(op)


def _kind_of_move(sources: IndexArray, size: int) -> str:
    """Name a move: entries keep their order, change places, are dropped, repeated or set to 0."""
    if sources.min(initial=0) < 0:
        return "Pad"
    ordered = bool((np.diff(sources) > 0).all())
    if ordered:
        return "Reshape" if sources.size == size else "Slice"
    once = np.bincount(sources, minlength=size).max() == 1
    return "Permute" if once and sources.size == size else "Gather"


def _parameter_reports(
    found: Bounded, released: Release, settings: Settings
) -> tuple[ParameterReport, ...]:
    """Return one record per parameter, in the order of first use."""
    graph, grad_norms = found.graph, found.clipped_grad_norms
    group_of = {name: group for group in released.groups for name in group.parameters}
    reports = []
    for name, node in first_uses(graph).items():
        parameter, group = graph.parameters[name], group_of.get(name)
        moved = None if group is None else planned_sensitivity(grad_norms[name], settings)
        reports.append(
            ParameterReport(
                name=name,
                shape=parameter.shape,
                node=node,
                trainable=parameter.trainable,
                group=None if group is None else group.name,
                grad_norm=finite(grad_norms[name]),
                sensitivity=finite(moved),
                noise_std=None if group is None else finite(group.noise_std),
            )
        )
    return tuple(reports)


def _group_report(group: Group) -> GroupReport:
    """Return the report of parameters that are noised together."""
    return GroupReport(
        name=group.name,
        parameters=group.parameters,
        dimension=group.dimension,
        grad_norm=finite(group.grad_norm),
        sensitivity=finite(group.sensitivity),
        noise_std=finite(group.noise_std),
        noise_energy_share=group.energy_share,
    )


def _network_report(found: Bounded, released: Release, witness: Witness) -> NetworkReport:
    """Return the bounds of the whole network, and what was found to reach them."""
    derived, output = found.derived, found.program.output
    return NetworkReport(
        lipschitz=finite(derived.lipschitz),
        output_norm=finite(derived.facts[output].norm),
        loss_cotangent_norm=finite(derived.cotangents[output].norm),
        grad_norm=finite(total_sensitivity(group.grad_norm for group in found.groups)),
        sensitivity=finite(released.total_sensitivity),
        grad_norm_witness=witness.grad_norm,
        lipschitz_witness=witness.lipschitz,
    )
