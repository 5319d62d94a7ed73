"""JSON of an audit, version 1: other tools read these names; they are extended, never renamed.

An audit is one object with every field of the record and what is derived from it. A number that is
NaN or infinite is null at its place, and listed in `not_finite` with its path, so nothing is
hidden. An object is read back as the exact record, with NoVerdictError if a member is missing or of
another type; what is derived is computed again: tightness, factors and findings.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from lipcert.audit.records import AuditReport
from lipcert.core.codec import CodecError, member
from lipcert.diagnostics import CODES
from lipcert.errors import NoVerdictError
from lipcert.report.audit import audit_findings
from lipcert.report.json import MEMBERS, JsonObject, documents, dump, written
from lipcert.text.codec import Form

AUDIT_SCHEMA: Final = "lipcert.audit/1"
_Path = tuple[str | int, ...]
_NOT_FINITE: Final = frozenset({"nan", "inf", "-inf"})
_Members = Mapping[str, Any]


def audit_json(report: AuditReport) -> str:
    """Return the document `lipcert.audit/1` of an audit."""
    return dump(audit_document(report))


def audit_document(report: AuditReport) -> JsonObject:
    """Return the object behind `audit_json`; every number in it is finite."""
    odd: list[JsonObject] = []
    document = _finite(_document(report), (), odd)
    if not isinstance(document, dict):
        raise TypeError("an audit is written as an object")
    return {**document, "not_finite": odd}


def _document(report: AuditReport) -> JsonObject:
    members = AUDIT.write(report)
    for group, found in zip(members["groups"], report.groups, strict=True):
        group["tightness"] = found.tightness
        group["detectable_error_factor"] = found.detectable_error_factor
    for value, measured in zip(members["values"], report.values, strict=True):
        value["tightness"] = measured.tightness
    if "gradient" in members:
        members["gradient"]["slack"] = report.gradient.slack
    return {
        "schema": AUDIT_SCHEMA,
        **members,
        "detectable_error_factor": report.detectable_error_factor,
        "diagnostics": written(audit_findings(report)),
    }


def _number(value: object) -> float:
    if type(value) not in {int, float}:
        raise CodecError("is not a number")
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        raise CodecError("is not a number") from None


AUDIT: Final = documents(
    Form(float, _number),
    {
        **MEMBERS,
        "AuditReport.model": member("model.path"),
        "AuditReport.model_sha256": member("model.sha256"),
        "AuditReport.warnings": member(optional=True),
        "AuditReport.max_detectable_factor": member(optional=True),
        "AuditReport.gates": member(optional=True),
        "AuditReport.gradient": member(optional=True),
        "AuditReport.usefulness": member(optional=True),
        "AuditReport.recording": member(optional=True),
        "AuditReport.epsilon": member(optional=True),
        "Modes.data_sha256": member(optional=True),
        "Modes.data_sha256_of": member(optional=True),
    },
)
"""Audits, in which a number may be NaN or infinite until `not_finite` is split off."""


def _finite(item: object, path: _Path, odd: list[JsonObject]) -> object:
    """Return a copy with None for numbers that are not finite; `odd` lists their places."""
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


def audit_from_document(document: object) -> AuditReport:
    """Return the audit that an object of `lipcert.audit/1` describes."""
    try:
        found = _object(document)
        if found.get("schema") != AUDIT_SCHEMA:
            raise ValueError(f"its schema is not {AUDIT_SCHEMA}")
        report = AUDIT.read(AuditReport, _restored(found), "audit")
        if unknown := {check.code for check in report.checks} - CODES.keys():
            raise ValueError(f"{min(unknown)!r} is not a code")
        return report
    except (LookupError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise NoVerdictError(
            f"audit: not a complete result of `lipcert audit --format json` ({error}); "
            "write it again"
        ) from error


def _restored(found: _Members) -> _Members:
    """Return the document with NaN and infinite numbers at their places."""
    document = copy.deepcopy(dict(found))
    for item in found["not_finite"]:
        entry = _object(item)
        *path, last = entry["path"]
        place: object = document
        for step in path:
            place = _container(place)[step]
        number = entry["number"]
        if number not in _NOT_FINITE or _container(place)[last] is not None:
            raise ValueError("an entry of not_finite does not belong to this document")
        _container(place)[last] = float(number)
    return document


def _container(item: object) -> dict[object, object]:
    """Return an object or an array, for one step of a path into it."""
    if not isinstance(item, dict | list):
        raise TypeError("a path of not_finite does not exist")
    return cast("dict[object, object]", item)


def _object(item: object) -> _Members:
    if not isinstance(item, dict):
        raise TypeError("an object is missing")
    return item
