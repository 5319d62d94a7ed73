"""Summary: what a trace holds, counted, for people and tools that decide whether it suffices.

What enters: a trace. What leaves: a `TraceSummary`; TraceError at the first broken line. Tensors
are counted and not read: that they are intact is for `verification` to say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import final

from lipcert.audit.trace.files import BLOBS
from lipcert.audit.trace.reading import Trace
from lipcert.audit.trace.records import Arithmetic, Close, Event, Manifest, Resume, Start, Step


@final
@dataclass(frozen=True, slots=True)
class TraceSummary:
    """Counts over all ranks; examples: of all batches whose size is known.

    samplers: batches by how they were drawn ("" where it was not recorded). noise: smallest and
    largest standard deviation by group. reused_noise: steps whose noise generator started from a
    state that another step had started from. closed: ranks that ended on purpose.
    """

    manifest: Manifest
    steps: tuple[int, ...]
    first_time: float | None
    last_time: float | None
    batches: int
    examples: int
    with_index: int
    samplers: Mapping[str, int]
    with_weights: int
    with_detail: int
    with_examples: int
    with_noise: int
    noise: Mapping[str, tuple[float, float]]
    reused_noise: int
    arithmetic: tuple[Arithmetic, ...]
    blobs: int
    blob_bytes: int
    resumes: int
    cut_bytes: int
    torn_bytes: int
    closed: int


@final
@dataclass(slots=True)
class _Counts:
    steps: Counter[int] = field(default_factory=Counter)
    samplers: Counter[str] = field(default_factory=Counter)
    times: list[float] = field(default_factory=list)
    generators: Counter[str] = field(default_factory=Counter)
    noise: dict[str, tuple[float, float]] = field(default_factory=dict)
    arithmetic: dict[Arithmetic, None] = field(default_factory=dict)
    blobs: set[str] = field(default_factory=set)
    examples: int = 0
    with_index: int = 0
    with_weights: int = 0
    with_detail: int = 0
    with_examples: int = 0
    with_noise: int = 0
    resumes: int = 0
    cut: int = 0
    closed: int = 0

    def take(self, rank: int, events: Iterable[Event]) -> None:
        """Count the lines of a rank."""
        last: Event | None = None
        for event in events:
            last = event
            self.times = [min([event.time, *self.times]), max([event.time, *self.times])]
            match event:
                case Step():
                    self.steps[rank] += 1
                    self._step(event)
                case Resume():
                    self.resumes += 1
                    self.cut += event.cut
                case Start() | Close():
                    pass
        self.closed += isinstance(last, Close)

    def _step(self, step: Step) -> None:
        self.with_weights += step.weights_before is not None
        self.with_detail += step.has_detail
        self.with_examples += any(batch.tensors is not None for batch in step.batches)
        self.blobs.update(blob.sha256 for blob in step.blobs)
        if step.arithmetic is not None:
            self.arithmetic[step.arithmetic] = None
        for batch in step.batches:
            self.samplers["" if batch.sampler is None else batch.sampler.value] += 1
            self.examples += batch.examples or 0
            self.with_index += batch.index is not None or bool(batch.tags)
        if step.noise is not None:
            self.with_noise += 1
            for group, std in step.noise.std.items():
                low, high = self.noise.get(group, (std, std))
                self.noise[group] = min(low, std), max(high, std)
            if step.noise.generator is not None:
                self.generators[step.noise.generator] += 1


def summary_of(trace: Trace) -> TraceSummary:
    """Read all lines of a trace."""
    counts = _Counts()
    for rank in trace.ranks:
        counts.take(rank, trace.events(rank))
    return TraceSummary(
        manifest=trace.manifest,
        steps=tuple(counts.steps[rank] for rank in trace.ranks),
        first_time=min(counts.times, default=None),
        last_time=max(counts.times, default=None),
        batches=counts.samplers.total(),
        examples=counts.examples,
        with_index=counts.with_index,
        samplers=dict(counts.samplers),
        with_weights=counts.with_weights,
        with_detail=counts.with_detail,
        with_examples=counts.with_examples,
        with_noise=counts.with_noise,
        noise=counts.noise,
        reused_noise=sum(uses for uses in counts.generators.values() if uses > 1),
        arithmetic=tuple(counts.arithmetic),
        blobs=len(counts.blobs),
        blob_bytes=sum(_size(trace, digest) for digest in counts.blobs),
        resumes=counts.resumes,
        cut_bytes=counts.cut,
        torn_bytes=sum(trace.torn_bytes(rank) for rank in trace.ranks),
        closed=counts.closed,
    )


def _size(trace: Trace, digest: str) -> int:
    path = trace.folder / BLOBS / digest
    return path.lstat().st_size if path.exists() else 0
