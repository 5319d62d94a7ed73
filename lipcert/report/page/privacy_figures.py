"""Figures about privacy: ε over the steps of a run, and over its noise multiplier.

What enters: what a run costs. What leaves: figures with their numbers; none where the run is not
described completely.
"""

from __future__ import annotations

from collections.abc import Iterator

from lipcert.report.charts.lines import LineChart, Series, line_chart
from lipcert.report.charts.marks import Role
from lipcert.report.charts.scale import number_label
from lipcert.report.document import Figure
from lipcert.report.numbers import at_most
from lipcert.report.study.privacy import ACCOUNTANTS, curve_over_noise, curve_over_steps
from lipcert.report.study.records import Curve, PrivacyFacts, Study


def privacy_figures(study: Study) -> Iterator[Figure]:
    """Both curves, as far as the run is known."""
    facts = study.privacy
    if facts is None:
        return
    steps, noise = curve_over_steps(facts), curve_over_noise(facts)
    if steps is not None:
        where = steps.points[-1][0] if facts.plan is None else facts.plan.releases
        yield _figure(("epsilon-steps", "ε over the run", "steps"), steps, facts, where, 0.0)
    if noise is not None:
        low, names = noise.points[0][0], ("epsilon-sigma", "ε over the noise", "noise multiplier σ")
        yield _figure(names, noise, facts, facts.noise_multiplier or low, low)


def _figure(
    names: tuple[str, str, str], curve: Curve, facts: PrivacyFacts, where: float, low: float
) -> Figure:
    """A curve over an axis that begins at `low`; the run stands at `where`.

    names: the key and the title of the figure, and what its axis shows.
    """
    key, title, axis = names
    way = ACCOUNTANTS.get(curve.accountant, curve.accountant)
    tip = None if facts.epsilon is None else (where, facts.epsilon, f"ε = {at_most(facts.epsilon)}")
    series = Series(f"by {way}", Role.BOUND, curve.points, has_marks=True)
    chart = LineChart(axis, f"ε at δ = {number_label(facts.delta)}", (series,), tip, low)
    caption = f"Every point is an ε of such a run, by {way}."
    if facts.accountant and facts.accountant != curve.accountant:
        stated = ACCOUNTANTS.get(facts.accountant, facts.accountant)
        caption += (
            f" The dot is what this run costs by {stated}, which is tighter; "
            "lipcert privacy --curve gives the whole curve so."
        )
    elif tip is not None:
        caption += " The dot is this run."
    ends = f"ε goes from {curve.points[0][1]:.4g} to {curve.points[-1][1]:.4g}."
    rows = [(f"{place:,.6g}", epsilon) for place, epsilon in curve.points]
    return Figure(key, title, caption, line_chart(chart), ends, (axis, "ε"), rows)
