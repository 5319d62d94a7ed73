"""What takes seconds is done once for each worker: ε of one plan, and a file; or left out."""

from functools import cache
from pathlib import Path

import pytest
import torch

from lipcert.core.accounting import account
from lipcert.privacy import accounting
from lipcert.training import assembly, network
from tests.training.runs import Small

_PURE = [
    (module, name, cache(getattr(module, name)))
    for module, name in ((accounting, "_rdp_epsilon"), (account, "_poisson"))
]
"""Of plans, numbers and nothing else; many tests train by one plan."""


@pytest.fixture(autouse=True)
def accounted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, remembered in _PURE:
        monkeypatch.setattr(module, name, remembered)


@pytest.fixture(scope="session")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "model.onnx"
    network.export(Small(), torch.zeros(1, 6), path)
    return path


@pytest.fixture
def uncertified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates take longer than the runs of these tests."""
    monkeypatch.setattr(assembly, "certified", lambda *unused: "not asked for")
