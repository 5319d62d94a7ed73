"""Trace integrity (LC320): whether the trace is what a recorder wrote.

Statement: every line has the digest that it states and follows the line before it; every tensor
that a line names is there and has the digest of its name. Compared: SHA-256 digests, exactly.
False alarms: none. What is not detected: a forger who computes all digests anew, and whole lines
missing at the end of a rank that does not say that it ended.
"""

from __future__ import annotations

from lipcert.audit.checks.subject import Checked
from lipcert.audit.records import Check, Verdict
from lipcert.audit.trace.reading import Trace
from lipcert.audit.trace.spelling import FaultKind
from lipcert.audit.trace.verification import verify

_CHECK = Check("LC320", "trace-integrity", "take an intact copy, or record the run again")


def integrity(trace: Trace) -> Checked:
    """One report for each fault; none of the trace's content proves anything then."""
    found = verify(trace.folder)
    damages = [fault for fault in found.faults if fault.kind is not FaultKind.TORN]
    if damages:
        reports = tuple(
            _CHECK.failed(
                f"the trace is damaged: {fault}",
                f"{fault.file}:{fault.line}" if fault.line else fault.file,
                verdict=Verdict.MISMATCH,
            )
            for fault in damages
        )
        return Checked(reports)
    open_ranks = [str(item.rank) for item in found.ranks if not item.closed]
    not_done: tuple[str, ...] = ()
    if open_ranks:
        not_done = (
            f"trace-integrity: the recording of rank {', '.join(open_ranks)} does not say that it "
            "ended, so that steps may be missing behind its last line; call recorder.close()",
        )
    lines = sum(item.lines for item in found.ranks)
    message = f"{lines} lines and {found.blobs} files of tensors are as they were recorded"
    return Checked((_CHECK.passed(message),), not_done)
