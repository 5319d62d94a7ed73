"""Reading documents back: an analysis, a check, and the run that either describes.

What enters: objects of `lipcert.analysis/1` and `lipcert.check/1`, or an object `privacy`. What
leaves: the records they were written from (findings are read apart, since a later version may know
more codes); facts of a run; curves of its ε that the document holds, or curves drawn from its plan.
Drawn curves take the Rényi accountant where it is sound, because it answers at once: every point is
a true ε of its run, and the ε that is stated is at most that of the curve.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Final, Literal, final

from lipcert.analysis.records import Analysis
from lipcert.core.codec import member
from lipcert.diagnostics import CODES, Diagnostic, Level
from lipcert.errors import UsageError
from lipcert.privacy.accounting import (
    Accountant,
    accountants,
    epsilon_over_noise,
    epsilon_over_steps,
)
from lipcert.privacy.noise import Neighbouring
from lipcert.privacy.plan import Sampling, TrainingPlan
from lipcert.report.json import DOCUMENT, FieldError
from lipcert.report.statements import answer_rows, assumption_rows, promise
from lipcert.report.study.records import (
    AnalysisFacts,
    CheckFacts,
    Curve,
    Finding,
    LedgerEntry,
    PrivacyFacts,
)

ACCOUNTANTS: Final[Mapping[str, str]] = {
    "pld": "privacy loss distributions",
    "rdp": "Rényi divergences",
}
_MANY: Final = 16
_FEW: Final = 4
_OCTAVES: Final = 1.0


def analysis_in(document: Mapping[str, object]) -> Analysis:
    """The analysis in a document; `FieldError` where it is not a complete one."""
    found = DOCUMENT.read(Analysis, {**document, "diagnostics": []}, "analysis", privacy=None)
    loss = {name: said for name, said in found.assumptions.loss.items() if name != "reduction"}
    levels = {level.value for level in Level}
    return replace(
        found,
        assumptions=replace(found.assumptions, loss=loss),
        diagnostics=tuple(
            Diagnostic(item.code, Level(item.level), item.node, item.message, item.remedy)
            for item in findings_of(document)
            if item.code in CODES and item.level in levels
        ),
    )


def read_analysis(document: Mapping[str, object]) -> AnalysisFacts:
    """The same with its words."""
    analysis = analysis_in(document)
    try:
        return AnalysisFacts(
            analysis,
            promise(analysis),
            tuple(assumption_rows(analysis)),
            tuple(answer_rows(analysis)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FieldError(f"analysis.assumptions: {error}") from error


def findings_of(document: Mapping[str, object]) -> tuple[Finding, ...]:
    """The list `diagnostics` of any document."""
    found: tuple[Finding, ...] = DOCUMENT.read_any(
        tuple[Finding, ...], document.get("diagnostics"), "diagnostics"
    )
    return found


@final
@dataclass(frozen=True, slots=True)
class _Assumption:
    id: str
    status: str
    text: str
    open: bool


@final
@dataclass(frozen=True, slots=True)
class _Stage:
    name: str
    ok: bool


@final
@dataclass(frozen=True, slots=True)
class _Check:
    verdict: Literal["valid", "conditional", "unknown", "invalid"]
    certificate: str
    reasons: tuple[str, ...]
    promise: tuple[str, ...]
    assumptions: tuple[_Assumption, ...]
    steps: tuple[_Stage, ...]


def read_check(document: Mapping[str, object]) -> CheckFacts:
    """What the checker said; `FieldError` where the document is not complete."""
    found = DOCUMENT.read(_Check, document, "check")
    return CheckFacts(
        verdict=found.verdict,
        certificate=found.certificate,
        reasons=found.reasons,
        promise=found.promise,
        ledger=tuple(LedgerEntry(item.id, _status(item), item.text) for item in found.assumptions),
        stages=tuple((item.name, item.ok) for item in found.steps),
    )


def _status(item: _Assumption) -> str:
    if item.status == "checked":
        return item.status
    return "declared" if item.open else "accepted"


@final
@dataclass(frozen=True, slots=True)
class _Privacy:
    epsilon: float | None
    delta: float
    noise_multiplier: float | None
    accountant: str
    statement: Mapping[str, str]


@final
@dataclass(frozen=True, slots=True)
class _Plan:
    dataset_size: int
    sampling: Sampling
    delta: float
    batch_size: int
    steps: int
    neighbours: Neighbouring
    rate: float | None = field(default=None, metadata=member("sampling_rate", optional=True))


@final
@dataclass(frozen=True, slots=True)
class _Point:
    noise_multiplier: float
    steps: int
    epsilon: float | None


def read_privacy(document: Mapping[str, object]) -> PrivacyFacts:
    """The facts of the object `privacy` of a document, with the curves beside it."""
    found = DOCUMENT.read(_Privacy, document.get("privacy"), "privacy")
    curves: Mapping[str, tuple[_Point, ...]] = DOCUMENT.read_any(
        Mapping[str, tuple[_Point, ...]], document.get("curves", {}), "curves"
    )
    drawn = {
        "steps": [(float(item.steps), item.epsilon) for item in curves.get("steps", ())],
        "noise-multiplier": [
            (item.noise_multiplier, item.epsilon) for item in curves.get("noise-multiplier", ())
        ],
    }
    known = {
        name: tuple(sorted((place, epsilon) for place, epsilon in points if epsilon is not None))
        for name, points in drawn.items()
    }
    return PrivacyFacts(
        epsilon=found.epsilon,
        delta=found.delta,
        noise_multiplier=found.noise_multiplier,
        accountant=found.accountant,
        plan=plan_of(document["privacy"]),
        statement=tuple(found.statement.items()),
        curves={
            name: Curve(points, found.accountant)
            for name, points in known.items()
            if len(points) > 1
        },
    )


def plan_of(run: object) -> TrainingPlan | None:
    """The plan of a run; None where it is not described completely or has no account."""
    try:
        return TrainingPlan(**asdict(DOCUMENT.read(_Plan, run, "run")))
    except (FieldError, UsageError):
        return None


def curve_over_steps(facts: PrivacyFacts) -> Curve | None:
    """ε after every part of the run."""
    if "steps" in facts.curves:
        return facts.curves["steps"]
    plan, sigma, way = facts.plan, facts.noise_multiplier, _quickest(facts)
    if plan is None or sigma is None or way is None or plan.releases < 2:
        return None
    found = epsilon_over_steps(plan, sigma, _count(way), way)
    return _curve([(float(point.steps), point.epsilon) for point in found], way)


def curve_over_noise(facts: PrivacyFacts) -> Curve | None:
    """ε of the run with between half and twice its noise."""
    if "noise-multiplier" in facts.curves:
        return facts.curves["noise-multiplier"]
    plan, sigma, way = facts.plan, facts.noise_multiplier, _quickest(facts)
    if plan is None or sigma is None or way is None:
        return None
    half = _count(way) // 2
    around = [sigma * 2.0 ** (_OCTAVES * k / half) for k in range(-half, half + 1)]
    found = epsilon_over_noise(plan, around, way)
    return _curve([(point.noise_multiplier, point.epsilon) for point in found], way)


def _quickest(facts: PrivacyFacts) -> Accountant | None:
    if facts.plan is None or facts.noise_multiplier is None or facts.noise_multiplier <= 0.0:
        return None
    sound = accountants(facts.plan)
    return Accountant.RDP if Accountant.RDP in sound else next(iter(sound), None)


def _count(way: Accountant) -> int:
    return _MANY if way is Accountant.RDP else _FEW


def _curve(points: list[tuple[float, float]], way: Accountant) -> Curve | None:
    finite = tuple(point for point in points if math.isfinite(point[1]))
    return Curve(finite, way.value) if len(finite) > 1 else None
