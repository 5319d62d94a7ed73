"""UnitResult: what one unit of work found, as a small record that merges and is written as JSON.

What enters: tallies and checks. What leaves: their JSON, and the result of many units. Invariant:
a result names its job and unit, so that doing a unit twice counts once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, final

from lipcert.audit.job import Kind
from lipcert.audit.records import CheckReport, Verdict
from lipcert.audit.tally import FAMILIES, Tallies, Tally, merged
from lipcert.errors import NoVerdictError

_SCHEMA: Final = "lipcert.audit-unit/2"


@final
@dataclass(frozen=True, slots=True)
class UnitResult:
    """What one unit found."""

    unit: int
    kind: Kind
    examples: int
    tallies: Tallies
    checks: tuple[CheckReport, ...]
    seconds: float

    def written(self, job: str) -> str:
        """As JSON, with the digest of the job."""
        return json.dumps(
            {
                "schema": _SCHEMA,
                "job": job,
                "unit": self.unit,
                "kind": self.kind.value,
                "examples": self.examples,
                "tallies": {
                    family.value: {name: tally.written() for name, tally in found.items()}
                    for family, found in self.tallies.items()
                },
                "checks": [_check(check) for check in self.checks],
                "seconds": self.seconds,
            }
        )

    @classmethod
    def read(cls, text: str, job: str, where: str) -> UnitResult:
        """From JSON; NoVerdictError where it is damaged or belongs to another job."""
        try:
            members = json.loads(text)
            if (members["schema"], members["job"]) != (_SCHEMA, job):
                raise NoVerdictError(
                    f"audit: {where} belongs to another audit (other model, data, settings or "
                    "version); use an empty folder"
                )
            return cls(
                unit=int(members["unit"]),
                kind=Kind(members["kind"]),
                examples=int(members["examples"]),
                tallies={
                    family: {
                        name: Tally.read(item)
                        for name, item in members["tallies"][family.value].items()
                    }
                    for family in FAMILIES
                },
                checks=tuple(_read_check(item) for item in members["checks"]),
                seconds=float(members["seconds"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
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
    """The sum, whatever the order of the results; a unit that occurs twice counts once."""
    known = {result.unit: result for result in results}
    ordered = [known[number] for number in sorted(known)]
    replays = [result for result in ordered if result.kind is Kind.REPLAY]
    attacks = [result for result in ordered if result.kind is Kind.ATTACK]
    return Total(
        done=tuple(sorted(known)),
        examples=sum(result.examples for result in replays),
        replayed=merged(result.tallies for result in replays),
        attacked=merged(result.tallies for result in attacks),
        checks=tuple(dict.fromkeys(check for result in ordered for check in result.checks)),
        seconds=math.fsum(result.seconds for result in ordered),
    )


def _check(check: CheckReport) -> Mapping[str, Any]:
    numbers = {name: _number(getattr(check, name)) for name in ("measured", "expected")}
    return {**asdict(check), "verdict": check.verdict.value, **numbers}


def _number(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else repr(value)


def _read_check(members: Mapping[str, Any]) -> CheckReport:
    numbers = {
        name: None if members[name] is None else float(members[name])
        for name in ("measured", "expected")
    }
    return CheckReport(**{**members, "verdict": Verdict(members["verdict"]), **numbers})
