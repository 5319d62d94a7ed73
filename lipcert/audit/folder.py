"""A folder of work: units that are leased, done and merged by any number of processes.

    job.json            what is to be done
    leases/<unit>       who is doing it, since when
    results/<unit>.json what was found

What enters: a job. What leaves: results. There is no server and no message: everything is a file
that appears under its name complete or not at all. Invariant: a result stays; a worker that dies
loses only the unit in its hands, whose lease others take over when it has expired.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from lipcert.audit.job import Job, Unit
from lipcert.audit.unit_result import UnitResult
from lipcert.errors import NoVerdictError

_STAMP: Final = "job.json"
_LEASE_SECONDS: Final = 600.0
_POLL_SECONDS: Final = 0.2


@final
@dataclass(frozen=True, slots=True)
class WorkFolder:
    """A folder of work. digest: of the job and its inputs."""

    path: Path
    digest: str

    @classmethod
    def opened(cls, path: Path, job: Job, digest: str) -> WorkFolder:
        """The folder, made where it does not exist. NoVerdictError where it holds other work."""
        try:
            for folder in (path, path / "leases", path / "results"):
                folder.mkdir(exist_ok=True, parents=True)
            stamp = path / _STAMP
            text = job.written() + "\n"
            if not stamp.exists():
                _place(stamp, text)
            if stamp.read_text(encoding="utf-8") != text:
                raise NoVerdictError(
                    f"audit: {path} holds another audit (other model, data, settings or version); "
                    "use an empty folder"
                )
        except OSError as error:
            raise NoVerdictError(f"audit: cannot use the folder {path}: {error}") from error
        return cls(path, digest)

    @staticmethod
    def job_in(path: Path) -> Job:
        """The job that a folder is about."""
        try:
            text = (path / _STAMP).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise NoVerdictError(
                f"audit: {path} is no folder of work: {error}; give the one that was passed to "
                "--work"
            ) from error
        return Job.read(text, str(path / _STAMP))

    def claimed(self, units: tuple[Unit, ...], first: int = 0) -> Iterator[Unit]:
        """Units that nobody else is doing, one at a time, until every unit has a result.

        first: where to begin looking, so that workers do not all ask for the same unit. Waits for
        units in the hands of others, and takes over those of the dead.
        """
        shift = first % max(1, len(units))
        waiting = [*units[shift:], *units[:shift]]
        while waiting:
            waiting = [unit for unit in waiting if not self._result(unit).exists()]
            mine = next((unit for unit in waiting if self._leased(unit)), None)
            if mine is not None:
                yield mine
            elif waiting:
                time.sleep(_POLL_SECONDS)
        self._tidy()

    def keep(self, unit: Unit, result: UnitResult) -> None:
        """Write a result and give the lease back."""
        _place(self._result(unit), result.written(self.digest))
        self._lease(unit).unlink(missing_ok=True)

    def results(self) -> list[UnitResult]:
        """Every result there is."""
        found = []
        for path in sorted((self.path / "results").glob("*.json")):
            found.append(UnitResult.read(path.read_text(encoding="utf-8"), self.digest, str(path)))
        return found

    def _leased(self, unit: Unit) -> bool:
        """Take the lease of a unit if it is free, expired, or of a dead process of this machine."""
        lease = self._lease(unit)
        offer = _written(lease, f"{socket.gethostname()} {os.getpid()}")
        try:
            os.link(offer, lease)
        except FileExistsError:
            return _is_abandoned(lease) and self._taken_over(lease)
        finally:
            offer.unlink()
        if self._result(unit).exists():  # somebody finished it a moment ago
            lease.unlink(missing_ok=True)
            return False
        return True

    @staticmethod
    def _taken_over(lease: Path) -> bool:
        """Remove an abandoned lease; the next attempt may get it. One process wins the rename."""
        grave = lease.with_name(f".{lease.name}.{os.getpid()}.{time.monotonic_ns()}")
        try:
            lease.rename(grave)
        except FileNotFoundError:
            return False
        grave.unlink(missing_ok=True)
        return False

    def _tidy(self) -> None:
        """Once every unit is done, remove leases whose holders died before they gave them back."""
        for lease in (self.path / "leases").glob("[0-9]*"):
            if _is_abandoned(lease):
                lease.unlink(missing_ok=True)

    def _lease(self, unit: Unit) -> Path:
        return self.path / "leases" / str(unit.number)

    def _result(self, unit: Unit) -> Path:
        return self.path / "results" / f"{unit.number}.json"


def _is_abandoned(lease: Path) -> bool:
    """Whether the holder is dead, where that can be seen, or has held it for very long."""
    try:
        age = time.time() - lease.stat().st_mtime
        host, _, pid = lease.read_text(encoding="utf-8").partition(" ")
    except OSError:
        return False
    if age > _LEASE_SECONDS:
        return True
    if host != socket.gethostname() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _place(path: Path, text: str) -> None:
    """Write a file that appears complete or not at all, and survives a crash."""
    _written(path, text).replace(path)


def _written(path: Path, text: str) -> Path:
    """A durable temporary file beside a path."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    return Path(name)
