"""Charts: how bounds grow along the network, with measurements, and ε of a run, as SVG.

The template chart.svg.jinja draws them: bounds and measurements differ in shape, not only in
colour. The vertical axis is logarithmic if the numbers differ much, and says so. Numbers beyond a
scale are drawn at its end. There is no figure of ε if the run is not described completely.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from lipcert.analysis.records import Analysis
from lipcert.audit.records import AuditReport, Quantity
from lipcert.privacy.account import ACCOUNTANTS, Account
from lipcert.privacy.accounting import (
    CURVES,
    Accountant,
    CurvePoint,
    accountants,
)
from lipcert.report.certificate import Bounded, Claimed, ClaimedRun, claimed_values
from lipcert.report.document import Figure
from lipcert.text.numbers import at_most, measured

WIDTH: Final = 440.0
"""Width of every chart, in units in which text is 11.5 high."""
HEIGHT: Final = 270.0
TOP: Final = 44.0
BOTTOM: Final = HEIGHT - 36.0
LEFT: Final = 62.0
RIGHT: Final = WIDTH - 12.0
_MOST_MARKS: Final = 40
_MOST_DOTS: Final = 300
_WIDE: Final = 50.0
_DECADES: Final = 12
_SMALLEST: Final = 1e-290  # what is smaller is drawn as 0, what is larger at the end
_LARGEST: Final = 1e290
_FEW: Final = 1.7  # decades with ticks at 1, 2 and 5
_TICKS: Final = 5

Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class LineChart:
    """Joined points of a bound, and dots of measurements; both increase in x.

    name, seen: in the legend. tip: a point with a text. x_low: where the axis begins.
    """

    x_axis: str
    y_axis: str
    name: str
    bound: Points
    seen: str = ""
    observed: Points = ()
    tip: tuple[float, float, str] | None = None
    x_low: float = 0.0

    @property
    def frame(self) -> Mapping[str, float]:
        """The size of the image, and the edges of the chart in it."""
        edges = {"left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM}
        return {"width": WIDTH, "height": HEIGHT, **edges}

    @property
    def marks(self) -> Points:
        """The bounds that have a mark; none if there are many."""
        return self.bound if len(self.bound) <= _MOST_MARKS else ()

    @property
    def dots(self) -> Points:
        """The measurements that are drawn; of many, every second, third, …"""
        return self.observed[:: max(math.ceil(len(self.observed) / _MOST_DOTS), 1)]

    @property
    def axes(self) -> tuple[Scale, Scale]:
        """The scales across and upwards."""
        points = [*self.bound, *self.observed, *([self.tip[:2]] if self.tip else [])]
        across = [x for x, _ in points]
        upwards = scale_of((y for _, y in points), BOTTOM, TOP)
        if self.x_low == 0.0:
            return scale_from_zero(across, LEFT, RIGHT), upwards
        last = max(across)
        last = last if last > self.x_low else self.x_low + 1.0
        return Scale(self.x_low, last, LEFT, RIGHT), upwards


@dataclass(frozen=True, slots=True)
class Scale:
    """Numbers from `low` to `high` lie between the coordinates `start` and `stop`."""

    low: float
    high: float
    start: float
    stop: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """Return the coordinate of a number."""
        value = min(max(value, self.low), self.high)
        if self.is_log:  # the quotient of the ends may overflow
            part = (math.log(value) - math.log(self.low)) / self._span()
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.start + part * (self.stop - self.start)

    def ticks(self) -> list[float]:
        """Return a few round numbers of the scale."""
        return self._powers() if self.is_log else self._multiples()

    def _span(self) -> float:
        return math.log(self.high) - math.log(self.low)

    def _multiples(self) -> list[float]:
        step = _round_up((self.high - self.low) / _TICKS)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [float(f"{k * step:.12g}") for k in range(first, last + 1)]

    def _powers(self) -> list[float]:
        span = self._span() / math.log(10.0)
        mantissas = (1.0, 2.0, 5.0) if span <= _FEW else (1.0,)
        every = max(1, math.ceil(span / _TICKS))
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        found = [
            float(f"{mantissa * 10.0**power:.6g}")
            for power in range(first, last + 1)
            if power % every == 0
            for mantissa in mantissas
        ]
        return [value for value in found if self.low * 0.999 <= value <= self.high * 1.001]


def scale_of(values: Iterable[float], start: float, stop: float) -> Scale:
    """Return a scale from zero if the numbers are of similar size, else a logarithmic one.

    A logarithmic scale reaches up to the largest number, and at most 12 decades below the median:
    so one extreme number does not hide how the others differ.
    """
    positive = [min(value, _LARGEST) for value in values if value > _SMALLEST]
    if not positive or max(positive) <= _WIDE * min(positive):
        return scale_from_zero(positive, start, stop)
    high = max(positive)
    low = max(min(positive), statistics.median_low(positive) / 10.0**_DECADES)
    return Scale(_round_down(low), _round_up(high), start, stop, is_log=True)


def scale_from_zero(values: Iterable[float], start: float, stop: float) -> Scale:
    """Return a linear scale, from zero to a little above the largest number."""
    high = min(max(values, default=0.0), _LARGEST)
    if high <= _SMALLEST:
        return Scale(0.0, 1.0, start, stop)
    step = _round_up(high / 5.0)
    return Scale(0.0, step * math.ceil(high / step - 1e-9), start, stop)


def _round_up(value: float) -> float:
    """Return the next of 1, 2, 5, 10 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(m * power for m in (1.0, 2.0, 5.0, 10.0, 20.0) if value <= m * power * (1.0 + 1e-9))


