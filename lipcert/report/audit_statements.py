"""Statements of an audit: its answer in words, and the facts beside it.

What enters: an audit. What leaves: plain sentences and pairs (topic, sentence), shared by text,
Markdown and CI formats; strings are verbatim, and the emitter makes them safe.
"""

from __future__ import annotations

import math
from typing import Final

from lipcert.audit.records import AuditReport, Verdict
from lipcert.report.audit_numbers import report_factor
from lipcert.report.numbers import at_most

_DIGITS: Final = 3
Rows = list[tuple[str, str]]


def answer(report: AuditReport) -> str:
    """The verdict and what it rests on, in one sentence."""
    match report.verdict:
        case Verdict.PASS:
            return f"Pass: {_tried(report)}, and {_held(report)}."
        case Verdict.VIOLATION:
            return f"Violation: {_violations(report)}."
        case Verdict.INCONCLUSIVE:
            return f"Inconclusive: {_tried(report)}, and that does not settle it."
        case Verdict.MISMATCH:
            return "Mismatch: what was given does not belong to what was bounded."


def meaning(report: AuditReport) -> str:
    """What the answer is worth, in one sentence."""
    match report.verdict:
        case Verdict.PASS:
            return _worth(report)
        case Verdict.VIOLATION:
            return _broken(report)
        case Verdict.INCONCLUSIVE:
            return "This is no pass: something is undecided, or was not audited."
        case Verdict.MISMATCH:
            return "This is no pass: nothing was learnt about the bounds."


def file_line(report: AuditReport) -> str:
    """Which file was audited."""
    return f"{report.model}  ·  sha256 {report.model_sha256[:12]}"


def fact_rows(report: AuditReport) -> Rows:
    """What was audited, and how."""
    modes = report.modes
    attack = f"{modes.attack_steps} steps towards large gradients"
    rows = [
        ("bounds from", report.bounds_from),
        ("data", modes.data or "none"),
        ("recorded run", modes.trace or "none"),
        ("attack", attack if modes.attack_steps else "none"),
        ("units of work", f"{report.units_done:,} of {report.units:,} done"),
        ("arithmetic", f"{report.dtype} on {report.device}{_rounding(report)}"),
        ("time", _time(report)),
    ]
    return rows + [(f"assumed: {name}", text) for name, text in report.assumptions.items()]


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


def _worth(report: AuditReport) -> str:
    factor = report_factor(report)
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


def _time(report: AuditReport) -> str:
    if not math.isfinite(report.seconds):
        return "not known"
    text = f"{report.seconds:.3g} s"
    ratio = report.plain_step_ratio
    if ratio is not None and math.isfinite(ratio):
        text += f", {ratio:.2f} times a plain forward and backward pass"
    return text
