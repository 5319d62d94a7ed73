"""Budget: limit the number of entries and the time that one check may use.

Work inside `limited` is counted by `spend`, which raises `OverBudget` when a limit is exceeded: a
check that exceeds its budget has established nothing. Outside `limited` nothing is counted.

Invariant: everything kept that needs new memory (numbers of the file and views of them do not) is
counted when it is made, and every piece of work checks the time before it begins. The size of one
piece has its own limit (`MAX_SIZE`, a matrix, a stack of frequencies): a check can exceed its
budget by no more than that.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final


class OverBudget(Exception):  # noqa: N818 (no failure of the program)
    """A limit was reached; the message names it in one printable line."""


MAX_ENTRIES: Final = 1 << 27
MAX_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a check: entries of tables and constants that it keeps, and wall-clock seconds."""

    entries: int = MAX_ENTRIES
    seconds: float = MAX_SECONDS


@dataclass(slots=True)
class _Account:
    limits: Limits
    deadline: float
    spent: int = 0


_CURRENT: ContextVar[_Account | None] = ContextVar("budget", default=None)


@contextmanager
def limited(limits: Limits) -> Iterator[None]:
    """Count what the block spends, and enforce these limits in it."""
    token = _CURRENT.set(_Account(limits, time.monotonic() + limits.seconds))
    try:
        yield
    finally:
        _CURRENT.reset(token)


def spend(entries: int = 0) -> None:
    """Take this many entries from the budget, and check the time."""
    account = _CURRENT.get()
    if account is None:
        return
    account.spent += entries
    if account.spent > account.limits.entries:
        raise OverBudget(
            f"it computes tables and constants of more than {account.limits.entries} entries "
            "(--max-entries)"
        )
    if time.monotonic() > account.deadline:
        raise OverBudget(f"it takes more than {account.limits.seconds:g} seconds (--max-seconds)")
