"""Traces: what one holds, whether it is intact, and what a redacted one keeps.

Each is an object for programs; readers see its members below the answer. Tensors are counted and
not read: `reading.verify` checks that they are intact.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from lipcert.audit.trace.files import MEMBERS, spelled_number
from lipcert.audit.trace.reading import Trace, Verification
from lipcert.audit.trace.records import Arithmetic, Resume, Step
from lipcert.report.document import Answer, Document, Statements, Tone, described
from lipcert.report.json import DOCUMENT, JsonObject
from lipcert.text.numbers import counted

_COUNTS: Final = (
    "closed_ranks", "resumes", "cut_bytes", "torn_bytes", "batches", "examples",
    "batches_with_index", "steps_with_weights", "steps_with_detail", "steps_with_examples",
    "steps_with_noise", "steps_with_reused_noise", "blobs", "blob_bytes",
)  # fmt: skip
_UNCLOSED: Final = "; not closed: steps may be missing at the end"
_LAST_TIME: Final = 253_402_300_799.0
"""The end of the year 9999."""


def summary_of(path: str, trace: Trace) -> JsonObject:
    """Read all lines of a trace, and return `lipcert.trace-info/1`; TraceError for a broken one.

    Counts are over all ranks. examples: of all batches whose size is known. closed_ranks: those
    that ended on purpose. samplers: batches by how they were drawn. noise_std: the smallest and
    largest deviation by group. blobs: tensor files that a line names.
    steps_with_reused_noise: steps whose noise another step draws from the same generator state.
    """
    counts, samplers, generators = Counter[str](), Counter[str](), Counter[str]()
    steps, times = [0] * len(trace.ranks), list[float]()
    noise: dict[str, tuple[float, float]] = {}
    arithmetic: dict[Arithmetic, None] = {}
    sizes: dict[str, int] = {}
    for rank in trace.ranks:
        end = trace.beginning(rank)
        for event, behind in trace.placed_events(rank):
            times = [min([event.time, *times]), max([event.time, *times])]
            end = behind
            if isinstance(event, Resume):
                counts.update(resumes=1, cut_bytes=event.cut)
            elif isinstance(event, Step):
                steps[rank] += 1
                counts += _counts_of(event)
                samplers.update(x.sampler.value if x.sampler else "not recorded"
                                for x in event.batches)  # fmt: skip
                arithmetic |= {} if event.arithmetic is None else {event.arithmetic: None}
                for blob in event.blobs:
                    file = trace.folder / blob.file
                    sizes[blob.sha256] = file.lstat().st_size if file.exists() else 0
                if event.noise is not None:
                    generators.update(filter(None, [event.noise.generator]))
                    for group, std in event.noise.std.items():
                        low, high = noise.get(group, (std, std))
                        noise[group] = min(low, std), max(high, std)
        counts.update(closed_ranks=int(end.closed), torn_bytes=trace.bytes_behind(end))
    reused = sum(uses for uses in generators.values() if uses > 1)
    counts.update(steps_with_reused_noise=reused, blobs=len(sizes), blob_bytes=sum(sizes.values()))
    manifest = trace.manifest
    return {
        "schema": "lipcert.trace-info/1",
        "path": path,
        "steps": sum(steps),
        "steps_by_rank": steps,
        "first_time": min(times, default=None),
        "last_time": max(times, default=None),
        **{name: counts[name] for name in _COUNTS},
        "samplers": dict(samplers),
        "noise_std": {name: list(map(spelled_number, ends)) for name, ends in noise.items()},
        "arithmetic": [asdict(used) for used in arithmetic],
        "model_sha256": manifest.model_sha256,
        "parameters": {name: list(shape) for name, shape in manifest.parameters.items()},
        "buffers": {name: list(shape) for name, shape in manifest.buffers.items()},
        "declared": MEMBERS.write(manifest.declaration),
        "versions": dict(manifest.versions),
        "redacted": manifest.redaction is not None,
    }


def _counts_of(step: Step) -> Counter[str]:
    return Counter(
        batches=len(step.batches),
        examples=sum(batch.examples or 0 for batch in step.batches),
        batches_with_index=sum(x.index is not None or bool(x.tags) for x in step.batches),
        steps_with_weights=step.weights_before is not None,
        steps_with_detail=step.has_detail,
        steps_with_examples=any(batch.tensors is not None for batch in step.batches),
        steps_with_noise=step.noise is not None,
    )


def summary_document(found: Mapping[str, Any]) -> Document:
    """Return the output of `lipcert trace info`."""
    private = ", with raw examples: private data" if found["steps_with_examples"] else ""
    head = f"{counted(found['steps'], 'step')} recorded{', redacted' * found['redacted']}{private}"
    if reused := found["steps_with_reused_noise"]:
        head += f"; {reused} share the state of their noise generator"
    head += _UNCLOSED * (found["closed_ranks"] < len(found["steps_by_rank"]))
    times = {name: _time_text(found[name]) for name in ("first_time", "last_time")}
    return _page({**found, **times}, head, Tone.SUBJECT if found["steps"] else Tone.BAD)


def verification_of(path: str, found: Verification) -> JsonObject:
    """Return the object `lipcert.trace-verification/1` of a trace."""
    return {"schema": "lipcert.trace-verification/1", **_verified(path, found)}


def verification_document(found: Mapping[str, Any]) -> Document:
    """Return the output of `lipcert trace verify`."""
    head = "intact" if found["steps"] else "intact, but without a step"
    head += _UNCLOSED * (not all(rank["closed"] for rank in found["ranks"]))
    if found["faults"]:
        return _page(found, counted(len(found["faults"]), "fault"), Tone.BAD)
    return _page(found, head, Tone.GOOD)


def redaction_of(path: str, found: Verification) -> JsonObject:
    """Return the object `lipcert.trace-redaction/1` of a trace."""
    redaction = found.trace.manifest.redaction
    heads = {} if redaction is None else redaction.heads
    return {
        "schema": "lipcert.trace-redaction/1",
        **_verified(path, found),
        "original_manifest": None if redaction is None else redaction.manifest,
        "original_heads": {str(rank): head for rank, head in heads.items()},
        "keeps_weights": redaction is not None and redaction.keeps_weights,
    }


def redaction_document(found: Mapping[str, Any]) -> Document:
    """Return the output of `lipcert trace redact`."""
    head = (
        f"{counted(found['steps'], 'step')} without the data. What is kept (losses, sizes) "
        "was computed from private data and is not differentially private."
    )
    return _page(found, head, Tone.PLAIN)


def _verified(path: str, found: Verification) -> JsonObject:
    return {
        "path": path,
        "steps": found.steps,
        "intact": not found.faults,
        "manifest": found.trace.digest,
        **DOCUMENT.write(found),
    }


def _page(found: Mapping[str, Any], head: str, tone: Tone) -> Document:
    answers = (Answer(found["path"], Tone.SUBJECT), Answer(head, tone))
    rest = {name: found[name] for name in found if name not in {"schema", "path", "steps"}}
    return Document("LipCert trace", answers, Statements.of(described(rest)))


def _time_text(seconds: float | None) -> str:
    if seconds is None or seconds > _LAST_TIME:
        return "unknown"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
