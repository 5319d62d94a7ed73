"""Figures: bounds, observations and noise of groups, how bounds grow along the network, and ε.

The functions give the figures of one document with their numbers; of ε none where the run is not
described completely. Of large networks, the groups that are shown are chosen by what the figure is
about, drawn in the order of the network, and the caption says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, final

from lipcert.analysis.records import Analysis, GroupReport
from lipcert.audit.records import BINS_PER_OCTAVE, AuditReport, GroupAudit, Quantity
from lipcert.core.certificate import GroupClaim
from lipcert.privacy.accounting import (
    Accountant,
    CurvePoint,
    accountants,
    epsilon_over_noise,
    epsilon_over_steps,
)
from lipcert.report.analysis import Share, largest_gradients, stretches
from lipcert.report.certificate import Claimed, ClaimedRun, claimed_values
from lipcert.report.charts import (
    Bar,
    BarChart,
    LineChart,
    Series,
    Strip,
    bar_chart,
    histogram_chart,
    line_chart,
    lowest_bin,
    ratio_label,
    strip_chart,
)
from lipcert.report.document import Figure
from lipcert.report.numbers import at_most, measured, percent
from lipcert.report.privacy import ACCOUNTANTS, Point, RunPrivacy
from lipcert.report.svg import Role, number_label

_MOST_BARS: Final = 30
_COUNTLESS: Final = 10**15  # more observations than there can be
_TRIED: Final = (
    (Role.OBSERVED, "observed maximum"),
    (Role.ATTACKED, "reached by attack"),
    (Role.OVER, "over"),
)
_MOST: Final = 12
_MANY: Final = 16
_FEW: Final = 4
"""points of a curve, by how quick its accountant is"""
_OCTAVES: Final = 1.0
_CURVES: Final = (
    ("steps", "epsilon-steps", "ε over the run", "steps"),
    ("noise-multiplier", "epsilon-sigma", "ε over the noise", "noise multiplier σ"),
)
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


def analysis_figures(analysis: Analysis, run: RunPrivacy | None) -> Iterator[Figure]:
    """Of an analysis, and of the run that it describes."""
    yield from _bounds(list(map(_stated, analysis.groups)))
    yield from privacy_figures(run, {})
    yield from _stretches(stretches(analysis, _MOST))
    yield from _shares(largest_gradients(analysis, _MOST))
    for quantity in Quantity:
        yield from _profile(
            quantity,
            [
                _Value(
                    item.output,
                    item.name,
                    item.output_norm if quantity is Quantity.OUTPUT_NORM else item.cotangent_norm,
                )
                for item in analysis.nodes
            ],
        )
    yield from _noise(analysis.groups)


def certificate_figures(claimed: Claimed) -> Iterator[Figure]:
    """Of a certificate alone, without an analysis."""
    groups = claimed.certificate.groups
    yield from _bounds(list(map(_stated, groups)))
    yield from privacy_figures(claimed.run, {})
    for quantity in Quantity:
        yield from _profile(
            quantity,
            [
                _Value(value, node, norm if quantity is Quantity.OUTPUT_NORM else cotangent)
                for value, node, _, norm, cotangent in claimed_values(claimed.certificate)
            ],
        )
    yield from _noise(groups)


def audit_figures(report: AuditReport) -> Iterator[Figure]:
    """Of an audit: bounds, and how they were tried."""
    rows = [_Row(group.name, group.grad_norm_bound, group) for group in report.groups]
    yield from _bounds(rows, "audited-")
    tried = [row for row in rows if _tightness(row) is not None]
    if tried:
        yield _tightnesses(tried)
    counted = [row for row in rows if row.audit and row.audit.histogram.counts]
    if counted:
        yield from _histograms(counted)
    for quantity in Quantity:
        found = [value for value in report.values if value.quantity is quantity]
        seen = {x.value: x.max_observed for x in found if x.max_observed is not None}
        values = [_Value(value.value, value.node, value.bound) for value in found]
        yield from _profile(quantity, values, seen, "audited-")


@final
@dataclass(frozen=True, slots=True)
class _Row:
    """A group, its bound, and what was measured of it."""

    name: str
    grad_norm: float | None
    audit: GroupAudit | None = None


@final
@dataclass(frozen=True, slots=True)
class _Value:
    """A value of the network, the node that computes it, and a bound."""

    value: str
    node: str
    bound: float | None


def _stated(group: GroupReport | GroupClaim) -> _Row:
    return _Row(group.name, group.grad_norm)


def _noise(groups: Sequence[GroupReport | GroupClaim]) -> Iterator[Figure]:
    """Which groups receive the noise."""
    energies = {
        group.name: group.dimension * (group.noise_std * group.noise_std)
        for group in groups
        if group.noise_std is not None
    }
    whole = sum(energies.values())
    if len(energies) < max(len(groups), 2) or not 0.0 < whole < math.inf:
        return
    shares = {name: energy / whole for name, energy in energies.items()}
    rows, note = _shown(list(map(_stated, groups)), lambda row: shares[row.name], "largest shares")
    bars = tuple(Bar(row.name, shares[row.name], percent(shares[row.name])) for row in rows)
    known = {group.name: group for group in groups}
    yield Figure(
        "noise",
        "Where the noise goes",
        f"The share of every group in the expected squared norm of the noise of one step.{note}",
        bar_chart(BarChart("share of the noise energy Σ d·s²", bars, is_linear=True)),
        _span("Shares", [shares[row.name] for row in rows]),
        (" group", "dimension", "noise std", "noise energy"),
        [
            (name, f"{known[name].dimension:,}", known[name].noise_std, percent(shares[name]))
            for name in (row.name for row in rows)
        ],
    )


def _bounds(every: Sequence[_Row], kind: str = "") -> Iterator[Figure]:
    """The gradient bound of every group, what was observed laid over it."""
    if not every:
        return
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
    yield Figure(
        f"{kind}bounds",
        "Gradient bound per group",
        caption + note,
        bar_chart(BarChart("gradient norm of one example", bars, legend)),
        _span("Bounds", [row.grad_norm for row in rows]),
        (" group", "bound", "observed", "attacked"),
        [(row.name, row.grad_norm, *_observed(row)) for row in rows],
    )


def _tightnesses(every: Sequence[_Row]) -> Figure:
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


def _histograms(every: Sequence[_Row]) -> Iterator[Figure]:
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
    rows: Sequence[_Row], weight: Callable[[_Row], float], what: str
) -> tuple[list[_Row], str]:
    """The groups of most weight, in their order, and a sentence; violations before all."""
    ranked = sorted(
        range(len(rows)), key=lambda i: (_is_good(rows[i]), -_finite(weight(rows[i])), i)
    )
    shown = [rows[i] for i in sorted(ranked[:_MOST_BARS])]
    if len(shown) == len(rows):
        return shown, ""
    return shown, f" Shown: {len(shown)} of {len(rows):,} groups, the {what}."


def _is_good(row: _Row) -> bool:
    return row.audit is None or row.audit.violations == 0


def _finite(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _marks(row: _Row) -> tuple[tuple[Role, float], ...]:
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


def _observed(row: _Row) -> tuple[str, str]:
    audit = row.audit
    if audit is None:
        return ("", "")
    return measured(audit.max_observed), measured(audit.max_attacked)


def _tightness(row: _Row) -> float | None:
    return None if row.audit is None else row.audit.tightness


def _tightness_bar(row: _Row) -> Bar:
    ratio = _tightness(row)
    if ratio is None or not math.isfinite(ratio):
        return Bar(row.name, None, measured(ratio), role=Role.OVER)
    role = Role.OVER if ratio > 1.0 and not _is_good(row) else Role.OBSERVED
    return Bar(row.name, ratio, _factor(row), role=role)


def _factor(row: _Row) -> str:
    if not _is_good(row):
        return "violation"
    factor = None if row.audit is None else row.audit.detectable_error_factor
    return "–" if factor is None else f"{at_most(factor, 3)}×"


def _counts(row: _Row) -> dict[int, int]:
    if row.audit is None:
        return {}
    return {place: min(count, _COUNTLESS) for place, count in row.audit.histogram.counts.items()}


def _bin(number: int, count: int) -> tuple[str, str]:
    low, high = (2.0 ** (k / BINS_PER_OCTAVE) for k in (number, number + 1))
    return f"{low:.4g} to {high:.4g}", f"{count:,}"


def _span(what: str, values: Sequence[float | None]) -> str:
    """From where to where some numbers of groups go."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return f"{what}: none."
    return f"{what} of {len(known)} groups, from {min(known):.4g} to {max(known):.4g}."


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
    quantity: Quantity,
    values: Sequence[_Value],
    seen: Mapping[str, float] = MappingProxyType({}),
    kind: str = "",
) -> Iterator[Figure]:
    """The bounds of values or cotangents from input to output, with what was observed."""
    places = [(float(place), item) for place, item in enumerate(values, start=1)]
    line = tuple((place, item.bound) for place, item in places if item.bound and item.bound > 0.0)
    if len(line) < 2:
        return
    dots = tuple(
        (place, seen[item.value])
        for place, item in places
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
        f"{kind}{key}",
        title,
        caption,
        line_chart(LineChart(across, axis, tuple(series), x_low=1.0)),
        f"{len(line)} bounds between {low:.4g} and {high:.4g}.",
        (" value", " node", "bound", "observed"),
        [(x.value, x.node, x.bound, measured(seen.get(x.value))) for x in values],
    )


