"""CI: what continuous integration shows of a result, as GitHub annotations, JUnit XML and SARIF.

Each verb has a report that makes these records. A result that does not hold has at least one
finding of level error; what is unknown is an error, never a pass. Strings are verbatim; the writers
make them inert, so that none has a meaning to the system that reads it. Gates are shown in the same
way by every verb: a finding for each that does not hold, and a statement for each.

- GitHub: at most ten commands `::error file=…,title=…::…`, the worst findings, and plain lines. No
  string begins a command or ends one: characters with a meaning in commands are escaped.
- JUnit: one `testsuite`, with a `testcase` for the verdict, which passes if the result holds, and
  one for each finding: an error is a failure, anything else is skipped and says why. The document
  is well-formed XML 1.0 for all names.
- SARIF 2.1.0: one JSON object with one run, ASCII only, no line that a CI log reads as a command.
  Every result has a location (the file, and the group or node within it) and a fingerprint that
  depends on what is wrong and where, not on numbers, so that a finding stays the same in the next
  run.
"""

from __future__ import annotations

import hashlib
import math
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import PurePath
from typing import Final
from urllib.parse import quote

from lipcert.diagnostics import CODES, Level
from lipcert.report.document import Finding, Statement, Statements, Tone
from lipcert.report.json import JsonObject, dump
from lipcert.settings.gates import GateOutcome, GateResult
from lipcert.text.numbers import at_most, counted, rounded_up
from lipcert.text.safe import safe, shortened
from lipcert.version import __version__

_CODES: Final = {GateOutcome.EXCEEDED: "LC110", GateOutcome.UNKNOWN: "LC111"}
_REMEDY: Final = "`lipcert suggest MODEL` lists what makes it smaller"


_TONES: Final = {
    GateOutcome.HOLDS: Tone.GOOD,
    GateOutcome.EXCEEDED: Tone.BAD,
    GateOutcome.UNKNOWN: Tone.OPEN,
}


@dataclass(frozen=True, slots=True)
class CiReport:
    """A result. verb: as on the command line. file: the path of what it is about.

    headline: the answer in one sentence. findings: worst first. seconds: the time, if known.
    """

    verb: str
    file: str
    headline: str
    holds: bool
    findings: tuple[Finding, ...]
    properties: Mapping[str, str]
    seconds: float | None = None


def gate_sentence(result: GateResult) -> str:
    """Return what was found, compared with the limit."""
    subject, limit = result.subject, f"--{result.gate} {result.limit:.12g}"
    match result.outcome:
        case GateOutcome.HOLDS:
            return f"{subject} is {_number(result)}, within {limit}"
        case GateOutcome.EXCEEDED:
            return f"{subject} is {_number(result)}, over {limit}"
    return f"{subject} is not known ({limit}): {result.reason}"


def _number(result: GateResult) -> str:
    """Return the number, with all digits if rounding up would put it over its limit."""
    if result.found is None:
        raise ValueError("an unknown number has no text")
    if math.isinf(result.found):
        return "infinite"
    is_over = rounded_up(result.found) > Decimal(result.limit)
    is_hidden = result.outcome is GateOutcome.HOLDS and is_over
    return repr(result.found) if is_hidden else at_most(result.found)


def gate_findings(results: Iterable[GateResult]) -> Iterator[Finding]:
    """Yield an error for each gate that does not hold."""
    for result in results:
        code = _CODES.get(result.outcome)
        if code is not None:
            remedy = _REMEDY if result.outcome is GateOutcome.EXCEEDED else ""
            text = gate_sentence(result)
            yield Finding(code, Level.ERROR, "gate", result.gate, text, remedy, result.gate)


def gate_statements(results: Iterable[GateResult]) -> Statements:
    """Return the gates as statements for readers."""
    return Statements(
        tuple(
            Statement(item.gate, gate_sentence(item), item.outcome.value, _TONES[item.outcome])
            for item in results
        )
    )


_MOST: Final = 10
_LONGEST_LINE: Final = 2000
_LONGEST_TITLE: Final = 120
_COMMANDS: Final = {Level.ERROR: "error", Level.WARNING: "warning", Level.INFO: "notice"}
_SCHEMA: Final = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_LEVELS: Final = {Level.ERROR: "error", Level.WARNING: "warning", Level.INFO: "note"}
_MOST_RESULTS: Final = 5000
_LONGEST: Final = 1000
_BASE: Final = "%SRCROOT%"


def ci_text(report: CiReport, name: str) -> str:
    """Return the report in the format of that name: "sarif", "junit" or "github"."""
    writers = {"sarif": sarif, "junit": junit_xml, "github": github_annotations}
    return writers[name](report)


def github_annotations(report: CiReport) -> str:
    """Return the annotations, worst first, then the answer as a line of text."""
    lines = [_annotation(report.file, finding) for finding in report.findings[:_MOST]]
    if not lines:
        lines = [_command("notice", report.file, f"lipcert {report.verb}", report.headline)]
    more = len(report.findings) - _MOST
    if more > 0:
        findings = counted(more, "further finding")
        lines.append(f"and {findings}, no worse: the other formats list all")
    return "\n".join([*lines, f"lipcert {report.verb}: {safe(report.headline)}"]) + "\n"


