"""Writing a trace: tensors first, then the line that names them, and never half a line.

At any moment, whatever interrupts the writer, the folder is one that `reading` accepts. Invariant:
when a line is in the file, the tensors that it names are on the disk. A line is handed to the
operating system before `append` returns, so that a killed process loses nothing of it; a power
failure loses at most what was written in the last seconds (`SYNC_SECONDS`) or lines (`SYNC_LINES`).
"""

import time
import warnings
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Final

from lipcert.audit.trace.blobs import Blob, BlobStore, StoredTensor
from lipcert.audit.trace.files import (
    MANIFEST,
    ChainFile,
    FormError,
    TraceError,
    awaited,
    make_private_folder,
    replace_durably,
    steps_name,
)
from lipcert.audit.trace.reading import (
    Trace,
    event_members,
    manifest_bytes,
    manifest_in,
    read_manifest,
)
from lipcert.audit.trace.records import Close, Declaration, Event, Manifest, Resume, Start, Step
from lipcert.errors import NoVerdictError, UsageError

SYNC_LINES: Final = 256
SYNC_SECONDS: Final = 2.0


class PrivateDataWarning(UserWarning):
    """A folder is about to hold raw private data."""


class TraceWriter:
    """The single writer of the lines of one rank; begins a trace, or continues one.

    The trace begins with rank 0, whose manifest the other ranks wait for. To continue a trace, the
    manifest must be the same except for the versions, and may omit what the run declares.

    steps: how many the rank has recorded, in this process and before.
    """

    def __init__(self, folder: Path, manifest: Manifest, rank: int = 0) -> None:
        if not 0 <= rank < manifest.ranks:
            raise UsageError(f"trace: rank {rank} of {manifest.ranks} ranks")
        self._unsynced, self._synced_at = 0, time.monotonic()
        try:
            trace = _opened(folder, manifest, rank)
            self._blobs = BlobStore(folder, rank)
        except OSError as error:
            raise NoVerdictError(f"trace: cannot write {folder}: {error.strerror}") from error
        self.manifest = trace.manifest
        self._file = ChainFile(folder / steps_name(rank), "trace")
        try:
            found = trace.end(rank)
        except TraceError:
            self._file.close()
            raise
        self._file.go_on(found.head, found.end)
        self.steps = found.steps
        cut, now = self._file.unfinished, time.time()
        self.append(Resume(now, self.steps, cut, manifest.versions) if found.lines else Start(now))

    def store(self, tensors: Mapping[str, StoredTensor]) -> Blob:
        """Write tensors to the disk, for a line to name."""
        try:
            return self._blobs.put(tensors)
        except OSError as error:
            raise NoVerdictError(
                f"trace: cannot write to {self._file.path.parent}: {error.strerror or error}; the "
                "steps recorded before are kept, and recording can continue once this is fixed"
            ) from error

    def append(self, event: Event) -> None:
        """Write the line of an event; those of steps are made durable a few at a time."""
        is_step, now = isinstance(event, Step), time.monotonic()
        is_late = self._unsynced + 1 >= SYNC_LINES or now - self._synced_at >= SYNC_SECONDS
        synced = not is_step or is_late
        self._file.append(event_members(event), synced=synced)
        self.steps += is_step
        self._unsynced = 0 if synced else self._unsynced + 1
        self._synced_at = now if synced else self._synced_at

    def close(self) -> None:
        """Record that the recording ends here, and close the file."""
        if self._file.is_open:
            self.append(Close(time.time(), self.steps))
            self._file.close()

    def abandon(self) -> None:
        """Close the file without recording an end, as an interruption would."""
        if self._file.is_open:
            self._file.sync()
            self._file.close()


def _opened(folder: Path, manifest: Manifest, rank: int) -> Trace:
    """Return the trace with its manifest, written now or before."""
    path = folder / MANIFEST
    if rank == 0 and not path.exists():
        if folder.is_dir() and any(item.name != f".{MANIFEST}" for item in folder.iterdir()):
            raise UsageError(f"trace: {folder} holds other files and no trace: name a new folder")
        data = _readable(manifest)
        make_private_folder(folder)
        replace_durably(path, folder / f".{MANIFEST}", [data])
        _warn(folder, manifest)
    awaited(path, rank, lambda: path.exists() or None)
    found, digest = read_manifest(folder)
    _require_same(path, found, manifest)
    return Trace(folder, found, digest)


def _readable(manifest: Manifest) -> bytes:
    """Return the manifest as a file, after checking that a reader accepts it."""
    data = manifest_bytes(manifest)
    try:
        manifest_in(data)
    except FormError as error:
        raise UsageError(f"trace: what is declared cannot be recorded: {error}") from error
    return data


def _require_same(path: Path, found: Manifest, given: Manifest) -> None:
    """Raise UsageError if a trace belongs to another run than the one that continues it."""
    silent = given.declaration == Declaration()
    alike = replace(
        given,
        versions=found.versions,
        declaration=found.declaration if silent else given.declaration,
    )
    if manifest_bytes(alike) != manifest_bytes(found):
        names = [
            item.name
            for item in fields(Manifest)
            if getattr(alike, item.name) != getattr(found, item.name)
        ]
        raise UsageError(
            f"trace: {path} is of another run ({', '.join(names)} differ): name a new folder"
        )


def _warn(folder: Path, manifest: Manifest) -> None:
    if manifest.redaction is None and manifest.examples_key is None:
        warnings.warn(
            f"the trace {folder} will hold raw private data: inputs, labels, gradients, weights. "
            "Keep it as safe as the data; `lipcert trace redact` makes a copy without them",
            PrivateDataWarning,
            stacklevel=5,
        )
