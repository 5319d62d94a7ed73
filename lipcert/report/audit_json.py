"""JSON of an audit, version 1: other tools read these names; they are extended, never renamed.

What enters: an audit. What leaves: one object with every field of the record and what is derived
from it. Invariant: nothing is hidden: a number that is NaN or infinite is null at its place, and
listed in `not_finite` with its path, so that the record can be read back exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from lipcert.audit.records import (
    BINS_PER_OCTAVE,
    AuditReport,
    CheckReport,
    ExampleReference,
    GroupAudit,
    ValueAudit,
)
from lipcert.report.audit_findings import audit_findings
from lipcert.report.audit_numbers import factor_of, report_factor, tightness_of
from lipcert.report.json import JsonObject, diagnostic_list, dump

AUDIT_SCHEMA: Final = "lipcert.audit/1"
_Path = tuple[str | int, ...]


def audit_json(report: AuditReport) -> str:
    """`lipcert.audit/1`."""
    return dump(audit_document(report))


def audit_document(report: AuditReport) -> JsonObject:
    """The object behind `audit_json`; every number in it is finite."""
    odd: list[JsonObject] = []
    document = _finite(_document(report), (), odd)
    if not isinstance(document, dict):
        raise TypeError("an audit is written as an object")
    return {**document, "not_finite": odd}


def _document(report: AuditReport) -> JsonObject:
    return {
        "schema": AUDIT_SCHEMA,
        "verdict": report.verdict.value,
        "reasons": list(report.reasons),
        "notes": list(report.notes),
        **({"warnings": diagnostic_list(report.warnings)} if report.warnings else {}),
        "model": {"path": report.model, "sha256": report.model_sha256},
        "bounds_from": report.bounds_from,
        "modes": {
            "data": report.modes.data,
            "trace": report.modes.trace,
            "attack_steps": report.modes.attack_steps,
        },
        "assumptions": dict(report.assumptions),
        "examples": report.examples,
        "units": report.units,
        "units_done": report.units_done,
        "detectable_error_factor": report_factor(report),
        "groups": [_group(group) for group in report.groups],
        "values": [_value(value) for value in report.values],
        "checks": [_check(check) for check in report.checks],
        "device": report.device,
        "dtype": report.dtype,
        "seconds": report.seconds,
        "plain_step_ratio": report.plain_step_ratio,
        "diagnostics": [
            {
                "code": finding.code,
                "level": finding.level.value,
                "node": finding.place,
                "kind": finding.kind,
                "message": finding.message,
                "remedy": finding.remedy,
            }
            for finding in audit_findings(report)
        ],
    }


def _group(group: GroupAudit) -> JsonObject:
    return {
        "name": group.name,
        "parameters": list(group.parameters),
        "dimension": group.dimension,
        "grad_norm_bound": group.grad_norm_bound,
        "float_bound": group.float_bound,
        "max_observed": group.max_observed,
        "max_attacked": group.max_attacked,
        "tightness": tightness_of(group),
        "detectable_error_factor": factor_of(group),
        "violations": group.violations,
        "undecided": group.undecided,
        "recomputed": group.recomputed,
        "worst_example": _example(group.worst_example),
        "histogram": {
            "bins_per_octave": BINS_PER_OCTAVE,
            "counts": {str(place): count for place, count in group.histogram.counts.items()},
        },
    }


def _value(value: ValueAudit) -> JsonObject:
    return {
        "value": value.value,
        "node": value.node,
        "quantity": value.quantity.value,
        "bound": value.bound,
        "max_observed": value.max_observed,
        "tightness": tightness_of(value),
        "violations": value.violations,
        "undecided": value.undecided,
        "worst_example": _example(value.worst_example),
    }


def _check(check: CheckReport) -> JsonObject:
    return {
        "code": check.code,
        "name": check.name,
        "verdict": check.verdict.value,
        "message": check.message,
        "where": check.where,
        "measured": check.measured,
        "expected": check.expected,
        "remedy": check.remedy,
    }


def _example(example: ExampleReference | None) -> JsonObject | None:
    return example and {"weights": example.weights, "index": example.index}


def _finite(item: object, path: _Path, odd: list[JsonObject]) -> object:
    """A copy in which what is not finite is None, and `odd` says where."""
    match item:
        case float() if not math.isfinite(item):
            odd.append({"path": list(path), "number": repr(item)})
            return None
        case str():
            return item
        case Mapping():
            return {key: _finite(value, (*path, key), odd) for key, value in item.items()}
        case Sequence():
            return [_finite(value, (*path, i), odd) for i, value in enumerate(item)]
    return item
