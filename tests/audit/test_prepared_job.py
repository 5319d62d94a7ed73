"""What a job needs before anything is done."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lipcert.audit.job import Job
from lipcert.audit.prepared_job import prepare
from lipcert.errors import UsageError
from lipcert.settings.gates import Gates
from lipcert.settings.settings import Settings

MODEL = str(Path(__file__).resolve().parents[2] / "models" / "digits_mlp.onnx")


def test_an_audit_needs_no_run_and_no_delta_unless_it_states_epsilon() -> None:
    """What is missing for an ε is asked for where one is computed, all at once."""
    some = Settings(input_norm=1.0, batch_size=32, dataset_size=1437, sampling="poisson")
    job = Job(MODEL, some, attack_steps=1)
    assert prepare(job).claims.groups
    asked = replace(job, gates=Gates(max_epsilon=3.0))
    with pytest.raises(UsageError, match=r"missing: give --delta .*, --steps T or --epochs E"):
        prepare(asked)
    solved = replace(job, settings=replace(some, target_epsilon=3.0))
    with pytest.raises(UsageError, match="missing: give --delta"):
        prepare(solved)
