"""Progress: a bar on standard error for work that takes long, on a terminal only.

What enters: reports (stage, done, total) of the engine. What leaves: nothing on stdout, nothing
at all before a second has passed or without a terminal.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, final

from lipcert.report.safe import shortened

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["ProgressBar"]

_PATIENCE_SECONDS: Final = 1.0


@final
class ProgressBar:
    """Context manager whose `observe` may be called any number of times."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled and sys.stderr.isatty()
        self._started = time.monotonic()
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def observe(self, stage: str, done: int, total: int) -> None:
        """`done` of `total` steps of a stage are finished."""
        if not self._enabled or time.monotonic() - self._started < _PATIENCE_SECONDS:
            return
        bar = self._bar()
        if stage not in self._tasks:
            self._tasks[stage] = bar.add_task(shortened(stage, 40), total=total)
        bar.update(self._tasks[stage], completed=done, total=total)

    def _bar(self) -> Progress:
        if self._progress is None:
            from rich.console import Console
            from rich.progress import Progress

            console = Console(stderr=True, markup=False, highlight=False)
            self._progress = Progress(console=console, transient=True)
            self._progress.start()
        return self._progress
