"""What takes seconds is done once for each worker: ε of one plan, and a file; or left out."""

from functools import cache
from pathlib import Path

import pytest
import torch

from lipcert.core.accounting import poisson
from lipcert.training import assembly, network
from tests.training.runs import Small

_poisson = cache(poisson.poisson_epsilon)
"""Of numbers and nothing else; many tests train by one plan."""


@pytest.fixture(autouse=True)
def accounted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poisson, "poisson_epsilon", _poisson)


@pytest.fixture(scope="session")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "model.onnx"
    network.export(Small(), torch.zeros(1, 6), path)
    return path


@pytest.fixture
def uncertified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates take longer than the runs of these tests."""
    monkeypatch.setattr(assembly, "certified", lambda *unused: "not asked for")
