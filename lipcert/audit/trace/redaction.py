"""Redaction: copy a trace for readers who must not see the data.

From an intact trace, `redact` makes a copy with a chain of its own that keeps steps, rates, losses
of whole batches and noise; its manifest states the digests of the original's manifest and last
lines. Invariant: the copy contains no tensor of the data, the
labels or the gradients. Indices and states of generators become tags under a random key that is
discarded: equal ones remain equal, and guesses cannot be tested. What is kept was still computed
from private data: a redacted trace is not differentially private.
"""

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from lipcert.audit.trace.blobs import Blob, stored
from lipcert.audit.trace.files import FaultKind
from lipcert.audit.trace.reading import Trace, verify
from lipcert.audit.trace.records import (
    Batch,
    Close,
    Gradients,
    Manifest,
    Noise,
    Redaction,
    Resume,
    Start,
    Step,
)
from lipcert.audit.trace.writing import TraceWriter
from lipcert.errors import NoVerdictError, UsageError

_TAG_DIGITS: Final = 32
_KEY_BYTES: Final = 32


def redact(folder: Path, out: Path, *, keep_weights: bool = False) -> Manifest:
    """Write the redacted copy, and return its manifest.

    Raises:
        NoVerdictError: if the original is not intact.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"trace redact: {out} exists: name a new folder")
    found = verify(folder)
    broken = [fault for fault in found.faults if fault.kind is not FaultKind.TORN]
    if broken:
        raise NoVerdictError(
            f"trace redact: {folder} is not intact ({broken[0]}): see `lipcert trace verify`"
        )
    trace = found.trace
    manifest = _manifest(trace, {item.rank: item.head for item in found.ranks}, keep_weights)
    redactor = _Redactor(keep_weights)
    for rank in trace.ranks:
        writer = TraceWriter(out, manifest, rank)
        for event in trace.events(rank):
            match event:
                case Step():
                    writer.append(redactor.step(event, writer))
                case Resume() | Close():
                    writer.append(event)
                case Start():
                    pass  # the writer says so itself
        writer.abandon()
    return manifest


def _manifest(trace: Trace, heads: Mapping[int, str], keep_weights: bool) -> Manifest:
    """Return the manifest without the location of the data, which may itself reveal something."""
    original = trace.manifest
    return replace(
        original,
        declaration=replace(original.declaration, data=None, data_sha256=None),
        examples_key=None,
        redaction=Redaction(trace.digest, heads, keep_weights),
    )


class _Redactor:
    """Redacts with one key for all ranks, so that what they share remains visible."""

    def __init__(self, keep_weights: bool) -> None:
        self._key = secrets.token_bytes(_KEY_BYTES)
        self._keep_weights = keep_weights

    def step(self, step: Step, writer: TraceWriter) -> Step:
        """Return the step without its tensors."""
        before, after = step.weights_before, step.weights_after
        return replace(
            step,
            batches=tuple(self._batch(batch) for batch in step.batches),
            noise=None if step.noise is None else self._noise(step.noise),
            weights_before=_copied(before, writer) if self._keep_weights else None,
            weights_after=_copied(after, writer) if self._keep_weights else None,
            weights_start=_copied(step.weights_start, writer) if self._keep_weights else None,
            optimizer=None,
            gradients=Gradients(),
            norms={},
        )

    def _batch(self, batch: Batch) -> Batch:
        tags = tuple(self._tag(tag) for tag in batch.tags)
        if batch.index is not None:
            tags = tuple(self._tag(f"example {number}") for number in batch.index.tolist())
        return replace(batch, index=None, tags=tags, tensors=None, name=None)

    def _noise(self, noise: Noise) -> Noise:
        if noise.generator is None:
            return noise
        return replace(noise, generator=self._tag(noise.generator))

    def _tag(self, text: str) -> str:
        return hmac.digest(self._key, text.encode("utf-8"), "sha256").hex()[:_TAG_DIGITS]


def _copied(blob: Blob | None, writer: TraceWriter) -> Blob | None:
    if blob is None:
        return None
    tensors = {name: stored(np.array(array)) for name, array in blob.tensors().items()}
    return replace(writer.store(tensors), expected=blob.expected)
