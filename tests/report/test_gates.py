"""Gates in reports: over a limit and not known are errors, in words that agree."""

import pytest

from lipcert.diagnostics import Level
from lipcert.report.ci import gate_findings, gate_sentence, gate_statements
from lipcert.report.document import Tone
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
    ("result", "tone", "code"),
    [(HOLDS, Tone.GOOD, ""), (OVER, Tone.BAD, "LC110"), (UNKNOWN, Tone.OPEN, "LC111")],
)
def test_findings_and_statements(result: GateResult, tone: Tone, code: str) -> None:
    found = list(gate_findings([result]))
    assert [item.code for item in found] == ([code] if code else [])
    assert all(item.level is Level.ERROR for item in found)
    assert all(item.message == gate_sentence(result) for item in found)
    (statement,) = gate_statements([result]).rows
    assert (statement.text, statement.tone) == (gate_sentence(result), tone)
