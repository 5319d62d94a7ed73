"""Lines: the events of a trace as objects of JSON, and back.

What enters: an `Event`, or the members of a line. What leaves: members without what was not
recorded, or the event; `FormError` where the members are not those of an event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, final

import numpy as np

from lipcert.audit.trace.blobs import Blob, Expected
from lipcert.audit.trace.faults import FormError
from lipcert.audit.trace.members import Members
from lipcert.audit.trace.records import (
    Arithmetic,
    Batch,
    Close,
    Event,
    ExamplesName,
    Gradients,
    Manifest,
    Noise,
    Reduction,
    Resume,
    Start,
    Step,
)
from lipcert.audit.trace.spelling import Json, JsonObject, spelled_number
from lipcert.privacy.plan import Sampling

_GRADIENTS: Final = ("clean", "noised", "applied")
_WEIGHTS: Final = ("weights_before", "weights_after")


def event_members(event: Event) -> JsonObject:
    """The line of an event, without its place in the chain."""
    match event:
        case Start():
            return {"kind": "start", "time": event.time}
        case Close():
            return {"kind": "close", "time": event.time, "steps": event.steps}
        case Resume():
            members: JsonObject = {"kind": "resume", "time": event.time, "steps": event.steps}
            return {**members, "cut": event.cut, "versions": dict(event.versions)}
        case Step():
            return _step_members(event)


def _step_members(step: Step) -> JsonObject:
    members: JsonObject = {"kind": "step", "step": step.number, "time": step.time}
    members["batches"] = [_batch_members(batch) for batch in step.batches]
    if step.learning_rates:
        members["learning_rates"] = [spelled_number(rate) for rate in step.learning_rates]
    if step.noise is not None:
        noise: JsonObject = {"std": _numbers(step.noise.std)}
        members["noise"] = _with(noise, "generator", step.noise.generator)
    if (used := step.arithmetic) is not None:
        arithmetic: JsonObject = {
            "device": used.device,
            "dtype": used.dtype,
            "tf32_matmul": used.tf32_matmul,
            "tf32_conv": used.tf32_conv,
            "deterministic": used.deterministic,
        }
        members["arithmetic"] = _with(arithmetic, "autocast", used.autocast)
    if step.generators:
        members["generators"] = dict(step.generators)
    for name in _WEIGHTS:
        _with_blob(members, name, getattr(step, name))
    gradients: JsonObject = {}
    for name in _GRADIENTS:
        _with_blob(gradients, name, getattr(step.gradients, name))
    if gradients:
        members["gradients"] = gradients
    if step.norms:
        members["norms"] = {kind: _numbers(norms) for kind, norms in step.norms.items()}
    return members


def _batch_members(batch: Batch) -> JsonObject:
    members: JsonObject = {}
    _with(members, "examples", batch.examples)
    if batch.index is not None:
        members["index"] = batch.index.tolist()
    if batch.tags:
        members["tags"] = list(batch.tags)
    _with(members, "sampler", None if batch.sampler is None else batch.sampler.value)
    _with(members, "reduction", None if batch.reduction is None else batch.reduction.value)
    for name in ("rate", "divisor", "loss"):
        number = getattr(batch, name)
        _with(members, name, None if number is None else spelled_number(number))
    if (known := batch.name) is not None:
        named: JsonObject = {"hmac": known.hmac, "input": known.input, "labels": known.labels}
        members["name"] = _with(named, "drawn", True if known.drawn else None)
    return _with_blob(members, "tensors", batch.tensors)


def _with(members: JsonObject, name: str, value: Json | None) -> JsonObject:
    if value is not None:
        members[name] = value
    return members


def _with_blob(members: JsonObject, name: str, blob: Blob | None) -> JsonObject:
    return _with(members, name, None if blob is None else blob.sha256)


def _numbers(numbers: Mapping[str, float]) -> JsonObject:
    return {name: spelled_number(number) for name, number in numbers.items()}


@final
class EventReader:
    """Reads the lines of one rank of one trace."""

    def __init__(self, folder: Path, manifest: Manifest, rank: int) -> None:
        self._folder = folder
        self._rank = rank
        self._gradients = Expected(manifest.parameters)
        self._weights = Expected({**manifest.parameters, **manifest.buffers}, complete=True)

    def event(self, members: JsonObject) -> Event:
        """The event that a line tells."""
        line = Members(members, "line")
        kind = line.text("kind")
        event: Event
        match kind:
            case "step":
                event = self._step(line)
            case "start":
                event = Start(line.finite("time"))
            case "close":
                event = Close(line.finite("time"), line.count("steps"))
            case "resume":
                versions = line.object("versions")
                event = Resume(
                    line.finite("time"),
                    line.count("steps"),
                    line.count("cut"),
                    versions.each(versions.text),
                )
            case _:
                raise FormError(f"a line of kind {kind[:40]!r} is not known")
        line.finish()
        return event

    def _step(self, line: Members) -> Step:
        norms = line.optional("norms", line.object)
        generators = line.optional("generators", line.object)
        return Step(
            rank=self._rank,
            number=line.count("step"),
            time=line.finite("time"),
            batches=tuple(self._batch(item) for item in line.objects("batches")),
            learning_rates=line.optional("learning_rates", line.numbers) or (),
            noise=line.optional("noise", lambda name: _noise(line.object(name))),
            arithmetic=line.optional("arithmetic", lambda name: _arithmetic(line.object(name))),
            generators={} if generators is None else generators.each(generators.text),
            weights_before=self._blob(line, "weights_before", self._weights),
            weights_after=self._blob(line, "weights_after", self._weights),
            gradients=self._gradient_blobs(line),
            norms={} if norms is None else norms.each(lambda kind: _by_name(norms, kind)),
        )

    def _gradient_blobs(self, line: Members) -> Gradients:
        members = line.optional("gradients", line.object)
        if members is None:
            return Gradients()
        found = Gradients(*(self._blob(members, name, self._gradients) for name in _GRADIENTS))
        members.finish()
        return found

    def _batch(self, members: Members) -> Batch:
        index = members.optional("index", members.counts)
        batch = Batch(
            examples=members.optional("examples", members.count),
            index=None if index is None else _index(index),
            tags=members.optional("tags", members.texts) or (),
            sampler=members.optional("sampler", lambda name: members.choice(name, Sampling)),
            rate=members.optional("rate", members.finite),
            reduction=members.optional("reduction", lambda name: members.choice(name, Reduction)),
            divisor=members.optional("divisor", members.finite),
            loss=members.optional("loss", members.number),
            name=members.optional("name", lambda name: _examples_name(members.object(name))),
        )
        sizes = [len(batch.tags)] if batch.tags else []
        sizes += [] if batch.index is None else [len(batch.index)]
        if any(size != batch.examples for size in sizes):
            raise FormError(f"{members.where}: not as many indices as examples")
        tensors = self._blob(members, "tensors", Expected(examples=batch.examples))
        members.finish()
        return replace(batch, tensors=tensors)

    def _blob(self, members: Members, name: str, expected: Expected) -> Blob | None:
        digest = members.optional(name, members.digest)
        return None if digest is None else Blob(digest, self._folder, expected)


def _index(counts: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    index = np.array(counts, dtype=np.int64)
    index.setflags(write=False)
    return index


def _by_name(norms: Members, kind: str) -> dict[str, float]:
    members = norms.object(kind)
    return members.each(members.number)


def _noise(members: Members) -> Noise:
    std = members.object("std")
    noise = Noise(std.each(std.number), members.optional("generator", members.text))
    members.finish()
    return noise


def _examples_name(members: Members) -> ExamplesName:
    name = ExamplesName(
        members.digest("hmac"),
        members.text("input"),
        members.text("labels"),
        members.optional("drawn", members.flag) or False,
    )
    members.finish()
    return name


def _arithmetic(members: Members) -> Arithmetic:
    arithmetic = Arithmetic(
        device=members.text("device"),
        dtype=members.text("dtype"),
        autocast=members.optional("autocast", members.text),
        tf32_matmul=members.flag("tf32_matmul"),
        tf32_conv=members.flag("tf32_conv"),
        deterministic=members.flag("deterministic"),
    )
    members.finish()
    return arithmetic
