"""A comparison as text, as Markdown for pull requests, and as JSON.

What enters: a comparison. What leaves: text whose first line answers what became of the bounds.
Displayed bounds are rounded up; where that hides a change, the numbers are shown in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lipcert.report.comparison import Assumed, Change, Comparison, Number, Statement
from lipcert.report.json import JsonObject, dump
from lipcert.report.numbers import NO_BOUND, at_most
from lipcert.safe import safe

_MODELS: Final = {
    "same": "both speak of the same file",
    "saved-again": "the files differ, what they compute does not",
    "other": "the two speak of different files",
}
_NUMBER_TITLES: Final = ("", "where", "number", "old", "new", "by")
_ASSUMPTION_TITLES: Final = ("assumption", "change", "old", "new")
_Row = tuple[str, ...]


def comparison_text(comparison: Comparison) -> str:
    """The whole comparison."""
    lines = [_answer(comparison), ""]
    lines += [_source("old", comparison.old), _source("new", comparison.new)]
    lines += [f"  model  {_MODELS[comparison.model]}"]
    if comparison.changes:
        lines += ["", "Numbers that changed", *_aligned(_rows(comparison))]
    if comparison.assumptions:
        lines += ["", "Assumptions that changed"]
    for name, change, old, new in _assumption_rows(comparison):
        lines += [f"  {safe(name)}: {change}", f"    old  {safe(old)}", f"    new  {safe(new)}"]
    return "\n".join(lines) + "\n"


def comparison_markdown(comparison: Comparison) -> str:
    """The whole comparison, every string of the files inert."""
    from lipcert.report.markdown import escaped, table  # noqa: PLC0415  not for every format

    sections = [
        "# LipCert comparison",
        f"**{escaped(_answer(comparison))}**",
        table(
            ("", "document", "kind", "model"),
            [
                (name, item.path, item.kind, item.sha256[:12])
                for name, item in (("old", comparison.old), ("new", comparison.new))
            ],
        ),
        escaped(f"{_MODELS[comparison.model].capitalize()}."),
    ]
    if comparison.changes:
        sections += ["## Numbers that changed", table(_NUMBER_TITLES, _rows(comparison))]
    if comparison.assumptions:
        rows = _assumption_rows(comparison)
        sections += ["## Assumptions that changed", table(_ASSUMPTION_TITLES, rows)]
    return "\n\n".join(sections) + "\n"


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
                    "section": change.place.section,
                    "name": change.place.name,
                    "quantity": change.place.quantity,
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


def _source(name: str, statement: Statement) -> str:
    sha256 = safe(statement.sha256[:12])
    return f"  {name}    {safe(statement.path)}, {statement.kind} of the model {sha256}"


def _rows(comparison: Comparison) -> list[_Row]:
    regressions = comparison.regressions
    return [_row(change, change in regressions) for change in comparison.changes]


def _row(change: Change, is_regression: bool) -> _Row:
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


def _assumption_rows(comparison: Comparison) -> list[_Row]:
    return [
        (
            item.name,
            f"{item.kind} (worse)" if item.is_regression else item.kind,
            "" if item.old is None else _status(item.old),
            "" if item.new is None else _status(item.new),
        )
        for item in comparison.assumptions
    ]


def _status(assumed: Assumed) -> str:
    return f"{assumed.text} (checked)" if assumed.checked else assumed.text


def _aligned(rows: Sequence[_Row]) -> list[str]:
    cells = [[safe(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def _identity(statement: Statement) -> JsonObject:
    return {
        "path": statement.path,
        "kind": statement.kind,
        "sha256": statement.sha256,
        "structure": statement.structure,
    }


def _assumed(assumed: Assumed | None) -> JsonObject | None:
    return assumed and {"text": assumed.text, "checked": assumed.checked}


def _float(number: Number | None) -> float | None:
    return None if number is None else float(number)


def _shown(number: Number | None) -> str:
    return NO_BOUND if number is None else at_most(float(number))
