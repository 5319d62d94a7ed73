"""The engine's multipliers of a chain as the numbers that the checker asks for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lipcert.forms.multipliers import tuned
from lipcert.forms.quadratic import (
    Multipliers,
    QuadraticForm,
    default_multipliers,
    middle_and_radius,
)
from lipcert.interval import Interval

Links = Sequence[np.ndarray | Interval]


def replayed(
    links: Links, proposals: Sequence[Multipliers | None]
) -> tuple[QuadraticForm, list[list[float]]]:
    """The engine's form at the top of links from below, and t = κ/p² for each diagonal.

    An empty list below the first matrix, where no multipliers are needed; 1 for known slopes.
    """
    form: QuadraticForm | None = None
    numbers: list[list[float]] = []
    for link, proposal in zip(links, proposals, strict=True):
        if isinstance(link, Interval):
            numbers.append([] if form is None else _numbers(form, link, proposal))
        form = QuadraticForm.of(link) if form is None else form.through(link, proposal)
    assert form is not None
    return form, numbers


def proposals_for(links: Links, hull: bool) -> list[Multipliers | None]:
    """What the engine would choose, for links that begin with a matrix."""
    return [None, *tuned(QuadraticForm.of(links[0]).matrix, links[1:], hull)]


def _numbers(form: QuadraticForm, link: Interval, proposal: Multipliers | None) -> list[float]:
    slopes = Interval(np.broadcast_to(link.lo, form.size), np.broadcast_to(link.hi, form.size))
    middle, radius, _ = middle_and_radius(slopes)
    if proposal is None or not proposal.is_usable(radius):
        proposal = default_multipliers(form.matrix, middle, radius)
    weights = np.where(radius > 0.0, proposal.weights, 0.0)
    limit = form._largest(weights).value * proposal.ratio * 4.0**form.scale
    result = np.divide(limit, weights**2, out=np.ones_like(weights), where=weights > 0.0)
    return [float(t) for t in result]