def privacy_figures(
    run: RunPrivacy | ClaimedRun | None, curves: Mapping[str, Iterable[Point]]
) -> Iterator[Figure]:
    """ε over the steps of a run and over its noise, as far as the run is known.

    curves: those that a document has, which are drawn as they are. Others are drawn from the plan,
    by the Rényi accountant where it is sound, because it answers at once: every point is a true ε
    of its run, and the ε that is stated is at most that of the curve.
    """
    if run is None:
        return
    plan, sigma = run.plan, run.noise_multiplier
    sound = () if plan is None or not sigma or sigma <= 0.0 else tuple(accountants(plan))
    way = next((item for item in (Accountant.RDP, *sound) if item in sound), None)
    count = _MANY if way is Accountant.RDP else _FEW
    points: Iterable[Point | CurvePoint]
    for name, key, title, axis in _CURVES:
        is_of_steps, accountant = name == "steps", way.value if way else run.accountant
        if name in curves and sum(x.epsilon is not None for x in curves[name]) > 1:
            points, accountant = curves[name], run.accountant
        elif plan is None or sigma is None or way is None or (is_of_steps and plan.releases < 2):
            continue
        elif is_of_steps:
            points = epsilon_over_steps(plan, sigma, count, way)
        else:
            half = count // 2
            around = [sigma * 2.0 ** (_OCTAVES * k / half) for k in range(-half, half + 1)]
            points = epsilon_over_noise(plan, around, way)
        found = sorted(
            (float(x.steps) if is_of_steps else x.noise_multiplier, x.epsilon)
            for x in points
            if x.epsilon is not None and math.isfinite(x.epsilon)
        )
        if len(found) < 2:
            continue
        where, low = (found[-1][0], 0.0) if is_of_steps else (sigma or found[0][0], found[0][0])
        if is_of_steps and plan is not None:
            where = float(plan.releases)
        yield _curve((key, title, axis), found, accountant, run, (where, low))


