"""Comparison: what became of bounds, privacy and assumptions from one document to another.

What enters: two statements, each of a certificate or an analysis. What leaves: every number that
differs, every assumption that does, and which of these differences weaken what is stated. Nothing
is rounded before it is compared; a bound that one side lacks counts as infinite there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, NamedTuple, TypeAlias, final

Number: TypeAlias = float | Fraction

_NOISE: Final = "noise_std"
_MULTIPLIER: Final = "noise_multiplier"


class Place(NamedTuple):
    """Where a number stands. section: "network", "privacy", "group" or "parameter"."""

    section: str
    name: str
    quantity: str


@final
@dataclass(frozen=True, slots=True)
class Assumed:
    """An assumption. checked: somebody established it, so that it assumes nothing.

    slack: numbers that assume less the larger all of them are; None where there is no such order.
    """

    text: str
    checked: bool = False
    slack: tuple[float, ...] | None = None


@final
@dataclass(frozen=True, slots=True)
class Statement:
    """What a document states. kind: "certificate" or "analysis".

    structure: the digest of what the model computes, where the document has it. assumptions: in the
    words of the document; terms: the same in words that both kinds share.
    """

    kind: str
    path: str
    sha256: str
    structure: str | None
    numbers: Mapping[Place, Number | None]
    assumptions: Mapping[str, Assumed]
    terms: Mapping[str, Assumed] = field(default_factory=dict)


@final
@dataclass(frozen=True, slots=True)
class Change:
    """A number that is not the same on both sides; None: no bound there."""

    place: Place
    old: Number | None
    new: Number | None

    @property
    def kind(self) -> str:
        """What happened to it."""
        if self.old is None:
            return "appeared"
        if self.new is None:
            return "disappeared"
        return "grew" if self.new > self.old else "shrank"

    @property
    def is_bound(self) -> bool:
        """Whether it is an upper bound of something; noise is what a release needs or has."""
        return self.place.quantity not in {_NOISE, _MULTIPLIER}

    def is_regression(self, tolerance: Fraction) -> bool:
        """Whether less is stated: a larger bound, a smaller noise multiplier, or none at all.

        More noise in a group is no regression by itself: whatever asked for it is one.
        """
        if self.place.quantity == _NOISE or self.old is None:
            return False
        if self.new is None:
            return True
        old, new = Fraction(self.old), Fraction(self.new)
        if self.place.quantity == _MULTIPLIER:
            old, new = new, old
        return new > old * (1 + tolerance)


@final
@dataclass(frozen=True, slots=True)
class AssumptionChange:
    """An assumption that is not the same on both sides; None: not assumed there."""

    name: str
    old: Assumed | None
    new: Assumed | None

    @property
    def kind(self) -> str:
        """What happened to it."""
        if self.old is None:
            return "added"
        return "dropped" if self.new is None else "changed"

    @property
    def is_regression(self) -> bool:
        """Whether more may be assumed than before; where nobody can tell, it may be."""
        if self.new is None or self.new.checked:
            return False
        if self.old is None or self.old.slack is None or self.new.slack is None:
            return True
        pairs = zip(self.old.slack, self.new.slack, strict=True)
        return self.old.checked or any(new < old for old, new in pairs)


@final
@dataclass(frozen=True, slots=True)
class Comparison:
    """Two statements, what differs, and by what factor more than 1 a bound may grow."""

    old: Statement
    new: Statement
    tolerance: float
    changes: tuple[Change, ...]
    assumptions: tuple[AssumptionChange, ...]

    @property
    def regressions(self) -> tuple[Change, ...]:
        """Numbers that state less than before."""
        allowed = Fraction(self.tolerance)
        return tuple(change for change in self.changes if change.is_regression(allowed))

    @property
    def is_regression(self) -> bool:
        """Whether anything states less, or assumes more."""
        return bool(self.regressions) or any(item.is_regression for item in self.assumptions)

    @property
    def model(self) -> str:
        """Whether both speak of one model: "same", "saved-again" or "other"."""
        if self.old.sha256 == self.new.sha256:
            return "same"
        structure = self.old.structure
        return "saved-again" if structure and structure == self.new.structure else "other"

    def count(self, kind: str) -> int:
        """How many bounds changed in this way."""
        return sum(change.is_bound and change.kind == kind for change in self.changes)


def compared(old: Statement, new: Statement, tolerance: float = 0.0) -> Comparison:
    """Everything that differs between two statements."""
    return Comparison(
        old, new, tolerance, tuple(_changes(old, new)), tuple(_assumption_changes(old, new))
    )


def _changes(old: Statement, new: Statement) -> Iterator[Change]:
    for place in dict.fromkeys([*old.numbers, *new.numbers]):
        before, after = old.numbers.get(place), new.numbers.get(place)
        if before != after:
            yield Change(place, before, after)


def _assumption_changes(old: Statement, new: Statement) -> Iterator[AssumptionChange]:
    """In the documents' own words where they are of one kind, else in those they share."""
    same = old.kind == new.kind
    before, after = (old.assumptions, new.assumptions) if same else (old.terms, new.terms)
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) != after.get(name):
            yield AssumptionChange(name, before.get(name), after.get(name))
