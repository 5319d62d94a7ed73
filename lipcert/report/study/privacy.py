"""Privacy of a study: the run that a document describes, and curves of its ε.

What enters: an object `privacy`. What leaves: its facts; curves that the document holds, or curves
drawn from its plan. Drawn curves take the Rényi accountant where it is sound, because it answers
at once: every point is a true ε of its run, and the ε that is stated is at most that of the curve.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

from lipcert.errors import UsageError
from lipcert.privacy.accounting import Accountant, accountants
from lipcert.privacy.calibration import epsilon_over_noise, epsilon_over_steps
from lipcert.privacy.noise import Neighbouring
from lipcert.privacy.plan import Sampling, TrainingPlan
from lipcert.report.json import DOCUMENT, FieldError
from lipcert.report.study.records import Curve, PrivacyFacts

ACCOUNTANTS: Final[Mapping[str, str]] = {
    "pld": "privacy loss distributions",
    "rdp": "Rényi divergences",
}
_MANY: Final = 16
_FEW: Final = 4
_OCTAVES: Final = 1.0


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
        found = DOCUMENT.read(_Plan, run, "run")
        return TrainingPlan(
            dataset_size=found.dataset_size,
            sampling=found.sampling,
            delta=found.delta,
            batch_size=found.batch_size,
            steps=found.steps,
            neighbours=found.neighbours,
        )
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
