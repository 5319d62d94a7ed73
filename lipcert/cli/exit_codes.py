"""Exit codes: what each outcome of a command means to a script, whatever the format.

Invariant: LipCert exits with one of these five and no other; Python's own 1 for an uncaught
exception never appears, because it would read as a finding.
"""

from __future__ import annotations

from enum import IntEnum
from typing import final

from lipcert.errors import CertificationError, LipCertError, UsageError


@final
class ExitCode(IntEnum):
    """The five outcomes; where several apply: 4 over 1 over 3 over 0."""

    HOLDS = 0
    """everything asked for was done and holds"""
    NEGATIVE = 1
    """a definite negative: bound violated, certificate invalid, threshold exceeded, regression"""
    USAGE = 2
    """the request or the configuration is wrong"""
    NO_VERDICT = 3
    """no answer: unsupported or unreadable input, no finite bound, output not delivered"""
    INTERNAL = 4
    """an error of LipCert itself"""


def exit_code_of(error: LipCertError) -> ExitCode:
    """The exit code of an error that was raised on purpose."""
    match error:
        case UsageError():
            return ExitCode.USAGE
        case CertificationError():
            return ExitCode.INTERNAL
    return ExitCode.NO_VERDICT