def _curve(
    names: tuple[str, str, str],
    points: Sequence[tuple[float, float]],
    accountant: str,
    run: RunPrivacy | ClaimedRun,
    places: tuple[float, float],
) -> Figure:
    """A curve with the run on it.

    names: the key and the title of the figure, and what its axis shows. places: where the run
    stands on the axis, and where that begins.
    """
    where, low = places
    key, title, axis = names
    way, stated = (ACCOUNTANTS.get(name, name) for name in (accountant, run.accountant))
    tip = None if run.epsilon is None else (where, run.epsilon, f"ε = {at_most(run.epsilon)}")
    series = Series(f"by {way}", Role.BOUND, tuple(points), has_marks=True)
    chart = LineChart(axis, f"ε at δ = {number_label(run.delta)}", (series,), tip, low)
    caption = f"Every point is an ε of such a run, by {way}."
    if stated and stated != way:
        caption += (
            f" The dot is what this run costs by {stated}, which is tighter; "
            "lipcert privacy --curve gives the whole curve so."
        )
    elif tip is not None:
        caption += " The dot is this run."
    ends = f"ε goes from {points[0][1]:.4g} to {points[-1][1]:.4g}."
    rows = [(f"{place:,.6g}", epsilon) for place, epsilon in points]
    return Figure(key, title, caption, line_chart(chart), ends, (axis, "ε"), rows)
