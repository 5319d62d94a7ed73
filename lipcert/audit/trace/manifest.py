"""The manifest as a file: spelled, read strictly, and compared when recording goes on.

What enters: a `Manifest`, or the bytes of a file. What leaves: bytes, or the manifest and their
digest; TraceError where the file is no manifest of this schema.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from lipcert.audit.trace.faults import Fault, FaultKind, FormError, TraceError
from lipcert.audit.trace.files import MANIFEST, open_regular
from lipcert.audit.trace.records import Declaration, Manifest
from lipcert.audit.trace.spelling import MEMBERS, JsonObject, spelled, understood

_MAX_BYTES: Final = 1 << 26


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
