"""Conclusion: turn the findings of all units and checks into the report and its verdict.

Invariant: a pass requires that every unit was done, that something was measured, that a recorded
run was recorded to its end, that every recorded batch was found, that every group has a bound which
some gradient came close enough to, and that nothing is violated or undecided.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from lipcert.analysis.bounded import kept_in_eval_mode
from lipcert.analysis.findings import unstated
from lipcert.analysis.observing import observed_at, observed_at_random
from lipcert.analysis.records import Usefulness
from lipcert.analysis.release import (
    Release,
    known_plan,
    planned_multiplier,
    planned_sensitivity,
)
from lipcert.analysis.usefulness import usefulness_of
from lipcert.audit.bounds import Claims, are_made_anew, claimed_epsilon
from lipcert.audit.checks import Checked
from lipcert.audit.job import Kind
from lipcert.audit.prepared_job import Ready
from lipcert.audit.recorded import recording_of
from lipcert.audit.records import (
    AuditReport,
    CheckReport,
    GradientAudit,
    GroupAudit,
    Histogram,
    Modes,
    Quantity,
    Recording,
    ValueAudit,
    Verdict,
)
from lipcert.audit.trace.files import TraceError
from lipcert.audit.unit_results import ALL, Family, Total
from lipcert.core.losses.joint import Joint
from lipcert.errors import NoVerdictError
from lipcert.gradient_stats.measure import Observed
from lipcert.importer.metadata import eval_notes
from lipcert.losses import loss_record, parameters
from lipcert.measure.precision import Precision
from lipcert.privacy.noise import Group
from lipcert.search.pullbacks import work
from lipcert.settings.gates import (
    NO_BOUND,
    GateOutcome,
    GateResult,
)
from lipcert.settings.loss_spec import loss_words
from lipcert.text.numbers import finite, first_of

_MOST_NAMES = 4
_MOST_OBSERVED = 256
_WORK = 1e9
"""Floating-point operations that measuring gradients may cost."""
_WORST_FIRST = (
    Verdict.VIOLATION,
    Verdict.MISMATCH,
    Verdict.EXCEEDED,
    Verdict.INCONCLUSIVE,
    Verdict.PARTIAL,
)
_STATED = ("scope", "mechanism", "neighbours", "reduction")
_ON_GRADIENTS = frozenset({"contribution", "agreement", "leave-one-out"})
_QUANTITIES = {Family.VALUE: Quantity.OUTPUT_NORM, Family.COTANGENT: Quantity.COTANGENT_NORM}


def conclude(
    ready: Ready,
    total: Total,
    checked: Checked,
    *,
    seconds: float,
    plain_step_ratio: float | None = None,
) -> AuditReport:
    """Return the report of an audit, with its verdict and the reasons for it."""
    job, claims = ready.job, ready.claims
    precision = None if are_made_anew(claims.settings) else job.precision
    groups = tuple(_group(group, total, precision) for group in claims.groups)
    values = tuple(_values(claims, total))
    gradient = _gradient(claims, total)
    checks = (*total.checks, *checked.reports)
    report = AuditReport(
        verdict=Verdict.PASS,
        model=job.model,
        model_sha256=ready.model.sha256,
        bounds_from=claims.origin,
        modes=_modes(ready),
        assumptions=_assumptions(claims),
        examples=total.replayed.examples,
        units=len(ready.units),
        units_done=len(total.done),
        groups=groups,
        values=values,
        checks=checks,
        reasons=(),
        device=job.device,
        dtype=job.precision.value,
        seconds=seconds,
        plain_step_ratio=plain_step_ratio,
        notes=checked.not_done,
        gates=_gates(ready, gradient),
        gradient=gradient,
        usefulness=_usefulness(ready),
        recording=_recording(ready),
        epsilon=checked.epsilon,
        warnings=(
            *eval_notes(ready.model.graph.eval_layers),
            *unstated(claims.engine.graph, claims.settings),
        ),
        max_detectable_factor=finite(job.max_detectable_factor),
    )
    return _judged(report, list(_reasons(report, ready, total)))


def _recording(ready: Ready) -> Recording | None:
    """Return how much of the run was recorded."""
    if ready.recorded is None:
        return None
    settings = ready.claims.settings
    plan = known_plan(settings)
    try:
        return recording_of(ready.recorded.trace, settings.steps if plan is None else plan.releases)
    except TraceError:
        return None


def _modes(ready: Ready) -> Modes:
    """Return what was audited."""
    job, identity = ready.job, ready.identity
    data = job.data if ready.data is None else ready.data.source
    digest, of = (None, None) if identity is None else (identity.sha256, identity.of)
    return Modes(data, job.trace, job.attack_steps, digest, of)


def _judged(report: AuditReport, reasons: Sequence[tuple[Verdict, str]]) -> AuditReport:
    """Return the report with the worst verdict of any reason, and the reasons from worst to
    mildest."""
    found = {verdict for verdict, _ in reasons}
    return replace(
        report,
        verdict=next((verdict for verdict in _WORST_FIRST if verdict in found), Verdict.PASS),
        reasons=tuple(text for verdict in _WORST_FIRST for own, text in reasons if own is verdict),
    )


def with_check(report: AuditReport, check: CheckReport) -> AuditReport:
    """Add a check that was made after all others to the report."""
    report = replace(report, checks=(*report.checks, check))
    known = [(report.verdict, reason) for reason in report.reasons]
    own = [] if check.verdict is Verdict.PASS else [(check.verdict, str(check.reason))]
    return _judged(report, [*known, *own])


def _gradient(claims: Claims, total: Total) -> GradientAudit:
    """Return what was measured of the gradient of all groups together."""
    found = (part.of(Family.WHOLE, ALL) for part in total.parts)
    tally = next((item for item in found if item.examples), None)
    if tally is None:
        return GradientAudit(claims.grad_norm)
    is_one = not are_made_anew(claims.settings)
    bound = claims.grad_norm if is_one else tally.bound
    return GradientAudit(bound, tally.median, tally.max_observed, tally.examples)


def _gates(ready: Ready, gradient: GradientAudit) -> tuple[GateResult, ...]:
    """Compare the gates of the job with the bounds and the findings."""
    bound, slack, gates = gradient.grad_norm_bound, gradient.slack, ready.job.gates
    untried = "every gradient is 0" if gradient.examples else "no gradient was measured"
    found: dict[str, float | str] = {
        "max_grad_norm": NO_BOUND if bound is None else bound,
        "max_sensitivity": NO_BOUND if bound is None else _sensitivity(ready.claims, bound),
        "max_slack": slack if slack is not None else NO_BOUND if bound is None else untried,
    }
    if gates.max_epsilon is not None:  # which takes a while to account for
        found["max_epsilon"] = NO_BOUND if bound is None else claimed_epsilon(ready.claims)
    return gates.judged(**found)


def _sensitivity(claims: Claims, bound: float) -> float:
    """Return the sensitivity of a release: as certified, or from the bound of the whole
    gradient."""
    stated = None if claims.certificate is None else claims.certificate.network.sensitivity
    if stated is None or are_made_anew(claims.settings):
        return planned_sensitivity(bound, claims.settings)
    return stated


def _group(group: Group, total: Total, precision: Precision | None) -> GroupAudit:
    """Return the audit of one group.

    precision: None if the bound changes with the weights. The bound is then the one that a norm
    came closest to; norms at other weights are rescaled to it, by their share of their own bound.
    """
    parts = [part.of(Family.GRADIENT, group.name) for part in total.parts]
    both, bound = parts[0].merged(parts[1]), finite(group.grad_norm)
    if precision is None and both.examples:
        bound = both.bound
    replayed, attacked = (
        None
        if not part.examples
        else part.max_observed
        if bound is None or part.bound in (bound, None)
        else part.share * bound
        for part in parts
    )
    return GroupAudit(
        name=group.name,
        parameters=group.parameters,
        dimension=group.dimension,
        grad_norm_bound=bound,
        float_bound=None if bound is None or precision is None else precision.reached(bound),
        max_observed=replayed,
        max_attacked=attacked,
        violations=both.violations,
        undecided=both.undecided,
        recomputed=both.recomputed,
        worst_example=both.worst,
        histogram=Histogram(parts[0].counts),
    )


def _values(claims: Claims, total: Total) -> Iterator[ValueAudit]:
    """Yield the audit of every watched value, in the order of the graph."""
    graph = claims.engine.graph
    producers = {node.output: node.name for node in graph.nodes}
    bounds = {Family.VALUE: claims.values, Family.COTANGENT: claims.cotangents}
    for family, quantity in _QUANTITIES.items():
        for value in (graph.input_name, *producers):
            replayed, attacked = (part.of(family, value) for part in total.parts)
            tally = replayed.merged(attacked)
            if tally.examples:
                fixed = not are_made_anew(claims.settings)
                yield ValueAudit(
                    value=value,
                    node=producers.get(value, ""),
                    quantity=quantity,
                    bound=bounds[family].get(value) if fixed else tally.bound,
                    max_observed=tally.max_observed,
                    violations=tally.violations,
                    undecided=tally.undecided,
                    worst_example=tally.worst,
                )


def _reasons(report: AuditReport, ready: Ready, total: Total) -> Iterator[tuple[Verdict, str]]:
    """Yield why the verdict is not a pass, with the verdict that each reason implies."""
    for gate in report.gates:
        what, limit = gate.subject, f"--{gate.gate} {gate.limit:.12g}"
        if gate.outcome is GateOutcome.EXCEEDED:
            yield Verdict.EXCEEDED, f"[LC110] {what} is over {limit}"
        elif gate.outcome is GateOutcome.UNKNOWN:
            yield Verdict.INCONCLUSIVE, f"[LC111] {what} is not known ({limit}): {gate.reason}"
    missing = len(ready.units) - len(total.done)
    if missing:
        yield (
            Verdict.INCONCLUSIVE,
            f"[LC318] {missing} of {len(ready.units)} units of work have no result",
        )
    if not report.groups:
        yield Verdict.INCONCLUSIVE, "[LC300] nothing was audited: no parameter is trained"
    examples = total.replayed.examples
    compared = any(c.verdict is Verdict.PASS and c.name in _ON_GRADIENTS for c in report.checks)
    tried = examples or total.attacked.tallies[Family.GRADIENT] or compared
    gap = None if ready.recorded is None else ready.recorded.gap
    is_tried = tried and (ready.data is None or ready.data.count or examples)
    for found in report.own_reasons:
        if is_tried or found.code != "LC307":
            yield found.verdict, str(found)
    if not is_tried:
        why = "there is no example to replay" if gap is None else gap
        yield Verdict.INCONCLUSIVE, f"[LC300] no gradient was audited: {why}"
        return
    if gap is not None:
        yield Verdict.INCONCLUSIVE, f"[LC318] recorded batches were not audited: {gap}"
    recording = report.recording
    if recording is not None and not (recording.is_whole or ready.job.interrupted):
        yield Verdict.PARTIAL, f"[LC318] pass{recording}"


def _assumptions(claims: Claims) -> Mapping[str, str]:
    """Describe in words what the claims depend on."""
    settings = claims.settings
    domain = []
    for item in settings.domains:
        of = f" of {item.input!r}" if item.input else ""
        if item.norm is not None:
            domain.append(f"norm{of} at most {item.norm:.6g}")
        if item.box is not None:
            low, high = item.box
            domain.append(f"entries{of} in [{low:.6g}, {high:.6g}]")
    loss = claims.engine.loss
    assumed = "ASSUMED, because nothing was stated: " if settings.loss == "auto" else ""
    numbers = [f"{name.replace('_', ' ')} {value}" for name, value in parameters(loss).items()]
    words = [loss_words(loss_record(loss))] if isinstance(loss, Joint) else [loss.kind, *numbers]
    mode = {}
    if layers := kept_in_eval_mode(claims.engine.graph, settings):
        names = first_of([f"{layer.name} ({layer.kind})" for layer in layers], _MOST_NAMES)
        mode = {"eval mode": f"training keeps {names} in eval mode; the replay does"}
    return {
        "input": " and ".join(domain) or "any",
        "loss": assumed + ", ".join(words),
        **{name: getattr(settings, name) for name in _STATED},
        **mode,
    }


def _usefulness(ready: Ready) -> Usefulness | None:
    """Compare the noise of one release of the claimed bounds with that of gradient clipping, and
    with gradients at some examples of the audit; None if nothing is trained.

    An audit that only attacks uses random admissible examples.
    """
    claims, settings = ready.claims, ready.claims.settings
    if not claims.groups:
        return None
    multiplier = planned_multiplier(None, settings, claims.groups)
    released = Release.of(claims.groups, settings, multiplier)
    return usefulness_of(released, settings, None, _observed(ready))


def _observed(ready: Ready) -> Observed | None:
    """Return gradients at the first examples that are replayed; None if that would take long."""
    engine, settings = ready.claims.engine, ready.claims.settings
    unit = next(iter(ready.units), None)
    if unit is None:
        return None
    if unit.kind is Kind.ATTACK:
        return observed_at_random(engine, settings)
    count = min(int(_WORK / work(engine.program)), _MOST_OBSERVED)
    some = ready.examples(unit.examples).read(unit.start, unit.start + count)
    try:
        return observed_at(engine, settings, some)
    except NoVerdictError:  # of labels that the replay refuses, too
        return None
