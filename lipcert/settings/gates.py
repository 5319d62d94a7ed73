"""Gates: limits that a user sets to numbers of a report; above one, the result does not hold.

Invariant: an unknown number never passes a gate. This module loads nothing heavy.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

from lipcert.settings.values import check_positive

NO_BOUND: Final = "not every group has a bound"
NO_RUN: Final = "no run is described; give --dataset-size, --sampling, --steps or --epochs, --delta"
NOT_STATED: Final = "the certificate does not state it"
NOT_PROVED: Final = "the checker did not prove what the certificate claims"
NO_EPSILON: Final = "the run has no finite ε"
"""Why numbers are unknown; the same texts in every verb."""


class GateOutcome(Enum):
    """The result of one gate."""

    HOLDS = "holds"
    EXCEEDED = "exceeded"
    UNKNOWN = "unknown"
    """The number is unknown, which does not pass."""


@dataclass(frozen=True, slots=True)
class GateResult:
    """One limit and the number that it limits.

    gate: a key of `GATES`. found: None if it is unknown; `reason` then says why.
    """

    gate: str
    limit: float
    found: float | None
    reason: str = ""

    @property
    def subject(self) -> str:
        """What is limited, as the subject of a sentence."""
        return str(GATES[self.gate].metadata["subject"])

    @property
    def outcome(self) -> GateOutcome:
        """Whether the number is within the limit."""
        if self.found is None or math.isnan(self.found):
            return GateOutcome.UNKNOWN
        return GateOutcome.EXCEEDED if self.found > self.limit else GateOutcome.HOLDS


def _gate(subject: str, text: str) -> Any:
    """Return a limit with what it limits, as the subject of a sentence, and its option's help."""
    return field(default=None, metadata={"subject": subject, "text": text})


@dataclass(frozen=True, slots=True)
class Gates:
    """The limits that were set, each positive and finite; None: not set."""

    max_grad_norm: float | None = _gate(
        "the bound G of the gradient of one example",
        "Fail (exit 1) if the bound G of the gradient of one example is larger.",
    )
    max_sensitivity: float | None = _gate(
        "the sensitivity Δ of a release", "Fail if the sensitivity Δ of a release is larger."
    )
    max_epsilon: float | None = _gate("the ε of the run", "Fail if the ε of the run is larger.")
    max_slack: float | None = _gate(
        "the slack, G over the largest observed gradient norm of one example,",
        "Fail if G is more than X times the largest observed gradient norm.",
    )
    max_noise_to_signal: float | None = _gate(
        "the noise of one release over the norm of the mean gradient",
        "Fail if the noise of one release is more than X times the norm of the mean gradient; "
        "unknown without --data.",
    )

    def __post_init__(self) -> None:
        for name, limit in self.limits.items():
            check_positive(name, limit)

    @property
    def limits(self) -> Mapping[str, float]:
        """The limits that are set, by the names of their options."""
        given = {key: getattr(self, item.name) for key, item in GATES.items()}
        return {name: limit for name, limit in given.items() if limit is not None}

    def judged(self, **found: float | str) -> tuple[GateResult, ...]:
        """Judge each gate that is set by its number in `found`, or by why there is none."""
        return tuple(
            GateResult(name, limit, None, item)
            if isinstance(item := found[GATES[name].name], str)
            else GateResult(name, limit, item)
            for name, limit in self.limits.items()
        )


GATES: Final = MappingProxyType({item.name.replace("_", "-"): item for item in fields(Gates)})
"""The gates, by the names of their options."""
OF_ANALYSES: Final = tuple(GATES)
OF_CERTIFICATES: Final = ("max-grad-norm", "max-sensitivity", "max-epsilon")
"""Gates of numbers that a certificate states."""
OF_AUDITS: Final = (*OF_CERTIFICATES, "max-slack")
NO_GATES: Final = Gates()


def worst_of(results: Iterable[GateResult]) -> GateOutcome:
    """Return EXCEEDED if any gate is, else UNKNOWN if any is, else HOLDS."""
    outcomes = {result.outcome for result in results}
    order = (GateOutcome.EXCEEDED, GateOutcome.UNKNOWN)
    return next((outcome for outcome in order if outcome in outcomes), GateOutcome.HOLDS)
