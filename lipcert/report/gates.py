"""Gates in reports: a finding and a test case for each, and a sentence for people.

What enters: results of gates. What leaves: `Finding`s of those that are exceeded or not known, a
`Case` and a `Statement` for each. Invariant: what is not known is an error, never a pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Final

from lipcert.diagnostics import Level
from lipcert.report.ci import Case, Finding, Outcome
from lipcert.report.document import Statement, Statements, Tone
from lipcert.report.numbers import at_most, rounded_up
from lipcert.settings.gates import LIMITED, GateOutcome, GateResult

_CODES: Final = {GateOutcome.EXCEEDED: "LC110", GateOutcome.UNKNOWN: "LC111"}
_OUTCOMES: Final = {
    GateOutcome.HOLDS: Outcome.PASSED,
    GateOutcome.EXCEEDED: Outcome.FAILED,
    GateOutcome.UNKNOWN: Outcome.ERROR,
}
_TONES: Final = {
    GateOutcome.HOLDS: Tone.GOOD,
    GateOutcome.EXCEEDED: Tone.BAD,
    GateOutcome.UNKNOWN: Tone.OPEN,
}
_REMEDY: Final = "`lipcert suggest MODEL` lists what makes it smaller"


def gate_sentence(result: GateResult) -> str:
    """What was found beside the limit."""
    subject, limit = LIMITED[result.gate], f"--{result.gate} {result.limit:.12g}"
    match result.outcome:
        case GateOutcome.HOLDS:
            return f"{subject} is {_number(result)}, within {limit}"
        case GateOutcome.EXCEEDED:
            return f"{subject} is {_number(result)}, over {limit}"
    return f"{subject} is not known ({limit}): {result.reason}"


def _number(result: GateResult) -> str:
    """In full where rounding up would show what holds as over its limit."""
    if result.found is None:
        raise ValueError("a number that is not known has no text")
    if math.isinf(result.found):
        return "infinite"
    is_over = rounded_up(result.found) > Decimal(result.limit)
    is_hidden = result.outcome is GateOutcome.HOLDS and is_over
    return repr(result.found) if is_hidden else at_most(result.found)


def gate_findings(results: Iterable[GateResult]) -> Iterator[Finding]:
    """An error for each gate that does not hold."""
    for result in results:
        code = _CODES.get(result.outcome)
        if code is not None:
            remedy = _REMEDY if result.outcome is GateOutcome.EXCEEDED else ""
            text = gate_sentence(result)
            yield Finding(code, Level.ERROR, "gate", result.gate, text, remedy, result.gate)


def gate_cases(results: Iterable[GateResult]) -> Iterator[Case]:
    """One for each gate; over its limit is a failure, not known an error."""
    for result in results:
        message = "" if result.outcome is GateOutcome.HOLDS else gate_sentence(result)
        code = _CODES.get(result.outcome, "")
        yield Case("gates", result.gate, _OUTCOMES[result.outcome], message, code)


def gate_statements(results: Iterable[GateResult]) -> Statements:
    """What people read of gates."""
    return Statements(
        tuple(
            Statement(
                result.gate, gate_sentence(result), result.outcome.value, _TONES[result.outcome]
            )
            for result in results
        )
    )
