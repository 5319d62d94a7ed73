"""Figures: how bounds grow along the network, with what was observed, and ε of a run.

The functions give the figures of one document with their numbers; of ε none where the run is not
described completely.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from lipcert.analysis.records import Analysis
from lipcert.audit.records import AuditReport, Quantity
from lipcert.privacy.account import ACCOUNTANTS, Account
from lipcert.privacy.accounting import (
    Accountant,
    CurvePoint,
    accountants,
    epsilon_over_noise,
    epsilon_over_steps,
)
from lipcert.report.certificate import Bounded, Claimed, ClaimedRun, claimed_values
from lipcert.report.charts import LineChart
from lipcert.report.document import Figure
from lipcert.text.numbers import at_most, measured

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


def analysis_figures(analysis: Analysis, run: Account | None) -> Iterator[Figure]:
    """Of an analysis, and of the run that it describes."""
    yield from privacy_figures(run, {})
    yield from _profiles(
        [(x.output, x.name, x.op, x.output_norm, x.cotangent_norm) for x in analysis.nodes]
    )


def certificate_figures(claimed: Claimed) -> Iterator[Figure]:
    """Of a certificate alone, without an analysis."""
    yield from privacy_figures(claimed.run, {})
    yield from _profiles(list(claimed_values(claimed.certificate)))


def audit_figures(report: AuditReport) -> Iterator[Figure]:
    """Of an audit: bounds, and what was observed."""
    for quantity in Quantity:
        found = [value for value in report.values if value.quantity is quantity]
        seen = {x.value: x.max_observed for x in found if x.max_observed is not None}
        bounds = [(value.value, value.node, value.bound) for value in found]
        yield from _profile(quantity, bounds, seen, "audited-")


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
    seen_as = "observed maximum" if dots else ""
    if dots:
        caption += " A growing gap between line and dots is looseness, or data that do not test it."
    across = "place in the network, from input to output"
    low, high = min(y for _, y in line), max(y for _, y in line)
    yield Figure(
        f"{kind}{key}",
        title,
        caption,
        LineChart(across, axis, "bound", line, seen_as, dots, x_low=1.0),
        f"{len(line)} bounds between {low:.4g} and {high:.4g}.",
        (" value", " node", "bound", "observed"),
        [(value, node, bound, measured(seen.get(value))) for value, node, bound in values],
    )


def privacy_figures(
    run: Account | ClaimedRun | None, curves: Mapping[str, Iterable[CurvePoint]]
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
    points: Iterable[CurvePoint]
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
    run: Account | ClaimedRun,
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
    over = f"ε at δ = {run.delta:g}"
    chart = LineChart(axis, over, f"by {way}", tuple(points), tip=tip, x_low=low)
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
    return Figure(key, title, caption, chart, ends, (axis, "ε"), rows)
