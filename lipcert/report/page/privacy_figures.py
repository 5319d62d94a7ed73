"""Figures about privacy: ε over the steps of a run, and over its noise multiplier.

What enters: what a run costs. What leaves: figures with their numbers; none where the run is not
described completely.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from lipcert.report.charts.lines import LineChart, Series, line_chart
from lipcert.report.charts.marks import Role
from lipcert.report.charts.scale import number_label
from lipcert.report.document import Figure
from lipcert.report.numbers import at_most
from lipcert.report.study.privacy import ACCOUNTANTS, curve_over_noise, curve_over_steps
from lipcert.report.study.records import Curve, PrivacyFacts, Study


@final
@dataclass(frozen=True, slots=True)
class _Axis:
    """What varies: a key and a title for its figure, its name, and where its axis begins."""

    key: str
    title: str
    name: str
    low: float


def privacy_figures(study: Study) -> tuple[Figure, ...]:
    """Both curves, as far as the run is known."""
    facts = study.privacy
    if facts is None:
        return ()
    steps, noise = curve_over_steps(facts), curve_over_noise(facts)
    drawn = []
    if steps is not None:
        where = facts.plan.releases if facts.plan is not None else steps.points[-1][0]
        drawn.append(
            _figure(_Axis("epsilon-steps", "ε over the run", "steps", 0.0), steps, facts, where)
        )
    if noise is not None:
        low = noise.points[0][0]
        axis = _Axis("epsilon-sigma", "ε over the noise", "noise multiplier σ", low)
        drawn.append(_figure(axis, noise, facts, facts.noise_multiplier or low))
    return tuple(drawn)


def _figure(axis: _Axis, curve: Curve, facts: PrivacyFacts, where: float) -> Figure:
    way = ACCOUNTANTS.get(curve.accountant, curve.accountant)
    tip = None if facts.epsilon is None else (where, facts.epsilon, f"ε = {at_most(facts.epsilon)}")
    chart = LineChart(
        axis.name,
        f"ε at δ = {number_label(facts.delta)}",
        (Series(f"by {way}", Role.BOUND, curve.points, has_marks=True),),
        tip,
        axis.low,
    )
    caption = f"Every point is an ε of such a run, by {way}."
    if facts.accountant and facts.accountant != curve.accountant:
        stated = ACCOUNTANTS.get(facts.accountant, facts.accountant)
        caption += (
            f" The dot is what this run costs by {stated}, which is tighter; "
            "lipcert privacy --curve gives the whole curve so."
        )
    elif tip is not None:
        caption += " The dot is this run."
    ends = f"from {curve.points[0][1]:.4g} to {curve.points[-1][1]:.4g}"
    rows = [(f"{place:,.6g}", at_most(epsilon)) for place, epsilon in curve.points]
    return Figure(
        axis.key,
        axis.title,
        caption,
        line_chart(chart),
        f"ε goes {ends}.",
        (axis.name, "ε"),
        rows,
    )
