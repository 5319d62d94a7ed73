"""Gates in reports: over a limit is a failure, not known is an error, in words that agree."""

import pytest

from lipcert.diagnostics import Level
from lipcert.report.ci import Outcome, gate_cases, gate_findings, gate_sentence, gate_statements
from lipcert.settings.gates import GateResult

HOLDS = GateResult("max-grad-norm", 2.0, 1.25)
OVER = GateResult("max-slack", 2.0, 2.0000001)
UNKNOWN = GateResult("max-slack", 2.0, None, "no example was replayed")


def test_sentences_hold_both_numbers_and_the_option() -> None:
    assert gate_sentence(HOLDS) == (
        "the bound G of the gradient of one example is 1.25, within --max-grad-norm 2"
    )
    assert "is 2.0001, over --max-slack 2" in gate_sentence(OVER)
    assert gate_sentence(UNKNOWN).endswith("no example was replayed")


def test_what_holds_is_not_shown_as_larger() -> None:
    """Bounds are rounded up; within a limit, not beyond it."""
    shown = gate_sentence(GateResult("max-slack", 1.2345678, 1.2345677))
    assert "1.2345677, within --max-slack 1.2345678" in shown


@pytest.mark.parametrize(
    ("result", "outcome", "code"),
    [
        (HOLDS, Outcome.PASSED, ""),
        (OVER, Outcome.FAILED, "LC110"),
        (UNKNOWN, Outcome.ERROR, "LC111"),
    ],
)
def test_cases_and_findings(result: GateResult, outcome: Outcome, code: str) -> None:
    (case,) = gate_cases([result])
    assert (case.suite, case.name, case.outcome, case.code) == (
        "gates",
        result.gate,
        outcome,
        code,
    )
    found = list(gate_findings([result]))
    assert [item.code for item in found] == ([code] if code else [])
    assert all(item.level is Level.ERROR and item.message == case.message for item in found)
    (statement,) = gate_statements([result]).rows
    assert statement.text == gate_sentence(result)
