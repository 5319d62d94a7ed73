"""Figures: bounds, observations and noise of groups, how bounds grow along the network, and ε.

What enters: a study. What leaves: figures with their numbers; of ε none where the run is not
described completely. Large networks: the groups that are shown are chosen by what the figure is
about, drawn in the order of the network, and the caption says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from lipcert.audit.records import BINS_PER_OCTAVE, AuditReport, Quantity
from lipcert.report.attribution import Share, largest_gradients, stretches
from lipcert.report.charts.bars import Bar, BarChart, bar_chart
from lipcert.report.charts.histogram import (
    Strip,
    histogram_chart,
    lowest_bin,
    ratio_label,
    strip_chart,
)
from lipcert.report.charts.lines import LineChart, Series, line_chart
from lipcert.report.charts.scale import number_label
from lipcert.report.charts.svg import Role
from lipcert.report.document import Figure
from lipcert.report.numbers import at_most, measured, percent
from lipcert.report.study.reading import ACCOUNTANTS, curve_over_noise, curve_over_steps
from lipcert.report.study.records import (
    Curve,
    GroupRow,
    PrivacyFacts,
    Study,
    ValueBound,
    group_rows,
    noise_shares,
)

_MOST_BARS: Final = 30
_MANY: Final = 10**15  # more observations than there can be
_TRIED: Final = (
    (Role.OBSERVED, "observed maximum"),
    (Role.ATTACKED, "reached by attack"),
    (Role.OVER, "over"),
)
_MOST: Final = 12
_TITLES: Final = {
    Quantity.OUTPUT_NORM: (
        *("values", "Values along the network", "norm of the output of a node"),
        "Where the line rises steeply, the bound is lost.",
    ),
    Quantity.COTANGENT_NORM: (
        *("cotangents", "Gradients with respect to the layers' outputs", "norm of ∂loss/∂output"),
        "Read from the right, as backpropagation runs: where the line rises steeply, the bound is "
        "lost.",
    ),
}


def group_figures(study: Study) -> Iterator[Figure]:
    """The bounds of the groups, and how they were tried."""
    rows = group_rows(study)
    if rows:
        yield _bounds(rows)
    tried = [row for row in rows if _tightness(row) is not None]
    if tried:
        yield _tightnesses(tried)
    counted = [row for row in rows if row.audit and row.audit.histogram.counts]
    if counted:
        yield from _histograms(counted)


def noise_figure(study: Study) -> Iterator[Figure]:
    """Which groups receive the noise."""
    shares = noise_shares(study)
    every = [row for row in group_rows(study) if row.name in shares]
    if len(every) < 2:
        return
    rows, note = _shown(every, lambda row: shares[row.name], "largest shares")
    bars = tuple(Bar(row.name, shares[row.name], percent(shares[row.name])) for row in rows)
    yield Figure(
        "noise",
        "Where the noise goes",
        f"The share of every group in the expected squared norm of the noise of one step.{note}",
        bar_chart(BarChart("share of the noise energy Σ d·s²", bars, is_linear=True)),
        _span("Shares", [shares[row.name] for row in rows]),
        (" group", "dimension", "noise std", "noise energy"),
        [
            (
                row.name,
                f"{row.dimension:,}",
                row.release.noise_std if row.release else "",
                percent(shares[row.name]),
            )
            for row in rows
        ],
    )


def _bounds(every: Sequence[GroupRow]) -> Figure:
    """The gradient bound of every group, what was observed laid over it."""
    rows, note = _shown(every, lambda row: row.grad_norm or 0.0, "largest bounds")
    marks = {row.name: _marks(row) for row in rows}
    roles = {role for found in marks.values() for role, _ in found}
    legend = ((Role.BOUND, "bound G"), *(item for item in _TRIED if item[0] in roles))
    bars = tuple(
        Bar(row.name, row.grad_norm, at_most(row.grad_norm, 4), marks[row.name]) for row in rows
    )
    caption = "The bars say that no admissible example has a larger gradient."
    if roles:
        caption += " Dots and diamonds are what an audit found; they have to lie within the bars."
    if Role.OVER in roles:
        caption += " Crosses lie beyond: there the bound does not hold."
    return Figure(
        "bounds",
        "Gradient bound per group",
        caption + note,
        bar_chart(BarChart("gradient norm of one example", bars, legend)),
        _span("Bounds", [row.grad_norm for row in rows]),
        (" group", "bound", "observed", "attacked"),
        [(row.name, row.grad_norm, *_observed(row)) for row in rows],
    )


def _tightnesses(every: Sequence[GroupRow]) -> Figure:
    """How near to its bound each group came, and which error of the bound would be noticed."""
    rows, note = _shown(every, lambda row: -(_tightness(row) or 0.0), "least tried")
    bars = tuple(_tightness_bar(row) for row in rows)
    chart = BarChart("largest norm found / bound", bars, reference=(1.0, "bound"), is_linear=True)
    return Figure(
        "tightness",
        "Tightness and what the audit would notice",
        "The number at the right: a bound too small by this factor would have been noticed. "
        "Near 1 the audit is strong; a large factor means that the data hardly tried the bound."
        + note,
        bar_chart(chart),
        _span("Ratios", [_tightness(row) for row in rows]),
        (" group", "tightness", "error noticed"),
        [(row.name, measured(_tightness(row)), _factor(row)) for row in rows],
    )


def _histograms(every: Sequence[GroupRow]) -> Iterator[Figure]:
    """Observed norms relative to their bounds, of all groups together and of each."""
    total: dict[int, int] = {}
    for row in every:
        for number, count in _counts(row).items():
            total[number] = total.get(number, 0) + count
    size, lowest = sum(total.values()), lowest_bin(total, BINS_PER_OCTAVE)
    whole = Strip("", total, "", any(not _is_good(row) for row in every))
    yield Figure(
        "histogram",
        "Observed norms against the bound",
        f"{size:,} observations: every replayed example in every group. Right of the line would be "
        "violations; the first column also holds all below "
        f"{ratio_label(lowest // BINS_PER_OCTAVE)}.",
        histogram_chart(whole, BINS_PER_OCTAVE, lowest),
        f"Histogram of {size:,} ratios; the bound is at 1.",
        ("observed / bound", "observations"),
        [_bin(k, total[k]) for k in sorted(total)],
    )
    rows, note = _shown(every, lambda row: _tightness(row) or 0.0, "tightest")
    strips = [
        Strip(row.name, _counts(row), measured(_tightness(row), 3), not _is_good(row))
        for row in rows
    ]
    yield Figure(
        "strips",
        "Observed norms by group",
        "Each row is the histogram of one group, stronger where more examples lie; at the right "
        f"the largest ratio.{note}",
        strip_chart(strips, BINS_PER_OCTAVE, lowest),
        "One strip per group.",
        (" group", "observations", "largest observed / bound"),
        [(row.name, f"{sum(_counts(row).values()):,}", measured(_tightness(row))) for row in rows],
    )


def _shown(
    rows: Sequence[GroupRow], weight: Callable[[GroupRow], float], what: str
) -> tuple[list[GroupRow], str]:
    """The groups of most weight, in their order, and a sentence; violations before all."""
    ranked = sorted(
        range(len(rows)), key=lambda i: (_is_good(rows[i]), -_finite(weight(rows[i])), i)
    )
    shown = [rows[i] for i in sorted(ranked[:_MOST_BARS])]
    if len(shown) == len(rows):
        return shown, ""
    return shown, f" Shown: {len(shown)} of {len(rows):,} groups, the {what}."


def _is_good(row: GroupRow) -> bool:
    return row.audit is None or row.audit.violations == 0


def _finite(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _marks(row: GroupRow) -> tuple[tuple[Role, float], ...]:
    """What was observed, as far as it can be drawn; a cross where it is above the bound."""
    if row.audit is None:
        return ()
    found = ((Role.OBSERVED, row.audit.max_observed), (Role.ATTACKED, row.audit.max_attacked))
    bound = math.inf if row.grad_norm is None else row.grad_norm
    return tuple(
        (Role.OVER if norm > bound and not _is_good(row) else role, norm)
        for role, norm in found
        if norm is not None and math.isfinite(norm)
    )


def _observed(row: GroupRow) -> tuple[str, str]:
    audit = row.audit
    if audit is None:
        return ("", "")
    return measured(audit.max_observed), measured(audit.max_attacked)


def _tightness(row: GroupRow) -> float | None:
    return None if row.audit is None else row.audit.tightness


def _tightness_bar(row: GroupRow) -> Bar:
    ratio = _tightness(row)
    if ratio is None or not math.isfinite(ratio):
        return Bar(row.name, None, measured(ratio), role=Role.OVER)
    role = Role.OVER if ratio > 1.0 and not _is_good(row) else Role.OBSERVED
    return Bar(row.name, ratio, _factor(row), role=role)


def _factor(row: GroupRow) -> str:
    if not _is_good(row):
        return "violation"
    factor = None if row.audit is None else row.audit.detectable_error_factor
    return "–" if factor is None else f"{at_most(factor, 3)}×"


def _counts(row: GroupRow) -> dict[int, int]:
    if row.audit is None:
        return {}
    return {place: min(count, _MANY) for place, count in row.audit.histogram.counts.items()}


def _bin(number: int, count: int) -> tuple[str, str]:
    low, high = (2.0 ** (k / BINS_PER_OCTAVE) for k in (number, number + 1))
    return f"{low:.4g} to {high:.4g}", f"{count:,}"


def _span(what: str, values: Sequence[float | None]) -> str:
    """From where to where some numbers of groups go."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return f"{what}: none."
    return f"{what} of {len(known)} groups, from {min(known):.4g} to {max(known):.4g}."


