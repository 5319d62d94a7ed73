"""Figures about groups: bounds, observations, tightness, noise.

What enters: a study. What leaves: figures with their numbers. Large networks: `shown` groups are
chosen by what the figure is about, drawn in the order of the network, and the caption says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from lipcert.audit.records import BINS_PER_OCTAVE
from lipcert.report.audit_numbers import factor_of, measured, tightness_of
from lipcert.report.charts.bars import Bar, BarChart, bar_chart
from lipcert.report.charts.histogram import (
    Strip,
    histogram_chart,
    lowest_bin,
    ratio_label,
    strip_chart,
)
from lipcert.report.charts.marks import Role
from lipcert.report.charts.svg import figure
from lipcert.report.numbers import at_most, percent
from lipcert.report.page.tables import table
from lipcert.report.page.view import Figure
from lipcert.report.study.groups import GroupRow, group_rows, noise_shares
from lipcert.report.study.records import Study

MOST_BARS: Final = 30
_MANY: Final = 10**15  # more observations than there can be
_TRIED: Final = (
    (Role.OBSERVED, "observed maximum"),
    (Role.ATTACKED, "reached by attack"),
    (Role.OVER, "over"),
)


def bound_figure(study: Study) -> Figure | None:
    """The gradient bound of every group, what was observed laid over it."""
    every = group_rows(study)
    rows = _shown(every, lambda row: row.grad_norm or 0.0)
    if not rows:
        return None
    marks = {row.name: _marks(row) for row in rows}
    roles = {role for found in marks.values() for role, _ in found}
    legend = ((Role.BOUND, "bound G"), *(item for item in _TRIED if item[0] in roles))
    bars = tuple(
        Bar(row.name, row.grad_norm, at_most(row.grad_norm, 4), marks[row.name]) for row in rows
    )
    svg = bar_chart(BarChart("gradient norm of one example", bars, legend))
    title = "Gradient bound per group"
    caption = "The bars say that no admissible example has a larger gradient."
    if roles:
        caption += " Dots and diamonds are what an audit found; they have to lie within the bars."
    if Role.OVER in roles:
        caption += " Crosses lie beyond: there the bound does not hold."
    return Figure(
        "bounds",
        title,
        caption + _selection(rows, every, "largest bounds"),
        figure(svg, "bounds", title, _range("Bounds", [row.grad_norm for row in rows])),
        table(
            title,
            ("group", "bound", "observed", "attacked"),
            [(row.name, at_most(row.grad_norm), *_observed(row)) for row in rows],
        ),
    )


def tightness_figure(study: Study) -> Figure | None:
    """How near to its bound each group came, and which error of the bound would be noticed."""
    every = [row for row in group_rows(study) if _tightness(row) is not None]
    rows = _shown(every, lambda row: -(_tightness(row) or 0.0))
    if not rows:
        return None
    bars = tuple(_tightness_bar(row) for row in rows)
    svg = bar_chart(
        BarChart("largest norm found / bound", bars, reference=(1.0, "bound"), is_linear=True)
    )
    title = "Tightness and what the audit would notice"
    return Figure(
        "tightness",
        title,
        "The number at the right: a bound too small by this factor would have been noticed. "
        "Near 1 the audit is strong; a large factor means that the data hardly tried the bound."
        + _selection(rows, every, "least tried"),
        figure(svg, "tightness", title, _range("Ratios", [_tightness(row) for row in rows])),
        table(
            title,
            ("group", "tightness", "noticed from"),
            [(row.name, measured(_tightness(row)), _factor(row)) for row in rows],
        ),
    )


def histogram_figures(study: Study) -> tuple[Figure, ...]:
    """Observed norms relative to their bounds, of all groups together and of each."""
    every = [row for row in group_rows(study) if row.audit and row.audit.histogram.counts]
    if not every:
        return ()
    total: dict[int, int] = {}
    for row in every:
        for number, count in _counts(row).items():
            total[number] = total.get(number, 0) + count
    lowest = lowest_bin(total, BINS_PER_OCTAVE)
    octave = lowest // BINS_PER_OCTAVE
    rows = _shown(every, lambda row: _tightness(row) or 0.0)
    strips = [
        Strip(row.name, _counts(row), measured(_tightness(row), 3), not _is_good(row))
        for row in rows
    ]
    numbers = table(
        "Observed norms",
        ("observed / bound", "observations"),
        [_bin(k, total[k]) for k in sorted(total)],
    )
    size = sum(total.values())
    title = "Observed norms against the bound"
    whole = Figure(
        "histogram",
        title,
        f"{size:,} observations: every replayed example in every group. Right of the line would "
        f"be violations; the first column also holds all below {ratio_label(octave)}.",
        figure(
            histogram_chart(
                Strip("", total, "", any(not _is_good(row) for row in every)),
                BINS_PER_OCTAVE,
                lowest,
            ),
            "histogram",
            title,
            f"Histogram of {size:,} ratios; the bound is at 1.",
        ),
        numbers,
    )
    name = "Observed norms by group"
    return whole, Figure(
        "strips",
        name,
        "Each row is the histogram of one group, stronger where more examples lie; at the right "
        "the largest ratio." + _selection(rows, every, "tightest"),
        figure(
            strip_chart(strips, BINS_PER_OCTAVE, lowest), "strips", name, "One strip per group."
        ),
        table(
            name,
            ("group", "observations", "largest observed / bound"),
            [
                (row.name, f"{sum(_counts(row).values()):,}", measured(_tightness(row)))
                for row in rows
            ],
        ),
    )


def noise_figure(study: Study) -> Figure | None:
    """Which groups receive the noise."""
    shares = noise_shares(study)
    every = [row for row in group_rows(study) if row.name in shares]
    rows = _shown(every, lambda row: shares[row.name])
    if len(rows) < 2:
        return None
    bars = tuple(Bar(row.name, shares[row.name], percent(shares[row.name])) for row in rows)
    svg = bar_chart(BarChart("share of the noise energy Σ d·s²", bars, is_linear=True))
    title = "Where the noise goes"
    return Figure(
        "noise",
        title,
        "The share of every group in the expected squared norm of the noise of one step."
        + _selection(rows, every, "largest shares"),
        figure(svg, "noise", title, _range("Shares", [shares[row.name] for row in rows])),
        table(
            title,
            ("group", "dimension", "noise std", "noise energy"),
            [
                (
                    row.name,
                    f"{row.dimension:,}",
                    at_most(row.release.noise_std) if row.release else "",
                    percent(shares[row.name]),
                )
                for row in rows
            ],
        ),
    )


def _shown(rows: Sequence[GroupRow], weight: Callable[[GroupRow], float]) -> list[GroupRow]:
    """The groups of most weight, in their order; violations before all."""
    ranked = sorted(
        range(len(rows)), key=lambda i: (_is_good(rows[i]), -_finite(weight(rows[i])), i)
    )
    return [rows[i] for i in sorted(ranked[:MOST_BARS])]


def _is_good(row: GroupRow) -> bool:
    return row.audit is None or row.audit.violations == 0


def _finite(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _selection(rows: Sequence[GroupRow], every: Sequence[GroupRow], what: str) -> str:
    return (
        f" Shown: {len(rows)} of {len(every):,} groups, the {what}."
        if len(rows) < len(every)
        else ""
    )


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
    return (
        ("", "") if audit is None else (measured(audit.max_observed), measured(audit.max_attacked))
    )


def _tightness(row: GroupRow) -> float | None:
    return None if row.audit is None else tightness_of(row.audit)


def _tightness_bar(row: GroupRow) -> Bar:
    ratio = _tightness(row)
    if ratio is None or not math.isfinite(ratio):
        return Bar(row.name, None, measured(ratio), role=Role.OVER)
    role = Role.OVER if ratio > 1.0 and not _is_good(row) else Role.OBSERVED
    return Bar(row.name, ratio, _factor(row), role=role)


def _factor(row: GroupRow) -> str:
    if not _is_good(row):
        return "violation"
    factor = None if row.audit is None else factor_of(row.audit)
    return "–" if factor is None else f"{at_most(factor, 3)}×"


def _counts(row: GroupRow) -> dict[int, int]:
    if row.audit is None:
        return {}
    return {place: min(count, _MANY) for place, count in row.audit.histogram.counts.items()}


def _bin(number: int, count: int) -> tuple[str, str]:
    low, high = (2.0 ** (k / BINS_PER_OCTAVE) for k in (number, number + 1))
    return f"{low:.4g} to {high:.4g}", f"{count:,}"


def _range(what: str, values: Sequence[float | None]) -> str:
    """A description for readers who do not see the chart."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return f"{what}: none."
    return f"{what} of {len(known)} groups, from {min(known):.4g} to {max(known):.4g}."
