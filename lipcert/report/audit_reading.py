"""Reading an audit back from its JSON, for reports that are made later or elsewhere.

What enters: an object that `audit_json` wrote, or what claims to be one. What leaves: the record it
was written from, exactly; NoVerdictError where a member is missing or of another type. Invariant:
nothing that is derived is believed: tightness, factors and findings are computed anew.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from typing import Final, TypeVar, cast

from lipcert.audit.records import (
    BINS_PER_OCTAVE,
    HIGHEST_BIN,
    LOWEST_BIN,
    AuditReport,
    CheckReport,
    ExampleReference,
    GroupAudit,
    Histogram,
    Modes,
    Quantity,
    ValueAudit,
    Verdict,
)
from lipcert.diagnostics import CODES, Diagnostic, Level
from lipcert.errors import NoVerdictError
from lipcert.report.audit_json import AUDIT_SCHEMA

_NOT_FINITE: Final = frozenset({"nan", "inf", "-inf"})
_Members = Mapping[str, object]
_T = TypeVar("_T")


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
        return _report(_restored(found))
    except (LookupError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise NoVerdictError(
            f"audit: not a complete result of `lipcert audit --format json` ({error}); "
            "write it again"
        ) from error


def _report(found: _Members) -> AuditReport:
    model, modes = _object(found["model"]), _object(found["modes"])
    return AuditReport(
        verdict=Verdict(found["verdict"]),
        model=_text(model["path"]),
        model_sha256=_text(model["sha256"]),
        bounds_from=_text(found["bounds_from"]),
        modes=Modes(
            data=_maybe(_text, modes["data"]),
            trace=_maybe(_text, modes["trace"]),
            attack_steps=_count(modes["attack_steps"]),
        ),
        assumptions={key: _text(text) for key, text in _object(found["assumptions"]).items()},
        examples=_count(found["examples"]),
        units=_count(found["units"]),
        units_done=_count(found["units_done"]),
        groups=_all(_group, found["groups"]),
        values=_all(_value, found["values"]),
        checks=_all(_check, found["checks"]),
        reasons=_all(_text, found["reasons"]),
        device=_text(found["device"]),
        dtype=_text(found["dtype"]),
        seconds=_number(found["seconds"]),
        plain_step_ratio=_maybe(_number, found["plain_step_ratio"]),
        notes=_all(_text, found["notes"]),
        warnings=_all(_warning, found.get("warnings", [])),
    )


def _warning(item: object) -> Diagnostic:
    found = _object(item)
    return Diagnostic(
        _text(found["code"]),
        Level(found["level"]),
        _text(found["node"]),
        _text(found["message"]),
        _text(found["remedy"]),
    )


def _group(item: object) -> GroupAudit:
    found = _object(item)
    return GroupAudit(
        name=_text(found["name"]),
        parameters=_all(_text, found["parameters"]),
        dimension=_count(found["dimension"]),
        grad_norm_bound=_maybe(_number, found["grad_norm_bound"]),
        float_bound=_maybe(_number, found["float_bound"]),
        max_observed=_maybe(_number, found["max_observed"]),
        max_attacked=_maybe(_number, found["max_attacked"]),
        violations=_count(found["violations"]),
        undecided=_count(found["undecided"]),
        recomputed=_count(found["recomputed"]),
        worst_example=_maybe(_example, found["worst_example"]),
        histogram=_histogram(found["histogram"]),
    )


def _value(item: object) -> ValueAudit:
    found = _object(item)
    return ValueAudit(
        value=_text(found["value"]),
        node=_text(found["node"]),
        quantity=Quantity(found["quantity"]),
        bound=_maybe(_number, found["bound"]),
        max_observed=_maybe(_number, found["max_observed"]),
        violations=_count(found["violations"]),
        undecided=_count(found["undecided"]),
        worst_example=_maybe(_example, found["worst_example"]),
    )


def _check(item: object) -> CheckReport:
    found = _object(item)
    code = _text(found["code"])
    if code not in CODES:
        raise ValueError(f"{code!r} is no code")
    return CheckReport(
        code=code,
        name=_text(found["name"]),
        verdict=Verdict(found["verdict"]),
        message=_text(found["message"]),
        where=_text(found["where"]),
        measured=_maybe(_number, found["measured"]),
        expected=_maybe(_number, found["expected"]),
        remedy=_text(found["remedy"]),
    )


def _example(item: object) -> ExampleReference:
    found = _object(item)
    return ExampleReference(_text(found["weights"]), _count(found["index"]))


def _histogram(item: object) -> Histogram:
    found = _object(item)
    if found["bins_per_octave"] != BINS_PER_OCTAVE:
        raise ValueError(f"a histogram has not {BINS_PER_OCTAVE} bins in an octave")
    counts = {int(place): _count(count) for place, count in _object(found["counts"]).items()}
    if any(not LOWEST_BIN <= place <= HIGHEST_BIN for place in counts):
        raise ValueError("a bin of a histogram does not exist")
    return Histogram(counts)


def _restored(found: _Members) -> _Members:
    """The document with what is NaN or infinite at its place."""
    document = copy.deepcopy(dict(found))
    for item in _list(found["not_finite"]):
        entry = _object(item)
        *path, last = _list(entry["path"])
        place: object = document
        for step in path:
            place = _container(place)[step]
        number = _text(entry["number"])
        if number not in _NOT_FINITE or _container(place)[last] is not None:
            raise ValueError("an entry of not_finite does not belong to this document")
        _container(place)[last] = float(number)
    return document


def _container(item: object) -> dict[object, object]:
    """An object or an array, for one step into it."""
    if not isinstance(item, dict | list):
        raise TypeError("a path of not_finite leads nowhere")
    return cast("dict[object, object]", item)


def _all(read: Callable[[object], _T], items: object) -> tuple[_T, ...]:
    return tuple(read(item) for item in _list(items))


def _maybe(read: Callable[[object], _T], item: object) -> _T | None:
    return None if item is None else read(item)


def _object(item: object) -> _Members:
    if not isinstance(item, dict):
        raise TypeError("an object is missing")
    return item


def _list(items: object) -> list[object]:
    if not isinstance(items, list):
        raise TypeError("an array is missing")
    return items


def _text(item: object) -> str:
    if not isinstance(item, str):
        raise TypeError(f"{item!r} is not a text")
    return item


def _number(item: object) -> float:
    if isinstance(item, bool) or not isinstance(item, int | float):
        raise TypeError(f"{item!r} is not a number")
    return float(item)


def _count(item: object) -> int:
    if isinstance(item, bool) or not isinstance(item, int) or item < 0:
        raise TypeError(f"{item!r} is not a count")
    return item