def _round_down(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return max(m * power for m in (0.5, 1.0, 2.0, 5.0) if m * power <= value * (1.0 + 1e-9))


_QUICK: Final = 16
_SLOW: Final = 4
"""Number of points of a curve, for quick and for slow accountants."""
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
    """Yield the figures of an analysis, and of the run that it describes."""
    yield from privacy_figures(run, {})
    yield from _profiles(
        [(x.output, x.name, x.output_norm, x.cotangent_norm) for x in analysis.nodes]
    )


def certificate_figures(claimed: Claimed) -> Iterator[Figure]:
    """Yield the figures of a certificate alone, without an analysis."""
    yield from privacy_figures(claimed.run, {})
    yield from _profiles(list(claimed_values(claimed.certificate)))


def audit_figures(report: AuditReport) -> Iterator[Figure]:
    """Yield the figures of an audit: bounds, and what was measured."""
    for quantity in Quantity:
        found = [value for value in report.values if value.quantity is quantity]
        seen = {x.value: x.max_observed for x in found if x.max_observed is not None}
        bounds = [(value.value, value.node, value.bound) for value in found]
        yield from _profile(quantity, bounds, seen, "audited-")


def _profiles(values: Sequence[Bounded]) -> Iterator[Figure]:
    """Yield how both norms of values grow along the network."""
    norms = [(value, maker, norm) for value, maker, norm, _ in values]
    cotangents = [(value, maker, cotangent) for value, maker, _, cotangent in values]
    yield from _profile(Quantity.OUTPUT_NORM, norms)
    yield from _profile(Quantity.COTANGENT_NORM, cotangents)


def _profile(
    quantity: Quantity,
    values: Sequence[tuple[str, str, float | None]],
    seen: Mapping[str, float] = MappingProxyType({}),
    kind: str = "",
) -> Iterator[Figure]:
    """Yield the bounds of (value, node, bound) from input to output, with measurements."""
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
    """Yield ε over the steps of a run and over its noise, as far as the run is known.

    curves: those in a document, which are drawn unchanged. Others are computed from the plan, by
    the Rényi accountant if it is sound, because it is quick: every point is a true ε of its run,
    and the stated ε is at most that of the curve.
    """
    if run is None:
        return
    plan, sigma = run.plan, run.noise_multiplier
    sound = () if plan is None or not sigma or sigma <= 0.0 else tuple(accountants(plan))
    way = next((item for item in (Accountant.RDP, *sound) if item in sound), None)
    count = _QUICK if way is Accountant.RDP else _SLOW
    points: Iterable[CurvePoint]
    for name, key, title, axis in _CURVES:
        is_of_steps, accountant = name == "steps", way.value if way else run.accountant
        if name in curves and sum(x.epsilon is not None for x in curves[name]) > 1:
            points, accountant = curves[name], run.accountant
        elif plan is None or sigma is None or way is None or (is_of_steps and plan.releases < 2):
            continue
        else:
            points = CURVES[name](plan, sigma, count, way)
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
    """Return a curve with the run on it.

    names: the key and the title of the figure, and what its axis shows. places: where the run is
    on the axis, and where the axis begins.
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