def _annotation(file: str, finding: Finding) -> str:
    title = f"{finding.code} {finding.kind} {finding.place}".rstrip()
    text = f"{finding.message}; {finding.remedy}" if finding.remedy else finding.message
    return _command(_COMMANDS[finding.level], file, title, text)


def _command(name: str, file: str, title: str, message: str) -> str:
    properties = f"file={_property(safe(file))}"
    properties += f",title={_property(shortened(title, _LONGEST_TITLE))}"
    return f"::{name} {properties}::{_data(shortened(message, _LONGEST_LINE))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def junit_xml(report: CiReport) -> str:
    """Return the JUnit document, in ASCII."""
    from lipcert.report.html import templates  # noqa: PLC0415  no other format needs jinja2

    template = templates().get_template("junit.xml.jinja")
    failed = sum(finding.level is Level.ERROR for finding in report.findings)
    is_timed = report.seconds is not None and math.isfinite(report.seconds)
    text = template.render(report=report, failed=failed, error=Level.ERROR, is_timed=is_timed)
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii") + "\n"


def sarif(report: CiReport) -> str:
    """Return the findings of a report as a SARIF document."""
    shown = report.findings[:_MOST_RESULTS]
    codes = sorted({finding.code for finding in shown})
    return dump(
        {
            "$schema": _SCHEMA,
            "version": "2.1.0",
            "runs": [
                {
                    "tool": {"driver": _driver(codes)},
                    "automationDetails": {"id": _category(report)},
                    "invocations": [_invocation(report)],
                    "artifacts": [
                        {"location": _artifact(report.file), "roles": ["analysisTarget"]}
                    ],
                    "results": [_result(report, finding, codes) for finding in shown],
                    "columnKind": "unicodeCodePoints",
                    "properties": {
                        safe(key): safe(text) for key, text in report.properties.items()
                    },
                }
            ],
        }
    )


def _category(report: CiReport) -> str:
    """Return the category that a later run replaces: results of this verb about this file."""
    return f"lipcert/{report.verb}/{_artifact(report.file)['uri']}/"


def _driver(codes: Sequence[str]) -> JsonObject:
    return {"name": "LipCert", "version": __version__, "rules": [_rule(code) for code in codes]}


def _rule(code: str) -> JsonObject:
    return {
        "id": code,
        "shortDescription": {"text": CODES[code]},
        "fullDescription": {"text": CODES[code]},
        "help": {"text": f"`lipcert explain {code}` says what it means and what to do."},
    }


def _invocation(report: CiReport) -> JsonObject:
    """Return that the tool ran, its answer, and how many findings were left out."""
    notes = [report.headline]
    if len(report.findings) > _MOST_RESULTS:
        notes.append(f"{len(report.findings) - _MOST_RESULTS} further findings are left out")
    return {
        "executionSuccessful": True,
        "toolExecutionNotifications": [
            {"level": "note" if report.holds else "error", "message": {"text": safe(note)}}
            for note in notes
        ],
    }


def _result(report: CiReport, finding: Finding, codes: Sequence[str]) -> JsonObject:
    text = " ".join(_sentence(part) for part in (finding.message, finding.remedy) if part)
    return {
        "ruleId": finding.code,
        "ruleIndex": codes.index(finding.code),
        "level": _LEVELS[finding.level],
        "message": {"text": shortened(text, _LONGEST)},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {**_artifact(report.file), "index": 0},
                    # a binary file has no lines, and GitHub shows nothing that has none
                    "region": {"startLine": 1, "startColumn": 1, "endLine": 1, "endColumn": 1},
                },
                **_logical(finding),
            }
        ],
        "partialFingerprints": {"primaryLocationLineHash": f"{_fingerprint(report, finding)}:1"},
    }


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith((".", "!", "?")) else ".")


def _logical(finding: Finding) -> JsonObject:
    if not finding.place:
        return {}
    name = safe(finding.place)
    return {"logicalLocations": [{"name": name, "fullyQualifiedName": name, "kind": finding.kind}]}


def _fingerprint(report: CiReport, finding: Finding) -> str:
    parts = (report.verb, finding.code, finding.kind, finding.place, finding.quantity)
    text = "\x1f".join(parts).encode("utf-8", "backslashreplace")
    return hashlib.sha256(text).hexdigest()[:16]


def _artifact(file: str) -> Mapping[str, object]:
    """Return a relative path as the repository has it, an absolute one as a `file:` URI."""
    path = PurePath(file)
    name = posixpath.normpath(path.as_posix()).encode("utf-8", "surrogatepass")
    if path.is_absolute():
        return {"uri": f"file:///{quote(name.lstrip(b'/'), safe='/:')}"}
    return {"uri": quote(name), "uriBaseId": _BASE}