def network_figures(study: Study) -> Iterator[Figure]:
    """Where bounds come from: nodes, parameters, and the way from input to output."""
    if study.analysis is not None:
        analysis = study.analysis.analysis
        yield from _stretches(stretches(analysis, _MOST))
        yield from _shares(largest_gradients(analysis, _MOST))
    bounds = _bounds_along(study)
    for quantity in Quantity:
        yield from _profile(bounds, study.audit, quantity)


def _stretches(found: Sequence[Share]) -> Iterator[Figure]:
    """The nodes that stretch a change most: where the bound is lost."""
    if not found:
        return
    bars = tuple(Bar(share.name, share.value, f"{at_most(share.value, 4)}×") for share in found)
    yield Figure(
        "stretch",
        "Which node loses most",
        f"The {len(found)} nodes with the largest Lipschitz constants above 1; their factors "
        "multiply along a path.",
        bar_chart(BarChart("factor by which a node may stretch a change", bars, floor=1.0)),
        f"The largest is {found[0].value:.4g}, at {found[0].name}.",
        (" node", " op", "Lipschitz"),
        [(share.name, share.op, share.value) for share in found],
    )


def _shares(found: Sequence[Share]) -> Iterator[Figure]:
    """The parameters that make up the squared gradient bound."""
    if not found:
        return
    bars = tuple(Bar(share.name, share.value, percent(share.value)) for share in found)
    yield Figure(
        "shares",
        "Which parameter the gradient bound comes from",
        "The share of every parameter in the squared gradient bound of one example.",
        bar_chart(BarChart("share of G²", bars, is_linear=True)),
        f"The largest share is that of {found[0].name}.",
        (" parameter", "share of G²"),
        [(share.name, percent(share.value)) for share in found],
    )


