"""Figures about groups: bounds, observations, tightness, noise.

What enters: a study. What leaves: figures with their numbers. Large networks: the groups that are
shown are chosen by what the figure is about, drawn in the order of the network, and the caption
says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
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
from lipcert.report.document import Figure
from lipcert.report.numbers import at_most, percent
from lipcert.report.study.groups import GroupRow, group_rows, noise_shares
from lipcert.report.study.records import Study

_MOST_BARS: Final = 30
_MANY: Final = 10**15  # more observations than there can be
_TRIED: Final = (
    (Role.OBSERVED, "observed maximum"),
    (Role.ATTACKED, "reached by attack"),
    (Role.OVER, "over"),
)


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
        (" group", "tightness", "noticed from"),
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


def _span(what: str, values: Sequence[float | None]) -> str:
    """From where to where some numbers of groups go."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return f"{what}: none."
    return f"{what} of {len(known)} groups, from {min(known):.4g} to {max(known):.4g}."
