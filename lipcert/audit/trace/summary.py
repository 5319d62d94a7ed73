"""Summary: what a trace holds, counted, for people and tools that decide whether it suffices.

TraceError names the first broken line. Tensors are counted and not read: that they are intact is
for `reading.verify` to say.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import final

from lipcert.audit.trace.reading import Trace
from lipcert.audit.trace.records import Arithmetic, Close, Event, Manifest, Resume, Start, Step


@final
@dataclass(slots=True)
class TraceSummary:
    """Counts over all ranks; examples: of all batches whose size is known.

    steps: by rank. times: the first and the last. samplers: batches by how they were drawn (""
    where it was not recorded). noise: smallest and largest standard deviation by group. generators:
    steps by the state from which their noise is drawn. sizes: bytes of each blob that a line names.
    closed_ranks: that ended on purpose.
    """

    manifest: Manifest
    steps: list[int]
    times: list[float] = field(default_factory=list)
    samplers: Counter[str] = field(default_factory=Counter)
    generators: Counter[str] = field(default_factory=Counter)
    noise: dict[str, tuple[float, float]] = field(default_factory=dict)
    arithmetic: dict[Arithmetic, None] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    examples: int = 0
    batches_with_index: int = 0
    steps_with_weights: int = 0
    steps_with_detail: int = 0
    steps_with_examples: int = 0
    steps_with_noise: int = 0
    resumes: int = 0
    cut_bytes: int = 0
    torn_bytes: int = 0
    closed_ranks: int = 0

    @property
    def batches(self) -> int:
        """How many batches all steps have."""
        return self.samplers.total()

    @property
    def blobs(self) -> int:
        """How many files of tensors are named."""
        return len(self.sizes)

    @property
    def blob_bytes(self) -> int:
        """The size of all files of tensors."""
        return sum(self.sizes.values())

    @property
    def steps_with_reused_noise(self) -> int:
        """Steps whose noise is drawn from a state from which that of another step was drawn."""
        return sum(uses for uses in self.generators.values() if uses > 1)

    def take(self, event: Event, rank: int, trace: Trace) -> None:
        """Count one line of a rank."""
        self.times = [min([event.time, *self.times]), max([event.time, *self.times])]
        match event:
            case Step():
                self.steps[rank] += 1
                self._step(event, trace)
            case Resume():
                self.resumes += 1
                self.cut_bytes += event.cut
            case Start() | Close():
                pass

    def _step(self, step: Step, trace: Trace) -> None:
        self.steps_with_weights += step.weights_before is not None
        self.steps_with_detail += step.has_detail
        self.steps_with_examples += any(batch.tensors is not None for batch in step.batches)
        for blob in step.blobs:
            if blob.sha256 not in self.sizes:
                path = trace.folder / blob.file
                self.sizes[blob.sha256] = path.lstat().st_size if path.exists() else 0
        if step.arithmetic is not None:
            self.arithmetic[step.arithmetic] = None
        for batch in step.batches:
            self.samplers["" if batch.sampler is None else batch.sampler.value] += 1
            self.examples += batch.examples or 0
            self.batches_with_index += batch.index is not None or bool(batch.tags)
        if step.noise is not None:
            self.steps_with_noise += 1
            for group, std in step.noise.std.items():
                low, high = self.noise.get(group, (std, std))
                self.noise[group] = min(low, std), max(high, std)
            if step.noise.generator is not None:
                self.generators[step.noise.generator] += 1


def summary_of(trace: Trace) -> TraceSummary:
    """Read all lines of a trace."""
    found = TraceSummary(trace.manifest, [0] * len(trace.ranks))
    for rank in trace.ranks:
        end = trace.beginning(rank)
        for event, behind in trace.placed_events(rank):
            found.take(event, rank, trace)
            end = behind
        found.closed_ranks += end.closed
        found.torn_bytes += trace.bytes_behind(end)
    return found
