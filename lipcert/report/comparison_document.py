"""A comparison as a document, and as JSON.

What enters: a comparison. What leaves: a `Document` whose first line answers what became of the
bounds. Displayed bounds are rounded up; where that hides a change, they are shown in full.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lipcert.report import comparison as compared
from lipcert.report import document as doc
from lipcert.report.comparison import Assumed, AssumptionChange, Change, Comparison, Number
from lipcert.report.json import JsonObject, dump
from lipcert.report.numbers import NO_BOUND, at_most

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


def _source(statement: compared.Statement) -> str:
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


def _identity(statement: compared.Statement) -> JsonObject:
    return {name: getattr(statement, name) for name in ("path", "kind", "sha256", "structure")}


def _assumed(assumed: Assumed | None) -> JsonObject | None:
    return assumed and {"text": assumed.text, "checked": assumed.checked}


def _float(number: Number | None) -> float | None:
    return None if number is None else float(number)


def _shown(number: Number | None) -> str:
    return NO_BOUND if number is None else at_most(float(number))
