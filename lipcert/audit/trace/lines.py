"""Lines: the manifest and the events of a trace as objects of JSON, and back.

What enters: a `Manifest`, an `Event`, or bytes and members that claim to be one. What leaves:
members without what was not recorded, the manifest with the digest of its bytes, or the event;
`FormError` or TraceError where they are not of this schema. Manifests are compared when recording
goes on.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from lipcert.audit.trace.blobs import Blob, Expected
from lipcert.audit.trace.files import MANIFEST, open_regular
from lipcert.audit.trace.records import (
    Batch,
    Close,
    Declaration,
    Event,
    Gradients,
    IndexArray,
    Manifest,
    Resume,
    Start,
    Step,
)
from lipcert.audit.trace.spelling import (
    FORMS,
    LARGEST,
    MEMBERS,
    Fault,
    FaultKind,
    FormError,
    JsonObject,
    TraceError,
    spelled,
    understood,
)
from lipcert.core.codec import Codec, Form, Sha256

_KINDS: Final[dict[str, type[Event]]] = {
    "start": Start,
    "step": Step,
    "resume": Resume,
    "close": Close,
}
_NUMBERS: Final = MEMBERS.form(tuple[int, ...])
_DIGEST: Final = MEMBERS.form(Sha256)
_WORDS: Final = {kind: word for word, kind in _KINDS.items()}
_MAX_BYTES: Final = 1 << 26


def event_members(event: Event) -> JsonObject:
    """The line of an event, without its place in the chain."""
    return {"kind": _WORDS[type(event)], **_WRITER.write(event)}


@final
class EventReader:
    """Reads the lines of one rank of one trace."""

    def __init__(self, folder: Path, manifest: Manifest, rank: int) -> None:
        self._codec = _codec(folder)
        self._rank = rank
        self._gradients = Expected(manifest.parameters)
        self._weights = Expected({**manifest.parameters, **manifest.buffers}, complete=True)

    def event(self, members: JsonObject) -> Event:
        """The event that a line tells."""
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
            gradients=Gradients(
                clean=_holding(step.gradients.clean, self._gradients),
                noised=_holding(step.gradients.noised, self._gradients),
                applied=_holding(step.gradients.applied, self._gradients),
            ),
        )


def _checked(batch: Batch) -> Batch:
    sizes = [len(batch.tags)] if batch.tags else []
    sizes += [] if batch.index is None else [len(batch.index)]
    if any(size != batch.examples for size in sizes):
        raise FormError("line.batches: not as many indices as examples")
    return replace(batch, tensors=_holding(batch.tensors, Expected(examples=batch.examples)))


def _holding(blob: Blob | None, expected: Expected) -> Blob | None:
    return None if blob is None else replace(blob, expected=expected)


def _index(value: object) -> IndexArray:
    index = np.array(_NUMBERS.read(value), dtype=np.int64)
    index.setflags(write=False)
    return index


def _codec(folder: Path) -> Codec:
    """How records stand in the lines of this trace."""
    forms: dict[Any, Form] = {
        Blob: Form(lambda found: found.sha256, lambda value: Blob(_DIGEST.read(value), folder)),
        IndexArray: Form(lambda index: index.tolist(), _index),
    }
    return Codec(FormError, {**FORMS, **forms}, largest=LARGEST)


_WRITER: Final = _codec(Path())


def manifest_bytes(manifest: Manifest) -> bytes:
    """The content of the file."""
    return spelled(MEMBERS.write(manifest)) + b"\n"


def read_manifest(folder: Path) -> tuple[Manifest, str]:
    """The manifest of a trace and its digest."""
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
    """The manifest that a file of this content is; `FormError` where it is none."""
    if len(data) > _MAX_BYTES or not data.endswith(b"\n"):
        raise FormError(f"not one line of at most {_MAX_BYTES} bytes")
    manifest = MEMBERS.read(Manifest, understood(data[:-1]), "manifest")
    if set(manifest.parameters) & set(manifest.buffers):
        raise FormError("a parameter and a buffer have one name")
    return manifest


def declared_members(declaration: Declaration) -> JsonObject:
    """A declaration, without what is not declared."""
    members: JsonObject = MEMBERS.write(declaration)
    return members
