"""Workers: which of several processes this one is, as the launcher says.

What enters: the environment of torchrun, SLURM or Kubernetes. What leaves: rank and number of
workers; one of one where no launcher is at work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

from lipcert.errors import UsageError

_LAUNCHERS: Final = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS"),
)


@final
@dataclass(frozen=True, slots=True)
class Worker:
    """One of `count` workers; local: its number on this machine, which chooses its GPU."""

    rank: int = 0
    count: int = 1
    local: int = 0

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Worker:
        """As the launcher says.

        Kubernetes need not tell how many there are, and SLURM may count its tasks from any number:
        such a rank may be at least `count`.
        """
        for rank, count in _LAUNCHERS:
            if environment.get(rank):
                number = _number(environment, rank)
                total = _number(environment, count) if environment.get(count) else number + 2
                return cls(number, total, _number(environment, "LOCAL_RANK"))
        return cls()

    @property
    def reports(self) -> bool:
        """Whether this worker, when all work is done, says what was found."""
        return self.rank == 0 or self.count == 1


def _number(environment: Mapping[str, str], name: str) -> int:
    word = environment.get(name, "0")
    if not word.isdecimal():
        raise UsageError(f"audit: the environment says {name}={word!r}, which is no number")
    return int(word)
