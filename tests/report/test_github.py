"""GitHub annotations, read back as a runner reads its log."""

import re
from dataclasses import replace

import pytest
from hypothesis import given

from lipcert.audit.records import AuditReport, Verdict
from lipcert.report.analysis import analysis_ci
from lipcert.report.audit import audit_ci
from lipcert.report.ci import github_annotations
from lipcert.text.safe import safe
from tests.report.audit_samples import ALL, hostile, many, passed, violated
from tests.report.audit_strategies import reports
from tests.report.samples import sample

Command = tuple[str, dict[str, str], str]


def commands(log: str) -> list[Command]:
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


def annotations(report: AuditReport) -> list[Command]:
    return commands(github_annotations(audit_ci(report)))


def test_a_pass_is_one_notice() -> None:
    ((name, properties, message),) = annotations(passed())
    assert (name, properties["file"]) == ("notice", "models/digits.onnx")
    assert message.startswith("Pass: ")


def test_violations_are_errors_with_place_and_advice() -> None:
    found = annotations(violated())
    assert [name for name, _, _ in found] == ["error"] * 3
    _, properties, message = found[1]
    assert properties == {"file": "models/digits.onnx", "title": "LC301 group fc"}
    assert "3.75 against 2.5" in message
    assert "look at the first output of a layer" in message


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


def test_hostile_names_start_no_command() -> None:
    found = annotations(hostile())
    assert {name for name, _, _ in found} == {"error"}
    assert all(set(properties) == {"file", "title"} for _, properties, _ in found)
    assert {properties["file"] for _, properties, _ in found} == {safe(hostile().model)}
    assert not any("\n" in message or "\r" in message for _, _, message in found)


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


@pytest.mark.parametrize("name", ALL)
def test_the_last_line_is_the_answer(name: str) -> None:
    log = github_annotations(audit_ci(ALL[name]()))
    assert log.splitlines()[-1].startswith("lipcert audit: ")


def test_diagnostics_of_an_analysis() -> None:
    found = commands(github_annotations(analysis_ci(sample())))
    assert len(found) == len(sample().diagnostics) + 1  # and what the bounds are good for
