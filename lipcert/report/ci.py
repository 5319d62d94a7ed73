"""CI: what continuous integration shows of a result, whichever verb it comes from.

The report of a verb makes these records, which JUnit, SARIF and GitHub annotations are written
from. A result that does not hold has at least one finding of level error; what is not known is an
error, never a pass; strings are verbatim, and the writers make them inert. Gates are shown alike by
every verb: a finding of each that does not hold, and a statement of each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, final

from lipcert.diagnostics import Diagnostic, Level
from lipcert.report.document import Statement, Statements, Tone
from lipcert.report.numbers import at_most, rounded_up
from lipcert.settings.gates import LIMITED, GateOutcome, GateResult

_OF_PARAMETERS: Final = frozenset({"LC023", "LC024", "LC102"})
_ORDER: Final = (Level.ERROR, Level.WARNING, Level.INFO)
_CODES: Final = {GateOutcome.EXCEEDED: "LC110", GateOutcome.UNKNOWN: "LC111"}
_REMEDY: Final = "`lipcert suggest MODEL` lists what makes it smaller"


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a reader must know. kind, place: what it is about ("group", "conv1").

    quantity: a word that tells findings of one code at one place apart, and never changes.
    """

    code: str
    level: Level
    kind: str
    place: str
    message: str
    remedy: str = ""
    quantity: str = ""

    @classmethod
    def of(cls, diagnostic: Diagnostic) -> Finding:
        """A diagnostic, which is about a node, a parameter or the whole model."""
        kind = "parameter" if diagnostic.code in _OF_PARAMETERS else "node"
        kind = kind if diagnostic.node else "model"
        return cls(
            diagnostic.code,
            diagnostic.level,
            kind,
            diagnostic.node,
            diagnostic.message,
            diagnostic.remedy,
        )


_TONES: Final = {
    GateOutcome.HOLDS: Tone.GOOD,
    GateOutcome.EXCEEDED: Tone.BAD,
    GateOutcome.UNKNOWN: Tone.OPEN,
}


@final
@dataclass(frozen=True, slots=True)
class CiReport:
    """A result. verb: as on the command line. file: the path of what it is about.

    headline: the answer in one sentence. findings: worst first. seconds: what it took, where known.
    """

    verb: str
    file: str
    headline: str
    holds: bool
    findings: tuple[Finding, ...]
    properties: Mapping[str, str]
    seconds: float | None = None


def by_level(findings: list[Finding]) -> tuple[Finding, ...]:
    """Errors first, in their order otherwise."""
    return tuple(sorted(findings, key=lambda finding: _ORDER.index(finding.level)))


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
        raise ValueError("an unknown number has no text")
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


def gate_statements(results: Iterable[GateResult]) -> Statements:
    """What people read of gates."""
    return Statements(
        tuple(
            Statement(item.gate, gate_sentence(item), item.outcome.value, _TONES[item.outcome])
            for item in results
        )
    )
