"""Analysis file: what `lipcert privacy` needs of the JSON that `lipcert analyze` wrote.

What enters: a path. What leaves: records of checked types. Invariant: a file that is unreadable,
too large, of another schema or of wrong types gives none.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from lipcert.analysis.records import Analysis
from lipcert.cli.paths import read_json
from lipcert.errors import NoVerdictError
from lipcert.report.json import DOCUMENT, FieldError
from lipcert.report.study.reading import analysis_in

_SCHEMA: Final = "lipcert.analysis/1"


@final
@dataclass(frozen=True, slots=True)
class DescribedRun:
    """What an analysis says of a run, under the names of the options."""

    dataset_size: int
    dataset_size_from: str
    batch_size: int
    sampling: str
    delta: float
    steps: int


def read_analysis(path: Path) -> tuple[Analysis, DescribedRun | None]:
    """The analysis in a file and the run that it describes; NoVerdictError where it is none."""
    _, document = read_json(path)
    if document.get("schema") != _SCHEMA:
        raise NoVerdictError(f"{path}: not a result of `lipcert analyze --format json` ({_SCHEMA})")
    try:
        run: DescribedRun | None = DOCUMENT.read_any(
            DescribedRun | None, document.get("privacy"), "analysis.privacy"
        )
        return analysis_in(document), run
    except FieldError as error:
        raise NoVerdictError(
            f"{path}: not a complete analysis ({error}); write it again"
        ) from error
