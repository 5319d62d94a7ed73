"""UnitResult: what one unit of work found, as a small record that merges and is written as JSON.

What enters: tallies and checks. What leaves: their JSON, and the result of many units. Invariant:
a result names its job and unit, so that doing a unit twice counts once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final, final

from lipcert.audit.job import Kind
from lipcert.audit.records import CheckReport, ExampleReference
from lipcert.audit.tally import FAMILIES, Tallies, merged
from lipcert.core.codec import Codec, CodecError, Form, Limit
from lipcert.errors import NoVerdictError

_SCHEMA: Final = "lipcert.audit-unit/3"
_EveryFamily = Annotated[Tallies, Limit("of every family", lambda found: {*found} == {*FAMILIES})]


@final
@dataclass(frozen=True, slots=True)
class UnitResult:
    """What one unit found."""

    unit: int
    kind: Kind
    examples: int
    tallies: _EveryFamily
    checks: tuple[CheckReport, ...]
    seconds: float

    def written(self, job: str) -> str:
        """As JSON, with the digest of the job."""
        return json.dumps({"schema": _SCHEMA, "job": job, **UNITS.write(self)})

    @classmethod
    def read(cls, text: str, job: str, where: str) -> UnitResult:
        """From JSON; NoVerdictError where it is damaged or belongs to another job."""
        try:
            members = json.loads(text)
            if (members.pop("schema"), members.pop("job")) != (_SCHEMA, job):
                raise NoVerdictError(
                    f"audit: {where} belongs to another audit (other model, data, settings or "
                    "version); use an empty folder"
                )
            return UNITS.read(cls, members, "unit")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise NoVerdictError(
                f"audit: {where} is damaged ({error}); delete it, and its unit is done again"
            ) from error


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
        if result.unit in seconds:
            continue
        seconds[result.unit], checks[result.unit] = result.seconds, result.checks
        examples += result.examples if result.kind is Kind.REPLAY else 0
        tallies[result.kind] = merged((tallies[result.kind], result.tallies))
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
    return value if math.isfinite(value) else repr(value)


def _number(value: object) -> float:
    """As it is spelled: a number that is not finite is a word."""
    if value in _WORDS or type(value) in {int, float}:
        return float(value)  # type: ignore[arg-type]
    raise CodecError("is not a number")


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
