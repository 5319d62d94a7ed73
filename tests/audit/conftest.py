"""Fixtures of several modules."""

from functools import cache

import pytest

from lipcert.audit import run
from lipcert.audit.job import Job
from lipcert.audit.prepared_job import Ready, prepare


@cache
def _prepared(job: Job, *_: object) -> Ready:
    return prepare(job)


@pytest.fixture
def prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Audits of one job import and bound its model once, which is no matter of the test."""
    monkeypatch.setattr(run, "prepare", _prepared)
