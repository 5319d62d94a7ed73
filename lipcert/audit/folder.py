"""A folder of results: what an audit has done so far, for it to go on from and to merge.

    job.json            what is to be done
    results/<unit>.json what was found

What enters: a job and results of units. What leaves: the same results. Invariants: a file appears
under its name complete or not at all, and stays, so that any number of processes may write into a
folder, and each may end at any time; a result is that of the unit that its name says, of this job,
as it was written, or the folder is refused.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from lipcert.audit.job import Job, Unit
from lipcert.audit.seal import read_text
from lipcert.audit.unit_result import UnitResult
from lipcert.errors import NoVerdictError

_STAMP: Final = "job.json"


@final
@dataclass(frozen=True, slots=True)
class ResultFolder:
    """Results of one job. digest: of the job and its inputs."""

    path: Path
    digest: str

    @classmethod
    def opened(cls, path: Path, job: Job, digest: str) -> ResultFolder:
        """The folder, made where it does not exist. NoVerdictError where it holds another audit."""
        try:
            (path / "results").mkdir(exist_ok=True, parents=True)
            stamp = path / _STAMP
            text = job.written() + "\n"
            if not os.path.lexists(stamp):
                _place(stamp, text)
            found = read_text(stamp)
        except (OSError, ValueError) as error:
            raise NoVerdictError(f"audit: cannot use the folder {path}: {error}") from error
        if found != text:
            raise NoVerdictError(
                f"audit: {path} holds another audit (other model, data, settings or version), or "
                "its description was changed; use an empty folder"
            )
        return cls(path, digest)

    @staticmethod
    def job_in(path: Path) -> Job:
        """The job that a folder is about."""
        try:
            text = read_text(path / _STAMP)
        except (OSError, ValueError) as error:
            raise NoVerdictError(
                f"audit: {path} is no folder of results: {error}; give the one that was passed to "
                "--results"
            ) from error
        return Job.read(text.removesuffix("\n"), str(path / _STAMP))

    def kept(self, units: Sequence[Unit]) -> Iterator[UnitResult]:
        """Every result there is, one at a time; units: of the job. Names that begin with a dot, of
        files that somebody is writing, are passed over.

        NoVerdictError where something is no result of one of the units, as it was written.
        """
        named = {f"{unit.number}.json": unit for unit in units}
        try:
            found = {path.name: path for path in (self.path / "results").iterdir()}
        except OSError as error:
            raise NoVerdictError(f"audit: cannot read {self.path}: {error}") from error
        for name in sorted(found, key=lambda name: (len(name), name)):
            if name.startswith("."):
                continue
            if name not in named:
                raise NoVerdictError(
                    f"audit: {str(found[name])!a} is no result of this audit, whose {len(units)} "
                    "units are numbered from 0 on; move it out of the folder"
                )
            try:
                yield UnitResult.read(read_text(found[name]), self.digest, named[name])
            except (OSError, ValueError) as error:
                raise NoVerdictError(
                    f"audit: {found[name]} is not what unit {named[name].number} found: {error}; "
                    "delete it and do the unit again, by the same command with --results"
                ) from error

    def keep(self, result: UnitResult) -> None:
        """Write a result; once more is harmless."""
        _place(self.path / "results" / f"{result.unit.number}.json", result.written(self.digest))


def _place(path: Path, text: str) -> None:
    """Write a file that appears complete or not at all, and survives a crash."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).replace(path)
    except OSError as error:
        raise NoVerdictError(f"audit: cannot write {path}: {error.strerror or error}") from error
