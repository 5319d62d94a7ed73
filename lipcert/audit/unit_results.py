"""Results of units: what each unit of work found, added up, and kept in a folder.

    job.json            what is to be done
    results/<unit>.json what was found

Each file is one line that holds a digest of itself (see `trace.spelling`); a result also holds the
digest of its job and inputs. Invariants: a file appears under its name complete or not at all, and
stays, so that any number of processes may write into a folder, and each may end at any time; a
result is that of the unit in its name, of this job, unchanged, or the folder is refused; a unit
that is done twice counts once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from lipcert.audit.job import Job, Kind, Unit
from lipcert.audit.records import CheckReport, ExampleReference
from lipcert.audit.tally import Findings
from lipcert.audit.trace.files import open_regular
from lipcert.audit.trace.spelling import FORMS, sealed, unsealed
from lipcert.core.codec import CodecError
from lipcert.errors import NoVerdictError
from lipcert.process.files import write_whole
from lipcert.text.codec import Codec, Form

_SCHEMA: Final = "lipcert.audit-unit/5"
_STAMP: Final = "job.json"
_MOST_BYTES: Final = 1 << 28


@dataclass(frozen=True, slots=True)
class UnitResult:
    """The findings of one unit of work."""

    unit: Unit
    found: Findings

    def written(self, job: str) -> bytes:
        """Return the result as a sealed line that follows the digest of the job."""
        line, _ = sealed({"schema": _SCHEMA, **UNITS.write(self)}, job)
        return line

    @classmethod
    def read(cls, line: bytes, job: str, unit: Unit) -> UnitResult:
        """Return the result of this unit of this job; raise ValueError for anything else."""
        members, _ = unsealed(line)
        if (members.pop("schema", None), members.pop("prev", None)) != (_SCHEMA, job):
            raise ValueError("it belongs to another audit (other model, data, settings or version)")
        result = UNITS.read(cls, members, "unit")
        if result.unit != unit:
            raise ValueError(f"it is the result of {result.unit}")
        if unit.stop is not None and unit.kind is Kind.REPLAY:
            wanted, examples = unit.stop - unit.start, result.found.examples
            if examples > wanted:
                raise ValueError(f"it counts {examples} examples of {wanted}")
        return result


@dataclass(frozen=True, slots=True)
class Total:
    """The findings of all units, separately for replayed and attacked examples.

    done: numbers of the units that were done.
    """

    done: tuple[int, ...]
    replayed: Findings
    attacked: Findings
    checks: tuple[CheckReport, ...]

    @property
    def parts(self) -> tuple[Findings, Findings]:
        """The findings of replayed and of attacked examples."""
        return self.replayed, self.attacked


def total_of(results: Iterable[UnitResult]) -> Total:
    """Return the sum, in any order of the results; a unit that occurs twice counts once.

    Results are added up as they arrive, and not held.
    """
    parts = dict.fromkeys(Kind, Findings())
    checks: dict[int, tuple[CheckReport, ...]] = {}
    for result in results:
        number, kind = result.unit.number, result.unit.kind
        if number not in checks:
            checks[number] = result.found.checks
            parts[kind] = Findings.all((parts[kind], replace(result.found, checks=())))
    done = tuple(sorted(checks))
    each = dict.fromkeys(check for number in done for check in checks[number])
    return Total(done, parts[Kind.REPLAY], parts[Kind.ATTACK], tuple(each))


@dataclass(frozen=True, slots=True)
class ResultFolder:
    """The results of one job.

    digest: of the job and its inputs.
    """

    path: Path
    digest: str

    @classmethod
    def opened(cls, path: Path, job: Job, digest: str) -> ResultFolder:
        """Open the folder, or create it; raise NoVerdictError if it holds another audit."""
        try:
            (path / "results").mkdir(exist_ok=True, parents=True)
            stamp = path / _STAMP
            line = job.written()
            if not os.path.lexists(stamp):
                _place(stamp, line)
            found = _content(stamp)
        except (OSError, ValueError) as error:
            raise NoVerdictError(f"audit: cannot use the folder {path}: {error}") from error
        if found != line:
            raise NoVerdictError(
                f"audit: {path} holds another audit (other model, data, settings or version), or "
                "its description was changed; use an empty folder"
            )
        return cls(path, digest)

    @staticmethod
    def job_in(path: Path) -> Job:
        """Return the job of a folder."""
        try:
            line = _content(path / _STAMP)
        except (OSError, ValueError) as error:
            raise NoVerdictError(
                f"audit: {path} is not a folder of results: {error}; give the one passed to "
                "--results"
            ) from error
        return Job.read(line, str(path / _STAMP))

    def kept(self, units: Sequence[Unit]) -> Iterator[UnitResult]:
        """Yield every result in the folder, one at a time.

        Names that begin with a dot, of files that are being written, are skipped.

        Args:
            units: of the job.

        Raises:
            NoVerdictError: if something is not the unchanged result of one of the units.
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
                    f"audit: {str(found[name])!a} is not a result of this audit, whose "
                    f"{len(units)} units are numbered from 0; move it out of the folder"
                )
            try:
                yield UnitResult.read(_content(found[name]), self.digest, named[name])
            except (OSError, ValueError) as error:
                raise NoVerdictError(
                    f"audit: {found[name]} is not what unit {named[name].number} found: {error}; "
                    "delete it and do the unit again, by the same command with --results"
                ) from error

    def keep(self, result: UnitResult) -> None:
        """Write a result; writing it again does no harm."""
        _place(self.path / "results" / f"{result.unit.number}.json", result.written(self.digest))


def _content(path: Path) -> bytes:
    """Return the bytes of a regular file of reasonable size; raise OSError or ValueError
    otherwise."""
    if path.is_symlink():
        raise ValueError("it is a link; put the file itself there")
    with open_regular(path) as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"it is longer than {_MOST_BYTES} bytes")
    return data


def _place(path: Path, line: bytes) -> None:
    """Write a file that appears complete or not at all, and survives a crash."""
    try:
        write_whole(path, line, private=True)
    except OSError as error:
        raise NoVerdictError(f"audit: cannot write {path}: {error.strerror or error}") from error


_PLAIN: Final = Codec(CodecError, {})
_PAIR: Final = _PLAIN.reader(tuple[str, int])
UNITS: Final = Codec(
    ValueError,
    {
        **FORMS,
        ExampleReference: Form(
            lambda example: (example.weights, example.index),
            lambda value: ExampleReference(*_PAIR(value)),
        ),
    },
    nulls=True,
    longest=1 << 24,
)
"""Reads and writes findings in a result."""
