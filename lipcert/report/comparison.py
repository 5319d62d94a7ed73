"""Comparison: what became of bounds, privacy and assumptions from one document to another.

What enters: two statements, each of a certificate or an analysis. What leaves: every number that
differs, every assumption that does, and which of these differences weaken what is stated; as a
`Document` whose first line answers what became of the bounds, or as JSON. Nothing is rounded before
it is compared; a bound that one side lacks counts as infinite there. Displayed bounds are rounded
up; where that hides a change, they are shown in full.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, NamedTuple, TypeAlias, final

from lipcert.report import document as doc
from lipcert.report.json import JsonObject, dump
from lipcert.report.numbers import NO_BOUND, at_most

Number: TypeAlias = float | Fraction

_NOISE: Final = "noise_std"
_MULTIPLIER: Final = "noise_multiplier"
_MODELS: Final = {
    "same": "both speak of the same file",
    "saved-again": "the files differ, what they compute does not",
    "other": "the two speak of different files",
}
_WHOLE: Final = 10**6
_NUMBER_COLUMNS: Final = (
    doc.Column("", optional=True),
    doc.Column("where", least=12, most=_WHOLE),
    doc.Column("number"),
    doc.Column("old", is_number=True),
    doc.Column("new", is_number=True),
    doc.Column("by", is_number=True),
)


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


def comparison_document(comparison: Comparison) -> doc.Document:
    """What people read of a comparison."""
    old, new = comparison.old, comparison.new
    tone = doc.Tone.BAD if comparison.is_regression else doc.Tone.GOOD
    assumed = [row for item in comparison.assumptions for row in _changed(item)]
    facts = [("old", _source(old)), ("new", _source(new)), ("model", _MODELS[comparison.model])]
    return doc.Document(
        "LipCert comparison",
        (doc.Answer(_answer(comparison), tone),),
        sections=doc.sections_of(
            doc.Section("", (doc.Statements.of(facts),)),
            doc.Section("Numbers that changed", (doc.table(_NUMBER_COLUMNS, _rows(comparison)),)),
            doc.Section("Assumptions that changed", (doc.Statements(tuple(assumed)),)),
        ),
    )


def comparison_json(comparison: Comparison) -> str:
    """`lipcert.comparison/1`."""
    regressions = comparison.regressions
    return dump(
        {
            "schema": "lipcert.comparison/1",
            "regression": comparison.is_regression,
            "tolerance": comparison.tolerance,
            "old": _identity(comparison.old),
            "new": _identity(comparison.new),
            "model": comparison.model,
            "counts": {
                kind: comparison.count(kind)
                for kind in ("grew", "shrank", "appeared", "disappeared")
            },
            "changes": [
                {
                    **change.place._asdict(),
                    "change": change.kind,
                    "old": _float(change.old),
                    "new": _float(change.new),
                    "regression": change in regressions,
                }
                for change in comparison.changes
            ],
            "assumptions": [
                {
                    "id": item.name,
                    "change": item.kind,
                    "old": _assumed(item.old),
                    "new": _assumed(item.new),
                    "regression": item.is_regression,
                }
                for item in comparison.assumptions
            ],
        }
    )


def _answer(comparison: Comparison) -> str:
    """The first line."""
    counts = [(kind, comparison.count(kind)) for kind in ("grew", "shrank")]
    counts += [(kind, comparison.count(kind)) for kind in ("disappeared", "appeared")]
    first, *rest = [(kind, count) for kind, count in counts if count or kind in {"grew", "shrank"}]
    words = [f"{first[1]} {'bound' if first[1] == 1 else 'bounds'} {first[0]}"]
    words += [f"{count} {kind}" for kind, count in rest]
    found = len(comparison.assumptions)
    words.append(f"{found} {'assumption' if found == 1 else 'assumptions'} changed")
    verdict = "a regression" if comparison.is_regression else "no regression"
    return f"{', '.join(words)}: {verdict}"


def _source(statement: Statement) -> str:
    return f"{statement.path}, {statement.kind} of the model {statement.sha256[:12]}"


def _rows(comparison: Comparison) -> list[tuple[str, ...]]:
    regressions = comparison.regressions
    return [_row(change, change in regressions) for change in comparison.changes]


def _row(change: Change, is_regression: bool) -> tuple[str, ...]:
    place = change.place
    where = f"{place.section} {place.name}".strip()
    mark = "worse" if is_regression else ""
    old, new = _shown(change.old), _shown(change.new)
    if old == new:
        old, new = repr(_float(change.old)), repr(_float(change.new))
    return mark, where, place.quantity, old, new, _growth(change)


def _growth(change: Change) -> str:
    old, new = _float(change.old), _float(change.new)
    if not old or new is None:
        return change.kind
    return f"{100.0 * ((new - old) / old):+.3g}%"


def _changed(item: AssumptionChange) -> Iterator[doc.Statement]:
    """What was assumed, and what is."""
    status = f"{item.kind} (worse)" if item.is_regression else item.kind
    told = [("old", item.old), ("new", item.new)]
    words = [f"{name}: {_status(assumed)}" for name, assumed in told if assumed is not None]
    tone = doc.Tone.BAD if item.is_regression else doc.Tone.PLAIN
    yield doc.Statement(item.name, words[0], status, tone)
    yield from (doc.Statement("", text) for text in words[1:])


def _status(assumed: Assumed) -> str:
    return f"{assumed.text} (checked)" if assumed.checked else assumed.text


def _identity(statement: Statement) -> JsonObject:
    return {name: getattr(statement, name) for name in ("path", "kind", "sha256", "structure")}


def _assumed(assumed: Assumed | None) -> JsonObject | None:
    return assumed and {"text": assumed.text, "checked": assumed.checked}


def _float(number: Number | None) -> float | None:
    return None if number is None else float(number)


def _shown(number: Number | None) -> str:
    return NO_BOUND if number is None else at_most(float(number))
