"""Kept exports are those of torch, and a module gets none of another one."""

import inspect

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from lipcert.training import exporting
from tests.exports import FOLDER, MANIFEST, _source, digest, json, key_of
from tests.training.runs import FEATURES, Small


def test_no_file_says_on_which_machine_it_was_made() -> None:
    for path in sorted(FOLDER.glob("*.onnx")):
        data = path.read_bytes()
        assert b"stack_trace" not in data, path.name
        assert b'File "/' not in data, path.name


def test_the_manifest_lists_every_file() -> None:
    kept = json.loads(MANIFEST.read_text("utf-8"))
    found = {path.stem: digest(path.read_bytes()) for path in FOLDER.glob("*.onnx")}
    assert found == {key[:16]: text.rpartition(" ")[2] for key, text in kept.items()}


def test_a_kept_file_is_what_torch_exports(tmp_path) -> None:
    """Of a module whose numbers are not those of the file that is kept."""
    torch.manual_seed(5)
    module, x = Small(), torch.zeros(2, FEATURES)
    kept = exporting.export(module, x, tmp_path / "kept.onnx")
    anew = exporting._exported.__wrapped__(module, (x,), tmp_path / "anew.onnx")
    assert key_of(module, (x,), "lipcert") in json.loads(MANIFEST.read_text("utf-8"))
    protos = [onnx.load(path) for path in (kept, anew)]
    assert protos[0].graph.node == protos[1].graph.node
    draws = {"input": np.random.default_rng(0).random((9, FEATURES), np.float32)}
    runs = [onnxruntime.InferenceSession(path).run(None, draws)[0] for path in (kept, anew)]
    np.testing.assert_array_equal(*runs)


class Scaled(nn.Module):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale, self.part = scale, nn.Linear(2, 2)
        self.register_buffer("kept", torch.ones(2))

    def forward(self, x):
        return self.part(twice(x)) * self.scale + self.kept


def twice(x):
    return 2.0 * x


def of(module: nn.Module, shape: tuple[int, ...] = (2, 2)) -> str:
    return key_of(module, (torch.zeros(shape),), {"optimize": False})


CHANGES = {
    "another number": lambda: of(Scaled(2.0)),
    "another buffer": lambda: of(changed("kept.mul_(2.0)")),
    "another mode": lambda: of(Scaled().eval()),
    "a frozen parameter": lambda: of(changed("part.weight.requires_grad_(False)")),
    "another function": lambda: of(changed("forward = twice")),
    "another input": lambda: of(Scaled(), (2, 3)),
    "other options": lambda: key_of(Scaled(), (torch.zeros(2, 2),), {"optimize": True}),
}


def changed(how: str) -> nn.Module:
    module = Scaled()
    exec(f"module.{how}")
    return module


def test_numbers_of_parameters_are_not_what_is_kept() -> None:
    assert of(Scaled()) == of(Scaled())


def test_what_code_says_of_itself_is_not_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = iter(['def f():\n    """Of x."""\n    return x  # x', "def f():\n '2'\n return x"])
    monkeypatch.setattr(inspect, "getsource", lambda item: next(texts))
    assert _source("one") == _source("other") == "def f():\n    pass\n    return x"


@pytest.mark.parametrize("change", CHANGES)
def test_what_decides_the_graph_is_told_apart(change: str) -> None:
    assert CHANGES[change]() != of(Scaled())


def test_code_that_a_module_calls_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = of(Scaled())
    monkeypatch.setitem(globals(), "twice", of)
    assert of(Scaled()) != plain
