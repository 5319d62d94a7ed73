"""Lines: the events of a trace as objects of JSON, and back.

What enters: an `Event`, or the members of a line. What leaves: members without what was not
recorded, or the event; `FormError` where the members are not those of an event.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from lipcert.audit.trace.blobs import Blob, Expected
from lipcert.audit.trace.faults import FormError
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
from lipcert.audit.trace.spelling import FORMS, LARGEST, MEMBERS, JsonObject
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
