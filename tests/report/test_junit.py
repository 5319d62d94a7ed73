"""JUnit: well-formed whatever names hold, and never green where the result is not."""

from xml.etree.ElementTree import Element, fromstring

from hypothesis import given

from lipcert.audit.records import AuditReport, Verdict
from lipcert.report.analysis import analysis_ci
from lipcert.report.audit import audit_ci
from lipcert.report.ci import junit_xml
from tests.report.audit_samples import passed, violated
from tests.report.audit_strategies import reports
from tests.report.samples import sample


def parsed(report: AuditReport) -> Element:
    return fromstring(junit_xml(audit_ci(report)))


def ended(root: Element, kind: str) -> dict[str, str]:
    """How the cases of a kind ended: the name of the element within, or "passed"."""
    cases = root.iterfind(f".//testcase[@classname='{kind}']")
    return {case.get("name", ""): case[0].tag if len(case) else "passed" for case in cases}


def test_a_pass_is_green() -> None:
    root = parsed(passed())
    assert root.get("failures") == "0"
    assert ended(root, "lipcert.audit")["verdict"] == "passed"
    assert root.get("time") == "12.500"


def test_a_violation_fails_where_it_is() -> None:
    root = parsed(violated())
    assert ended(root, "lipcert.audit") == {"verdict": "failure"}
    assert ended(root, "lipcert.audit.group") == {"fc": "failure"}
    assert ended(root, "lipcert.audit.check") == {"noise": "failure"}
    failure = root.find(".//testcase[@name='fc']/failure")
    assert failure is not None
    assert "1.5 times its bound (3.75 against 2.5)" in failure.get("message", "")
    assert failure.get("type") == "LC301"


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


def test_an_analysis_names_what_has_no_bound() -> None:
    report = analysis_ci(sample())
    root = fromstring(junit_xml(report))
    check_counts(root)
    named = [case.get("name") for case in root.iter("testcase")][1:]
    assert named == [finding.place or finding.kind for finding in report.findings]
