"""The page on suggestions shows what the journal of runs holds; the benchmark makes such runs."""

from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

from benchmarks.reproductions.page import table_of
from benchmarks.suggested_runs.__main__ import JOURNAL, ON_PAGE, main, tables_of
from benchmarks.suggested_runs.journal import Journal
from benchmarks.suggested_runs.methods import METHODS, RATES
from benchmarks.suggested_runs.problems import PROBLEMS
from benchmarks.suggested_runs.runs import trained

PAGE = Path(__file__).resolve().parents[1] / "benchmarks/suggested_runs/results.md"
SMALL = replace(
    PROBLEMS["mlp"], network=lambda: nn.Sequential(nn.Linear(30, 2)), batch_size=500, epochs=1
)


def test_the_page_shows_the_journal() -> None:
    tables = tables_of(Journal(JOURNAL))
    for name in ON_PAGE:
        assert table_of(PAGE, name).splitlines() == tables[name]


@pytest.mark.nightly
def test_runs_go_on_where_they_ended(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path).make(SMALL, METHODS["dp-sgd"], (8.0,), range(2))
    first = path.read_text(encoding="utf-8").splitlines()
    assert len(first) == len(RATES) + 2
    assert len(Journal(path).reported) == 2
    path.write_text("\n".join(first[:-1]) + "\n", encoding="utf-8")
    Journal(path).make(SMALL, METHODS["dp-sgd"], (8.0,), range(2))
    again = path.read_text(encoding="utf-8").splitlines()
    assert again[:-1] == first[:-1]
    last = Journal(path).reported[-1]
    assert last.seed == 1
    assert last.accuracy == pytest.approx(Journal(path).reported[0].accuracy, abs=0.2)


@pytest.mark.nightly
def test_what_is_suggested_is_what_is_run() -> None:
    run = trained(SMALL, METHODS["suggested"], 8.0, 0.03, 0)
    plain = trained(SMALL, METHODS["dp-sgd"], 8.0, 0.03, 0)
    assert run.changes
    assert not plain.changes
    assert run.noise_to_signal is not None
    assert plain.noise_to_signal is not None
    assert run.noise_to_signal <= plain.noise_to_signal
    assert run.accuracy > 0.6


def test_a_journal_is_printed_without_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--print", "--journal", str(JOURNAL)]) == 0
    printed = capsys.readouterr().out
    assert table_of(PAGE, "gain").strip() in printed
    assert all("\n".join(lines) in printed for lines in tables_of(Journal(JOURNAL)).values())
