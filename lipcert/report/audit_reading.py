"""Reading an audit back from its JSON, for reports that are made later or elsewhere.

What enters: an object that `audit_json` wrote, or what claims to be one. What leaves: the record it
was written from, exactly; NoVerdictError where a member is missing or of another type. Invariant:
nothing that is derived is believed: tightness, factors and findings are computed anew.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any, Final, cast

from lipcert.audit.records import AuditReport
from lipcert.diagnostics import CODES
from lipcert.errors import NoVerdictError
from lipcert.report.audit_json import AUDIT, AUDIT_SCHEMA

_NOT_FINITE: Final = frozenset({"nan", "inf", "-inf"})
_Members = Mapping[str, Any]


def audit_from_json(text: str) -> AuditReport:
    """The audit that a text of `lipcert audit --format json` holds."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NoVerdictError(f"audit: not JSON ({error}); write it again") from error
    return audit_from_document(document)


def audit_from_document(document: object) -> AuditReport:
    """The audit that an object of `lipcert.audit/1` describes."""
    try:
        found = _object(document)
        if found.get("schema") != AUDIT_SCHEMA:
            raise ValueError(f"its schema is not {AUDIT_SCHEMA}")
        report = AUDIT.read(AuditReport, _restored(found), "audit")
        if unknown := {check.code for check in report.checks} - CODES.keys():
            raise ValueError(f"{min(unknown)!r} is no code")
        return report
    except (LookupError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise NoVerdictError(
            f"audit: not a complete result of `lipcert audit --format json` ({error}); "
            "write it again"
        ) from error


def _restored(found: _Members) -> _Members:
    """The document with what is NaN or infinite at its place."""
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
    """An object or an array, for one step into it."""
    if not isinstance(item, dict | list):
        raise TypeError("a path of not_finite leads nowhere")
    return cast("dict[object, object]", item)


def _object(item: object) -> _Members:
    if not isinstance(item, dict):
        raise TypeError("an object is missing")
    return item
