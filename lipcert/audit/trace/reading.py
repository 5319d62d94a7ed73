"""Reading a trace: its manifest at once, its steps one by one, their tensors when asked for.

What enters: a folder that anybody may have written. What leaves: records; TraceError with file and
line at the first thing that is not in order. Invariant: nothing outside the folder is opened, and
what comes after a fault is never returned.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

from lipcert.audit.trace.files import open_regular, steps_name
from lipcert.audit.trace.lines import EventReader, read_manifest
from lipcert.audit.trace.records import Close, Event, Manifest, Resume, Start, Step
from lipcert.audit.trace.spelling import Fault, FaultKind, FormError, Link, TraceError, links


@final
@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded run; digest: of its manifest, with which every chain begins."""

    folder: Path
    manifest: Manifest
    digest: str

    @property
    def ranks(self) -> range:
        """Every rank has steps of its own."""
        return range(self.manifest.ranks)

    @property
    def head(self) -> str:
        """One digest of everything: of the manifest and the last line of every rank."""
        digest = hashlib.sha256(self.digest.encode("ascii"))
        for rank in self.ranks:
            last = self.digest
            for link, _ in self.linked_events(rank):
                last = link.digest
            digest.update(last.encode("ascii"))
        return digest.hexdigest()

    def steps(self, rank: int | None = None) -> Iterator[Step]:
        """The steps in order, of one rank or of one rank after the other.

        An unfinished last line, which an interruption leaves, is no step; see `torn_bytes`.
        """
        for one in self.ranks if rank is None else (rank,):
            for event in self.events(one):
                if isinstance(event, Step):
                    yield event

    def events(self, rank: int) -> Iterator[Event]:
        """All lines of a rank in order."""
        for _, event in self.linked_events(rank):
            yield event

    def linked_events(self, rank: int) -> Iterator[tuple[Link, Event]]:
        """All lines of a rank, each with its place in the chain."""
        name = steps_name(rank)
        reader = EventReader(self.folder, self.manifest, rank)
        order = _Order()
        try:
            with open_regular(self.folder / name) as file:
                for link in links(file, name, self.digest):
                    try:
                        event = reader.event(link.members)
                        order.take(event)
                    except FormError as error:
                        fault = Fault(FaultKind.CHAIN, name, link.number, str(error))
                        raise TraceError(fault) from error
                    yield link, event
        except OSError as error:
            message = f"cannot be read: {error.strerror or error}"
            raise TraceError(Fault(FaultKind.CHAIN, name, 0, message)) from error

    def torn_bytes(self, rank: int) -> int:
        """Bytes of an unfinished last line; 0 unless an interruption or somebody cut it."""
        end = 0
        for link, _ in self.linked_events(rank):
            end = link.end
        return (self.folder / steps_name(rank)).stat().st_size - end


def read_trace(folder: Path | str) -> Trace:
    """Open a trace; TraceError where the folder holds none of this schema."""
    manifest, digest = read_manifest(Path(folder))
    return Trace(Path(folder), manifest, digest)


@final
class _Order:
    """Which line may follow: one start, steps without gaps, after a close nothing but a resume."""

    def __init__(self) -> None:
        self._steps = 0
        self._last: Event | None = None

    def take(self, event: Event) -> None:
        """`FormError` for an event that cannot come now."""
        if isinstance(event, Start) != (self._last is None):
            raise FormError("a chain starts with its first line, and only there")
        if isinstance(self._last, Close) and not isinstance(event, Resume):
            raise FormError("something follows the end of the recording")
        match event:
            case Step() if event.number != self._steps:
                raise FormError(f"step {event.number} stands where step {self._steps} belongs")
            case Step():
                self._steps += 1
            case Resume() | Close() if event.steps != self._steps:
                raise FormError(f"speaks of {event.steps} steps where there are {self._steps}")
        self._last = event
