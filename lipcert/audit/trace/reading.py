"""Reading a trace: its manifest at once, its steps one by one, their tensors on demand.

The folder is untrusted. TraceError names file and line of the first thing that is wrong; `verify`
reads everything, every line and every tensor, and lists all that is wrong. Invariants: nothing
outside the folder is opened, and nothing after a fault is ever returned; a trace without faults was
written by a recorder and not changed since, except that an attacker who recomputes all digests may
have changed anything, and that whole lines may be missing at the end of a rank that is not closed.

Manifests and events are JSON objects without what was not recorded. Both directions are here,
because a writer that continues a trace reads it first.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from lipcert.audit.trace.blobs import Blob, Expected
from lipcert.audit.trace.files import (
    BLOBS,
    FORMS,
    LARGEST,
    MANIFEST,
    MEMBERS,
    Fault,
    FaultKind,
    FormError,
    JsonObject,
    Link,
    TraceError,
    links,
    open_regular,
    spelled,
    steps_name,
    understood,
)
from lipcert.audit.trace.records import (
    Batch,
    Close,
    Event,
    Gradients,
    IndexArray,
    Manifest,
    Resume,
    Start,
    Step,
)
from lipcert.core.codec import Sha256, is_sha256
from lipcert.text.codec import Codec, Form

_KINDS: Final[dict[str, type[Event]]] = {
    "start": Start,
    "step": Step,
    "resume": Resume,
    "close": Close,
}
_NUMBERS: Final = MEMBERS.reader(tuple[int, ...])
_DIGEST: Final = MEMBERS.reader(Sha256)
_WORDS: Final = {kind: word for word, kind in _KINDS.items()}
_MAX_BYTES: Final = 1 << 26


def event_members(event: Event) -> JsonObject:
    """Return the members of an event's line, without its place in the chain."""
    return {"kind": _WORDS[type(event)], **_WRITER.write(event)}


class EventReader:
    """Reads the lines of one rank of one trace."""

    def __init__(self, folder: Path, manifest: Manifest, rank: int) -> None:
        self._codec = _codec(folder)
        self._rank = rank
        self._gradients = Expected(manifest.parameters)
        self._weights = Expected({**manifest.parameters, **manifest.buffers}, complete=True)

    def event(self, members: JsonObject) -> Event:
        """Return the event that a line holds."""
        rest = dict(members)
        word = rest.pop("kind", None)
        kind = _KINDS.get(word) if isinstance(word, str) else None
        if kind is None:
            raise FormError(f"a line of kind {word!r:.40} is not known")
        if kind is not Step:
            return self._codec.read(kind, rest, "line")
        step = self._codec.read(Step, rest, "line", rank=self._rank)
        return replace(
            step,
            batches=tuple(_checked(batch) for batch in step.batches),
            weights_before=_holding(step.weights_before, self._weights),
            weights_after=_holding(step.weights_after, self._weights),
            weights_start=_holding(step.weights_start, self._weights),
            gradients=Gradients(*(_holding(own, self._gradients) for own in step.gradients.each)),
        )


def _checked(batch: Batch) -> Batch:
    sizes = [len(batch.tags)] if batch.tags else []
    sizes += [] if batch.index is None else [len(batch.index)]
    if any(size != batch.examples for size in sizes):
        raise FormError("line.batches: not as many indices as examples")
    if 0.0 in (batch.divisor, batch.rate):
        raise FormError("line.batches: a divisor or a rate of 0")
    return replace(batch, tensors=_holding(batch.tensors, Expected(examples=batch.examples)))


def _holding(blob: Blob | None, expected: Expected) -> Blob | None:
    return None if blob is None else replace(blob, expected=expected)


def _index(value: object) -> IndexArray:
    index = np.array(_NUMBERS(value), dtype=np.int64)
    index.setflags(write=False)
    return index


def _codec(folder: Path) -> Codec:
    """Return the codec of records in the lines of this trace."""
    forms: dict[Any, Form] = {
        Blob: Form(lambda found: found.sha256, lambda value: Blob(_DIGEST(value), folder)),
        IndexArray: Form(lambda index: index.tolist(), _index),
    }
    return Codec(FormError, {**FORMS, **forms}, largest=LARGEST)


_WRITER: Final = _codec(Path())


def manifest_bytes(manifest: Manifest) -> bytes:
    """Return the content of the manifest's file."""
    return spelled(MEMBERS.write(manifest)) + b"\n"


def read_manifest(folder: Path) -> tuple[Manifest, str]:
    """Return the manifest of a trace and its digest."""
    try:
        with open_regular(folder / MANIFEST) as file:
            data = file.read(_MAX_BYTES + 1)
        manifest = manifest_in(data)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        message = f"no trace can be read here: {reason}"
        file_name = str(folder / MANIFEST)
        raise TraceError(Fault(FaultKind.UNREADABLE, file_name, 0, message)) from error
    return manifest, hashlib.sha256(data).hexdigest()


def manifest_in(data: bytes) -> Manifest:
    """Return the manifest in a file of this content; raise `FormError` if there is none."""
    if len(data) > _MAX_BYTES or not data.endswith(b"\n"):
        raise FormError(f"not one line of at most {_MAX_BYTES} bytes")
    manifest = MEMBERS.read(Manifest, understood(data[:-1]), "manifest")
    if set(manifest.parameters) & set(manifest.buffers):
        raise FormError("a parameter and a buffer have one name")
    if 0 in (manifest.declaration.dataset_size, manifest.declaration.batch_size):
        raise FormError("a data set or a batch without examples is declared")
    return manifest


