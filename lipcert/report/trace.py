"""Traces: what one holds, whether it is intact, and what a redacted one keeps.

Each is a `Document` whose first lines are the answer, or JSON. `summary_of` counts what a trace
holds, to decide whether it suffices. TraceError names the first broken line. Tensors are counted
and not read: `reading.verify` checks that they are intact.
"""

import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Final

from rich import filesize

from lipcert.audit.trace.reading import Trace, Verification
from lipcert.audit.trace.records import Arithmetic, Close, Event, Manifest, Resume, Start, Step
from lipcert.audit.trace.spelling import MEMBERS, spelled_number
from lipcert.report.document import Answer, Document, Statements, Tone
from lipcert.report.json import JsonObject, dump
from lipcert.text.numbers import counted


@dataclass(slots=True)
class TraceSummary:
    """Counts over all ranks; examples: of all batches whose size is known.

    steps: by rank. times: the first and the last. samplers: batches by how they were drawn (""
    if not recorded). noise: smallest and largest standard deviation by group. generators: steps by
    the state from which their noise is drawn. sizes: bytes of each blob that a line names.
    closed_ranks: those that ended on purpose.
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
        """The number of batches of all steps."""
        return self.samplers.total()

    @property
    def blobs(self) -> int:
        """The number of tensor files that are named."""
        return len(self.sizes)

    @property
    def blob_bytes(self) -> int:
        """The size of all tensor files."""
        return sum(self.sizes.values())

    @property
    def steps_with_reused_noise(self) -> int:
        """Steps whose noise is drawn from the same generator state as that of another step."""
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
    """Read all lines of a trace, and count them."""
    found = TraceSummary(trace.manifest, [0] * len(trace.ranks))
    for rank in trace.ranks:
        end = trace.beginning(rank)
        for event, behind in trace.placed_events(rank):
            found.take(event, rank, trace)
            end = behind
        found.closed_ranks += end.closed
        found.torn_bytes += trace.bytes_behind(end)
    return found


_MOST_FAULTS: Final = 20
_MOST_GROUPS: Final = 8
_LONGEST: Final = 200
_COUNTS: Final = (
    "closed_ranks", "resumes", "cut_bytes", "torn_bytes", "batches", "examples",
    "batches_with_index", "steps_with_weights", "steps_with_detail", "steps_with_examples",
    "steps_with_noise", "steps_with_reused_noise", "blobs", "blob_bytes",
)  # fmt: skip
"""Members of a summary that JSON has unchanged."""
_LAST_TIME: Final = 253_402_300_799.0
"""The end of the year 9999."""
Rows = list[tuple[str, str]]


def summary_document(path: str, summary: TraceSummary) -> Document:
    """Return the output of `lipcert trace info`."""
    steps = sum(summary.steps)
    ranks = f" on {len(summary.steps)} ranks" if len(summary.steps) > 1 else ""
    redacted = ", redacted" if summary.manifest.redaction else ""
    head = f"{counted(steps, 'step')}{ranks} recorded{redacted}" if steps else "no step recorded"
    rows = [
        ("end", _end_text(summary)),
        ("time", _times_text(summary.times)),
        ("batches", _batches_text(summary)),
        ("weights", f"before {counted(summary.steps_with_weights, 'step')}"),
        ("detail", f"tensors of {counted(summary.steps_with_detail, 'step')}"),
        ("examples", _examples_text(summary)),
        *_noise_rows(summary),
        *(("arithmetic", _arithmetic_text(used)) for used in summary.arithmetic),
        ("tensors", f"{counted(summary.blobs, 'file')}, {filesize.decimal(summary.blob_bytes)}"),
        ("model", _model_text(summary)),
        *_declared_rows(summary),
        ("versions", ", ".join(f"{k} {v}" for k, v in summary.manifest.versions.items())),
    ]
    return _page(path, head, Tone.SUBJECT if steps else Tone.BAD, rows)


def summary_json(path: str, summary: TraceSummary) -> str:
    """Return the document `lipcert.trace-info/1` of a trace."""
    manifest = summary.manifest
    return dump(
        {
            "schema": "lipcert.trace-info/1",
            "path": path,
            "steps": sum(summary.steps),
            "steps_by_rank": list(summary.steps),
            "first_time": min(summary.times, default=None),
            "last_time": max(summary.times, default=None),
            **_members(summary, *_COUNTS),
            "samplers": {name or "not recorded": n for name, n in summary.samplers.items()},
            "noise_std": {
                group: [spelled_number(low), spelled_number(high)]
                for group, (low, high) in summary.noise.items()
            },
            "arithmetic": [asdict(used) for used in summary.arithmetic],
            "model_sha256": manifest.model_sha256,
            "parameters": {name: list(shape) for name, shape in manifest.parameters.items()},
            "buffers": {name: list(shape) for name, shape in manifest.buffers.items()},
            "declared": MEMBERS.write(manifest.declaration),
            "versions": dict(manifest.versions),
            "redacted": manifest.redaction is not None,
        }
    )


def verification_document(path: str, found: Verification) -> Document:
    """Return the output of `lipcert trace verify`."""
    rows: Rows = [
        (fault.kind.value, str(fault)[:_LONGEST]) for fault in found.faults[:_MOST_FAULTS]
    ]
    if len(found.faults) > _MOST_FAULTS:
        rows.append(("", f"and {len(found.faults) - _MOST_FAULTS} more: --format json has all"))
    rows += [
        ("steps", ", ".join(f"{item.steps} of rank {item.rank}" for item in found.ranks)),
        ("tensors", f"{counted(found.blobs, 'file')}, {filesize.decimal(found.blob_bytes)}"),
        *([("orphans", f"{found.orphans} files that no line refers to")] if found.orphans else []),
        *((f"head {item.rank}", item.head) for item in found.ranks),
    ]
    if not found.faults and not all(item.closed for item in found.ranks):
        rows.append(("end", "not closed: steps may be missing at the end"))
    if found.faults:
        return _page(path, counted(len(found.faults), "fault"), Tone.BAD, rows)
    intact = "intact" if found.steps else "intact, but without a step"
    return _page(path, intact, Tone.GOOD, rows)


def verification_json(path: str, found: Verification) -> str:
    """Return the document `lipcert.trace-verification/1` of a trace."""
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
    """Return the output of `lipcert trace redact`."""
    state = "intact" if not found.faults else str(found.faults[0])
    answer = (
        f"{path}: {counted(found.steps, 'step')} without the data, {state}. What is kept "
        "(losses, norms, sizes) was computed from private data and is not differentially private."
    )
    return Document("LipCert trace", (Answer(answer, Tone.SUBJECT),))


def redaction_json(path: str, found: Verification) -> str:
    """Return the document `lipcert.trace-redaction/1` of a trace."""
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
    """Return fields that have the same names in JSON."""
    return {name: getattr(record, name) for name in names}


def _page(path: str, head: str, tone: Tone, rows: Rows) -> Document:
    answers = (Answer(path, Tone.SUBJECT), Answer(head, tone))
    return Document("LipCert trace", answers, Statements.of(rows))


def _examples_text(summary: TraceSummary) -> str:
    """Return whether the raw data are in the trace."""
    if summary.steps_with_examples:
        steps = counted(summary.steps_with_examples, "step")
        return f"raw inputs and labels of {steps}: private data"
    if summary.manifest.examples_key is not None:
        return "not in it; audits find them in the data set with the key beside the trace"
    return "none"


def _end_text(summary: TraceSummary) -> str:
    ranks = len(summary.steps)
    parts = [
        "closed" if summary.closed_ranks == ranks else f"{ranks - summary.closed_ranks} not closed"
    ]
    if summary.resumes:
        parts.append(f"{counted(summary.resumes, 'resume')}, {summary.cut_bytes} bytes cut")
    if summary.torn_bytes:
        parts.append(f"{summary.torn_bytes} bytes of unfinished lines")
    return "; ".join(parts)


def _batches_text(summary: TraceSummary) -> str:
    drawn = ", ".join(f"{name or 'not stated'} {n}" for name, n in summary.samplers.items())
    return (
        f"{counted(summary.batches, 'batch', 'batches')}, {summary.examples:,} examples; drawn: "
        f"{drawn or 'none'}; {summary.batches_with_index} with indices"
    )


def _noise_rows(summary: TraceSummary) -> Rows:
    if not summary.steps_with_noise:
        return [("noise", "none recorded")]
    rows = [("noise", f"stated for {counted(summary.steps_with_noise, 'step')}")]
    for group, (low, high) in list(summary.noise.items())[:_MOST_GROUPS]:
        spread = f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}"
        rows.append(("", f"{group}: standard deviation {spread}"))
    if len(summary.noise) > _MOST_GROUPS:
        rows.append(("", f"and {len(summary.noise) - _MOST_GROUPS} further groups"))
    if summary.steps_with_reused_noise:
        again = f"{summary.steps_with_reused_noise} steps share the state of their noise generator"
        rows.append(("REUSED", again))
    return rows


def _arithmetic_text(used: Arithmetic) -> str:
    parts = [f"{used.device} {used.dtype}"]
    parts += [] if used.autocast is None else [f"autocast {used.autocast}"]
    if used.device == "cuda":
        parts += ["TF32 products"] if used.tf32_matmul else []
        parts += ["TF32 convolutions"] if used.tf32_conv else []
    return ", ".join([*parts, "deterministic" if used.deterministic else "not deterministic"])


def _model_text(summary: TraceSummary) -> str:
    manifest = summary.manifest
    numbers = sum(math.prod(shape) for shape in manifest.parameters.values())
    file = f"; ONNX file {manifest.model_sha256}" if manifest.model_sha256 else ""
    return f"{counted(len(manifest.parameters), 'parameter')}, {numbers:,} numbers{file}"


def _declared_rows(summary: TraceSummary) -> Rows:
    declared = MEMBERS.write(summary.manifest.declaration)
    rows: Rows = [
        ("", f"{name}: {value if isinstance(value, str | int | float) else _short(value)}")
        for name, value in declared.items()
    ]
    return [("declared", "" if rows else "nothing"), *rows]


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _times_text(times: list[float]) -> str:
    first, last = min(times, default=math.inf), max(times, default=math.inf)
    return f"{_time_text(first)} to {_time_text(last)}"


def _time_text(seconds: float) -> str:
    if seconds > _LAST_TIME:
        return "unknown"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
