"""Figures: bounds, observations and noise of groups, how bounds grow along the network, and ε.

The functions give the figures of one document with their numbers; of ε none where the run is not
described completely. Of large networks, the groups that are shown are chosen by what the figure is
about, drawn in the order of the network, and the caption says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias, TypeVar

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
from lipcert.report.analysis import Share, largest_gradients, noise_shares, stretches
from lipcert.report.certificate import Bounded, Claimed, ClaimedRun, claimed_values
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
from lipcert.report.privacy import ACCOUNTANTS, Point, RunPrivacy
from lipcert.report.svg import Role, number_label
from lipcert.text.numbers import at_most, measured, percent

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
    yield from _bounds(analysis.groups)
    yield from privacy_figures(run, {})
    found = stretches(analysis, _MOST)
    yield from _ranked(
        ("stretch", "Which node loses most", "factor by which a node may stretch a change"),
        f"The {len(found)} nodes with the largest Lipschitz constants above 1; their factors "
        "multiply along a path.",
        found,
        as_factor=True,
    )
    yield from _ranked(
        ("shares", "Which parameter the gradient bound comes from", "share of G²"),
        "The share of a parameter in the squared gradient bound of one example.",
        largest_gradients(analysis, _MOST),
    )
    yield from _profiles(
        [(x.output, x.name, x.op, x.output_norm, x.cotangent_norm) for x in analysis.nodes]
    )
    yield from _ranked(
        ("noise", "Where the noise goes", "share of the noise energy Σ d·s²"),
        "The share of a group in the expected squared norm of the noise of one step.",
        noise_shares(analysis, _MOST) if len(analysis.groups) > 1 else (),
    )


def certificate_figures(claimed: Claimed) -> Iterator[Figure]:
    """Of a certificate alone, without an analysis."""
    yield from _bounds(claimed.certificate.groups)
    yield from privacy_figures(claimed.run, {})
    yield from _profiles(list(claimed_values(claimed.certificate)))


def audit_figures(report: AuditReport) -> Iterator[Figure]:
    """Of an audit: bounds, and how they were tried."""
    yield from _bounds(report.groups, "audited-")
    tried = [group for group in report.groups if group.tightness is not None]
    if tried:
        yield _tightnesses(tried)
    counted = [group for group in report.groups if group.histogram.counts]
    if counted:
        yield from _histograms(counted)
    for quantity in Quantity:
        found = [value for value in report.values if value.quantity is quantity]
        seen = {x.value: x.max_observed for x in found if x.max_observed is not None}
        bounds = [(value.value, value.node, value.bound) for value in found]
        yield from _profile(quantity, bounds, seen, "audited-")


def _ranked(
    names: tuple[str, str, str], caption: str, shares: Sequence[Share], *, as_factor: bool = False
) -> Iterator[Figure]:
    """Where most of something is. names: the key and the title of the figure, and its axis."""
    if not shares:
        return
    key, title, axis = names
    texts = [f"{at_most(x.value, 4)}×" if as_factor else percent(x.value) for x in shares]
    bars = tuple(Bar(x.name, x.value, text) for x, text in zip(shares, texts, strict=True))
    floor = 1.0 if as_factor else None
    yield Figure(
        key,
        title,
        caption,
        bar_chart(BarChart(axis, bars, is_linear=not as_factor, floor=floor)),
        f"The largest is {texts[0]}, at {shares[0].name}.",
        (" name", " op", axis),
        [(x.name, x.op, text) for x, text in zip(shares, texts, strict=True)],
    )


def _bounds(every: Sequence[_Group], kind: str = "") -> Iterator[Figure]:
    """The gradient bound of every group, what was observed laid over it."""
    if not every:
        return
    rows, note = _shown(every, lambda row: _bound(row) or 0.0, "largest bounds")
    marks = [_marks(row) for row in rows]
    roles = {role for found in marks for role, _ in found}
    legend = ((Role.BOUND, "bound G"), *(item for item in _TRIED if item[0] in roles))
    bars = tuple(
        Bar(row.name, _bound(row), at_most(_bound(row), 4), found)
        for row, found in zip(rows, marks, strict=True)
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
        _span("Bounds", [_bound(row) for row in rows]),
        (" group", "bound", "observed", "attacked"),
        [
            (row.name, _bound(row), measured(row.max_observed), measured(row.max_attacked))
            if isinstance(row, GroupAudit)
            else (row.name, row.grad_norm, "", "")
            for row in rows
        ],
    )


def _tightnesses(every: Sequence[GroupAudit]) -> Figure:
    """How near to its bound each group came, and which error of the bound would be noticed."""
    rows, note = _shown(every, lambda row: -(row.tightness or 0.0), "least tried")
    bars = tuple(map(_tightness_bar, rows))
    chart = BarChart("largest norm found / bound", bars, reference=(1.0, "bound"), is_linear=True)
    return Figure(
        "tightness",
        "Tightness and what the audit would notice",
        "The number at the right: a bound too small by this factor would have been noticed. "
        "Near 1 the audit is strong; a large factor means that the data hardly tested the bound."
        + note,
        bar_chart(chart),
        _span("Ratios", [row.tightness for row in rows]),
        (" group", "tightness", "error noticed"),
        [(row.name, measured(row.tightness), _factor(row)) for row in rows],
    )


def _histograms(every: Sequence[GroupAudit]) -> Iterator[Figure]:
    """Observed norms relative to their bounds, of all groups together and of each."""
    total: dict[int, int] = {}
    for row in every:
        for number, count in _counts(row).items():
            total[number] = total.get(number, 0) + count
    size, lowest = sum(total.values()), lowest_bin(total, BINS_PER_OCTAVE)
    whole = Strip("", total, "", any(row.violations for row in every))
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
    rows, note = _shown(every, lambda row: row.tightness or 0.0, "tightest")
    strips = [
        Strip(row.name, _counts(row), measured(row.tightness, 3), row.violations > 0)
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
        [(row.name, f"{sum(_counts(row).values()):,}", measured(row.tightness)) for row in rows],
    )


_Group: TypeAlias = GroupReport | GroupClaim | GroupAudit
_AnyGroup = TypeVar("_AnyGroup", bound=_Group)


def _bound(group: _Group) -> float | None:
    return group.grad_norm_bound if isinstance(group, GroupAudit) else group.grad_norm


def _shown(
    rows: Sequence[_AnyGroup], weight: Callable[[_AnyGroup], float], what: str
) -> tuple[list[_AnyGroup], str]:
    """The groups of most weight, in their order, and a sentence; violations before all."""

    def rank(place: int) -> tuple[bool, float, int]:
        row, size = rows[place], weight(rows[place])
        is_bad = isinstance(row, GroupAudit) and row.violations > 0
        return not is_bad, -(math.inf if math.isnan(size) else size), place

    shown = [rows[i] for i in sorted(sorted(range(len(rows)), key=rank)[:_MOST_BARS])]
    if len(shown) == len(rows):
        return shown, ""
    return shown, f" Shown: {len(shown)} of {len(rows):,} groups, the {what}."


def _marks(row: _Group) -> tuple[tuple[Role, float], ...]:
    """What was observed, as far as it can be drawn; a cross where it is above the bound."""
    if not isinstance(row, GroupAudit):
        return ()
    found = ((Role.OBSERVED, row.max_observed), (Role.ATTACKED, row.max_attacked))
    bound = math.inf if row.grad_norm_bound is None else row.grad_norm_bound
    return tuple(
        (Role.OVER if norm > bound and row.violations else role, norm)
        for role, norm in found
        if norm is not None and math.isfinite(norm)
    )


def _tightness_bar(row: GroupAudit) -> Bar:
    ratio = row.tightness
    if ratio is None or not math.isfinite(ratio):
        return Bar(row.name, None, measured(ratio), role=Role.OVER)
    role = Role.OVER if ratio > 1.0 and row.violations else Role.OBSERVED
    return Bar(row.name, ratio, _factor(row), role=role)


def _factor(row: GroupAudit) -> str:
    if row.violations:
        return "violation"
    factor = row.detectable_error_factor
    return "–" if factor is None else f"{at_most(factor, 3)}×"


def _counts(row: GroupAudit) -> dict[int, int]:
    return {place: min(count, _COUNTLESS) for place, count in row.histogram.counts.items()}


def _bin(number: int, count: int) -> tuple[str, str]:
    low, high = (2.0 ** (k / BINS_PER_OCTAVE) for k in (number, number + 1))
    return f"{low:.4g} to {high:.4g}", f"{count:,}"


def _span(what: str, values: Sequence[float | None]) -> str:
    """From where to where some numbers of groups go."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return f"{what}: none."
    return f"{what} of {len(known)} groups, from {min(known):.4g} to {max(known):.4g}."


