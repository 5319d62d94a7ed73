"""Analysis file: what `lipcert privacy` needs of the JSON that `lipcert analyze` wrote.

What enters: a path. What leaves: a frozen record of checked types. Invariant: a file that is
unreadable, too large, of another schema or of wrong types gives no record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast, final

from lipcert.cli.json_file import read_json
from lipcert.errors import NoVerdictError

_SCHEMA: Final = "lipcert.analysis/1"


@final
@dataclass(frozen=True, slots=True)
class AnalysisFacts:
    """The release that an analysis computed noise for; sensitivity None: no bound.

    run: what it says of the run, under the names of the options; empty where none was described.
    """

    sensitivity: float | None
    noise_multiplier: float
    neighbours: str
    batch_size: int | None
    allocation: str
    scope: str
    mechanism: str
    run: Mapping[str, int | float | str]


def read_analysis(path: Path) -> AnalysisFacts:
    """The facts of a file; NoVerdictError where it is no analysis."""
    document = _document(path)
    try:
        facts = cast("dict[str, object]", document["assumptions"])
        network = cast("dict[str, object]", document["network"])
        sensitivity, batch_size = network["sensitivity"], facts["batch_size"]
        return AnalysisFacts(
            None if sensitivity is None else _number(sensitivity),
            _number(facts["noise_multiplier"]),
            _word(facts["neighbours"]),
            None if batch_size is None else _whole(batch_size),
            _word(facts["allocation"]),
            _word(facts["scope"]),
            _word(cast("dict[str, object]", facts["mechanism"])["kind"]),
            _run(document.get("privacy")),
        )
    except (KeyError, TypeError) as error:
        raise NoVerdictError(
            f"{path}: not a complete analysis ({error}); write it again"
        ) from error


def _run(privacy: object) -> Mapping[str, int | float | str]:
    if privacy is None:
        return {}
    facts = cast("dict[str, object]", privacy)
    return {
        "dataset_size": _whole(facts["dataset_size"]),
        "dataset_size_from": _word(facts.get("dataset_size_from", "declared")),
        "batch_size": _whole(facts["batch_size"]),
        "sampling": _word(facts["sampling"]),
        "delta": _number(facts["delta"]),
        "steps": _whole(facts["steps"]),
    }


def _document(path: Path) -> dict[str, object]:
    _, document = read_json(path)
    if document.get("schema") != _SCHEMA:
        raise NoVerdictError(f"{path}: not a result of `lipcert analyze --format json` ({_SCHEMA})")
    return document


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _word(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a word")
    return value
