"""Verification: a whole trace read, every line and every tensor, and all that is wrong listed.

What enters: a folder. What leaves: a `Verification`. Invariant: a trace without faults is one that
a recorder wrote and nobody changed since, except that somebody who recomputes all digests may have
changed anything, and that whole lines may be missing at the end of a rank that is not closed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

from lipcert.audit.trace.blobs import Blob
from lipcert.audit.trace.files import BLOBS, steps_name
from lipcert.audit.trace.reading import Trace, read_trace
from lipcert.audit.trace.records import Close, Step
from lipcert.audit.trace.spelling import Fault, FaultKind, TraceError
from lipcert.core.codec import is_sha256


@final
@dataclass(frozen=True, slots=True)
class RankVerification:
    """What is intact of a rank; head: digest of its last line; closed: it ends on purpose."""

    rank: int
    lines: int
    steps: int
    head: str
    closed: bool


@final
@dataclass(frozen=True, slots=True)
class Verification:
    """The result; orphans: blobs that no line names, as interruptions leave them."""

    trace: Trace
    ranks: tuple[RankVerification, ...]
    blobs: int
    blob_bytes: int
    orphans: int
    faults: tuple[Fault, ...]

    @property
    def steps(self) -> int:
        """Intact steps of all ranks."""
        return sum(item.steps for item in self.ranks)


def verify(folder: Path | str) -> Verification:
    """Read everything; TraceError only where there is no trace of a known form."""
    trace = read_trace(folder)
    faults: list[Fault] = []
    named: dict[str, Blob] = {}
    ranks = tuple(_rank(trace, rank, named, faults) for rank in trace.ranks)
    present = dict(_files(trace.folder, faults))
    faults.extend(_unknown_ranks(trace))
    return Verification(
        trace=trace,
        ranks=ranks,
        blobs=len(named),
        blob_bytes=sum(present.get(digest, 0) for digest in named),
        orphans=len(set(present) - set(named)),
        faults=tuple(faults),
    )


def _rank(trace: Trace, rank: int, named: dict[str, Blob], faults: list[Fault]) -> RankVerification:
    lines = steps = end = 0
    head, closed = trace.digest, False
    try:
        for link, event in trace.linked_events(rank):
            lines, head, end = link.number, link.digest, link.end
            closed = isinstance(event, Close)
            if isinstance(event, Step):
                steps += 1
                _blobs(event, link.number, named, faults)
        torn = (trace.folder / steps_name(rank)).stat().st_size - end
        if torn:
            closed = False
            message = (
                f"{torn} bytes of an unfinished line: the recorder was interrupted, and cuts them "
                "when it goes on, or the file was cut"
            )
            faults.append(Fault(FaultKind.TORN, steps_name(rank), lines + 1, message))
    except TraceError as error:
        closed = False
        faults.append(error.fault)
    return RankVerification(rank, lines, steps, head, closed)


def _blobs(step: Step, number: int, named: dict[str, Blob], faults: list[Fault]) -> None:
    """Read the tensors that a line names; once each, unless different things are expected."""
    for blob in step.blobs:
        known = named.get(blob.sha256)
        if known is not None and known.expected == blob.expected:
            continue
        named[blob.sha256] = blob
        try:
            blob.tensors()
        except TraceError as error:
            message = f"{blob.file} {error.fault.message}"
            faults.append(Fault(FaultKind.BLOB, steps_name(step.rank), number, message))


def _files(folder: Path, faults: list[Fault]) -> Iterator[tuple[str, int]]:
    """Digests and sizes of the files that are named like blobs."""
    if (folder / BLOBS).is_symlink():
        faults.append(Fault(FaultKind.BLOB, BLOBS, 0, "is a link, which is not followed"))
        return
    try:
        with os.scandir(folder / BLOBS) as entries:
            for entry in entries:
                if is_sha256(entry.name):
                    yield entry.name, entry.stat(follow_symlinks=False).st_size
    except OSError as error:
        message = f"cannot be listed: {error.strerror or error}"
        faults.append(Fault(FaultKind.BLOB, BLOBS, 0, message))


def _unknown_ranks(trace: Trace) -> Iterator[Fault]:
    """Lines of ranks that the manifest does not know."""
    known = {steps_name(rank) for rank in trace.ranks}
    for path in sorted(trace.folder.glob("steps-*.jsonl")):
        if path.name not in known:
            message = f"the manifest speaks of {trace.manifest.ranks} ranks"
            yield Fault(FaultKind.CHAIN, path.name, 0, message)
