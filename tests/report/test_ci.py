"""What CI systems show, whatever names hold: SARIF, GitHub annotations, JUnit; and gates."""

import json
import re
from dataclasses import replace
from urllib.parse import unquote
from xml.etree.ElementTree import Element, fromstring

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.audit.records import AuditReport, Verdict
from lipcert.diagnostics import CODES, Level
from lipcert.report.analysis import analysis_ci
from lipcert.report.audit import audit_ci
from lipcert.report.ci import (
    gate_findings,
    gate_sentence,
    gate_statements,
    github_annotations,
    junit_xml,
    sarif,
)
from lipcert.report.document import Tone
from lipcert.settings.gates import GateResult
from lipcert.text.safe import safe
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


def an(kind: str, item):
    """The object, once its members are those of its kind."""
    may = set(MAY[kind].split())
    assert may >= set(item) >= may - OPTIONAL, kind
    return item


def location_of(item) -> None:
    an("artifactLocation", item)
    assert URI.fullmatch(item["uri"])
    assert re.fullmatch(r"file:///.*|[^:]*", item["uri"])
    assert ("uriBaseId" in item) == (not item["uri"].startswith("file:"))


def checked(text: str):
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


def check_result(result, rules) -> None:
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


def run_of(report: AuditReport):
    return checked(sarif(audit_ci(report)))


def fingerprints(report: AuditReport) -> list[str]:
    results = run_of(report)["results"]
    return [result["partialFingerprints"]["primaryLocationLineHash"] for result in results]


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


def commands(log: str):
    """What a runner makes of a log: `::name key=value,key=value::data` at the start of a line."""
    found = []
    for line in re.split(r"\r\n|\r|\n", log):
        text = line.lstrip()
        assert "##[" not in line
        if not text.startswith("::"):
            continue
        head, separator, data = text[2:].partition("::")
        if not separator:
            continue
        name, _, rest = head.partition(" ")
        properties = dict(part.split("=", 1) for part in rest.split(",")) if rest else {}
        found.append((name, {k: unescaped(v) for k, v in properties.items()}, unescaped(data)))
    return found


def unescaped(text: str) -> str:
    for code, character in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ",")):
        text = text.replace(code, character)
    return text.replace("%25", "%")


def annotations(report: AuditReport):
    return commands(github_annotations(audit_ci(report)))


def test_at_most_ten_and_the_rest_is_counted() -> None:
    log = github_annotations(audit_ci(many()))
    assert len(commands(log)) == 10
    assert "and 90 further findings" in log
    assert log.splitlines()[-1].startswith("lipcert audit: Violation")


def test_the_worst_come_first() -> None:
    groups = list(many().groups)
    groups[150] = replace(groups[150], max_attacked=99.0)
    first = annotations(replace(many(), groups=tuple(groups)))[0]
    assert first[1]["title"] == "LC301 group block150.attention"


@given(reports)
def test_every_log_holds_the_commands_that_were_meant(report: AuditReport) -> None:
    meant = audit_ci(report)
    log = github_annotations(meant)
    found = commands(log)
    assert len(found) == min(10, max(1, len(meant.findings)))
    assert {name for name, _, _ in found} <= {"error", "warning", "notice"}
    assert all(set(properties) == {"file", "title"} for _, properties, _ in found)
    assert all(properties["file"] == safe(report.model) for _, properties, _ in found)
    assert report.verdict is Verdict.PASS or found[0][0] == "error"


def parsed(report: AuditReport) -> Element:
    return fromstring(junit_xml(audit_ci(report)))


def ended(root: Element, kind: str) -> dict[str, str]:
    """How the cases of a kind ended: the name of the element within, or "passed"."""
    cases = root.iterfind(f".//testcase[@classname='{kind}']")
    return {case.get("name", ""): case[0].tag if len(case) else "passed" for case in cases}


def check_counts(root: Element) -> None:
    (suite,) = root.findall("testsuite")
    for name, tag in (("failures", "failure"), ("skipped", "skipped"), ("tests", "testcase")):
        assert root.get(name) == suite.get(name) == str(sum(1 for _ in root.iter(tag)))


@given(reports)
def test_nothing_but_a_pass_is_green(report: AuditReport) -> None:
    root = parsed(report)
    check_counts(root)
    is_pass = report.verdict is Verdict.PASS
    assert ended(root, "lipcert.audit") == {"verdict": "passed" if is_pass else "failure"}
    broken = sum(item.violations > 0 for item in (*report.groups, *report.values))
    assert int(root.get("failures", "")) >= broken


HOLDS = GateResult("max-grad-norm", 2.0, 1.25)
OVER = GateResult("max-slack", 2.0, 2.0000001)
UNKNOWN = GateResult("max-slack", 2.0, None, "no example was replayed")


def test_sentences_hold_both_numbers_and_the_option() -> None:
    assert gate_sentence(HOLDS) == (
        "the bound G of the gradient of one example is 1.25, within --max-grad-norm 2"
    )
    assert "is 2.0001, over --max-slack 2" in gate_sentence(OVER)
    assert gate_sentence(UNKNOWN).endswith("no example was replayed")


def test_what_holds_is_not_shown_as_larger() -> None:
    """Bounds are rounded up; within a limit, not beyond it."""
    shown = gate_sentence(GateResult("max-slack", 1.2345678, 1.2345677))
    assert "1.2345677, within --max-slack 1.2345678" in shown


@pytest.mark.parametrize(
    ("result", "tone", "code"),
    [(HOLDS, Tone.GOOD, ""), (OVER, Tone.BAD, "LC110"), (UNKNOWN, Tone.OPEN, "LC111")],
)
def test_findings_and_statements(result: GateResult, tone: Tone, code: str) -> None:
    found = list(gate_findings([result]))
    assert [item.code for item in found] == ([code] if code else [])
    assert all(item.level is Level.ERROR for item in found)
    assert all(item.message == gate_sentence(result) for item in found)
    (statement,) = gate_statements([result]).rows
    assert (statement.text, statement.tone) == (gate_sentence(result), tone)
