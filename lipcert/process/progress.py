"""Show the progress of long work on standard error: a bar on a terminal, else a few lines.

It takes reports (title, done, total) of an analysis or of a training run. It writes nothing on
stdout, and nothing at all before some time has passed. Without a terminal nothing is written unless
lines are requested. Invariant: it starts no thread, so that a process that shows progress may fork.
"""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from lipcert.text.safe import shortened

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_PATIENCE_SECONDS: Final = 1.5
_LINE_SECONDS: Final = 10.0
_DRAW_SECONDS: Final = 0.1
_NAME_WIDTH: Final = 40


class ProgressReport:
    """A context manager whose `observe` may be called any number of times.

    wanted: None is a bar on a terminal and nothing elsewhere, True a bar or lines, False nothing.
    """

    def __init__(self, wanted: bool | None) -> None:
        has_terminal = sys.stderr.isatty()
        self._draws = has_terminal and wanted is not False
        self._writes = not has_terminal and wanted is True
        self._next = time.monotonic() + (_PATIENCE_SECONDS if self._draws else _LINE_SECONDS)
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the bar from the terminal."""
        if self._bar is not None:
            self._bar.stop()
        self._bar, self._task = None, None

    def observe(self, name: str, done: int, total: int) -> None:
        """Report that `done` of `total` steps are finished; the last was about `name`."""
        now = time.monotonic()
        if now < self._next:
            return
        if self._draws:
            self._next = now + _DRAW_SECONDS
            self._draw(shortened(name, _NAME_WIDTH), done, total)
        elif self._writes:
            self._next = now + _LINE_SECONDS
            shown = shortened(name, _NAME_WIDTH)
            sys.stderr.write(f"lipcert: {done} of {total} steps: {shown}\n")

    def _draw(self, name: str, done: int, total: int) -> None:
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            self._bar = Progress(
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.description}", markup=False),
                console=Console(stderr=True, markup=False, highlight=False),
                transient=True,
                auto_refresh=False,
            )
            self._task = self._bar.add_task(name, total=total)
            self._bar.start()
        if self._task is not None:
            self._bar.update(
                self._task, completed=done, total=total, description=name, refresh=True
            )
