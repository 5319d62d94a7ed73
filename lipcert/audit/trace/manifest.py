"""The manifest as a file: spelled, read strictly, and compared when recording goes on.

What enters: a `Manifest`, or the bytes of a file. What leaves: bytes, or the manifest and their
digest; TraceError where the file is no manifest of this schema.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from lipcert.audit.trace.faults import Fault, FaultKind, FormError, TraceError
from lipcert.audit.trace.files import MANIFEST, open_regular
from lipcert.audit.trace.members import Members
from lipcert.audit.trace.records import SCHEMA, Declaration, Manifest, Redaction, Reduction
from lipcert.audit.trace.spelling import Json, JsonObject, spelled, spelled_number, understood
from lipcert.privacy.plan import Sampling

_MAX_BYTES: Final = 1 << 26
_MAX_RANKS: Final = 1 << 16
_COUNTS: Final = ("dataset_size", "batch_size", "steps", "examples")
_NUMBERS: Final = ("sampling_rate", "noise_multiplier", "weight_decay", "divisor")
_BY_GROUP: Final = ("noise_std", "clip_norms")


def manifest_bytes(manifest: Manifest) -> bytes:
    """The content of the file."""
    members: JsonObject = {
        "schema": SCHEMA,
        "versions": dict(manifest.versions),
        "ranks": manifest.ranks,
        "parameters": _listed(manifest.parameters),
        "buffers": _listed(manifest.buffers),
        "declared": declared_members(manifest.declaration),
    }
    if manifest.model_sha256 is not None:
        members["model_sha256"] = manifest.model_sha256
    if manifest.examples_key is not None:
        members["examples_key"] = manifest.examples_key
    if manifest.redaction is not None:
        members["redacted"] = {
            "manifest": manifest.redaction.manifest,
            "heads": {str(rank): head for rank, head in manifest.redaction.heads.items()},
            "keeps_weights": manifest.redaction.keeps_weights,
        }
    return spelled(members) + b"\n"


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
    return _manifest(Members(understood(data[:-1]), "manifest"))


def declared_members(declaration: Declaration) -> JsonObject:
    """A declaration, without what is not declared."""
    members: JsonObject = {}
    for name in _COUNTS:
        if (count := getattr(declaration, name)) is not None:
            members[name] = int(count)
    for name in _NUMBERS:
        if (number := getattr(declaration, name)) is not None:
            members[name] = spelled_number(float(number))
    for name in _BY_GROUP:
        if numbers := getattr(declaration, name):
            members[name] = {group: spelled_number(float(x)) for group, x in numbers.items()}
    if declaration.groups:
        members["groups"] = {group: list(names) for group, names in declaration.groups.items()}
    if declaration.dropout:
        members["dropout"] = list(declaration.dropout)
    if declaration.sampling is not None:
        members["sampling"] = declaration.sampling.value
    if declaration.reduction is not None:
        members["reduction"] = declaration.reduction.value
    if declaration.data is not None:
        members["data"] = declaration.data
    if declaration.data_sha256 is not None:
        members["data_sha256"] = declaration.data_sha256
    return members


def _listed(shapes: Mapping[str, Sequence[int]]) -> Json:
    return {name: [int(size) for size in shape] for name, shape in shapes.items()}


def _manifest(members: Members) -> Manifest:
    schema = members.text("schema")
    if schema != SCHEMA:
        raise FormError(f"the schema {schema[:60]!r} is not {SCHEMA!r}")
    versions = members.object("versions")
    parameters, buffers = members.object("parameters"), members.object("buffers")
    manifest = Manifest(
        versions=versions.each(versions.text),
        ranks=members.count("ranks"),
        parameters=parameters.each(parameters.counts),
        buffers=buffers.each(buffers.counts),
        model_sha256=members.optional("model_sha256", members.digest),
        examples_key=members.optional("examples_key", members.digest),
        declaration=_declaration(members.object("declared")),
        redaction=members.optional("redacted", lambda name: _redaction(members.object(name))),
    )
    members.finish()
    if not 1 <= manifest.ranks <= _MAX_RANKS:
        raise FormError(f"{manifest.ranks} ranks")
    if set(manifest.parameters) & set(manifest.buffers):
        raise FormError("a parameter and a buffer have one name")
    return manifest


def _declaration(members: Members) -> Declaration:
    def by_group(name: str) -> dict[str, float]:
        item = members.object(name)
        return item.each(item.finite)

    def names_by_group(name: str) -> dict[str, tuple[str, ...]]:
        item = members.object(name)
        return item.each(item.texts)

    declaration = Declaration(
        dataset_size=members.optional("dataset_size", members.count),
        batch_size=members.optional("batch_size", members.count),
        sampling=members.optional("sampling", lambda name: members.choice(name, Sampling)),
        sampling_rate=members.optional("sampling_rate", members.finite),
        steps=members.optional("steps", members.count),
        noise_multiplier=members.optional("noise_multiplier", members.finite),
        noise_std=members.optional("noise_std", by_group) or {},
        clip_norms=members.optional("clip_norms", by_group) or {},
        weight_decay=members.optional("weight_decay", members.finite),
        groups=members.optional("groups", names_by_group) or {},
        reduction=members.optional("reduction", lambda name: members.choice(name, Reduction)),
        divisor=members.optional("divisor", members.finite),
        data=members.optional("data", members.text),
        data_sha256=members.optional("data_sha256", members.digest),
        examples=members.optional("examples", members.count),
        dropout=tuple(members.optional("dropout", members.texts) or ()),
    )
    members.finish()
    return declaration


def _redaction(members: Members) -> Redaction:
    heads = members.object("heads")
    found = heads.each(heads.digest)
    if not all(rank.isascii() and rank.isdigit() and len(rank) < 6 for rank in found):
        raise FormError("redacted.heads: a rank is not a number")
    redaction = Redaction(
        manifest=members.digest("manifest"),
        heads={int(rank): head for rank, head in found.items()},
        keeps_weights=members.flag("keeps_weights"),
    )
    members.finish()
    return redaction
