"""Exporting takes seconds: networks of one structure are exported once for each worker."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from torch import Tensor, nn

from lipcert.training import network

_EXPORTED: dict[str, Path] = {}


@pytest.fixture(autouse=True)
def exported_once(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file holds the weights of the first network; those of the live one are compared."""
    original = network.export

    def export(module: nn.Module, example: Tensor, path: Path) -> None:
        kind = f"{type(module).__qualname__} {module!r} {tuple(example.shape[1:])}"
        if kind not in _EXPORTED:
            _EXPORTED[kind] = tmp_path_factory.mktemp("exported") / "model.onnx"
            original(module, example, _EXPORTED[kind])
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_EXPORTED[kind], path)

    monkeypatch.setattr(network, "export", export)
