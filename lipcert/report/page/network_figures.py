"""Figures about the network: which node stretches most, and how bounds grow along it.

What enters: a study. What leaves: figures with their numbers.
"""

from __future__ import annotations

import math
from typing import Final

from lipcert.audit.records import AuditReport, Quantity
from lipcert.report.attribution import largest_gradients, stretches
from lipcert.report.audit_numbers import measured
from lipcert.report.charts.bars import Bar, BarChart, bar_chart
from lipcert.report.charts.lines import LineChart, Series, line_chart
from lipcert.report.charts.marks import Role
from lipcert.report.charts.svg import figure
from lipcert.report.numbers import at_most, percent
from lipcert.report.page.tables import table
from lipcert.report.page.view import Figure
from lipcert.report.study.records import Study, ValueBound

_MOST: Final = 12
_TITLES: Final = {
    Quantity.OUTPUT_NORM: (
        *("values", "Values along the network", "norm of the output of a node"),
        "Where the line rises steeply, the bound is lost.",
    ),
    Quantity.COTANGENT_NORM: (
        *("cotangents", "Cotangents along the network", "norm of ∂loss/∂output"),
        "Read from the right, as backpropagation runs: where the line rises steeply, the bound is "
        "lost.",
    ),
}


def stretch_figure(study: Study) -> Figure | None:
    """The nodes that stretch a change most: where the bound is lost."""
    found = [] if study.analysis is None else stretches(study.analysis.analysis, _MOST)
    if not found:
        return None
    bars = tuple(Bar(share.name, share.value, f"{at_most(share.value, 4)}×") for share in found)
    title = "Which node loses most"
    svg = bar_chart(BarChart("factor by which a node may stretch a change", bars, floor=1.0))
    return Figure(
        "stretch",
        title,
        f"The {len(found)} nodes with the largest Lipschitz constants above 1; their factors "
        "multiply along a path.",
        figure(svg, "stretch", title, f"The largest is {found[0].value:.4g}, at {found[0].name}."),
        table(
            title,
            ("node", "op", "Lipschitz"),
            [(share.name, share.op, at_most(share.value)) for share in found],
        ),
    )


def share_figure(study: Study) -> Figure | None:
    """The parameters that make up the squared gradient bound."""
    found = [] if study.analysis is None else largest_gradients(study.analysis.analysis, _MOST)
    if not found:
        return None
    bars = tuple(Bar(share.name, share.value, percent(share.value)) for share in found)
    title = "Which parameter the gradient bound comes from"
    svg = bar_chart(BarChart("share of G²", bars, is_linear=True))
    return Figure(
        "shares",
        title,
        "The share of every parameter in the squared gradient bound of one example.",
        figure(svg, "shares", title, f"The largest share is that of {found[0].name}."),
        table(
            title,
            ("parameter", "share of G²"),
            [(share.name, percent(share.value)) for share in found],
        ),
    )


def profile_figures(study: Study) -> tuple[Figure, ...]:
    """The bounds of values and cotangents from input to output, with what was observed."""
    bounds = _bounds(study)
    found = [_profile(bounds, study.audit, quantity) for quantity in Quantity]
    return tuple(item for item in found if item is not None)


def _profile(
    bounds: tuple[ValueBound, ...], audit: AuditReport | None, quantity: Quantity
) -> Figure | None:
    stated = [(item, _bound(item, quantity)) for item in bounds]
    line = [
        (float(place), bound)
        for place, (_, bound) in enumerate(stated, start=1)
        if bound is not None and bound > 0.0
    ]
    if len(line) < 2:
        return None
    seen = _observations(audit, quantity)
    dots = tuple(
        (float(place), seen[item.value])
        for place, (item, _) in enumerate(stated, start=1)
        if 0.0 < seen.get(item.value, 0.0) < math.inf
    )
    key, title, axis, caption = _TITLES[quantity]
    series = [Series("bound", Role.BOUND, tuple(line), has_marks=True)]
    if dots:
        series.append(
            Series("observed maximum", Role.OBSERVED, dots, has_line=False, has_marks=True)
        )
    svg = line_chart(
        LineChart("place in the network, from input to output", axis, tuple(series), x_low=1.0)
    )
    if dots:
        caption += " A growing gap between line and dots is looseness, or data that do not try it."
    low, high = min(y for _, y in line), max(y for _, y in line)
    return Figure(
        key,
        title,
        caption,
        figure(svg, key, title, f"{len(line)} bounds between {low:.4g} and {high:.4g}."),
        table(
            title,
            ("value", "node", "bound", "observed"),
            [
                (item.value, item.node, at_most(bound), measured(seen.get(item.value)))
                for item, bound in stated
            ],
        ),
    )


def _bounds(study: Study) -> tuple[ValueBound, ...]:
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
