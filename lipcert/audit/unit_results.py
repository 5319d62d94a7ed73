"""Results of units: what each unit of work found, added up, and kept in a folder.

    job.json            what is to be done
    results/<unit>.json what was found

Each file is one line that holds a digest of itself (see `trace.files`); a result also holds the
digest of its job and inputs. Invariants: a file appears under its name complete or not at all, and
stays, so that any number of processes may write into a folder, and each may end at any time; a
result is that of the unit in its name, of this job, unchanged, or the folder is refused; a unit
that is done twice counts once.

A tally counts norms and decisions of one bounded quantity; findings hold all tallies, and checks.
Merging is associative and, except for the order of checks, does not depend on the order, so that
units of work may be done anywhere and in any order. This module loads nothing heavy.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import numpy.typing as npt

from lipcert.audit.job import Job, Kind, Unit
from lipcert.audit.records import (
    BINS_PER_OCTAVE,
    HIGHEST_BIN,
    LOWEST_BIN,
    CheckReport,
    ExampleReference,
)
from lipcert.audit.trace.files import FORMS, open_regular, sealed, unsealed
from lipcert.core.codec import Limit
from lipcert.core.program import FloatArray
from lipcert.errors import NoVerdictError
from lipcert.measure.measured import Decision
from lipcert.process.files import write_whole
from lipcert.text.codec import Codec

_SCHEMA: Final = "lipcert.audit-unit/6"
_STAMP: Final = "job.json"
_MOST_BYTES: Final = 1 << 28


Places = npt.NDArray[np.int64]
"""Indices of examples in the data."""


class Family(Enum):
    """A kind of bounded quantity: the joint gradient of a group, a value, or a value's cotangent.

    WHOLE, the gradient of all groups together under the single name `ALL`, is measured and not
    judged: its bound follows from those of the groups.
    """

    GRADIENT = "grad_norm"
    WHOLE = "whole_grad_norm"
    VALUE = "output_norm"
    COTANGENT = "cotangent_norm"


FAMILIES: Final = tuple(Family)
ALL: Final = "all"
_PARTS: Final = 64
_OCTAVES: Final = 1100
"""More octaves than float64 has on either side of 1."""


@dataclass(frozen=True, slots=True)
class Tally:
    """One bounded quantity over some examples.

    max_observed, worst: of the example that comes closest to its bound; inf if a norm is not
    finite. bound: the bound of that example, which other examples need not share; None if it has
    none. sizes: for the whole gradient, how many norms lie in [2^(k/64), 2^((k+1)/64)), by k.
    """

    examples: int = 0
    max_observed: float = 0.0
    bound: float | None = None
    worst: ExampleReference | None = None
    violations: int = 0
    undecided: int = 0
    recomputed: int = 0
    counts: Mapping[int, int] = field(default_factory=dict)
    sizes: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        norms: FloatArray,
        bound: float | None,
        decision: Decision | None,
        *,
        weights: str,
        places: Places,
        where: npt.NDArray[np.bool_] | None = None,
        is_again: bool = False,
        sized: bool = False,
    ) -> Tally:
        """Return the tally of the examples at these places of the data, at the named weights.

        where: which of them count; None: all. is_again: whether these norms were recomputed.
        """
        some = np.flatnonzero(np.ones(len(norms), dtype=np.bool_) if where is None else where)
        if not some.size:
            return cls()
        norms, places = norms[some], places[some]
        known = np.where(np.isfinite(norms), norms, math.inf)
        worst = int(np.argmax(known))
        return cls(
            examples=norms.size,
            max_observed=float(known[worst]),
            bound=bound,
            worst=ExampleReference(weights, int(places[worst])),
            violations=0 if decision is None else int(np.sum(decision.violating[some])),
            undecided=0 if decision is None else int(np.sum(decision.undecided[some])),
            recomputed=norms.size if is_again else 0,
            counts=_binned(known / bound, BINS_PER_OCTAVE, LOWEST_BIN, HIGHEST_BIN)
            if bound
            else {},
            sizes=_binned(known, _PARTS, -_PARTS * _OCTAVES, _PARTS * _OCTAVES) if sized else {},
        )

    def merged(self, other: Tally) -> Tally:
        """Return the tally of both; of two equally close examples, the first one is named."""
        ranked = [t for t in (self, other) if t.worst is not None]
        top = min(ranked, key=lambda t: (-t.share, -t.max_observed, t.worst), default=self)
        return Tally(
            examples=self.examples + other.examples,
            max_observed=top.max_observed,
            bound=top.bound,
            worst=top.worst,
            violations=self.violations + other.violations,
            undecided=self.undecided + other.undecided,
            recomputed=self.recomputed + other.recomputed,
            counts=_added(self.counts, other.counts),
            sizes=_added(self.sizes, other.sizes),
        )

    @property
    def share(self) -> float:
        """The largest observed norm over its bound; inf if there is no bound."""
        if self.bound:
            return self.max_observed / self.bound
        return 0.0 if self.bound == self.max_observed else math.inf

    @property
    def median(self) -> float | None:
        """The median of the norms in `sizes`, rounded down by at most 1.1 %.

        inf if half of them are not finite; None if there are none.
        """
        before, half = 0, (sum(self.sizes.values()) + 1) // 2
        for place in sorted(self.sizes):
            before += self.sizes[place]
            if before >= half:
                lost = abs(place) >= _PARTS * _OCTAVES
                return (math.inf if place > 0 else 0.0) if lost else float(2.0 ** (place / _PARTS))
        return None


Tallies = Mapping[Family, Mapping[str, Tally]]
"""By family and by the name of the group or value."""
_EveryFamily = Annotated[Tallies, Limit("of every family", lambda found: {*found} == {*FAMILIES})]


@dataclass(frozen=True, slots=True)
class Findings:
    """Results for some examples: tallies and reports of checks."""

    examples: int = 0
    tallies: _EveryFamily = field(default_factory=lambda: {family: {} for family in FAMILIES})
    checks: tuple[CheckReport, ...] = ()

    @classmethod
    def all(cls, parts: Iterable[Findings]) -> Findings:
        """Merge the findings of all parts."""
        total = cls()
        for part in parts:
            tallies = {
                family: {
                    name: total.of(family, name).merged(part.of(family, name))
                    for name in {**total.tallies[family], **part.tallies[family]}
                }
                for family in FAMILIES
            }
            checks = (*total.checks, *part.checks)
            total = cls(total.examples + part.examples, tallies, checks)
        return total

    def of(self, family: Family, name: str) -> Tally:
        """Return the tally of one quantity; an empty one if nothing was measured."""
        return self.tallies[family].get(name, Tally())


def _binned(numbers: FloatArray, parts: int, lowest: int, highest: int) -> Mapping[int, int]:
    """Count the numbers in each bin, with this many bins to an octave."""
    with np.errstate(divide="ignore"):
        octaves = np.log2(numbers)
    places = np.clip(np.floor(parts * octaves), lowest, highest).astype(int)
    found, counts = np.unique(places, return_counts=True)
    return {int(place): int(count) for place, count in zip(found, counts, strict=True)}


def _added(one: Mapping[int, int], other: Mapping[int, int]) -> Mapping[int, int]:
    """Add counts, and return them in order."""
    places = sorted({*one, *other})
    return {place: one.get(place, 0) + other.get(place, 0) for place in places}


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


UNITS: Final = Codec(ValueError, FORMS, nulls=True, longest=1 << 24)
"""Reads and writes findings in a result."""
