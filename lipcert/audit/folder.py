"""A folder of results: what an audit has done so far, for it to go on from and to merge.

    job.json            what is to be done
    results/<unit>.json what was found

What enters: a job and results of units. What leaves: the same results. Invariant: a file appears
under its name complete or not at all, and stays, so that any number of processes may write into a
folder, and each may end at any time.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from lipcert.audit.job import Job
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
                f"audit: {path} is no folder of results: {error}; give the one that was passed to "
                "--results"
            ) from error
        return Job.read(text, str(path / _STAMP))

    def kept(self) -> Iterator[UnitResult]:
        """Every result there is, one at a time."""
        for path in sorted((self.path / "results").glob("*.json")):
            yield UnitResult.read(path.read_text(encoding="utf-8"), self.digest, str(path))

    def keep(self, result: UnitResult) -> None:
        """Write a result; once more is harmless."""
        _place(self.path / "results" / f"{result.unit}.json", result.written(self.digest))


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
