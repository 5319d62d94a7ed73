"""analyze: from an imported model and the settings of a run to certified sensitivities.

What enters: an `ImportedModel` and `Settings`. What leaves: an `Analysis`. The data flow: bounds of
the network → noise → records. Every number in the result is a certified upper bound, or None with a
diagnostic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lipcert.analysis import summary
from lipcert.analysis.bounded import Bounded, Progress, bounded
from lipcert.analysis.findings import absence_of, findings, unknown_of
from lipcert.analysis.observing import observed_at, observed_at_random, told
from lipcert.analysis.planned import account_of, check_complete, plan_of, planned_multiplier
from lipcert.analysis.records import Analysis
from lipcert.analysis.release import Release, noise_groups_of
from lipcert.analysis.unexplained import unexplained
from lipcert.analysis.usefulness import gated_numbers, usefulness_of
from lipcert.core.coverage import tensors
from lipcert.core.program import Program
from lipcert.core.reader.records import Tensor
from lipcert.diagnostics import Diagnostic
from lipcert.errors import UsageError
from lipcert.gradient_stats.examples import Examples
from lipcert.gradient_stats.measure import Observed
from lipcert.importer.model import ImportedModel
from lipcert.process.threads import one_thread
from lipcert.search.lower_bounds import NO_WITNESS, Witness, aligned_program, find_witness
from lipcert.search.norms import Propose
from lipcert.search.proposals import proposals
from lipcert.settings.gates import NO_GATES, Gates
from lipcert.settings.settings import Settings


@one_thread()
def analyze(
    model: ImportedModel,
    settings: Settings,
    observe: Progress | None = None,
    propose: Propose = proposals,
    *,
    examples: Examples | None = None,
    gates: Gates = NO_GATES,
) -> Analysis:
    """Certified bounds, sensitivities and noise of a planned private training run, and their use.

    examples: at which gradients are measured, to be held beside the bounds; what is learned from
    private ones costs privacy that no ε of the run covers. None: random admissible ones, where
    that is soon done. gates: limits, each of which has its result. Takes else what `bounded` takes,
    and raises what it raises; NoVerdictError for examples that do not fit. While it runs, linear
    algebra runs in one thread, in the whole process (see `threads`).
    """
    require_arguments("analyze", model, settings)
    settings = settings.with_inputs(model.graph.inputs)
    check_complete(settings)  # at once, not after the work
    found = bounded(model, settings, observe, propose)
    if examples is None:
        analysis = reported(model, settings, found, observed_at_random(found, settings))
    else:
        observed = observed_at(found, settings, examples)
        about = told(examples, observed, settings)
        analysis = reported(model, settings, found, observed, about)
    return replace(analysis, gates=gates.judged(gated_numbers(analysis)))


def require_arguments(what: str, model: object, settings: object) -> None:
    """UsageError for a path in place of a model, or for settings that are none."""
    if not isinstance(model, ImportedModel):
        raise UsageError(
            f"{what}: {model!r} is no imported model; give lipcert.load_model('model.onnx')"
        )
    if not isinstance(settings, Settings):
        raise UsageError(
            f"{what}: {settings!r} are no settings; give lipcert.Settings(input_norm=1.0), say"
        )


def reported(
    model: ImportedModel,
    settings: Settings,
    found: Bounded,
    observed: Observed | None = None,
    about_data: tuple[Diagnostic, ...] = (),
) -> Analysis:
    """The bounds of a network, what they cost in noise and privacy, and the witnesses.

    observed: gradients of examples; about_data: what a reader must know of these.
    """
    plan, absence = plan_of(settings), absence_of(found)
    noised = noise_groups_of(found.groups, settings)
    multiplier = planned_multiplier(plan, settings, noised)
    released = Release.of(noised, settings, multiplier)
    account = None if plan is None else account_of(plan, multiplier, settings)
    parameters = summary.parameter_reports(found, released, settings)
    grouped = summary.group_reports(found.groups, released)
    network = summary.network_report(found, released, _witness(found, settings))
    noted = tuple(findings(found, absence, settings))
    return Analysis(
        model=summary.model_report(model, found.graph),
        assumptions=summary.assumptions(model, settings, found, multiplier=multiplier),
        nodes=summary.node_reports(found, absence),
        parameters=parameters,
        groups=grouped,
        allocations=summary.allocation_reports(released),
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
    """What admissible examples reach: at the weights of the file, or at some within constraints."""
    if settings.tier == "quick" or not settings.enforced.fills_scope:
        return NO_WITNESS
    if found.scope.kind != settings.scope:  # training would shorten the weights of the file first
        return NO_WITNESS
    program, trained = found.program, _trained(found)
    if settings.scope == "constraint-set":
        moved = aligned(found)
        if moved is None:
            return NO_WITNESS
        program, trained = moved, dict.fromkeys(trained)
    return find_witness(program, found.loss, found.derived.facts, settings.loss_clip, trained)


def aligned(found: Bounded) -> Program | None:
    """The program at weights within their constraints that are bad for the bounds, if any."""
    program, radii = found.program, {item.tensor: item.radius for item in found.scope.constraints}
    return aligned_program(program, radii, found.derived.facts, _trained(found))


def _trained(found: Bounded) -> Mapping[str, Tensor | None]:
    stored = tensors(found.reading.model)
    return {name: stored.get(name) for name in found.scope.trained}
