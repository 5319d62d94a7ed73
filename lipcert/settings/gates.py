"""Gates: limits that a user sets to numbers of a report; over one, the result does not hold.

Invariant: a number that is not known never passes a gate. This module loads nothing heavy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from types import MappingProxyType
from typing import Final, final

from lipcert.settings.values import check_positive

MAX_GRAD_NORM: Final = "max-grad-norm"
MAX_SENSITIVITY: Final = "max-sensitivity"
MAX_EPSILON: Final = "max-epsilon"
MAX_SLACK: Final = "max-slack"
MAX_NOISE_TO_SIGNAL: Final = "max-noise-to-signal"

LIMITED: Final[Mapping[str, str]] = MappingProxyType(
    {
        MAX_GRAD_NORM: "the bound G of the gradient of one example",
        MAX_SENSITIVITY: "the sensitivity Δ of a release",
        MAX_EPSILON: "the ε of the run",
        MAX_SLACK: "the slack, G over the largest observed gradient norm of one example,",
        MAX_NOISE_TO_SIGNAL: "the noise of one release over the norm of the mean gradient",
    }
)
"""what each gate limits, as the subject of a sentence; a key is the name of an option"""
NO_BOUND: Final = "not every group has a bound"
NO_RUN: Final = "no run is described; give --dataset-size, --sampling, --steps or --epochs, --delta"
NOT_STATED: Final = "the certificate does not state it"
NOT_PROVED: Final = "the checker did not prove what the certificate claims"
NO_EPSILON: Final = "the run has no finite ε"
"""why numbers are not known, alike in every verb"""
OF_ANALYSES: Final = tuple(LIMITED)
OF_CERTIFICATES: Final = (MAX_GRAD_NORM, MAX_SENSITIVITY, MAX_EPSILON)
"""those of numbers that a certificate states"""
OF_AUDITS: Final = (*OF_CERTIFICATES, MAX_SLACK)


class GateOutcome(Enum):
    """What became of one gate."""

    HOLDS = "holds"
    EXCEEDED = "exceeded"
    UNKNOWN = "unknown"
    """the number is not known, which does not pass"""


@final
@dataclass(frozen=True, slots=True)
class GateResult:
    """One limit and the number that it limits.

    gate: a key of `LIMITED`. found: None where it is not known, and `reason` says why then.
    """

    gate: str
    limit: float
    found: float | None
    reason: str = ""

    @property
    def outcome(self) -> GateOutcome:
        """Whether the number is within the limit."""
        if self.found is None or math.isnan(self.found):
            return GateOutcome.UNKNOWN
        return GateOutcome.EXCEEDED if self.found > self.limit else GateOutcome.HOLDS


@final
@dataclass(frozen=True, slots=True)
class Gates:
    """The limits that were set, each positive and finite; None: none was."""

    max_grad_norm: float | None = None
    max_sensitivity: float | None = None
    max_epsilon: float | None = None
    max_slack: float | None = None
    max_noise_to_signal: float | None = None

    def __post_init__(self) -> None:
        for name, limit in self.limits.items():
            check_positive(name, limit)

    @property
    def limits(self) -> Mapping[str, float]:
        """The limits that are set, by the names of their options."""
        given = {item.name.replace("_", "-"): getattr(self, item.name) for item in fields(self)}
        return {name: limit for name, limit in given.items() if limit is not None}

    def judged(self, found: Mapping[str, float | str]) -> tuple[GateResult, ...]:
        """Judge each gate that is set by its number in `found`, or by why there is none."""
        return tuple(
            GateResult(name, limit, None, item)
            if isinstance(item := found[name], str)
            else GateResult(name, limit, item)
            for name, limit in self.limits.items()
        )


NO_GATES: Final = Gates()


def worst_of(results: Iterable[GateResult]) -> GateOutcome:
    """EXCEEDED if any gate is, else UNKNOWN if any is, else HOLDS."""
    outcomes = {result.outcome for result in results}
    order = (GateOutcome.EXCEEDED, GateOutcome.UNKNOWN)
    return next((outcome for outcome in order if outcome in outcomes), GateOutcome.HOLDS)
