"""UnitResult: what one unit of work found, as a small record that merges and is written as JSON.

What enters: tallies and checks. What leaves: their JSON, and the result of many units. Invariant:
a result names its job and unit, all of it sealed, so that nothing but the result of that very unit
is read as one, and doing a unit twice counts once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final, final

from lipcert.audit.job import Kind, Unit
from lipcert.audit.records import CheckReport, ExampleReference
from lipcert.audit.seal import sealed, unsealed
from lipcert.audit.tally import FAMILIES, Tallies, merged
from lipcert.core.codec import DECIMAL, Codec, CodecError, Form, Limit

_SCHEMA: Final = "lipcert.audit-unit/4"
_EveryFamily = Annotated[Tallies, Limit("of every family", lambda found: {*found} == {*FAMILIES})]


@final
@dataclass(frozen=True, slots=True)
class UnitResult:
    """What one unit found."""

    unit: Unit
    examples: int
    tallies: _EveryFamily
    checks: tuple[CheckReport, ...]
    seconds: float

    def written(self, job: str) -> str:
        """As sealed JSON, with the digest of the job."""
        return sealed({"schema": _SCHEMA, "job": job, **UNITS.write(self)})

    @classmethod
    def read(cls, text: str, job: str, unit: Unit) -> UnitResult:
        """The result of this unit of this job, from JSON; ValueError for anything else."""
        members = unsealed(text)
        found = members.pop("schema", None), members.pop("job", None)
        if found != (_SCHEMA, job):
            raise ValueError("it belongs to another audit (other model, data, settings or version)")
        result = UNITS.read(cls, members, "unit")
        if result.unit != unit:
            raise ValueError(f"it is the result of {result.unit}")
        if unit.stop is not None and unit.kind is Kind.REPLAY:
            wanted = unit.stop - unit.start
            if result.examples > wanted:
                raise ValueError(f"it counts {result.examples} examples of {wanted}")
        return result


@final
@dataclass(frozen=True, slots=True)
class Total:
    """The sum of units, replayed and attacked examples apart. done: the numbers of the units."""

    done: tuple[int, ...]
    examples: int
    replayed: Tallies
    attacked: Tallies
    checks: tuple[CheckReport, ...]
    seconds: float


def total_of(results: Iterable[UnitResult]) -> Total:
    """The sum, whatever the order of the results; a unit that occurs twice counts once.

    Results are added up as they come, and not held.
    """
    tallies = dict.fromkeys(Kind, merged(()))
    seconds: dict[int, float] = {}
    checks: dict[int, tuple[CheckReport, ...]] = {}
    examples = 0
    for result in results:
        number, kind = result.unit.number, result.unit.kind
        if number in seconds:
            continue
        seconds[number], checks[number] = result.seconds, result.checks
        examples += result.examples if kind is Kind.REPLAY else 0
        tallies[kind] = merged((tallies[kind], result.tallies))
    ordered = sorted(seconds)
    return Total(
        done=tuple(ordered),
        examples=examples,
        replayed=tallies[Kind.REPLAY],
        attacked=tallies[Kind.ATTACK],
        checks=tuple(dict.fromkeys(check for unit in ordered for check in checks[unit])),
        seconds=math.fsum(seconds.values()),
    )


def _spelled(value: float) -> float | str:
    return float(value) if math.isfinite(value) else repr(value)


def _number(value: object) -> float:
    """As it is spelled: a number that is not finite is a word."""
    return float(value) if type(value) is str and value in _WORDS else DECIMAL.read(value)


def _place(example: ExampleReference) -> tuple[str, int]:
    return example.weights, example.index


_WORDS: Final = ("nan", "inf", "-inf")
_PLAIN: Final = Codec(CodecError, {})
_PAIR: Final = _PLAIN.form(tuple[str, int])
UNITS: Final = Codec(
    ValueError,
    {
        float: Form(_spelled, _number),
        ExampleReference: Form(_place, lambda value: ExampleReference(*_PAIR.read(value))),
    },
    nulls=True,
    longest=1 << 24,
)
"""how tallies and checks stand in a result"""
