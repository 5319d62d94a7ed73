"""What takes seconds is done once for each worker: exports of one structure, ε of one plan."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import pytest
from torch import Tensor, nn

from lipcert.core.accounting import account
from lipcert.privacy import accounting
from lipcert.training import network

_EXPORTED: dict[str, Path] = {}
_PURE = [
    (module, name, cache(getattr(module, name)))
    for module, name in (
        (accounting, "_rdp_epsilon"),
        (account, "_poisson"),
    )
]
"""Of plans, numbers and nothing else; many tests train by one plan."""


@pytest.fixture(autouse=True)
def exported_once(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file holds the weights of the first network; those of the live one are compared. What
    nothing trains is a constant of the file."""
    original = network.export

    def export(module: nn.Module, example: Tensor, path: Path) -> None:
        given = example if isinstance(example, tuple) else (example,)
        shapes = [tuple(item.shape[1:]) for item in given]
        still = [item.tolist() for item in module.buffers()]
        trained = [item.requires_grad for item in module.parameters()]
        kind = f"{type(module).__qualname__} {module!r} {shapes} {still} {trained}"
        if kind not in _EXPORTED:
            _EXPORTED[kind] = tmp_path_factory.mktemp("exported") / "model.onnx"
            original(module, example, _EXPORTED[kind])
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_EXPORTED[kind], path)

    monkeypatch.setattr(network, "export", export)


@pytest.fixture(autouse=True)
def accounted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, remembered in _PURE:
        monkeypatch.setattr(module, name, remembered)
