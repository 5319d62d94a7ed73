"""Files of others, in a folder `../shared/zoo` beside the repository where there is one."""

import csv
from pathlib import Path

import pytest

ZOO = Path(__file__).resolve().parents[2] / "shared" / "zoo"
_INDEX = ZOO / "index.csv"
_REASON = "no folder ../shared/zoo beside the repository"
needs_zoo = pytest.mark.skipif(not _INDEX.exists(), reason=_REASON)


def rows(label: str = "", largest: float = float("inf")):
    """Of the index: files of a label with at most so many parameters."""
    if not _INDEX.exists():
        return []
    read = csv.DictReader(_INDEX.read_text(encoding="utf-8").splitlines())
    return [row for row in read if row["label"].startswith(label) and int(row["params"]) <= largest]


def or_skipped(cases):
    """Cases of a test, or one that is skipped where there is no zoo."""
    skipped = pytest.param(None, marks=pytest.mark.skip(_REASON), id="none")
    return cases if _INDEX.exists() else [skipped]