@dataclass(frozen=True, slots=True)
class RankEnd:
    """The place where the intact lines of a rank end.

    head: digest of the last line, or of the manifest. closed: whether the recording was ended on
    purpose. end: the byte behind the last line.
    """

    rank: int
    head: str
    lines: int = 0
    steps: int = 0
    closed: bool = False
    end: int = 0

    def then(self, link: Link, event: Event) -> RankEnd:
        """Return the end behind one more line; raise `FormError` if this event cannot come now.

        A chain begins with its only start, steps have no gaps, and only a resume follows a close.
        """
        if isinstance(event, Start) != (self.lines == 0):
            raise FormError("a chain starts with its first line, and only there")
        if self.closed and not isinstance(event, Resume):
            raise FormError("something follows the end of the recording")
        steps = self.steps
        match event:
            case Step() if event.number != steps:
                raise FormError(f"step {event.number} stands where step {steps} belongs")
            case Step():
                steps += 1
            case Resume() | Close() if event.steps != steps:
                raise FormError(f"states {event.steps} steps where there are {steps}")
        closed = isinstance(event, Close)
        return RankEnd(self.rank, link.digest, link.number, steps, closed, link.end)


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded run.

    digest: of its manifest, with which every chain begins.
    """

    folder: Path
    manifest: Manifest
    digest: str

    @property
    def ranks(self) -> range:
        """The ranks, each of which has its own steps."""
        return range(self.manifest.ranks)

    @property
    def head(self) -> str:
        """A digest of everything: of the manifest and the last line of every rank."""
        digest = hashlib.sha256(self.digest.encode("ascii"))
        for rank in self.ranks:
            digest.update(self.end(rank).head.encode("ascii"))
        return digest.hexdigest()

    def steps(self, rank: int | None = None) -> Iterator[Step]:
        """Yield the steps in order, of one rank or of all ranks one after the other.

        An unfinished last line, which an interruption leaves, is not a step; see `bytes_behind`.
        """
        for one in self.ranks if rank is None else (rank,):
            for event in self.events(one):
                if isinstance(event, Step):
                    yield event

    def events(self, rank: int) -> Iterator[Event]:
        """Yield all lines of a rank in order."""
        for event, _ in self.placed_events(rank):
            yield event

    def placed_events(self, rank: int) -> Iterator[tuple[Event, RankEnd]]:
        """Yield all lines of a rank, each with the end behind it."""
        name = steps_name(rank)
        reader = EventReader(self.folder, self.manifest, rank)
        end = self.beginning(rank)
        try:
            with open_regular(self.folder / name) as file:
                for link in links(file, name, self.digest):
                    try:
                        event = reader.event(link.members)
                        end = end.then(link, event)
                    except FormError as error:
                        fault = Fault(FaultKind.CHAIN, name, link.number, str(error))
                        raise TraceError(fault) from error
                    yield event, end
        except OSError as error:
            message = f"cannot be read: {error.strerror or error}"
            raise TraceError(Fault(FaultKind.CHAIN, name, 0, message)) from error

    def end(self, rank: int) -> RankEnd:
        """Return where the lines of a rank end."""
        end = self.beginning(rank)
        for _, behind in self.placed_events(rank):
            end = behind
        return end

    def beginning(self, rank: int) -> RankEnd:
        """Return where the first line of a rank begins."""
        return RankEnd(rank, self.digest)

    def bytes_behind(self, end: RankEnd) -> int:
        """Return how many bytes follow an end; behind the last line, those of an unfinished one."""
        return (self.folder / steps_name(end.rank)).stat().st_size - end.end


def read_trace(folder: Path | str) -> Trace:
    """Open a trace; raise TraceError if the folder holds none of this schema."""
    manifest, digest = read_manifest(Path(folder))
    return Trace(Path(folder), manifest, digest)


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of verifying a trace: what is intact, and what is wrong.

    orphans: the number of blobs that no line refers to; interruptions leave them.
    """

    trace: Trace
    ranks: tuple[RankEnd, ...]
    blobs: int
    blob_bytes: int
    orphans: int
    faults: tuple[Fault, ...]

    @property
    def steps(self) -> int:
        """The number of intact steps of all ranks."""
        return sum(item.steps for item in self.ranks)


def verify(folder: Path | str) -> Verification:
    """Read everything; raise TraceError only if there is no trace of a known form."""
    trace = read_trace(folder)
    faults: list[Fault] = []
    named: dict[str, Blob] = {}
    ranks = tuple(_verified(trace, rank, named, faults) for rank in trace.ranks)
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


def _verified(trace: Trace, rank: int, named: dict[str, Blob], faults: list[Fault]) -> RankEnd:
    end = trace.beginning(rank)
    try:
        for event, end in trace.placed_events(rank):
            if isinstance(event, Step):
                _blobs(event, end.lines, named, faults)
        torn = trace.bytes_behind(end)
        if not torn:
            return end
        message = (
            f"{torn} bytes of an unfinished line: the recorder was interrupted, and removes "
            "them when it continues, or the file was cut"
        )
        faults.append(Fault(FaultKind.TORN, steps_name(rank), end.lines + 1, message))
    except TraceError as error:
        faults.append(error.fault)
    return replace(end, closed=False)


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
    """Yield digests and sizes of the files that are named like blobs."""
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
    """Yield faults for files of ranks that the manifest does not list."""
    known = {steps_name(rank) for rank in trace.ranks}
    for path in sorted(trace.folder.glob("steps-*.jsonl")):
        if path.name not in known:
            message = f"the manifest states {trace.manifest.ranks} ranks"
            yield Fault(FaultKind.CHAIN, path.name, 0, message)
