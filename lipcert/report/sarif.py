"""SARIF 2.1.0: the findings of a result, as code scanning services read them.

What enters: a `CiReport`. What leaves: one JSON object with one run. Every result has a location
(the file, and the group or node within it) and a fingerprint that depends on what is wrong and
where, not on numbers, so that a finding is the same one in the next run. Invariants: ASCII only,
no line that a CI log reads as a command; a result that does not hold has a result of level error.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Final
from urllib.parse import quote

from lipcert.diagnostics import CODES, Level
from lipcert.report.ci import CiReport, Finding
from lipcert.report.json import JsonObject, dump
from lipcert.safe import safe, shortened
from lipcert.version import __version__

_SCHEMA: Final = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_LEVELS: Final = {Level.ERROR: "error", Level.WARNING: "warning", Level.INFO: "note"}
_MOST_RESULTS: Final = 5000
_LONGEST: Final = 1000
_BASE: Final = "%SRCROOT%"


def sarif(report: CiReport) -> str:
    """The whole document."""
    shown = report.findings[:_MOST_RESULTS]
    codes = sorted({finding.code for finding in shown})
    return dump(
        {
            "$schema": _SCHEMA,
            "version": "2.1.0",
            "runs": [
                {
                    "tool": {"driver": _driver(codes)},
                    "automationDetails": {"id": f"lipcert/{report.verb}/"},
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
    """That the tool ran, its answer, and what did not fit."""
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
    """A relative path as the repository knows it, an absolute one as a `file:` URI."""
    path = PurePath(file)
    name = posixpath.normpath(path.as_posix()).encode("utf-8", "surrogatepass")
    if path.is_absolute():
        return {"uri": f"file:///{quote(name.lstrip(b'/'), safe='/:')}"}
    return {"uri": quote(name), "uriBaseId": _BASE}
