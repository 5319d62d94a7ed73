"""Audit: `lipcert audit` as a document for readers, and as findings for CI systems.

The first lines are the verdict and what it is worth. Violations and undecided norms come first, and
are never left out in favour of norms within bounds. Strings are verbatim: the writers make them
safe.
"""

import math
from collections import Counter
from typing import Final

from lipcert.audit.records import (
    BINS_PER_OCTAVE,
    AuditReport,
    CheckReport,
    GroupAudit,
    Quantity,
    ValueAudit,
    Verdict,
)
from lipcert.report import document as doc
from lipcert.report.analysis import SCOPES, VERDICTS, noise_rows
from lipcert.report.audit_findings import (
    ORDER,
    QUANTITIES,
    TONES,
    audit_findings,
    rank,
)
from lipcert.report.ci import CiReport, gate_sentence, gate_statements
from lipcert.settings.gates import GateOutcome
from lipcert.text.numbers import (
    at_most,
    beside,
    counted,
    measured,
    share_text,
)

_TIGHTEST: Final = 8
_LOWEST_OCTAVE: Final = -10
"""The lowest octave of norms over bounds; smaller ones are counted in it."""


def _beside(item: GroupAudit | ValueAudit) -> tuple[str, ...]:
    """Return the bound, what was observed and, of a group, what was attacked."""
    if isinstance(item, ValueAudit):
        return beside(item.bound, item.max_observed)
    return beside(item.grad_norm_bound, item.max_observed, item.max_attacked)


def _noticed(group: GroupAudit) -> str:
    factor = group.detectable_error_factor
    return measured(None) if factor is None else at_most(factor, 3)


def _reference(item: GroupAudit | ValueAudit) -> str:
    example = item.worst_example
    return "" if example is None else f"{example.index} at {example.weights}"


_BOUND: Final = doc.Column("bound", True, cell=lambda item: _beside(item)[0])
_OBSERVED: Final = doc.Column("observed", True, cell=lambda item: _beside(item)[1])
_TIGHTNESS: Final = doc.Column("tightness", True, cell=lambda item: share_text(item.tightness))
_UNSETTLED: Final = (
    doc.Column("violations", True, cell=lambda item: f"{item.violations:,}"),
    doc.Column("undecided", True, rank=4, optional=True, cell=lambda item: f"{item.undecided:,}"),
    doc.Column("worst example", least=16, rank=6, optional=True, cell=_reference),
)
_GROUP_COLUMNS: Final = (
    doc.Column("group", least=16, cell=lambda group: group.name),
    doc.Column("dimension", True, rank=5, cell=lambda group: f"{group.dimension:,}"),
    _BOUND,
    _OBSERVED,
    doc.Column("attacked", True, rank=2, optional=True, cell=lambda group: _beside(group)[2]),
    _TIGHTNESS,
    doc.Column("error noticed", True, rank=3, cell=_noticed),
    *_UNSETTLED,
)
_VALUE_COLUMNS: Final = (
    doc.Column("value", least=16, cell=lambda value: value.value),
    doc.Column("node", least=16, rank=5, cell=lambda value: value.node or "input"),
    doc.Column("quantity", cell=lambda value: QUANTITIES[value.quantity].title),
    _BOUND,
    _OBSERVED,
    _TIGHTNESS,
    *_UNSETTLED,
)
_ERROR_NOTICED: Final = (
    "error noticed",
    "the smallest error that this audit would have detected: a bound too small by this factor",
)
_GRADIENT_NORM: Final = (
    QUANTITIES[Quantity.COTANGENT_NORM].title,
    "of the gradient of the loss with respect to the layer's output (the cotangent)",
)
_DIGITS: Final = 3
Rows = list[tuple[str, str]]


def audit_document(report: AuditReport, most: int | None = None) -> doc.Document:
    """Return an audit as a document; tables have at most `most` rows."""
    tone = TONES[report.verdict]
    use = report.usefulness
    findings = doc.Findings.of(audit_findings(report), most)
    more = doc.explained(findings.rows[0].code) if findings.rows else doc.Commands(())
    answers = [doc.Answer(text, tone) for text in _answers(report)]
    if report.epsilon is not None:
        answers.append(doc.Answer(f"{report.epsilon.sentence}.", tone))
    if use is not None:
        answers.append(doc.Answer(use.sentence, VERDICTS[use.verdict]))
    file = f"{report.model}  ·  sha256 {report.model_sha256[:12]}"
    groups, values = sorted(report.groups, key=rank), sorted(report.values, key=rank)
    checks = sorted(report.checks, key=lambda check: ORDER.index(check.verdict))
    return doc.Document(
        "LipCert audit",
        (*answers, doc.Answer(file, doc.Tone.SUBJECT)),
        sections=doc.sections_of(
            ("Gates", gate_statements(report.gates)),
            ("The whole gradient of one example", doc.Statements.of(_gradient(report))),
            ("Findings", findings, more),
            (
                "Groups: the largest gradient norm of one example against its bound",
                doc.tabled(_GROUP_COLUMNS, groups, most),
                doc.Statements.of([_ERROR_NOTICED] if groups else []),
            ),
            ("Observed norms over their bounds, example by example", _histogram(report)),
            (
                "Inside the network: the bounds that were reached the furthest",
                doc.tabled(_VALUE_COLUMNS, values, None if most is None else _TIGHTEST),
                doc.Statements.of([_GRADIENT_NORM] if report.values else []),
            ),
            ("Checks", doc.Statements(tuple(map(_check, checks)))),
            ("What could not be checked", doc.Listing(report.notes).first(most)),
            ("What was audited", doc.Statements.of(_facts(report))),
        ),
        word=report.verdict.value.upper(),
    )


