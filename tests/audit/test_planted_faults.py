"""The mutation score of the audit: planted faults that it finds, right things it leaves alone."""

import re
from pathlib import Path

import pytest

from benchmarks.audit_faults import POOLS, SAMPLERS, all_found
from lipcert.audit.records import Verdict
from tests.audit import faults

PAGE = Path(__file__).resolve().parents[2] / "benchmarks" / "audit_faults.md"
ROW = re.compile(r"^\| ([^|]+?) \| (.+) \|$", re.MULTILINE)
MODES = ("data", "attack")
ON_DATA_TOO = "X of each value × 0.5"


def rows(table: str) -> dict[str, list[str]]:
    """The rows of a documented table by their first cell."""
    text = PAGE.read_text(encoding="utf-8").split(f"<!-- table: {table} -->\n")[1]
    found = ROW.findall(text.split("<!-- end -->")[0])
    return {first: re.split(r" \| ", rest) for first, rest in found}


@pytest.mark.sample(2)
@pytest.mark.parametrize("subject", faults.SUBJECTS, ids=lambda subject: subject.name)
@pytest.mark.parametrize("mode", MODES)
def test_right_claims_raise_no_alarm(subject: faults.Subject, mode: str) -> None:
    report = faults.report_of(subject.right if mode == "data" else subject.attacked)
    assert (report.verdict, report.reasons) == (Verdict.PASS, ())


@pytest.mark.parametrize("fault", faults.CLAIM_FAULTS, ids=lambda fault: fault.name)
def test_wrong_claims_are_caught_as_documented(fault: faults.ClaimFault) -> None:
    """Counts may differ where kernels do; whether a fault is caught at all may not."""
    short = fault.name != ON_DATA_TOO
    shown = rows("claims")[fault.name][1 if short else 0 :: 2 if short else 1]
    found = [str(cell) for cell in faults.cells_of(fault, under_attack_only=short)]
    assert [cell.split()[0] for cell in found] == [cell.split()[0] for cell in shown]


def test_the_score_on_a_tight_network() -> None:
    """At least nine of ten bounds that are a tenth too small; by attack no fewer than by data."""
    scores = []
    for ready in (faults.TIGHT.right, faults.TIGHT.attacked):
        cells = [
            faults.caught(ready, fault) for fault in faults.CLAIM_FAULTS if "0.9" in fault.name
        ]
        scores.append(sum(cell.found for cell in cells) / sum(cell.wrong for cell in cells))
    assert 0.9 <= scores[0] <= scores[1]


def test_a_loose_bound_hides_faults_and_the_report_says_how_large() -> None:
    """What is not caught lies below the factor from which the report says it would be."""
    report = faults.report_of(faults.LOOSE.attacked)
    factor = report.detectable_error_factor
    halved = next(fault for fault in faults.CLAIM_FAULTS if fault.name == "G of each group × 0.5")
    assert (factor > 2.0) == (
        faults.caught(faults.LOOSE.attacked, halved).found < len(report.groups)
    )


def test_wrong_samplers_are_found_after_as_many_steps_as_documented() -> None:
    """Of the smaller data set, where that takes at most 8 steps."""
    shown = rows("batches")
    assert SAMPLERS.keys() == shown.keys() - {"batches", "---"}
    pool, size = POOLS[0]
    for name, draw in SAMPLERS.items():
        if (steps := int(shown[name][0])) <= 8:
            assert all_found(draw, pool, size, steps), name
