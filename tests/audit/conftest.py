"""Fixtures of several modules."""

from functools import cache
from importlib import import_module

import numpy as np
import pytest

from lipcert.audit import run
from lipcert.audit.prepared_job import Ready, prepare
from tests.models.shipped import digits


@cache
def _prepared(job, *_: object) -> Ready:
    return prepare(job)


@pytest.fixture
def prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Audits of one job import and bound its model once, which is no matter of the test."""
    monkeypatch.setattr(run, "prepare", _prepared)


@pytest.fixture(autouse=True)
def _few_directions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How near ε from below comes to the one above is a matter of its own tests, and documented of
    loops."""
    if request.node.path.name not in {"test_epsilon.py", "test_loop_faults.py"}:
        check = import_module("lipcert.audit.checks.epsilon")
        monkeypatch.setattr(check, "_DIRECTIONS", 64)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory):
    """A file of 120 digits."""
    path, split = tmp_path_factory.mktemp("data") / "batches.npz", digits((64,))
    np.savez(path, x=split.images.numpy()[:120], y=split.labels.numpy()[:120])
    return path
