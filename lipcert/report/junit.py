"""JUnit: a result as the XML that CI systems show as tests.

What enters: a `CiReport`. What leaves: one `testsuite` for each kind of thing, one `testcase` for
each thing. Invariants: what does not hold is a failure, what could not be decided an error; every
text is made visible first, so that the document is well-formed XML 1.0 whatever names hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from lipcert.report.ci import Case, CiReport, Outcome
from lipcert.safe import safe

_HEADER: Final = '<?xml version="1.0" encoding="utf-8"?>\n'
_ELEMENTS: Final = {
    Outcome.FAILED: "failure",
    Outcome.ERROR: "error",
    Outcome.SKIPPED: "skipped",
}
_COUNTED: Final = {
    "failures": Outcome.FAILED,
    "errors": Outcome.ERROR,
    "skipped": Outcome.SKIPPED,
}


def junit_xml(report: CiReport) -> str:
    """The whole document, in ASCII."""
    name = f"lipcert {report.verb}"
    root = Element("testsuites", {"name": name, **_counts(report.cases), **_time(report)})
    for suite in dict.fromkeys(case.suite for case in report.cases):
        cases = [case for case in report.cases if case.suite == suite]
        title = f"lipcert.{report.verb}.{suite}"
        element = SubElement(root, "testsuite", {"name": title, **_counts(cases)})
        _properties(element, {"file": report.file, **report.properties})
        for case in cases:
            _case(element, title, case)
    indent(root)
    text: bytes = tostring(root, encoding="us-ascii")
    return _HEADER + text.decode("ascii") + "\n"


def _case(suite: Element, title: str, case: Case) -> None:
    element = SubElement(suite, "testcase", {"classname": title, "name": safe(case.name)})
    if case.outcome is Outcome.PASSED:
        return
    message = safe(case.message) or case.outcome.value
    result = SubElement(element, _ELEMENTS[case.outcome], {"message": message})
    if case.code:
        result.set("type", case.code)
        result.text = f"{message} (lipcert explain {case.code})"


def _properties(suite: Element, properties: Mapping[str, str]) -> None:
    element = SubElement(suite, "properties")
    for name, value in properties.items():
        SubElement(element, "property", {"name": safe(name), "value": safe(value)})


def _counts(cases: Sequence[Case]) -> dict[str, str]:
    counts = {
        name: str(sum(case.outcome is outcome for case in cases))
        for name, outcome in _COUNTED.items()
    }
    return {"tests": str(len(cases)), **counts}


def _time(report: CiReport) -> dict[str, str]:
    known = report.seconds is not None and math.isfinite(report.seconds)
    return {"time": f"{report.seconds:.3f}"} if known else {}
