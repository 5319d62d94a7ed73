"""Privacy of a study: the run that a document describes, and curves of its ε.

What enters: an object `privacy`. What leaves: its facts; curves that the document holds, or curves
drawn from its plan. Drawn curves take the Rényi accountant where it is sound, because it answers
at once: every point is a true ε of its run, and the ε that is stated is at most that of the curve.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from lipcert.errors import UsageError
from lipcert.privacy.accounting import Accountant, accountants
from lipcert.privacy.calibration import epsilon_over_noise, epsilon_over_steps
from lipcert.privacy.noise import Neighbouring
from lipcert.privacy.plan import Sampling, TrainingPlan
from lipcert.report.study.fields import FieldError, Fields
from lipcert.report.study.records import Curve, PrivacyFacts

ACCOUNTANTS: Final[Mapping[str, str]] = {
    "pld": "privacy loss distributions",
    "rdp": "Rényi divergences",
}
_MANY: Final = 16
_FEW: Final = 4
_OCTAVES: Final = 1.0


def read_privacy(privacy: Fields, curves: Fields) -> PrivacyFacts:
    """The facts of an object `privacy` with the curves beside it (no members: none)."""
    accountant = privacy.text("accountant", "")
    statement = privacy.child("statement")
    return PrivacyFacts(
        epsilon=privacy.number("epsilon"),
        delta=privacy.needed("delta"),
        noise_multiplier=privacy.number("noise_multiplier"),
        accountant=accountant,
        plan=plan_of(privacy),
        statement=tuple((name, statement.text(name)) for name in statement.members),
        curves={
            name: Curve(points, accountant)
            for name in ("steps", "noise-multiplier")
            if len(points := _points(curves, name)) > 1
        },
    )


def plan_of(run: Fields) -> TrainingPlan | None:
    """The plan of a run; None where it is not described completely or has no account."""
    try:
        return TrainingPlan(
            dataset_size=run.whole("dataset_size"),
            sampling=Sampling(run.text("sampling")),
            delta=run.needed("delta"),
            batch_size=run.whole("batch_size"),
            steps=run.whole("steps"),
            neighbours=Neighbouring(run.text("neighbours")),
        )
    except (FieldError, UsageError, ValueError):
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


def _points(curves: Fields, name: str) -> tuple[tuple[float, float], ...]:
    member = "steps" if name == "steps" else "noise_multiplier"
    found = [(item.needed(member), item.number("epsilon")) for item in curves.children(name)]
    return tuple(sorted((place, epsilon) for place, epsilon in found if epsilon is not None))
