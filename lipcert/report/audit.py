"""Audit: `lipcert audit` as a document for readers, and as findings for CI systems; twin runs, too.

The first lines are the verdict and what it is worth. Violations and undecided norms come first, and
are never left out in favour of norms within bounds. Groups and values are both norms that are
compared with bounds. An audit that is not a pass has at least one finding of level error, even if
only its verdict says so. Strings are verbatim: the writers make them safe.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from lipcert.audit.records import (
    AuditReport,
    CheckReport,
    GroupAudit,
    Quantity,
    ValueAudit,
    Verdict,
    rank,
)
from lipcert.diagnostics import CODES, Level
from lipcert.report import document as doc
from lipcert.report.analysis import VERDICTS, noise_rows
from lipcert.report.ci import CiReport, gate_findings, gate_sentence, gate_statements
from lipcert.report.document import Finding, Tone, by_level
from lipcert.report.json import dump
from lipcert.settings.gates import GateOutcome
from lipcert.text.numbers import at_most, beside, counted, measured, share_text

if TYPE_CHECKING:
    from lipcert.audit.twins import TwinReport

TONES: Final[Mapping[Verdict, Tone]] = MappingProxyType(
    {
        Verdict.VIOLATION: Tone.BAD,
        Verdict.EXCEEDED: Tone.BAD,
        Verdict.MISMATCH: Tone.OPEN,
        Verdict.INCONCLUSIVE: Tone.OPEN,
        Verdict.PARTIAL: Tone.OPEN,
        Verdict.PASS: Tone.GOOD,
    }
)
"""The tone of each verdict, the worst first."""
ORDER: Final = tuple(TONES)


_TITLES: Final = {Quantity.OUTPUT_NORM: "norm", Quantity.COTANGENT_NORM: "gradient norm"}
_REMEDIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "LC102": "bound the node that the analysis names, or freeze these parameters",
        "LC300": "give data with at least one example, or --attack",
        "LC301": "look at the first output of a layer, or gradient there, that exceeds its bound",
        "LC302": "check that weights and preprocessing are those that were bounded",
        "LC303": "check that the loss and its reduction are those that were declared",
        "LC305": "use noise for a bound larger by one part in a million",
        "LC306": "replay the example that is named in float64",
        "LC307": "look for bad examples (--attack pga), give more data, or take a smaller bound "
        "(`lipcert suggest MODEL`)",
        "LC317": "export the module again, in evaluation mode",
        "LC318": "run the missing units again, then merge; record a run to its end",
        "LC319": "give the model, weights and data that belong together",
    }
)
"""Remedies by code, for findings that no check reports with its own remedy."""
_CODE: Final = re.compile(r"^\[(LC\d{3})\]\s*")
_DEFAULTS: Final = {
    Verdict.VIOLATION: "LC301",
    Verdict.EXCEEDED: "LC110",
    Verdict.INCONCLUSIVE: "LC318",
    Verdict.MISMATCH: "LC319",
    Verdict.PARTIAL: "LC318",
}
_TIGHTEST: Final = 8
_AUDITED: Final = (
    *("bounds_from", "units", "units_done", "device", "dtype", "seconds", "plain_step_ratio"),
    "assumptions",
)
"""Members of the document that readers see as they are, with those of its modes."""


def _beside(item: GroupAudit | ValueAudit) -> tuple[str, ...]:
    """Return the bound, what was observed and, of a group, what was attacked."""
    more = (item.max_attacked,) if isinstance(item, GroupAudit) else ()
    return beside(item.bound, item.max_observed, *more)


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
    doc.Column("quantity", cell=lambda value: _TITLES[value.quantity]),
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
    _TITLES[Quantity.COTANGENT_NORM],
    "of the gradient of the loss with respect to the layer's output (the cotangent)",
)
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
    audited = {name: getattr(report, name) for name in _AUDITED} | asdict(report.modes)
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
            (
                "Inside the network: the bounds that were reached the furthest",
                doc.tabled(_VALUE_COLUMNS, values, None if most is None else _TIGHTEST),
                doc.Statements.of([_GRADIENT_NORM] if report.values else []),
            ),
            ("Checks", doc.Statements(tuple(map(_check, checks)))),
            ("What could not be checked", doc.Listing(report.notes).first(most)),
            ("What was audited", doc.Statements.of(doc.described(audited))),
        ),
        word=report.verdict.value.upper(),
    )


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
    open_ = sum(group.detectable_error_factor is None for group in report.groups)
    worth = (
        f"In {open_} of {len(report.groups)} groups there is no bound, or nothing that tests it."
    )
    if factor is not None:
        least = at_most(factor, 3)
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
                "What follows from the bounds, or from the noise, does not hold for what was run.",
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
    members = asdict(found) | {"grad_norm_bound": limit, "grad_norm_max": largest}
    return [*doc.described(members | {"slack": found.slack}), *noise_rows(report.usefulness)]


def _tried(report: AuditReport) -> str:
    steps = report.modes.attack_steps
    examples = f"{counted(report.examples, 'example')} replayed" * (report.examples > 0)
    attack = f"{counted(steps, 'step')} of attack" * (steps > 0)
    return ", ".join(filter(None, [examples, attack])) or "nothing was replayed"


def _violations(report: AuditReport) -> str:
    groups = sum(group.violations > 0 for group in report.groups)
    values = sum(value.violations > 0 for value in report.values)
    checks = sum(check.verdict is Verdict.VIOLATION for check in report.checks)
    told = [
        (groups, f"gradient norms exceed their bound in {groups} of {len(report.groups)} groups"),
        (values, f"{values} of {len(report.values)} bounds inside the network are exceeded"),
        (checks, f"{checks} of {counted(len(report.checks), 'check')} failed"),
    ]
    return ", ".join(text for count, text in told if count) or "something does not hold"


def _exceeded(report: AuditReport) -> str:
    over = [gate for gate in report.gates if gate.outcome is GateOutcome.EXCEEDED]
    return "; ".join(map(gate_sentence, over)) or "a gate does not hold"


def audit_findings(report: AuditReport) -> tuple[Finding, ...]:
    """Return everything that a reader must know, errors first, the worst of them first."""
    found = []
    for item in report.own_reasons:
        remedy = item.remedy or _REMEDIES.get(item.code, "")
        about = item.kind, item.place, item.message
        found.append(Finding(item.code, Level.ERROR, *about, remedy, item.quantity))
    found += gate_findings(report.gates)
    found += _of_reasons(report, {item.code for item in found if item.kind != "check"})
    if report.verdict is not Verdict.PASS and not any(f.level is Level.ERROR for f in found):
        found.append(_unexplained(report))
    found += (
        Finding(item.code, item.level, "audit", item.node, item.message, item.remedy, item.code)
        for item in report.warnings
    )
    return by_level(found)


def _of_reasons(report: AuditReport, known: set[str]) -> Iterator[Finding]:
    """Yield reasons that begin with a code, except those of checks and those already known."""
    of_checks = tuple(f" {check.message}" for check in report.checks)
    for reason in report.reasons:
        found = _CODE.match(reason)
        if found and not reason.endswith(of_checks) and found.group(1) in CODES.keys() - known:
            yield _whole(found.group(1), reason[found.end() :])


def _unexplained(report: AuditReport) -> Finding:
    reason = report.reasons[0] if report.reasons else f"the verdict is {report.verdict.value}"
    return _whole(_DEFAULTS[report.verdict], _CODE.sub("", reason))


def _whole(code: str, message: str) -> Finding:
    return Finding(code, Level.ERROR, "audit", "", message, _REMEDIES.get(code, ""), code)


def twin_document(function: str, report: TwinReport) -> doc.Document:
    """Return a twin run of this function as a document."""
    check = report.check
    why = [] if report.passed else [("what to do", check.remedy)]
    more = doc.Commands(()) if report.passed else doc.explained(check.code)
    members = twin_members(function, report)
    shown = ("steps", "releases", "examples", "neighbours", "seed", "seconds", "compared")
    return doc.Document(
        "LipCert twin run",
        (
            doc.Answer(report.answer, TONES[report.verdict]),
            doc.Answer(function, doc.Tone.SUBJECT),
        ),
        sections=doc.sections_of(
            ("Why", doc.Statements.of(why), more),
            ("What was run", doc.Statements.of(doc.described({x: members[x] for x in shown}))),
        ),
        word=report.verdict.value.upper(),
    )


def twin_members(function: str, report: TwinReport) -> dict[str, Any]:
    """Return the object `lipcert.twin/1` of a twin run."""
    members = asdict(report)
    members["neighbours"] = members.pop("relation").value
    if members["difference"] is not None:
        members["difference"].pop("is_of_sums")
    return {
        "schema": "lipcert.twin/1",
        "function": function,
        "verdict": report.verdict.value,
        **members,
        "largest": report.largest,
    }


def twin_json(function: str, report: TwinReport) -> str:
    """Return the document `lipcert.twin/1` of a twin run."""
    return dump(twin_members(function, report))


def twin_ci(function: str, report: TwinReport) -> CiReport:
    """Return the report of a twin run for CI systems."""
    check = report.check
    finding = Finding(check.code, Level.ERROR, "step", check.where, check.message, check.remedy)
    return CiReport(
        verb="audit",
        file=function.rpartition(":")[0],
        headline=report.answer,
        holds=report.verdict is Verdict.PASS,
        findings=() if report.passed else (finding,),
        properties={
            "verdict": report.verdict.value,
            "function": function,
            "seed": str(report.seed),
            "steps": str(report.steps),
        },
        seconds=report.seconds + sum(item.seconds for item in report.compared),
    )
