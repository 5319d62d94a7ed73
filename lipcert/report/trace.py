"""Traces for people and tools: whether one is intact, and what a redacted one keeps.

Each is a `Document` whose first lines are the answer, or JSON.
"""

from __future__ import annotations

from typing import Final

from lipcert.audit.trace.reading import Verification
from lipcert.report.document import Answer, Document, Statements, Tone
from lipcert.report.json import JsonObject, dump

_MOST_FAULTS: Final = 20
_LONGEST: Final = 200
_UNITS: Final = ("bytes", "kB", "MB", "GB", "TB")
Rows = list[tuple[str, str]]


def verification_document(path: str, found: Verification) -> Document:
    """What `lipcert trace verify` says to people."""
    rows: Rows = [
        (fault.kind.value, str(fault)[:_LONGEST]) for fault in found.faults[:_MOST_FAULTS]
    ]
    if len(found.faults) > _MOST_FAULTS:
        rows.append(("", f"and {len(found.faults) - _MOST_FAULTS} more: --format json has all"))
    rows += [
        ("steps", ", ".join(f"{item.steps} of rank {item.rank}" for item in found.ranks)),
        ("tensors", f"{_counted(found.blobs, 'file')}, {_bytes_text(found.blob_bytes)}"),
        *([("orphans", f"{found.orphans} files that no line refers to")] if found.orphans else []),
        *((f"head {item.rank}", item.head) for item in found.ranks),
    ]
    if not found.faults and not all(item.closed for item in found.ranks):
        rows.append(("end", "not closed: steps may be missing at the end"))
    if found.faults:
        return _page(path, _counted(len(found.faults), "fault"), Tone.BAD, rows)
    intact = "intact" if found.steps else "intact, but without a step"
    return _page(path, intact, Tone.GOOD, rows)


def verification_json(path: str, found: Verification) -> str:
    """The document `lipcert.trace-verification/1` of a trace."""
    return dump(
        {
            "schema": "lipcert.trace-verification/1",
            "path": path,
            "intact": not found.faults,
            "steps": found.steps,
            **_verified_members(found),
            "faults": [
                {"kind": fault.kind.value, **_members(fault, "file", "line", "message")}
                for fault in found.faults
            ],
        }
    )


def redaction_document(path: str, found: Verification) -> Document:
    """What `lipcert trace redact` says to people."""
    state = "intact" if not found.faults else str(found.faults[0])
    answer = (
        f"{path}: {_counted(found.steps, 'step')} without the data, {state}. What is kept "
        "(losses, norms, sizes) was computed from private data and is not differentially private."
    )
    return Document("LipCert trace", (Answer(answer, Tone.SUBJECT),))


def redaction_json(path: str, found: Verification) -> str:
    """The document `lipcert.trace-redaction/1` of a trace."""
    redaction = found.trace.manifest.redaction
    heads = {} if redaction is None else redaction.heads
    return dump(
        {
            "schema": "lipcert.trace-redaction/1",
            "path": path,
            "steps": found.steps,
            **_verified_members(found),
            "original_manifest": None if redaction is None else redaction.manifest,
            "original_heads": {str(rank): head for rank, head in heads.items()},
            "keeps_weights": redaction is not None and redaction.keeps_weights,
        }
    )


def _verified_members(found: Verification) -> JsonObject:
    return {
        "manifest": found.trace.digest,
        "ranks": [
            _members(item, "rank", "lines", "steps", "head", "closed") for item in found.ranks
        ],
        **_members(found, "blobs", "blob_bytes", "orphans"),
    }


def _members(record: object, *names: str) -> JsonObject:
    """Fields that have the same names in JSON."""
    return {name: getattr(record, name) for name in names}


def _page(path: str, head: str, tone: Tone, rows: Rows) -> Document:
    answers = (Answer(path, Tone.SUBJECT), Answer(head, tone))
    return Document("LipCert trace", answers, Statements.of(rows))


def _counted(count: int, one: str) -> str:
    return f"{count:,} {one if count == 1 else one + 's'}"


def _bytes_text(count: int) -> str:
    size, unit = float(count), 0
    while size >= 1000.0 and unit + 1 < len(_UNITS):
        size, unit = size / 1000.0, unit + 1
    return f"{count} bytes" if unit == 0 else f"{size:.3g} {_UNITS[unit]}"
