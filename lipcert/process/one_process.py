"""Process: what a private run may have only once, in the process that made it.

Input: an object that counts, draws or noises. Output: a `UsageError` where another process would
use or copy it. A process that was forked holds the same generator in the same state: it would draw
the same noise as its parent, so that the difference of two releases reveals the difference of their
gradients without noise, while each process counts half of them. Invariant: a process that only
holds such an object, as workers that load data do, is left alone.
"""

from __future__ import annotations

import os
from typing import NoReturn

from lipcert.errors import UsageError

_FORKS = [object()]
"""what a child of this process has another of; its number alone may be that of one that ended"""
os.register_at_fork(after_in_child=lambda: _FORKS.__setitem__(0, object()))


def _here() -> tuple[int, object]:
    return os.getpid(), _FORKS[0]


class OneProcess:
    """Base class of objects that must not be used in two processes."""

    _made_in: tuple[int, object]

    def __init__(self) -> None:
        self._made_in = _here()

    @property
    def is_here(self) -> bool:
        """Whether this is the process that made it."""
        number, forks = self._made_in
        return number == os.getpid() and forks is _FORKS[0]

    def require_here(self) -> None:
        """UsageError in any other process."""
        if not self.is_here:
            raise UsageError(
                f"training: this is process {os.getpid()}, and the {type(self).__name__} of the "
                f"run belongs to process {self._made_in[0]}, from which it was forked: both would "
                "draw the same noise and examples, and count apart; call make_private in the "
                "process that trains, after the fork, each run with a folder of its own"
            )

    def __reduce__(self) -> NoReturn:
        """A copy would draw or count the same again."""
        raise UsageError(
            f"training: the {type(self).__name__} of a run is neither copied nor pickled, since a "
            "copy would draw and count the same again; call make_private where it is needed, and "
            "continue a run with resume=True"
        )
