"""Everything LipCert raises on purpose.

    LipCertError
    ├── UsageError              the request is wrong (option, configuration key): exit 2
    └── NoVerdictError          the request is fine, but no answer can be given: exit 3
        ├── ModelFileError      the file is unreadable, malformed or over a limit
        └── UnsupportedModelError   the file is sound, but outside what can be bounded; names
                                every offending node

Invariant: a message says what, where, why and what to do, in one line.

Exit codes: what each outcome of a command means to a script, whatever the format.

Invariant: LipCert exits with one of these five and no other; Python's own 1 for an uncaught
exception never appears, because it would read as a finding.
"""

from dataclasses import dataclass
from enum import IntEnum


class LipCertError(Exception):
    """Base of all errors raised on purpose."""


class UsageError(LipCertError):
    """The request cannot be understood or contradicts itself (exit code 2)."""


class NoVerdictError(LipCertError):
    """The request is valid, but no sound answer can be given (exit code 3)."""


class CertificationError(LipCertError):
    """LipCert's own check of a result fails: a defect of LipCert (exit code 4)."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason why a model is refused: a stable code, where, why, and what to do about it."""

    code: str
    node: str
    op: str
    reason: str
    remedy: str = ""

    def __str__(self) -> str:
        where = f"node {self.node!r} ({self.op}): " if self.node else ""
        remedy = f". Remedy: {self.remedy}" if self.remedy else ""
        return f"[{self.code}] {where}{self.reason}{remedy}"


class ModelFileError(NoVerdictError):
    """The model file is unreadable, malformed or over a limit; `refusals` holds the one reason."""

    def __init__(self, reason: str, code: str = "LC001", remedy: str = "") -> None:
        self.code = code
        self.refusals = (Refusal(code, "", "", reason, remedy),)
        super().__init__(str(self.refusals[0]))


class UnsupportedModelError(NoVerdictError):
    """The model is outside what LipCert can bound; `refusals` names every offender."""

    def __init__(self, refusals: tuple[Refusal, ...]) -> None:
        self.refusals = refusals
        super().__init__("; ".join(str(refusal) for refusal in refusals))


class ExitCode(IntEnum):
    """The five outcomes; where several apply: 4 over 1 over 3 over 0."""

    HOLDS = 0
    """Everything that was requested was done and holds."""
    NEGATIVE = 1
    """A definite negative: bound violated, certificate invalid, threshold exceeded, regression."""
    USAGE = 2
    """The request or the configuration is wrong."""
    NO_VERDICT = 3
    """No answer: unsupported or unreadable input, no finite bound, output not delivered."""
    INTERNAL = 4
    """An error of LipCert itself."""


def exit_code_of(error: LipCertError) -> ExitCode:
    """Return the exit code of an error that was raised on purpose."""
    match error:
        case UsageError():
            return ExitCode.USAGE
        case CertificationError():
            return ExitCode.INTERNAL
    return ExitCode.NO_VERDICT
