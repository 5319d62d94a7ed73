"""SARIF: the structure of version 2.1.0 as the standard and GitHub require it."""

import json
import re
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.audit.records import AuditReport, Verdict
from lipcert.diagnostics import CODES
from lipcert.report.analysis import analysis_ci
from lipcert.report.audit import audit_ci
from lipcert.report.ci import sarif
from tests.report.audit_samples import group, many, passed, violated
from tests.report.audit_strategies import reports
from tests.report.samples import sample

# Which members an object may have, and which it must have, in SARIF 2.1.0; of those that may be
# there, the ones that are used. GitHub asks for a description and a help text of every rule, and
# for a location with a line and a fingerprint of every result.
MAY = {
    "log": "$schema version runs",
    "run": "tool automationDetails invocations artifacts results columnKind properties",
    "tool": "driver",
    "driver": "name version rules",
    "rule": "id shortDescription fullDescription help",
    "text": "text",
    "details": "id",
    "invocation": "executionSuccessful toolExecutionNotifications",
    "notification": "level message",
    "artifact": "location roles",
    "artifactLocation": "uri uriBaseId index",
    "result": "ruleId ruleIndex level message locations partialFingerprints",
    "location": "physicalLocation logicalLocations",
    "physical": "artifactLocation region",
    "region": "startLine startColumn endLine endColumn",
    "logical": "name fullyQualifiedName kind",
}
OPTIONAL = {"uriBaseId", "index", "logicalLocations"}
URI = re.compile(r"[A-Za-z0-9\-._~!$&'()*+,;=:@%/]*")
LEVELS = {"error", "warning", "note"}


def an(kind: str, item: Any) -> Any:
    """The object, once its members are those of its kind."""
    may = set(MAY[kind].split())
    assert may >= set(item) >= may - OPTIONAL, kind
    return item


def location_of(item: Any) -> None:
    an("artifactLocation", item)
    assert URI.fullmatch(item["uri"])
    assert re.fullmatch(r"file:///.*|[^:]*", item["uri"])
    assert ("uriBaseId" in item) == (not item["uri"].startswith("file:"))


def checked(text: str) -> Any:
    """The run, after a look at every member."""
    assert text.isascii()
    log = an("log", json.loads(text))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    an("run", run)
    rules = an("driver", an("tool", run["tool"])["driver"])["rules"]
    for rule in rules:
        an("rule", rule)
        assert rule["id"] in CODES
        for part in ("shortDescription", "fullDescription", "help"):
            assert an("text", rule[part])["text"]
    an("details", run["automationDetails"])
    (invocation,) = run["invocations"]
    for notification in an("invocation", invocation)["toolExecutionNotifications"]:
        assert an("notification", notification)["level"] in LEVELS
        assert an("text", notification["message"])["text"]
    (artifact,) = run["artifacts"]
    location_of(an("artifact", artifact)["location"])
    for result in run["results"]:
        check_result(result, rules)
    return run


def check_result(result: Any, rules: list[Any]) -> None:
    an("result", result)
    assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
    assert result["level"] in LEVELS
    assert an("text", result["message"])["text"]
    (location,) = result["locations"]
    physical = an("physical", an("location", location)["physicalLocation"])
    location_of(physical["artifactLocation"])
    assert physical["artifactLocation"]["index"] == 0
    assert min(an("region", physical["region"]).values()) >= 1
    for logical in location.get("logicalLocations", []):
        an("logical", logical)
    assert re.fullmatch(r"[0-9a-f]{16}:1", result["partialFingerprints"]["primaryLocationLineHash"])


def run_of(report: AuditReport) -> Any:
    return checked(sarif(audit_ci(report)))


def fingerprints(report: AuditReport) -> list[str]:
    results = run_of(report)["results"]
    return [result["partialFingerprints"]["primaryLocationLineHash"] for result in results]


def test_a_violation_is_a_result_at_the_model() -> None:
    run = run_of(violated())
    assert [result["ruleId"] for result in run["results"]] == ["LC314", "LC301", "LC303"]
    location = run["results"][1]["locations"][0]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == "models/digits.onnx"
    assert location["logicalLocations"][0]["name"] == "fc"
    assert location["logicalLocations"][0]["kind"] == "group"


def test_a_pass_has_no_results() -> None:
    run = run_of(passed())
    assert run["results"] == []
    assert run["properties"]["verdict"] == "pass"


def test_results_about_one_file_replace_no_others() -> None:
    """Code scanning takes one run of a category, which is the id up to its last slash."""
    reports = [
        audit_ci(passed()),
        audit_ci(replace(passed(), model="b.onnx")),
        analysis_ci(sample()),
    ]
    found = [checked(sarif(report))["automationDetails"]["id"] for report in reports]
    assert found[1] == "lipcert/audit/b.onnx/"
    assert len({name.rpartition("/")[0] for name in found}) == 3


@given(reports)
def test_any_audit_is_valid_and_nothing_fails_open(report: AuditReport) -> None:
    levels = {result["level"] for result in run_of(report)["results"]}
    assert report.verdict is Verdict.PASS or "error" in levels


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("m.onnx", "m.onnx"),
        ("./a/../b c.onnx", "b%20c.onnx"),
        ("a:b#c?.onnx", "a%3Ab%23c%3F.onnx"),
        ("/tmp/ä.onnx", "file:///tmp/%C3%A4.onnx"),
        ("\ud800.onnx", "%ED%A0%80.onnx"),
    ],
)
def test_paths_become_uris(path: str, uri: str) -> None:
    run = run_of(replace(passed(), model=path))
    assert run["artifacts"][0]["location"]["uri"] == uri


@given(st.text(st.characters(exclude_characters="/", exclude_categories=("Cs",)), min_size=3))
def test_a_relative_uri_is_the_path_again(name: str) -> None:
    run = run_of(replace(passed(), model=f"folder/{name}"))
    assert unquote(run["artifacts"][0]["location"]["uri"]) == f"folder/{name}"


def test_fingerprints_tell_findings_apart_and_do_not_depend_on_numbers() -> None:
    first = fingerprints(violated())
    assert len(set(first)) == len(first)
    worse = replace(violated().groups[1], max_observed=9.0, violations=99)
    again = replace(violated(), groups=(group(), worse), examples=7, seconds=1.0)
    assert fingerprints(again) == first
    assert len(set(fingerprints(many()))) == 100


def test_an_analysis_is_valid_too() -> None:
    run = checked(sarif(analysis_ci(sample())))
    assert run["results"]
    network = replace(sample().network, grad_norm=None)
    lost = replace(sample(), network=network, diagnostics=(), usefulness=None)
    run = checked(sarif(analysis_ci(lost)))
    assert [result["level"] for result in run["results"]] == ["error"]
