"""Findings: what examples showed, small enough to merge by the thousand.

A tally counts norms and decisions of one bounded quantity; findings hold all tallies, and checks.
Merging is associative and, except for the order of checks, does not depend on the order, so that
units of work may be done anywhere and in any order. This module loads nothing heavy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Final

import numpy as np
import numpy.typing as npt

from lipcert.audit.records import (
    BINS_PER_OCTAVE,
    HIGHEST_BIN,
    LOWEST_BIN,
    CheckReport,
    ExampleReference,
)
from lipcert.core.codec import Limit
from lipcert.core.program import FloatArray
from lipcert.measure.measured import Decision

Places = npt.NDArray[np.int64]
"""Indices of examples in the data."""


class Family(Enum):
    """A kind of bounded quantity: the joint gradient of a group, a value, or a value's cotangent.

    WHOLE, the gradient of all groups together under the single name `ALL`, is measured and not
    judged: its bound follows from those of the groups.
    """

    GRADIENT = "grad_norm"
    WHOLE = "whole_grad_norm"
    VALUE = "output_norm"
    COTANGENT = "cotangent_norm"


FAMILIES: Final = tuple(Family)
ALL: Final = "all"
_PARTS: Final = 64
_OCTAVES: Final = 1100
"""More octaves than float64 has on either side of 1."""


@dataclass(frozen=True, slots=True)
class Tally:
    """One bounded quantity over some examples.

    max_observed, worst: of the example that comes closest to its bound; inf if a norm is not
    finite. bound: the bound of that example, which other examples need not share; None if it has
    none. sizes: for the whole gradient, how many norms lie in [2^(k/64), 2^((k+1)/64)), by k.
    """

    examples: int = 0
    max_observed: float = 0.0
    bound: float | None = None
    worst: ExampleReference | None = None
    violations: int = 0
    undecided: int = 0
    recomputed: int = 0
    counts: Mapping[int, int] = field(default_factory=dict)
    sizes: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        norms: FloatArray,
        bound: float | None,
        decision: Decision | None,
        *,
        weights: str,
        places: Places,
        where: npt.NDArray[np.bool_] | None = None,
        is_again: bool = False,
        sized: bool = False,
    ) -> Tally:
        """Return the tally of the examples at these places of the data, at the named weights.

        where: which of them count; None: all. is_again: whether these norms were recomputed.
        """
        some = np.flatnonzero(np.ones(len(norms), dtype=np.bool_) if where is None else where)
        if not some.size:
            return cls()
        norms, places = norms[some], places[some]
        known = np.where(np.isfinite(norms), norms, math.inf)
        worst = int(np.argmax(known))
        return cls(
            examples=norms.size,
            max_observed=float(known[worst]),
            bound=bound,
            worst=ExampleReference(weights, int(places[worst])),
            violations=0 if decision is None else int(np.sum(decision.violating[some])),
            undecided=0 if decision is None else int(np.sum(decision.undecided[some])),
            recomputed=norms.size if is_again else 0,
            counts=_counts(known, bound) if bound else {},
            sizes=_sizes(known) if sized else {},
        )

    def merged(self, other: Tally) -> Tally:
        """Return the tally of both; of two equally close examples, the first one is named."""
        ranked = [t for t in (self, other) if t.worst is not None]
        top = min(ranked, key=_rank, default=self)
        return Tally(
            examples=self.examples + other.examples,
            max_observed=top.max_observed,
            bound=top.bound,
            worst=top.worst,
            violations=self.violations + other.violations,
            undecided=self.undecided + other.undecided,
            recomputed=self.recomputed + other.recomputed,
            counts=_added(self.counts, other.counts),
            sizes=_added(self.sizes, other.sizes),
        )

    @property
    def share(self) -> float:
        """The largest observed norm over its bound; inf if there is no bound."""
        if self.bound:
            return self.max_observed / self.bound
        return 0.0 if self.bound == self.max_observed else math.inf

    @property
    def median(self) -> float | None:
        """The median of the norms in `sizes`, rounded down by at most 1.1 %.

        inf if half of them are not finite; None if there are none.
        """
        before, half = 0, (sum(self.sizes.values()) + 1) // 2
        for place in sorted(self.sizes):
            before += self.sizes[place]
            if before >= half:
                lost = abs(place) >= _PARTS * _OCTAVES
                return (math.inf if place > 0 else 0.0) if lost else float(2.0 ** (place / _PARTS))
        return None


Tallies = Mapping[Family, Mapping[str, Tally]]
"""By family and by the name of the group or value."""
_EveryFamily = Annotated[Tallies, Limit("of every family", lambda found: {*found} == {*FAMILIES})]


@dataclass(frozen=True, slots=True)
class Findings:
    """Results for some examples: tallies and reports of checks."""

    examples: int = 0
    tallies: _EveryFamily = field(default_factory=lambda: {family: {} for family in FAMILIES})
    checks: tuple[CheckReport, ...] = ()

    @classmethod
    def all(cls, parts: Iterable[Findings]) -> Findings:
        """Merge the findings of all parts."""
        total = cls()
        for part in parts:
            tallies = {
                family: {
                    name: total.of(family, name).merged(part.of(family, name))
                    for name in {**total.tallies[family], **part.tallies[family]}
                }
                for family in FAMILIES
            }
            checks = (*total.checks, *part.checks)
            total = cls(total.examples + part.examples, tallies, checks)
        return total

    def of(self, family: Family, name: str) -> Tally:
        """Return the tally of one quantity; an empty one if nothing was measured."""
        return self.tallies[family].get(name, Tally())


def _rank(tally: Tally) -> tuple[float, float, ExampleReference | None]:
    return (-tally.share, -tally.max_observed, tally.worst)


def _counts(norms: FloatArray, bound: float) -> Mapping[int, int]:
    return _binned(norms / bound, BINS_PER_OCTAVE, LOWEST_BIN, HIGHEST_BIN)


def _sizes(norms: FloatArray) -> Mapping[int, int]:
    return _binned(norms, _PARTS, -_PARTS * _OCTAVES, _PARTS * _OCTAVES)


def _binned(numbers: FloatArray, parts: int, lowest: int, highest: int) -> Mapping[int, int]:
    """Count the numbers in each bin, with this many bins to an octave."""
    with np.errstate(divide="ignore"):
        octaves = np.log2(numbers)
    places = np.clip(np.floor(parts * octaves), lowest, highest).astype(int)
    found, counts = np.unique(places, return_counts=True)
    return {int(place): int(count) for place, count in zip(found, counts, strict=True)}


def _added(one: Mapping[int, int], other: Mapping[int, int]) -> Mapping[int, int]:
    """Add counts, and return them in order."""
    places = sorted({*one, *other})
    return {place: one.get(place, 0) + other.get(place, 0) for place in places}
