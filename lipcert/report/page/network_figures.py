"""Figures about the network: which node stretches most, and how bounds grow along it.

What enters: a study. What leaves: figures with their numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from lipcert.audit.records import AuditReport, Quantity
from lipcert.report.attribution import Share, largest_gradients, stretches
from lipcert.report.audit_numbers import measured
from lipcert.report.charts.bars import Bar, BarChart, bar_chart
from lipcert.report.charts.lines import LineChart, Series, line_chart
from lipcert.report.charts.marks import Role
from lipcert.report.document import Figure
from lipcert.report.numbers import at_most, percent
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


def network_figures(study: Study) -> Iterator[Figure]:
    """Where bounds come from: nodes, parameters, and the way from input to output."""
    if study.analysis is not None:
        analysis = study.analysis.analysis
        yield from _stretches(stretches(analysis, _MOST))
        yield from _shares(largest_gradients(analysis, _MOST))
    bounds = _bounds(study)
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