def _profiles(values: Sequence[Bounded]) -> Iterator[Figure]:
    """How both norms of values grow along the network."""
    norms = [(value, node, norm) for value, node, _, norm, _ in values]
    cotangents = [(value, node, cotangent) for value, node, _, _, cotangent in values]
    yield from _profile(Quantity.OUTPUT_NORM, norms)
    yield from _profile(Quantity.COTANGENT_NORM, cotangents)


def _profile(
    quantity: Quantity,
    values: Sequence[tuple[str, str, float | None]],
    seen: Mapping[str, float] = MappingProxyType({}),
    kind: str = "",
) -> Iterator[Figure]:
    """The bounds of (value, node, bound) from input to output, with what was observed."""
    line = tuple(
        (float(place), bound)
        for place, (_, _, bound) in enumerate(values, start=1)
        if bound is not None and bound > 0.0
    )
    if len(line) < 2:
        return
    dots = tuple(
        (float(place), seen[value])
        for place, (value, _, _) in enumerate(values, start=1)
        if 0.0 < seen.get(value, 0.0) < math.inf
    )
    key, title, axis, caption = _TITLES[quantity]
    series = [Series("bound", Role.BOUND, line, has_marks=True)]
    if dots:
        name = "observed maximum"
        series.append(Series(name, Role.OBSERVED, dots, has_line=False, has_marks=True))
        caption += " A growing gap between line and dots is looseness, or data that do not test it."
    across = "place in the network, from input to output"
    low, high = min(y for _, y in line), max(y for _, y in line)
    yield Figure(
        f"{kind}{key}",
        title,
        caption,
        line_chart(LineChart(across, axis, tuple(series), x_low=1.0)),
        f"{len(line)} bounds between {low:.4g} and {high:.4g}.",
        (" value", " node", "bound", "observed"),
        [(value, node, bound, measured(seen.get(value))) for value, node, bound in values],
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
