"""A report as text, for people.

The last line of the text is the verdict with the digest of the certificate, and no other line can
be: what comes from files is printed as ASCII without line breaks, and never begins a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from lipcert.core.verdict import STAGES, Report, Verdict

if TYPE_CHECKING:
    from lipcert.core.trusted import TrustedFile

TOKEN: Final = "LIPCERT-CHECK:"
NOT_CHECKED: Final = (
    "that training followed the algorithm, the random numbers, the data pipeline, the hardware, "
    "the rounding of the training run"
)
"""what lies outside every certificate"""
_MOST_REASONS: Final = 20
_ANSWERS: Final = {
    Verdict.VALID: "Valid: all claims are proved.",
    Verdict.CONDITIONAL: "Conditional: all claims are proved, provided that the unchecked "
    "assumptions below hold.",
    Verdict.UNKNOWN: "Unknown: the checker cannot decide.",
    Verdict.INVALID: "Invalid: a claim does not follow.",
}


def verdict_line(report: Report) -> str:
    """The last line: the verdict and what it is about."""
    return f"{TOKEN} {report.verdict.value.upper()} {report.sha256}"


def report_text(report: Report, trusted: Sequence[TrustedFile] = ()) -> str:
    """The whole report, the answer first, ending in the verdict line.

    trusted: the files that the verdict depends on, if they are to be listed.
    """
    lines = [_ANSWERS[report.verdict]]
    lines += [f"  {_safe(reason)}" for reason in report.reasons[:_MOST_REASONS]]
    if len(report.reasons) > _MOST_REASONS:
        lines.append(f"  and {len(report.reasons) - _MOST_REASONS} more")
    if report.promise:
        lines += ["", "What is proved", *(f"  {sentence}" for sentence in report.promise)]
    lines += ["", "What was done"]
    lines += [f"  {s.number} {s.name}: {'no' if s.reasons else 'yes'}" for s in report.stages]
    lines += [f"  {n} {STAGES[n]}: not reached" for n in range(len(report.stages), len(STAGES))]
    lines += [f"  note: {_safe(note)}" for note in report.notes]
    if report.assumptions:
        lines += ["", "What is assumed"]
        for item in report.assumptions:
            accepted = item.status != "checked" and item.id not in report.open_assumptions
            status = "accepted" if accepted else _safe(item.status)
            lines.append(f"  {_safe(item.id)} [{status}] {_safe(item.text)}")
    if report.weights:
        lines += ["", "Which weights were compared with the constraints"]
        for tensor, name in report.weights.items():
            named = "its own name" if name == tensor else "a name that the certificate gives it"
            lines.append(f"  {_safe(tensor)}: {_safe(name)}, {named}")
    if trusted:
        from lipcert.core.trusted import trusted_lines  # noqa: PLC0415  for a list alone

        lines += ["", "What the verdict depends on"]
        lines += [f"  {line}" for line in trusted_lines(trusted)]
    lines += ["", f"Not checked: {NOT_CHECKED}.", "", verdict_line(report)]
    return "\n".join(lines) + "\n"


def _safe(text: str) -> str:
    """Printable, on one line, and never the token of a verdict."""
    plain = text if text.isascii() and text.isprintable() else ascii(text)[1:-1]
    return plain.replace(TOKEN[:-1], "LIPCERT_CHECK")