def _histogram(report: AuditReport) -> doc.Ranking:
    """Return how many norms lie in each octave, for all groups together."""
    counts: Counter[int] = Counter()
    for group in report.groups:
        for place, count in group.histogram.counts.items():
            counts[max(place // BINS_PER_OCTAVE, _LOWEST_OCTAVE)] += count
    most = max(counts.values(), default=0)
    over = doc.Tone.BAD if any(group.violations for group in report.groups) else doc.Tone.PLAIN
    return doc.Ranking(
        tuple(
            doc.Bar(
                _octave(octave),
                f"{counts[octave]:,}",
                counts[octave] / most,
                tone=over if octave >= 0 else doc.Tone.PLAIN,
            )
            for octave in sorted(counts, reverse=True)
            if counts[octave]
        )
    )


def _octave(octave: int) -> str:
    low, high = measured(2.0**octave, 3), measured(2.0 ** (octave + 1), 3)
    return f"{low} to {high}" if octave > _LOWEST_OCTAVE else f"below {high}"


def _check(check: CheckReport) -> doc.Statement:
    """Return what was checked besides the bounds: where, the result, and the two numbers."""
    numbers = (("measured", check.measured), ("expected", check.expected))
    shown = [f"{name} {measured(value)}" for name, value in numbers if value is not None]
    text = check.placed + (f" ({', '.join(shown)})" if shown else "")
    verdict = check.verdict
    return doc.Statement(check.name, text, verdict.value, TONES[verdict])


def audit_ci(report: AuditReport) -> CiReport:
    """Return the report of an audit for CI systems."""
    findings, use = audit_findings(report), report.usefulness
    return CiReport(
        verb="audit",
        file=report.model,
        headline=" ".join([*_answers(report), *([] if use is None else [use.sentence])]),
        holds=report.verdict is Verdict.PASS,
        findings=findings,
        properties={
            "verdict": report.verdict.value,
            **({} if use is None else {"usefulness": use.verdict}),
            **({} if report.epsilon is None else {"epsilon": report.epsilon.sentence}),
            "examples": str(report.examples),
            "model_sha256": report.model_sha256,
            "bounds_from": report.bounds_from,
            "device": report.device,
            "dtype": report.dtype,
        },
        seconds=report.seconds,
    )


def _answers(report: AuditReport) -> tuple[str, str]:
    """Return a sentence with the verdict and its basis, and one on what that is worth."""
    whole = "" if report.recording is None else str(report.recording)
    passed = f"Pass{whole}: {_tried(report)}, and no gradient norm exceeds its bound."
    factor = report.detectable_error_factor
    worth = "How large an error would go unnoticed is not known: see the groups."
    if factor is not None:
        least = at_most(factor, _DIGITS)
        worth = f"A bound too small by a factor of {least} or more would have been noticed."
    match report.verdict:
        case Verdict.PASS:
            return passed, worth
        case Verdict.PARTIAL:
            return passed, (
                "The run as a whole does not pass: what else it did is not known. If it was "
                "killed there, say so with --interrupted."
            )
        case Verdict.VIOLATION:
            return (
                f"Violation: {_violations(report)}.",
                "The bounds, or the noise, were not computed for what was run.",
            )
        case Verdict.EXCEEDED:
            return (
                f"Over a limit: {_exceeded(report)}.",
                "No bound is violated, but a limit that you set is exceeded.",
            )
        case Verdict.INCONCLUSIVE:
            return (
                f"Inconclusive: {_tried(report)}, which does not settle it.",
                "This is not a pass: the findings say what is undecided, or was tested too little.",
            )
        case Verdict.MISMATCH:
            return (
                "Mismatch: the files given do not belong to the bounds.",
                "This is not a pass: nothing was learnt about the bounds.",
            )


def _gradient(report: AuditReport) -> Rows:
    """Return the bound of a per-example gradient, and what was measured."""
    found = report.gradient
    if not found.examples:
        return []
    limit, largest = beside(found.grad_norm_bound, found.grad_norm_max)
    slack = found.slack
    times = "" if slack is None else f"; G is {at_most(slack, _DIGITS)} times the largest"
    return [
        ("bound G", limit),
        (
            f"in {counted(found.examples, 'example')}",
            f"median {measured(found.grad_norm_median)}, largest {largest}{times}",
        ),
        *noise_rows(report.usefulness),
    ]


def _facts(report: AuditReport) -> Rows:
    """Return what was audited, and how."""
    modes = report.modes
    digest = (
        ""
        if modes.data_sha256 is None
        else f", sha256 {modes.data_sha256[:16]}… of {modes.data_sha256_of}"
    )
    rows = [
        ("bounds from", report.bounds_from),
        ("data", f"{modes.data or 'none'}{digest}"),
        ("recorded run", modes.trace or "none"),
        ("attack", f"{modes.attack_steps} steps towards large gradients"),
        ("units of work", f"{report.units_done:,} of {report.units:,} done"),
        ("arithmetic", f"{report.dtype} on {report.device}{_rounding(report)}"),
        ("time", _time(report)),
    ]
    said = report.assumptions
    return rows + [(f"assumed: {name}", SCOPES.get(said[name], said[name])) for name in said]


def _rounding(report: AuditReport) -> str:
    """Return the largest allowance for rounding above the bounds of real arithmetic."""
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
        parts.append(f"{counted(report.examples, 'example')} replayed")
    if report.modes.attack_steps:
        parts.append(f"{report.modes.attack_steps} steps of attack")
    return ", ".join(parts) or "nothing was replayed"


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
