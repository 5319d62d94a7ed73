"""Writing a trace: tensors first, then the line that names them, and never half a line.

At any moment, whatever interrupts the writer, the folder is one that `reading` accepts. Invariant:
when a line is in the file, the tensors that it names are on the disk. A line is handed to the
operating system before `append` returns, so that a killed process loses nothing of it; a power
failure loses at most what was written in the last seconds (`SYNC_SECONDS`) or lines (`SYNC_LINES`).
"""

import fcntl
import os
import time
import warnings
import weakref
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Final

from lipcert.audit.trace.blobs import Blob, BlobStore, StoredTensor
from lipcert.audit.trace.files import (
    FILE_MODE,
    MANIFEST,
    awaited,
    make_private_folder,
    replace_durably,
    steps_name,
    sync_folder,
)
from lipcert.audit.trace.reading import (
    Trace,
    event_members,
    manifest_bytes,
    manifest_in,
    read_manifest,
)
from lipcert.audit.trace.records import Close, Declaration, Event, Manifest, Resume, Start, Step
from lipcert.audit.trace.spelling import MAX_LINE, FormError, TraceError, sealed
from lipcert.errors import NoVerdictError, UsageError

SYNC_LINES: Final = 256
SYNC_SECONDS: Final = 2.0


class PrivateDataWarning(UserWarning):
    """A folder is about to hold raw private data."""


class TraceWriter:
    """The single writer of the lines of one rank; begins a trace, or continues one.

    The trace begins with rank 0, whose manifest the other ranks wait for. To continue a trace, the
    manifest must be the same except for the versions, and may omit what the run declares. The
    kernel holds the lock until the process ends. Worker processes would inherit it and outlive a
    parent that is killed, so they close the file as they begin.
    """

    def __init__(self, folder: Path, manifest: Manifest, rank: int = 0) -> None:
        if not 0 <= rank < manifest.ranks:
            raise UsageError(f"trace: rank {rank} of {manifest.ranks} ranks")
        self.manifest = manifest
        self._path = folder / steps_name(rank)
        self._head, self._end, self._steps = "", 0, 0
        self._unsynced = 0
        self._synced_at = time.monotonic()
        try:
            trace = _opened(folder, manifest, rank)
            self.manifest = trace.manifest
            self._blobs = BlobStore(folder, rank)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, FILE_MODE)
            os.register_at_fork(after_in_child=partial(_close_in_child, weakref.ref(self)))
            self._go_on(trace, manifest, rank)
            sync_folder(folder)
        except OSError as error:
            raise NoVerdictError(f"trace: cannot write {folder}: {error.strerror}") from error

    @property
    def steps(self) -> int:
        """How many steps the rank has recorded, in this process and before."""
        return self._steps

    def store(self, tensors: Mapping[str, StoredTensor]) -> Blob:
        """Write tensors to the disk, for a line to name."""
        self._require_open()
        try:
            return self._blobs.put(tensors)
        except OSError as error:
            raise self._failed(error) from error

    def append(self, event: Event) -> None:
        """Write the line of an event."""
        self._require_open()
        line, digest = sealed(event_members(event), self._head)
        if len(line) > MAX_LINE:
            raise UsageError(f"trace: a step of {len(line)} bytes is longer than {MAX_LINE}")
        try:
            _write(self._file, line, self._end)
        except OSError as error:
            os.ftruncate(self._file, self._end)
            raise self._failed(error) from error
        self._head = digest
        self._end += len(line)
        self._steps += isinstance(event, Step)
        self._unsynced += 1
        self._sync(always=not isinstance(event, Step))

    def close(self) -> None:
        """Record that the recording ends here, and close the file."""
        if self._file >= 0:
            self.append(Close(time.time(), self._steps))
            self.abandon()

    def abandon(self) -> None:
        """Close the file without recording an end, as an interruption would."""
        if self._file >= 0:
            os.fsync(self._file)
            self.forget()

    def forget(self) -> None:
        """Close the file in this process; its content is as durable as before."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _go_on(self, trace: Trace, manifest: Manifest, rank: int) -> None:
        """Find the end of the chain, cut an unfinished line behind it, and record that."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.forget()
            raise UsageError(f"trace: {self._path} is being recorded by another process") from error
        try:
            found = trace.end(rank)
        except TraceError:
            self.forget()
            raise
        self._head, self._end, self._steps = found.head, found.end, found.steps
        cut = os.fstat(self._file).st_size - self._end
        os.ftruncate(self._file, self._end)
        now = time.time()
        begun = self._end > 0
        self.append(Resume(now, self._steps, cut, manifest.versions) if begun else Start(now))

    def _require_open(self) -> None:
        if self._file < 0:
            raise UsageError(f"trace: {self._path} was closed, or is held by the parent process")

    def _sync(self, always: bool) -> None:
        now = time.monotonic()
        if always or self._unsynced >= SYNC_LINES or now - self._synced_at >= SYNC_SECONDS:
            os.fsync(self._file)
            self._unsynced = 0
            self._synced_at = now

    def _failed(self, error: OSError) -> NoVerdictError:
        return NoVerdictError(
            f"trace: cannot write to {self._path.parent}: {error.strerror or error}; the steps "
            "recorded before are kept, and recording can continue there once this is fixed"
        )


def _close_in_child(reference: weakref.ref[TraceWriter]) -> None:
    writer = reference()
    if writer is not None:
        writer.forget()


def _write(file: int, line: bytes, place: int) -> None:
    """Write all of a line at its place."""
    rest = memoryview(line)
    while rest:
        written = os.pwrite(file, rest, place)
        rest, place = rest[written:], place + written


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
