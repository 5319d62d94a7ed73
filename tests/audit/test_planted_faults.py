"""The mutation score of the audit: planted faults that it finds, right things it leaves alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.audit_faults import POOLS, SAMPLERS, all_found
from lipcert.audit.records import Verdict
from tests.audit.faults import (
    CLAIM_FAULTS,
    LOOSE,
    SUBJECTS,
    TIGHT,
    ClaimFault,
    Subject,
    caught,
    cells_of,
    report_of,
)
from tests.audit.faulty_runs import LOOSE_RUN, RIGHT, RUN_FAULTS, TIGHT_RUN, Run, found_by

PAGE = Path(__file__).resolve().parents[2] / "docs" / "audit_faults.md"
ROW = re.compile(r"^\| ([^|]+?) \| (.+) \|$", re.MULTILINE)
MODES = ("data", "attack")
ON_DATA_TOO = "X of each value × 0.5"
"""Those of the documented runs that are done again: quick, and of every part of the audit."""
AGAIN = (
    (TIGHT_RUN, "sensitivity divided by the batch size"),
    (TIGHT_RUN, "noise 10 % smaller than stated"),
    (TIGHT_RUN, "noise recorded and not released"),
    (TIGHT_RUN, "BatchNorm in training mode"),
    (LOOSE_RUN, "a weight outside its constraint"),
    (TIGHT_RUN, "NaN in one gradient"),
    (TIGHT_RUN, "one noise for all tensors of a step"),
    (TIGHT_RUN, "noise rolled and negated from step to step"),
    (TIGHT_RUN, "the same batch again, a tenth exchanged"),
)


def rows(table: str) -> dict[str, list[str]]:
    """The rows of a documented table by their first cell."""
    text = PAGE.read_text(encoding="utf-8").split(f"<!-- table: {table} -->\n")[1]
    found = ROW.findall(text.split("<!-- end -->")[0])
    return {first: re.split(r" \| ", rest) for first, rest in found}


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
@pytest.mark.parametrize("mode", MODES)
def test_right_claims_raise_no_alarm(subject: Subject, mode: str) -> None:
    report = report_of(subject.right if mode == "data" else subject.attacked)
    assert (report.verdict, report.reasons) == (Verdict.PASS, ())


@pytest.mark.parametrize("fault", CLAIM_FAULTS, ids=lambda fault: fault.name)
def test_wrong_claims_are_caught_as_documented(fault: ClaimFault) -> None:
    """Counts may differ where kernels do; whether a fault is caught at all may not."""
    short = fault.name != ON_DATA_TOO
    shown = rows("claims")[fault.name][1 if short else 0 :: 2 if short else 1]
    found = [str(cell) for cell in cells_of(fault, under_attack_only=short)]
    assert [cell.split()[0] for cell in found] == [cell.split()[0] for cell in shown]


def test_the_score_on_a_tight_network() -> None:
    """At least nine of ten bounds that are a tenth too small; by attack no fewer than by data."""
    scores = []
    for ready in (TIGHT.right, TIGHT.attacked):
        cells = [caught(ready, fault) for fault in CLAIM_FAULTS if "0.9" in fault.name]
        scores.append(sum(cell.found for cell in cells) / sum(cell.wrong for cell in cells))
    assert 0.9 <= scores[0] <= scores[1]


def test_a_loose_bound_hides_faults_and_the_report_says_how_large() -> None:
    """What is not caught lies below the factor from which the report says it would be."""
    report = report_of(LOOSE.attacked)
    factor = report.detectable_error_factor
    assert factor is not None
    halved = next(fault for fault in CLAIM_FAULTS if fault.name == "G of each group × 0.5")
    assert (factor > 2.0) == (caught(LOOSE.attacked, halved).found < len(report.groups))


def runs(run: Run) -> dict[str, list[str]]:
    """The rows of a run; those that a loose one shares with the tight one stand there alone."""
    tight, own = (rows(f"runs, {each.subject.name}") for each in (TIGHT_RUN, run))
    return {**tight, **own}


@pytest.mark.parametrize("run", [TIGHT_RUN, LOOSE_RUN], ids=["tight", "loose"])
def test_a_right_run_raises_no_alarm(run: Run, tmp_path: Path) -> None:
    found = found_by(tmp_path / "trace", run, RIGHT)
    assert found.report.verdict is Verdict.PASS, found.report.reasons
    assert found.cells == runs(run)["none"]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("run", "name"), AGAIN, ids=[name for _, name in AGAIN])
def test_faulty_runs_are_found_as_documented(run: Run, name: str, tmp_path: Path) -> None:
    (fault,) = [fault for fault in RUN_FAULTS if fault.name == name]
    found = found_by(tmp_path / "trace", run, fault)
    assert found.report.verdict is Verdict.VIOLATION
    assert found.cells == runs(run)[name]


@pytest.mark.parametrize("run", [TIGHT_RUN, LOOSE_RUN], ids=["tight", "loose"])
def test_every_faulty_run_is_documented_and_found(run: Run) -> None:
    shown = runs(run)
    assert {fault.name for fault in RUN_FAULTS} <= shown.keys()
    for fault in RUN_FAULTS:
        found = any(re.match(r"LC3\d\d", cell) for cell in shown[fault.name])
        assert found, fault.name


def test_wrong_samplers_are_found_after_as_many_steps_as_documented() -> None:
    """Of the smaller data set, where that takes at most 20 steps."""
    shown = rows("batches")
    assert SAMPLERS.keys() == shown.keys() - {"batches", "---"}
    pool, size = POOLS[0]
    for name, draw in SAMPLERS.items():
        if (steps := int(shown[name][0])) <= 20:
            assert all_found(draw, pool, size, steps), name
