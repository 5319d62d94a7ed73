"""Findings of an audit (the reasons against a pass), worst first, and its cases for CI systems.

Groups and values are both norms that are compared with bounds. An audit that is not a pass has at
least one finding of level error, even if only its verdict says so.
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from lipcert.audit.records import (
    AuditReport,
    GroupAudit,
    Quantity,
    ValueAudit,
    Verdict,
    factor_of,
    largest,
)
from lipcert.diagnostics import CODES, Level
from lipcert.report.ci import gate_findings
from lipcert.report.document import Finding, Tone, by_level
from lipcert.text.numbers import at_most, beside, counted, measured

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


class QuantityWords(NamedTuple):
    """The title of a quantity in tables, the subject of a sentence, and the code of a violation."""

    title: str
    subject: str
    code: str


QUANTITIES: Final = MappingProxyType(
    {
        Quantity.OUTPUT_NORM: QuantityWords("norm", "the norm of", "LC302"),
        Quantity.COTANGENT_NORM: QuantityWords(
            "gradient norm", "the norm of the gradient with respect to", "LC303"
        ),
    }
)
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


@dataclass(frozen=True, slots=True)
class Held:
    """A norm that was compared with a bound.

    code: of its violation. kind, place: where it is ("group", "conv1"). subject: in words.
    quantity: distinguishes several at one place, "" for groups. norm: the largest that was found,
    None if nothing was tried.
    """

    audit: GroupAudit | ValueAudit
    code: str
    kind: str
    place: str
    subject: str
    quantity: str
    bound: float | None
    norm: float | None


def held_group(group: GroupAudit) -> Held:
    """Return the joint gradient norm of the parameters of a group."""
    name, norm = group.name, largest(group.max_observed, group.max_attacked)
    subject = f"the gradient norm of {name}"
    return Held(group, "LC301", "group", name, subject, "", group.grad_norm_bound, norm)


def held_value(value: ValueAudit) -> Held:
    """Return the norm of a value or of its cotangent, placed at the node that computes it."""
    kind, place = ("node", value.node) if value.node else ("value", value.value)
    words, quantity = QUANTITIES[value.quantity], f"{value.quantity.value} {value.value}"
    subject, norm = f"{words.subject} {value.value}", value.max_observed
    return Held(value, words.code, kind, place, subject, quantity, value.bound, norm)


def rank(audit: GroupAudit | ValueAudit) -> tuple[bool, bool, float]:
    """Return a key that sorts violations first, then undecided norms, then the tightest."""
    share = audit.tightness
    worst = -1.0 if share is None else math.inf if math.isnan(share) else share
    return (audit.violations == 0, audit.undecided == 0, -worst)


def audit_findings(report: AuditReport) -> tuple[Finding, ...]:
    """Return everything that a reader must know, errors first, the worst of them first."""
    untried = {group.name for group in report.untried_groups}
    norms = (*map(held_group, report.groups), *map(held_value, report.values))
    ranked = sorted(norms, key=lambda item: rank(item.audit))
    found = [finding for item in ranked for finding in _of_held(item, untried)]
    found += gate_findings(report.gates)
    known = {finding.code for finding in found if finding.level is Level.ERROR}
    found = [*_of_checks(report), *found, *_of_reasons(report, known)]
    if report.verdict is not Verdict.PASS and not any(f.level is Level.ERROR for f in found):
        found.append(_unexplained(report))
    found += (
        Finding(item.code, item.level, "audit", item.node, item.message, item.remedy, item.code)
        for item in report.warnings
    )
    return by_level(found)


def _of_held(item: Held, untried: Collection[str]) -> Iterator[Finding]:
    """Yield findings about one norm. untried: the groups whose bound was tested too little."""
    if item.audit.violations:
        finite = item.norm is None or math.isfinite(item.norm)
        text = _exceeds(item) if finite else f"{item.subject} is NaN or infinite"
        code = item.code if finite else "LC306"
        yield _finding(item, code, Level.ERROR, f"{text}{_worst(item)}")
    if item.audit.undecided:
        examples = counted(item.audit.undecided, "example")
        text = f"{item.subject} is undecided for {examples}{_beside(item)}"
        yield _finding(item, "LC305", Level.ERROR, text)
    if item.kind != "group":
        return
    if item.bound is None:
        yield _finding(item, "LC102", Level.ERROR, f"{item.subject} has no bound to hold")
    elif item.norm is None:
        yield _finding(item, "LC300", Level.WARNING, f"{item.subject} was not tried")
    elif item.place in untried:
        yield _finding(item, "LC307", Level.ERROR, _hardly_tried(item))


def _hardly_tried(item: Held) -> str:
    factor = factor_of(item.audit.tightness)
    if factor is None:
        return f"{item.subject} is 0 in every example: nothing would show that its bound is wrong"
    least = at_most(factor, 3)
    return (
        f"{item.subject} reached 1/{least} of its bound{_beside(item)}: a bound too small by less "
        "than that would not have been noticed"
    )


def _finding(item: Held, code: str, level: Level, message: str) -> Finding:
    return Finding(code, level, item.kind, item.place, message, _REMEDIES[code], item.quantity)


def _exceeds(item: Held) -> str:
    share = item.audit.tightness
    times = f" {measured(share)} times" if share is not None and share > 1.0 else " over"
    return f"{item.subject} is{times} its bound{_beside(item)}"


def _beside(item: Held) -> str:
    limit, norm = beside(item.bound, item.norm)
    return f" ({norm} against {limit})"


def _worst(item: Held) -> str:
    where = "" if item.audit.worst_example is None else f", at {item.audit.worst_example}"
    return f"{where}; {counted(item.audit.violations, 'violation')}"


def _of_checks(report: AuditReport) -> Iterator[Finding]:
    for check in report.checks:
        if check.verdict is Verdict.PASS:
            continue
        remedy = check.remedy or _REMEDIES.get(check.code, "")
        code, name, where = check.code, check.name, check.where
        yield Finding(code, Level.ERROR, "check", name, check.placed, remedy, where)


def _of_reasons(report: AuditReport, known: set[str]) -> Iterator[Finding]:
    """Yield reasons that begin with a code, except those of checks and those already known."""
    of_checks = {check.reason for check in report.checks}
    for reason in report.reasons:
        found = _CODE.match(reason)
        if found and reason not in of_checks and found.group(1) in CODES.keys() - known:
            yield _whole(found.group(1), reason[found.end() :])


def _unexplained(report: AuditReport) -> Finding:
    reason = report.reasons[0] if report.reasons else f"the verdict is {report.verdict.value}"
    return _whole(_DEFAULTS[report.verdict], _CODE.sub("", reason))


def _whole(code: str, message: str) -> Finding:
    return Finding(code, Level.ERROR, "audit", "", message, _REMEDIES.get(code, ""), code)
