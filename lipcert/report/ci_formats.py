"""CI formats: one name, one writer.

What enters: a `CiReport` and the name of a format. What leaves: the text of that format.
"""

from __future__ import annotations

from typing import Final

from lipcert.report.ci import CiReport
from lipcert.report.github import github_annotations
from lipcert.report.junit import junit_xml
from lipcert.report.sarif import sarif

CI_FORMATS: Final = ("sarif", "junit", "github")


def ci_text(report: CiReport, name: str) -> str:
    """The result in the format of that name, one of CI_FORMATS."""
    match name:
        case "sarif":
            return sarif(report)
        case "junit":
            return junit_xml(report)
        case "github":
            return github_annotations(report)
    raise ValueError(f"{name} is no format of CI")
