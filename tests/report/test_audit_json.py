"""JSON of audits: the names that others read, and the way back."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.audit.records import AuditReport
from lipcert.errors import NoVerdictError
from lipcert.report.audit_json import audit_from_document, audit_json
from tests.report.audit_samples import passed, violated, with_nan
from tests.report.audit_strategies import reports


def strict(text: str) -> Any:
    """As a strict reader of JSON: no NaN, no member twice."""

    def refuse(word: str) -> None:
        raise ValueError(word)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs)
        return dict(pairs)

    return json.loads(text, parse_constant=refuse, object_pairs_hook=unique)


def test_numbers_are_exact() -> None:
    document = strict(audit_json(passed()))
    assert document["detectable_error_factor"] == 1.0 / (9.92 / 12.4)
    assert document["groups"][0]["histogram"]["counts"] == {"-8": 1500, "-4": 500, "-2": 48}


def test_what_is_not_finite_is_null_and_listed() -> None:
    document = strict(audit_json(with_nan()))
    assert document["groups"][0]["max_observed"] is None
    listed = {tuple(item["path"]): item["number"] for item in document["not_finite"]}
    assert listed["groups", 0, "max_observed"] == "nan"
    assert listed["groups", 2, "max_observed"] == "inf"
    assert listed["checks", 0, "expected"] == "-inf"
    assert listed["seconds",] == "nan"
    assert document["groups"][3]["grad_norm_bound"] is None
    assert ("groups", 3, "grad_norm_bound") not in listed
    assert {found["code"] for found in document["diagnostics"]} >= {"LC306"}


@given(reports)
def test_reading_is_the_inverse_of_writing(report: AuditReport) -> None:
    text = audit_json(report)
    strict(text)
    assert text.isascii()
    assert "##" not in text
    assert repr(audit_from_document(json.loads(text))) == repr(
        report
    )  # NaN is not equal to itself, its text is


def paths(item: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = item.items() if isinstance(item, dict) else enumerate(item)
    found = []
    for key, child in children:
        found.append((*path, key))
        if isinstance(child, dict | list):
            found += paths(child, (*path, key))
    return found


DERIVED = ("tightness", "detectable_error_factor", "diagnostics")
DOCUMENT = json.loads(audit_json(with_nan()))
PATHS = [path for path in paths(DOCUMENT) if not set(path) & set(DERIVED)]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


def test_a_missing_member_is_refused() -> None:
    for path in PATHS:
        if not isinstance(path[-1], str):
            continue
        document = json.loads(json.dumps(DOCUMENT))
        place = document
        for step in path[:-1]:
            place = place[step]
        del place[path[-1]]
        if path[-2:-1] in {("assumptions",), ("counts",)}:
            audit_from_document(document)
            continue
        with pytest.raises(NoVerdictError, match="audit: not a complete result"):
            audit_from_document(document)


@given(st.sampled_from(PATHS), ANYTHING)
def test_damage_is_refused_or_read_in_one_way(path: tuple[Any, ...], damage: object) -> None:
    document = json.loads(json.dumps(DOCUMENT))
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = damage
    try:
        report = audit_from_document(document)
    except NoVerdictError:
        return
    assert isinstance(report, AuditReport)
    audit_json(report)


@pytest.mark.parametrize("text", ["[]", "null", "{}", '{"schema": "lipcert.analysis/1"}'])
def test_other_documents_are_refused(text: str) -> None:
    with pytest.raises(NoVerdictError, match=r"^audit: not"):
        audit_from_document(json.loads(text))


def test_deep_nesting_is_refused() -> None:
    nested = json.dumps(DOCUMENT)[:-1] + ', "deep": ' + "[" * 900 + "]" * 900 + "}"
    with pytest.raises(NoVerdictError, match="write it again"):
        audit_from_document(json.loads(nested))


def test_derived_numbers_are_not_believed() -> None:
    document = json.loads(audit_json(violated()))
    document["groups"][1]["tightness"] = 0.1
    document["detectable_error_factor"] = 1.0
    report = audit_from_document(document)
    assert math.isclose(report.groups[1].tightness or 0.0, 1.5)
