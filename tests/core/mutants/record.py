"""Mutant: one change of a certificate or of its model, and what the checker must make of it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, final

from lipcert.core.check import Choices, check
from lipcert.core.verdict import Verdict
from lipcert.text.certificate import write_certificate

ANY: Final = frozenset(range(10))
"""stages: wherever it fails"""
_ACCEPTED: Final = frozenset({Verdict.VALID, Verdict.CONDITIONAL})


@final
class Effect(Enum):
    """What a mutation does to the statement."""

    WEAKENING = "must be rejected"
    HARMLESS = "must stay accepted"
    WITNESS = "no claim is changed: accepted or rejected, without a crash"


@final
@dataclass(frozen=True, slots=True)
class Mutant:
    """kind: what was changed. stages: where it may be rejected. model: another file, if any.

    data, model: make the bytes, when they are asked for.
    """

    kind: str
    effect: Effect
    data: Callable[[], bytes]
    stages: frozenset[int] = ANY
    model: Callable[[], bytes] | None = None
    may_be_unknown: bool = False


@final
class Outcome(Enum):
    """What a check of a mutant showed."""

    REJECTED = "rejected"
    ACCEPTED = "accepted"
    WRONG = "wrong"


def mutant(kind: str, effect: Effect, certificate, stages: set[int] | None = None) -> Mutant:
    """A mutant of the certificate alone."""
    found = ANY if stages is None else frozenset(stages)
    return Mutant(kind, effect, lambda: write_certificate(certificate), found)


def judged(case, item: Mutant, folder, engine: str = "float") -> tuple[Outcome, str]:
    """The outcome, and what the checker said."""
    path, data = case.path, item.data()
    if item.model is not None:
        path = folder / "mutant.onnx"
        path.write_bytes(item.model())
    try:
        report = check(data, path, Choices(engine))
    except Exception as error:  # noqa: BLE001  a crash is what is looked for
        return Outcome.WRONG, f"{type(error).__name__}: {error}"
    said = (
        f"{report.verdict.value} at {report.stages[-1].number}: {'; '.join(report.reasons)[:200]}"
    )
    if report.verdict in _ACCEPTED:
        return (Outcome.WRONG if item.effect is Effect.WEAKENING else Outcome.ACCEPTED), said
    wrong = set(_faults(item, report.verdict, report.stages[-1].number))
    return (Outcome.WRONG if wrong else Outcome.REJECTED), said


def _faults(item: Mutant, verdict: Verdict, stage: int) -> Iterator[str]:
    if item.effect is Effect.HARMLESS:
        yield "rejected"
    if item.effect is Effect.WEAKENING and stage not in item.stages:
        yield "at another stage"
    if verdict is Verdict.UNKNOWN and not item.may_be_unknown:
        yield "unknown"
