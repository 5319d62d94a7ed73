"""JUnit: well-formed whatever names hold, and never green where the result is not."""

from xml.etree.ElementTree import Element, fromstring

import pytest
from hypothesis import given

from lipcert.audit.records import AuditReport, Verdict
from lipcert.report.analysis import analysis_ci
from lipcert.report.audit import audit_ci
from lipcert.report.ci_formats import junit_xml
from tests.report.audit_samples import ALL, passed, violated
from tests.report.audit_strategies import reports
from tests.report.samples import node, sample

BAD = ("failure", "error")


def parsed(report: AuditReport) -> Element:
    return fromstring(junit_xml(audit_ci(report)))


def ended(root: Element, suite: str) -> dict[str, str]:
    """How the cases of a suite ended: the name of the element within, or "passed"."""
    cases = root.iterfind(f"testsuite[@name='lipcert.audit.{suite}']/testcase")
    return {case.get("name", ""): case[0].tag if len(case) else "passed" for case in cases}


def test_a_pass_is_green() -> None:
    root = parsed(passed())
    assert (root.get("failures"), root.get("errors"), root.get("skipped")) == ("0", "0", "0")
    assert ended(root, "run") == {"verdict": "passed", "units": "passed"}
    assert set(ended(root, "groups")) == {"conv1", "fc"}
    assert len(ended(root, "values")) == 5
    assert root.get("time") == "12.500"


def test_a_violation_fails_where_it_is() -> None:
    root = parsed(violated())
    assert ended(root, "run")["verdict"] == "failure"
    assert ended(root, "groups") == {"conv1": "passed", "fc": "failure"}
    assert ended(root, "values")["the norm of the gradient with respect to logits"] == "failure"
    assert ended(root, "checks")["noise: step 200"] == "failure"
    failure = root.find(".//testcase[@name='fc']/failure")
    assert failure is not None
    assert "1.5 times its bound (3.75 against 2.5)" in failure.get("message", "")
    assert failure.get("type") == "LC301"


def test_what_was_not_decided_is_an_error() -> None:
    root = parsed(ALL["inconclusive"]())
    assert ended(root, "run") == {"verdict": "error", "units": "error"}
    assert ended(root, "groups") == {"conv1": "error", "fc": "passed"}
    untried = parsed(ALL["mismatched"]())
    assert set(ended(untried, "groups").values()) == {"skipped"}
    assert ended(untried, "run")["verdict"] == "error"


def check_counts(root: Element) -> None:
    suites = root.findall("testsuite")
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert root.get(name) == str(sum(1 for _ in root.iter(tag)))
        assert sum(int(suite.get(name, "")) for suite in suites) == int(root.get(name, ""))
    assert int(root.get("tests", "")) == sum(1 for _ in root.iter("testcase"))


@pytest.mark.parametrize("name", ALL)
def test_counts_are_those_of_the_cases(name: str) -> None:
    check_counts(parsed(ALL[name]()))


@given(reports)
def test_nothing_but_a_pass_is_green(report: AuditReport) -> None:
    root = parsed(report)
    check_counts(root)
    if report.verdict is not Verdict.PASS:
        assert any(True for tag in BAD for _ in root.iter(tag))
    broken = sum(item.violations > 0 for item in (*report.groups, *report.values))
    assert int(root.get("failures", "")) >= broken


def test_an_analysis_names_what_has_no_bound() -> None:
    root = fromstring(junit_xml(analysis_ci(sample())))
    cases = {
        case.get("name"): case[0].tag if len(case) else "passed" for case in root.iter("testcase")
    }
    assert cases == {"gradient bound": "passed", "conv1": "passed", "div": "error"}
    check_counts(root)


def test_a_node_behind_an_unbounded_one_is_skipped() -> None:
    behind = node("after", output_norm=None, reason="")
    root = fromstring(junit_xml(analysis_ci(sample(nodes=(behind,)))))
    case = root.find(".//testcase[@name='after']/skipped")
    assert case is not None
