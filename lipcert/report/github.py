"""GitHub: the worst findings as annotations, in the commands of a workflow's log.

What enters: a `CiReport`. What leaves: at most ten commands `::error file=…,title=…::…` and plain
lines. Invariant: no string of a model, a trace or a user begins a command or ends one: all are
made visible on one line, and the characters with a meaning in commands are escaped.
"""

from __future__ import annotations

from typing import Final

from lipcert.diagnostics import Level
from lipcert.report.ci import CiReport, Finding
from lipcert.safe import safe, shortened

_MOST: Final = 10
_LONGEST: Final = 2000
_LONGEST_TITLE: Final = 120
_COMMANDS: Final = {Level.ERROR: "error", Level.WARNING: "warning", Level.INFO: "notice"}


def github_annotations(report: CiReport) -> str:
    """The annotations, worst first, then the answer as a line of text."""
    lines = [_annotation(report.file, finding) for finding in report.findings[:_MOST]]
    if not lines:
        lines = [_command("notice", report.file, f"lipcert {report.verb}", report.headline)]
    more = len(report.findings) - _MOST
    if more > 0:
        findings = "finding" if more == 1 else "findings"
        lines.append(f"and {more:,} further {findings}, no worse: the other formats list all")
    return "\n".join([*lines, f"lipcert {report.verb}: {safe(report.headline)}"]) + "\n"


def _annotation(file: str, finding: Finding) -> str:
    title = f"{finding.code} {finding.kind} {finding.place}".rstrip()
    text = f"{finding.message}; {finding.remedy}" if finding.remedy else finding.message
    return _command(_COMMANDS[finding.level], file, title, text)


def _command(name: str, file: str, title: str, message: str) -> str:
    properties = f"file={_property(safe(file))}"
    properties += f",title={_property(shortened(title, _LONGEST_TITLE))}"
    return f"::{name} {properties}::{_data(shortened(message, _LONGEST))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
