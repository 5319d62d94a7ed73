"""A completed file computes what the file did, and has every parameter that is trained."""

import contextlib
import io
import json
import logging
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn

import lipcert
from lipcert.core.certificate import read_certificate
from lipcert.core.check import Choices, check
from lipcert.core.verdict import Verdict
from lipcert.errors import NoVerdictError, UsageError
from lipcert.importer.bindings import completed
from tests.commands import lipcert as command

SETTINGS = lipcert.Settings(input_box=(0.0, 1.0))


class Attention(nn.Module):
    """Attention of torch, whose output begins with a bias of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


class Convolution(nn.Module):
    """Convolutions, one of which begins with a bias of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(1, 3, 1), nn.Conv2d(3, 8, 2, stride=2)
        self.head = nn.Linear(32, 3)
        nn.init.zeros_(self.down.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.down(self.first(x).relu()).flatten(1))


NETWORKS = {
    "attention": (Attention, (4, 8), {"attention.out_proj.bias"}),
    "convolution": (Convolution, (1, 4, 4), {"down.bias"}),
}


def made(name: str) -> tuple[nn.Module, Tensor, set[str]]:
    kind, shape, dropped = NETWORKS[name]
    torch.manual_seed(0)
    return kind().eval(), torch.rand(5, *shape), dropped


def optimised(name: str, path):
    """As `torch.onnx.export` writes it by default."""
    module, x, _ = made(name)
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            shapes = ({0: torch.export.Dim("batch", min=2, max=64)},)
            torch.onnx.export(
                module, (x,), str(path), dynamo=True, dynamic_shapes=shapes,
                external_data=False, verbose=False,
            )  # fmt: skip
    finally:
        logging.disable(logging.NOTSET)
    return path


@pytest.fixture(scope="module", params=NETWORKS)
def certified(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """A network, its file, and the completed file beside its certificate."""
    tmp_path = tmp_path_factory.mktemp("certified")
    file = optimised(request.param, tmp_path / "net.onnx")
    found = lipcert.certify(file, SETTINGS)
    assert found.path == tmp_path / "net.lipcert.json"
    return request.param, file, found.model_beside(found.path)


@pytest.mark.sample(1)
def test_both_files_compute_the_same_bit_for_bit(certified) -> None:
    name, before, after = certified
    assert after.name == "net.completed.onnx"
    runs = [onnxruntime.InferenceSession(str(file)) for file in (before, after)]
    x = np.random.default_rng(0).standard_normal((33, *NETWORKS[name][1])).astype(np.float32)
    given = {runs[0].get_inputs()[0].name: x}
    one, other = (run.run(None, given)[0] for run in runs)
    np.testing.assert_array_equal(one, other)


@pytest.mark.sample(1)
def test_only_the_biases_are_added(certified) -> None:
    name, *files = certified
    before, after = (
        {item.name: numpy_helper.to_array(item) for item in onnx.load(file).graph.initializer}
        for file in files
    )
    dropped = NETWORKS[name][2]
    assert after.keys() - before.keys() == dropped
    assert not any(after[key].any() for key in dropped)
    onnx.checker.check_model(onnx.load(files[1]), full_check=True)


@pytest.mark.sample(1)
def test_the_certificate_is_about_the_completed_file(certified) -> None:
    """Its bounds hold for what autograd finds, that of the dropped biases among them."""
    name, before, after = certified
    certificate = (before.parent / "net.lipcert.json").read_bytes()
    for engine in ("float", "exact"):
        assert check(certificate, after, Choices(engine)).verdict is Verdict.CONDITIONAL
    assert check(certificate, before, Choices()).verdict is Verdict.INVALID
    claims = {item.name: item.grad_norm for item in read_certificate(certificate).parameters}
    module, x, dropped = made(name)
    own = dict(module.named_parameters())
    assert dropped <= claims.keys()
    assert claims.keys() == own.keys()
    for row in x:
        module.zero_grad()
        nn.functional.cross_entropy(module(row[None]), torch.tensor([1])).backward()
        for key, parameter in own.items():
            assert 0.0 < float(parameter.grad.norm()) <= claims[key]


def test_the_command_names_the_file_and_audits_find_it(tmp_path) -> None:
    file = optimised("attention", tmp_path / "net.onnx")
    words = ["certify", str(file), "--input-box", "0", "1"]
    shown = "".join(command(words).stdout.split())
    assert f"--model{tmp_path}/net.completed.onnx" in shown
    assert "thetrainedbiasesofzerosthatitlacks" in shown
    found = json.loads(command([*words, "--format", "json"]).stdout)
    assert found["model"] == str(tmp_path / "net.completed.onnx")
    data = np.ones((2, 4, 8)), np.zeros(2, int)
    report = lipcert.audit(tmp_path / "net.lipcert.json", data=data)
    assert report.verdict.value == "pass"
    frozen = ["--freeze", "attention.out_proj.bias", "-o", str(tmp_path / "other.lipcert.json")]
    assert command([*words, *frozen]).exit_code == 0
    assert not (tmp_path / "other.completed.onnx").exists()


@pytest.mark.nightly
def test_what_cannot_be_completed_is_refused(tmp_path) -> None:
    file = optimised("attention", tmp_path / "net.onnx")
    model = lipcert.load_model(file)
    assert completed(model, ["head.bias"]) is None  # which the file holds
    assert completed(model, ["nothing"]) is None
    proto = onnx.load(file)
    onnx.save(proto, tmp_path / "out.onnx", save_as_external_data=True, size_threshold=0)
    with pytest.raises(NoVerdictError, match=r"lipcert\.export"):
        lipcert.certify(tmp_path / "out.onnx", SETTINGS)
    moved = file.rename(tmp_path / "net.completed.onnx")
    with pytest.raises(UsageError, match="would replace the model"):
        lipcert.certify(moved, SETTINGS, out=tmp_path / "net.lipcert.json")
