"""JSON of an audit, version 1: other tools read these names; they are extended, never renamed.

What enters: an audit. What leaves: one object with every field of the record and what is derived
from it. Invariant: nothing is hidden: a number that is NaN or infinite is null at its place, and
listed in `not_finite` with its path, so that the record can be read back exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from lipcert.audit.records import (
    BINS_PER_OCTAVE,
    HIGHEST_BIN,
    LOWEST_BIN,
    AuditReport,
    Histogram,
)
from lipcert.core.codec import Codec, CodecError, Form, member
from lipcert.report.audit_findings import audit_findings
from lipcert.report.audit_numbers import factor_of, report_factor, tightness_of
from lipcert.report.json import FieldError, JsonObject, dump

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
    members = AUDIT.write(report)
    for group, found in zip(members["groups"], report.groups, strict=True):
        group["tightness"] = tightness_of(found)
        group["detectable_error_factor"] = factor_of(found)
    for value, measured in zip(members["values"], report.values, strict=True):
        value["tightness"] = tightness_of(measured)
    return {
        "schema": AUDIT_SCHEMA,
        **members,
        "detectable_error_factor": report_factor(report),
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


def _number(value: object) -> float:
    if type(value) not in {int, float}:
        raise CodecError("is not a number")
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        raise CodecError("is not a number") from None


def _histogram(value: object) -> Histogram:
    found = _BINS.read(_Bins, value, "histogram")
    if found.bins_per_octave != BINS_PER_OCTAVE:
        raise CodecError(f"has not {BINS_PER_OCTAVE} bins in an octave")
    if any(not LOWEST_BIN <= place <= HIGHEST_BIN for place in found.counts):
        raise CodecError("has a bin that does not exist")
    return Histogram(found.counts)


@final
@dataclass(frozen=True, slots=True)
class _Bins:
    counts: Mapping[int, int]
    bins_per_octave: int = BINS_PER_OCTAVE


_BINS: Final = Codec(CodecError, {}, extra=True)
AUDIT: Final = Codec(
    FieldError,
    {
        float: Form(float, _number),
        Histogram: Form(lambda found: _BINS.write(_Bins(found.counts)), _histogram),
    },
    members={
        "AuditReport.model": member("model.path"),
        "AuditReport.model_sha256": member("model.sha256"),
        "AuditReport.warnings": member(optional=True),
    },
    nulls=True,
    extra=True,
    largest=1 << 63,
    longest=1 << 24,
)
"""audits, in which a number may be NaN or infinite until `not_finite` is taken apart"""


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