def _profile(
    bounds: tuple[ValueBound, ...], audit: AuditReport | None, quantity: Quantity
) -> Iterator[Figure]:
    """The bounds of values or cotangents from input to output, with what was observed."""
    stated = [(item, _bound(item, quantity)) for item in bounds]
    line = tuple(
        (float(place), bound)
        for place, (_, bound) in enumerate(stated, start=1)
        if bound is not None and bound > 0.0
    )
    if len(line) < 2:
        return
    seen = _observations(audit, quantity)
    dots = tuple(
        (float(place), seen[item.value])
        for place, (item, _) in enumerate(stated, start=1)
        if 0.0 < seen.get(item.value, 0.0) < math.inf
    )
    key, title, axis, caption = _TITLES[quantity]
    series = [Series("bound", Role.BOUND, line, has_marks=True)]
    if dots:
        name = "observed maximum"
        series.append(Series(name, Role.OBSERVED, dots, has_line=False, has_marks=True))
        caption += " A growing gap between line and dots is looseness, or data that do not try it."
    across = "place in the network, from input to output"
    low, high = min(y for _, y in line), max(y for _, y in line)
    yield Figure(
        key,
        title,
        caption,
        line_chart(LineChart(across, axis, tuple(series), x_low=1.0)),
        f"{len(line)} bounds between {low:.4g} and {high:.4g}.",
        (" value", " node", "bound", "observed"),
        [(item.value, item.node, bound, measured(seen.get(item.value))) for item, bound in stated],
    )


def _bounds_along(study: Study) -> tuple[ValueBound, ...]:
    """Of the analysis, else of the certificate."""
    if study.analysis is None:
        return () if study.certificate is None else study.certificate.values
    return tuple(
        ValueBound(node.output, node.name, node.op, node.output_norm, node.cotangent_norm)
        for node in study.analysis.analysis.nodes
    )


def _bound(item: ValueBound, quantity: Quantity) -> float | None:
    return item.output_norm if quantity is Quantity.OUTPUT_NORM else item.cotangent_norm


def _observations(audit: AuditReport | None, quantity: Quantity) -> dict[str, float]:
    if audit is None:
        return {}
    return {
        value.value: value.max_observed
        for value in audit.values
        if value.quantity is quantity and value.max_observed is not None
    }


def privacy_figures(study: Study) -> Iterator[Figure]:
    """Both curves, as far as the run is known."""
    facts = study.privacy
    if facts is None:
        return
    steps, noise = curve_over_steps(facts), curve_over_noise(facts)
    if steps is not None:
        where = steps.points[-1][0] if facts.plan is None else facts.plan.releases
        yield _curve_figure(("epsilon-steps", "ε over the run", "steps"), steps, facts, where, 0.0)
    if noise is not None:
        low, names = noise.points[0][0], ("epsilon-sigma", "ε over the noise", "noise multiplier σ")
        yield _curve_figure(names, noise, facts, facts.noise_multiplier or low, low)


def _curve_figure(
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
