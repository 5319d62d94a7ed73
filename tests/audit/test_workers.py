"""Which worker this is, in the words of launchers."""

from __future__ import annotations

import pytest

from lipcert.audit.job import Worker
from lipcert.errors import UsageError


@pytest.mark.parametrize(
    ("environment", "worker"),
    [
        ({}, Worker(0, 1, 0)),
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, Worker(3, 8, 1)),
        ({"SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_COUNT": "4"}, Worker(2, 4, 0)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, Worker(0, 4, 0)),
        ({"JOB_COMPLETION_INDEX": "1"}, Worker(1, 3, 0)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, Worker(0, 1, 0)),
    ],
)
def test_reads_launchers(environment: dict[str, str], worker: Worker) -> None:
    assert Worker.of(environment) == worker
    assert worker.reports == (worker.rank == 0)


def test_refuses_nonsense() -> None:
    with pytest.raises(UsageError, match="RANK='one'"):
        Worker.of({"RANK": "one"})
