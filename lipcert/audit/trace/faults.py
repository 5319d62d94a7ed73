"""Faults: what can be wrong with a trace, and where.

What enters: a place and a reason. What leaves: a `Fault`, raised as a `TraceError` by readers and
listed by `verification`. Invariant: a fault names a file of the trace and, of lines, the number.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import final

from lipcert.errors import NoVerdictError


@final
class FaultKind(Enum):
    """What a fault means for the trace."""

    UNREADABLE = "unreadable"
    """there is no trace of a known form here"""
    CHAIN = "chain"
    """lines were changed, cut, moved or are not what a recorder writes"""
    TORN = "torn"
    """the last line is unfinished: the recorder was interrupted, or the file was cut"""
    BLOB = "blob"
    """tensors are missing, changed, or not those that the line speaks of"""


@final
@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong; line: counted from 1, 0 for the file as a whole."""

    kind: FaultKind
    file: str
    line: int
    message: str

    def __str__(self) -> str:
        where = f"{self.file}, line {self.line}" if self.line else self.file
        return f"{where}: {self.message}"


@final
class TraceError(NoVerdictError):
    """A trace that cannot be read on: exit 3, unless the fault is the answer."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        super().__init__(str(fault))


@final
class FormError(ValueError):
    """Bytes or members that are not of the form; the caller knows the file and the line."""
