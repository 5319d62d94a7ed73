"""An audit in words, as a document for people, and as findings and test cases for CI systems.

What enters: an audit. What leaves: a `Document` whose first lines are the verdict and what it is
worth, or a `CiReport` with one case for the verdict, one for the units of work, and one for each
group, value and check; strings are verbatim, and the writers make them safe. Invariants: what
violates or is undecided is shown before anything else, and never left out in favour of what holds;
the case of the verdict passes for a pass alone, so that no format can show another audit in green.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from lipcert.analysis.records import Usefulness
from lipcert.analysis.usefulness import times
from lipcert.audit.records import (
    AuditReport,
    CheckReport,
    ExampleReference,
    GroupAudit,
    Modes,
    Quantity,
    ValueAudit,
    Verdict,
)
from lipcert.diagnostics import Level
from lipcert.report import document as doc
from lipcert.report.analysis import VERDICTS
from lipcert.report.audit_findings import (
    QUANTITIES,
    Held,
    audit_findings,
    held_group,
    held_items,
    held_value,
    rank,
)
from lipcert.report.ci import (
    Case,
    CiReport,
    Finding,
    Outcome,
    gate_cases,
    gate_sentence,
    gate_statements,
)
from lipcert.report.document import Line, told_once
from lipcert.report.numbers import (
    at_most,
    beside,
    measured,
    share_of,
)
from lipcert.settings.gates import GateOutcome

_MOST_BARS: Final = 12
_TIGHTEST: Final = 8
TONES: Final = {
    Verdict.PASS: doc.Tone.GOOD,
    Verdict.VIOLATION: doc.Tone.BAD,
    Verdict.EXCEEDED: doc.Tone.BAD,
    Verdict.INCONCLUSIVE: doc.Tone.OPEN,
    Verdict.MISMATCH: doc.Tone.OPEN,
    Verdict.PARTIAL: doc.Tone.OPEN,
}
_OUTCOMES: Final = {
    Verdict.PASS: Outcome.PASSED,
    Verdict.VIOLATION: Outcome.FAILED,
    Verdict.EXCEEDED: Outcome.FAILED,
    Verdict.INCONCLUSIVE: Outcome.ERROR,
    Verdict.MISMATCH: Outcome.ERROR,
    Verdict.PARTIAL: Outcome.ERROR,
}
_CHECK_ORDER: Final = (
    Verdict.VIOLATION,
    Verdict.EXCEEDED,
    Verdict.MISMATCH,
    Verdict.INCONCLUSIVE,
    Verdict.PARTIAL,
    Verdict.PASS,
)
GROUP: Final = doc.Column("group", least=16)
DIMENSION: Final = doc.Column("dimension", True, rank=5)
MEASURED: Final = (
    doc.Column("observed", True),
    doc.Column("attacked", True, rank=2, optional=True),
    doc.Column("tightness", True),
    doc.Column("error noticed", True, rank=3),
    doc.Column("violations", True),
)
_UNSETTLED: Final = (
    doc.Column("undecided", True, rank=4, optional=True),
    doc.Column("worst example", least=16, rank=6, optional=True),
)
_GROUP_COLUMNS: Final = (GROUP, DIMENSION, doc.Column("bound", True), *MEASURED, *_UNSETTLED)
_VALUE_COLUMNS: Final = (
    doc.Column("value", least=16),
    doc.Column("node", least=16, rank=5),
    doc.Column("quantity"),
    doc.Column("bound", True),
    doc.Column("observed", True),
    doc.Column("tightness", True),
    doc.Column("violations", True),
    *_UNSETTLED,
)
ERROR_NOTICED: Final = (
    "error noticed",
    "the smallest error that this audit would have noticed: a bound too small by this factor",
)
GRADIENT_NORM: Final = (
    QUANTITIES[Quantity.COTANGENT_NORM],
    "of the gradient of the loss with respect to the layer's output (the cotangent)",
)
_DIGITS: Final = 3
_SCOPES: Final[Mapping[str, Mapping[str, str]]] = {
    "point": {"scope": "these weights only (scope point)"},
    "constraint-set": {"scope": "all weights within the constraints (scope constraint-set)"},
}
Rows = list[tuple[str, str]]


def audit_document(report: AuditReport, most: int | None = None) -> doc.Document:
    """What people read of an audit; tables of at most so many rows."""
    tone = TONES[report.verdict]
    found = [
        Line(
            (item.level.value, item.code),
            f"{item.kind} {item.place}" if item.place else "",
            item.message,
            item.remedy,
        )
        for item in audit_findings(report)
    ]
    lines = told_once(found)
    shown = [doc.Findings(lines[:most], len(lines) - len(lines[:most]))]
    more = [doc.explained(lines[0].label[1])] if lines else []
    return doc.Document(
        "LipCert audit",
        (
            doc.Answer(answer(report), tone),
            doc.Answer(meaning(report), tone),
            *_usefulness(report),
            doc.Answer(file_line(report), doc.Tone.SUBJECT),
        ),
        sections=doc.sections_of(
            doc.Section("Gates", (gate_statements(report.gates),)),
            doc.Section(
                "The whole gradient of one example", (doc.Statements.of(gradient_rows(report)),)
            ),
            doc.Section("Why", (_listing(report.reasons, most),)),
            doc.Section("Findings", (*shown, *more)),
            doc.Section(
                "Groups: the largest gradient norm of one example against its bound",
                (_groups(report, most), _legend(ERROR_NOTICED, report.groups)),
            ),
            doc.Section("How much of each bound was reached", (_reached(report),)),
            doc.Section(
                "Inside the network: the bounds that were reached the furthest",
                (values_table(report, most), _legend(GRADIENT_NORM, report.values)),
            ),
            doc.Section("Checks", (checks_of(report),)),
            doc.Section("What could not be checked", (_listing(report.notes, most),)),
            doc.Section("What was audited", (doc.Statements.of(fact_rows(report)),)),
        ),
        word=report.verdict.value.upper(),
    )


def worth_of(report: AuditReport) -> tuple[str, ...]:
    """What the noise of the bounds costs, in a sentence, where it is known."""
    return () if report.usefulness is None else (report.usefulness.sentence,)


def _usefulness(report: AuditReport) -> Iterator[doc.Answer]:
    if report.usefulness is not None:
        yield doc.Answer(report.usefulness.sentence, VERDICTS[report.usefulness.verdict])


def _listing(sentences: Sequence[str], most: int | None) -> doc.Listing:
    return doc.Listing(tuple(sentences[:most]), len(sentences) - len(sentences[:most]))


def _legend(row: tuple[str, str], rows: Sequence[object]) -> doc.Statements:
    """What a word of a table means, where there is a table."""
    return doc.Statements.of([row] if rows else [])


def _groups(report: AuditReport, most: int | None) -> doc.Table:
    shown = chosen_groups(report, most)
    hidden = len(report.groups) - len(shown)
    return doc.table(_GROUP_COLUMNS, [group_cells(group) for group in shown], hidden)


def chosen_groups(report: AuditReport, most: int | None) -> Sequence[GroupAudit]:
    """Groups in their order, or, where there are more than `most`, the worst of them."""
    if most is None or len(report.groups) <= most:
        return report.groups
    return sorted(report.groups, key=lambda group: rank(held_group(group)))[:most]


def chosen_values(report: AuditReport, most: int | None) -> Sequence[ValueAudit]:
    """Values that are broken or undecided, and the tightest of the others; None: all of them."""
    if most is None:
        return report.values
    bad = sum(value.violations > 0 or value.undecided > 0 for value in report.values)
    ranked = sorted(report.values, key=lambda value: rank(held_value(value)))
    return ranked[: min(most, bad + _TIGHTEST)]


def group_cells(group: GroupAudit) -> tuple[str, ...]:
    """A group: its name and dimension, its bound, what was measured, what is not settled."""
    norms = (group.max_observed, group.max_attacked)
    factor = group.detectable_error_factor
    return (
        group.name,
        f"{group.dimension:,}",
        *beside(group.grad_norm_bound, *norms),
        share_of(group),
        measured(None) if factor is None else at_most(factor, 3),
        f"{group.violations:,}",
        f"{group.undecided:,}",
        _reference(group.worst_example),
    )


def values_table(report: AuditReport, most: int | None = None) -> doc.Table:
    """The values inside the network; of many, what is broken and the tightest."""
    shown = chosen_values(report, most)
    rows: list[tuple[doc.Cell, ...]] = [
        (
            value.value,
            value.node or "input",
            QUANTITIES[value.quantity],
            *beside(value.bound, value.max_observed),
            share_of(value),
            f"{value.violations:,}",
            f"{value.undecided:,}",
            _reference(value.worst_example),
        )
        for value in shown
    ]
    return doc.table(_VALUE_COLUMNS, rows, len(report.values) - len(rows))


def _reference(example: ExampleReference | None) -> str:
    return "" if example is None else f"{example.index} at {example.weights}"


def _reached(report: AuditReport) -> doc.Ranking:
    """Tightness as bars; what exceeds the bound fills its bar and says so."""
    return doc.Ranking(
        tuple(
            _bar(group, share)
            for group in chosen_groups(report, _MOST_BARS)
            if (share := group.tightness) is not None
        )
    )


def _bar(group: GroupAudit, share: float) -> doc.Bar:
    if not math.isfinite(share):
        return doc.Bar(group.name, measured(share), 1.0, "", "not finite", doc.Tone.BAD)
    tone = doc.Tone.BAD if group.violations else doc.Tone.PLAIN
    if share > 1.0:
        over = doc.Tone.BAD if group.violations else doc.Tone.OPEN
        return doc.Bar(group.name, share_of(group), 1.0, "", "over the bound", over)
    return doc.Bar(group.name, share_of(group), share, "", "", tone)


def checks_of(report: AuditReport) -> doc.Statements:
    """What was checked besides the bounds; those that did not pass first."""
    checks = sorted(report.checks, key=lambda check: _CHECK_ORDER.index(check.verdict))
    return doc.Statements(
        tuple(
            doc.Statement(item.name, _sentence(item), item.verdict.value, TONES[item.verdict])
            for item in checks
        )
    )


def _sentence(check: CheckReport) -> str:
    """Where, what was found, and the two numbers."""
    where = f"{check.where}: " if check.where else ""
    numbers = (("measured", check.measured), ("expected", check.expected))
    told = [f"{name} {measured(value)}" for name, value in numbers if value is not None]
    return f"{where}{check.message}" + (f" ({', '.join(told)})" if told else "")


def audit_ci(report: AuditReport) -> CiReport:
    """What CI systems show of an audit."""
    findings, worth = audit_findings(report), report.usefulness
    return CiReport(
        verb="audit",
        file=report.model,
        headline=" ".join([answer(report), meaning(report), *worth_of(report)]),
        holds=report.verdict is Verdict.PASS,
        findings=findings,
        cases=(
            *_run(report, findings),
            *gate_cases(report.gates),
            *_bounded(report, findings),
            *_checks(report),
        ),
        properties={
            "verdict": report.verdict.value,
            **({} if worth is None else {"usefulness": worth.verdict}),
            "examples": str(report.examples),
            "model_sha256": report.model_sha256,
            "bounds_from": report.bounds_from,
            "device": report.device,
            "dtype": report.dtype,
        },
        seconds=report.seconds,
    )


def _run(report: AuditReport, findings: tuple[Finding, ...]) -> Iterator[Case]:
    outcome = _OUTCOMES[report.verdict]
    errors = [f for f in findings if f.kind == "audit" and f.level is Level.ERROR]
    reason = report.reasons[0] if report.reasons else ""
    first = findings[0] if findings else None
    code = first.code if first and outcome is not Outcome.PASSED else ""
    text = reason or (first.message if first else "") or answer(report)
    yield Case("run", "verdict", outcome, text, code)
    done = report.units_done >= report.units
    lost = next((finding for finding in errors if finding.code == "LC318" and not done), None)
    outcome = Outcome.PASSED if done else Outcome.ERROR
    yield Case("run", "units", outcome, lost.message if lost else "", "LC318")
    for finding in errors:
        if finding is not lost:
            yield Case("run", finding.code, Outcome.ERROR, finding.message, finding.code)


def _bounded(report: AuditReport, findings: tuple[Finding, ...]) -> Iterator[Case]:
    told = {(f.kind, f.place, f.quantity): f for f in reversed(findings)}
    untried = {group.name for group in report.untried_groups}
    for item in held_items(report):
        suite, name = ("groups", item.place) if item.kind == "group" else ("values", item.subject)
        finding = told.get((item.kind, item.place, item.quantity))
        yield _case(suite, name, item, finding, item.kind == "group" and name in untried)


def _case(suite: str, name: str, held: Held, finding: Finding | None, hardly_tried: bool) -> Case:
    """Without a bound, or tried by no example, neither right nor wrong: skipped."""
    message, code = (finding.message, finding.code) if finding else ("", "")
    outcome = Outcome.PASSED
    if held.audit.violations:
        outcome = Outcome.FAILED
    elif held.audit.undecided:
        outcome = Outcome.ERROR
    elif held.bound is None or held.norm is None:
        outcome = Outcome.SKIPPED
        message = message or ("no bound to hold" if held.bound is None else "not tried")
    elif hardly_tried:
        outcome = Outcome.ERROR
    return Case(suite, name, outcome, message, code)


def _checks(report: AuditReport) -> Iterator[Case]:
    for check in report.checks:
        name = f"{check.name}: {check.where}" if check.where else check.name
        yield Case("checks", name, _OUTCOMES[check.verdict], check.message, check.code)


def answer(report: AuditReport) -> str:
    """The verdict and what it rests on, in one sentence."""
    match report.verdict:
        case Verdict.PASS | Verdict.PARTIAL:
            whole = "" if report.recording is None else str(report.recording)
            return f"Pass{whole}: {_tried(report)}, and {_held(report)}."
        case Verdict.VIOLATION:
            return f"Violation: {_violations(report)}."
        case Verdict.EXCEEDED:
            return f"Over a limit: {_exceeded(report)}."
        case Verdict.INCONCLUSIVE:
            return f"Inconclusive: {_tried(report)}, and that does not settle it."
        case Verdict.MISMATCH:
            return "Mismatch: what was given does not belong to what was bounded."


def meaning(report: AuditReport) -> str:
    """What the answer is worth, in one sentence."""
    match report.verdict:
        case Verdict.PASS:
            return _worth(report)
        case Verdict.PARTIAL:
            return (
                "This is no pass of the run: what it did besides is not known. If it was killed "
                "there, say so with --interrupted."
            )
        case Verdict.VIOLATION:
            return _broken(report)
        case Verdict.EXCEEDED:
            return "No bound is violated, but what was asked of them does not hold."
        case Verdict.INCONCLUSIVE:
            return _unsettled(report)
        case Verdict.MISMATCH:
            return "This is no pass: nothing was learnt about the bounds."


def file_line(report: AuditReport) -> str:
    """Which file was audited."""
    return f"{report.model}  ·  sha256 {report.model_sha256[:12]}"


def gradient_rows(report: AuditReport) -> Rows:
    """The bound of the gradient of one example, beside what examples had."""
    found = report.gradient
    if not found.examples:
        return []
    limit, largest = beside(found.grad_norm_bound, found.grad_norm_max)
    kind = "replayed" if report.examples else "attacked"
    examples = "example" if found.examples == 1 else "examples"
    slack = "not known" if found.slack is None else f"G is {at_most(found.slack, _DIGITS)} times"
    return [
        ("bound G", limit),
        (
            f"in {found.examples:,} {kind} {examples}",
            f"median {measured(found.grad_norm_median)}, largest {largest}",
        ),
        ("slack", slack if found.slack is None else f"{slack} the largest"),
        *_noise_rows(report.usefulness),
    ]


def _noise_rows(found: Usefulness | None) -> Rows:
    """The noise of one release beside that of its rival."""
    if found is None or found.noise_ratio is None:
        return []
    said = f"{times(found.noise_ratio)} times what clipping gradients at C = 1 needs"
    if found.noise_to_signal is None or found.clipping_noise_to_signal is None:
        return [("noise", said)]
    own, rival = times(found.noise_to_signal), times(found.clipping_noise_to_signal)
    over = f"{own} times {found.against} that is released (clipping: {rival} times)"
    return [("noise", said), ("noise over signal", over)]


def fact_rows(report: AuditReport) -> Rows:
    """What was audited, and how."""
    modes = report.modes
    attack = f"{modes.attack_steps} steps towards large gradients"
    rows = [
        ("bounds from", report.bounds_from),
        ("data", modes.data or "none"),
        *_digest_rows(modes),
        ("recorded run", modes.trace or "none"),
        ("attack", attack if modes.attack_steps else "none"),
        ("units of work", f"{report.units_done:,} of {report.units:,} done"),
        ("arithmetic", f"{report.dtype} on {report.device}{_rounding(report)}"),
        ("time", _time(report)),
    ]
    told = {**report.assumptions, **_SCOPES.get(report.assumptions.get("scope", ""), {})}
    return rows + [(f"assumed: {name}", text) for name, text in told.items()]


def _digest_rows(modes: Modes) -> Rows:
    """What tells other data from these."""
    if modes.data_sha256 is None:
        return []
    return [("data sha256", f"{modes.data_sha256[:16]}… of {modes.data_sha256_of}")]


def _rounding(report: AuditReport) -> str:
    """By how much the arithmetic is taken to exceed right bounds of real arithmetic, at most."""
    shares = [
        group.float_bound / group.grad_norm_bound - 1.0
        for group in report.groups
        if group.float_bound is not None and group.grad_norm_bound
    ]
    largest = max(filter(math.isfinite, shares), default=None)
    if largest is None:
        return ""
    return f", taken to exceed a right bound by at most {at_most(100.0 * largest, 2)} %"


def _tried(report: AuditReport) -> str:
    parts = []
    if report.examples:
        examples = "example" if report.examples == 1 else "examples"
        parts.append(f"{report.examples:,} {examples} replayed")
    if report.modes.attack_steps:
        parts.append(f"{report.modes.attack_steps} steps of attack")
    return ", ".join(parts) or "nothing was replayed"


def _held(report: AuditReport) -> str:
    if any(group.grad_norm_bound is None for group in report.groups):
        return "every gradient norm that has a bound is within it"
    return "every gradient norm is within its bound"


def _broken(report: AuditReport) -> str:
    """What a violation means; the worst that was found decides."""
    if any(group.violations for group in report.groups):
        return "The bounds do not hold for what was run: noise computed from them is too small."
    if any(value.violations for value in report.values):
        return "No gradient exceeds its bound, but what was run is not what the proof speaks of."
    return "What was run is not what the bounds, or the noise, were computed for."


def _unsettled(report: AuditReport) -> str:
    """What keeps an audit in which nothing is violated from being a pass."""
    untried = report.untried_groups
    if not untried or all(group.tightness is None for group in untried):
        return "This is no pass: something is undecided, or was not audited."
    return (
        f"This is no pass: in {len(untried)} of {len(report.groups)} groups no gradient came near "
        "enough to the bound to show that it is wrong."
    )


def _worth(report: AuditReport) -> str:
    factor = report.detectable_error_factor
    if factor is None:
        return "How wrong a bound could be unnoticed is not known: see the groups."
    least = at_most(factor, _DIGITS)
    return f"A bound too small by a factor of {least} or more would have been noticed."


def _violations(report: AuditReport) -> str:
    groups = sum(group.violations > 0 for group in report.groups)
    values = sum(value.violations > 0 for value in report.values)
    checks = sum(check.verdict is Verdict.VIOLATION for check in report.checks)
    told = [
        (groups, f"gradient norms exceed their bound in {groups} of {len(report.groups)} groups"),
        (values, f"{values} of {len(report.values)} bounds inside the network are exceeded"),
        (checks, f"{checks} of {len(report.checks)} checks failed"),
    ]
    return ", ".join(text for count, text in told if count) or "something does not hold"


def _exceeded(report: AuditReport) -> str:
    over = [gate for gate in report.gates if gate.outcome is GateOutcome.EXCEEDED]
    return "; ".join(map(gate_sentence, over)) or "a gate does not hold"


def _time(report: AuditReport) -> str:
    if not math.isfinite(report.seconds):
        return "not known"
    text = f"{report.seconds:.3g} s"
    ratio = report.plain_step_ratio
    if ratio is not None and math.isfinite(ratio):
        text += f", {ratio:.2f} times a plain forward and backward pass"
    return text
