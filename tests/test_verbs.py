"""`lipcert.analyze`, `certify`, `audit` and `suggest` say the same of a module and of its file."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lipcert
from lipcert import Settings, UsageError
from lipcert.core.check import Choices, check
from lipcert.core.verdict import Verdict
from lipcert.errors import LipCertError, NoVerdictError
from tests.models.shipped import path_of

SETTINGS = Settings(input_box=(0.0, 1.0), batch_size=16)


class Net(nn.Module):
    """With everything that an export could spoil, and a layer that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(27, 4)
        self.conv.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.drop(self.norm(self.conv(x)).relu().flatten(1)))
        return out


X = torch.rand(12, 1, 5, 5, generator=torch.Generator().manual_seed(1))
Y = torch.arange(12) % 4


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    module = Net()
    with torch.no_grad():
        module(X)  # statistics of its own
    return module


@pytest.fixture(scope="module")
def file(net: nn.Module, tmp_path_factory: pytest.TempPathFactory):
    return lipcert.export(net, X[:1], tmp_path_factory.mktemp("net") / "net.onnx")


def test_analyze_takes_a_module_a_file_and_a_model(net: nn.Module, file) -> None:
    frozen = Settings(input_box=(0.0, 1.0), batch_size=16, freeze=("conv.*",))
    loaded = lipcert.analyze(lipcert.load_model(file), frozen)
    read = lipcert.analyze(str(file), settings=frozen)
    live = lipcert.analyze(net, X[:1], SETTINGS)
    assert (loaded.model.path, live.model.path) == (str(file), "Net")
    for found in (read, live):
        assert found.model.sha256 == loaded.model.sha256
        assert found.parameters == loaded.parameters
        assert found.network == loaded.network
    assert {name for group in live.groups for name in group.parameters} == {
        "norm.weight", "norm.bias", "head.weight", "head.bias"
    }  # fmt: skip
    assert net.training
    assert lipcert.analyze(file).network.grad_norm is not None  # as without options


def test_certify_of_a_module_leaves_what_a_checker_needs(net: nn.Module, tmp_path) -> None:
    issued = lipcert.certify(net, X[:1], SETTINGS, out=tmp_path / "new" / "net.lipcert.json")
    model = tmp_path / "new" / "net.onnx"
    assert issued.path == tmp_path / "new" / "net.lipcert.json"
    assert issued.analysis.model.path == str(model)
    assert {item.name for item in model.parent.iterdir()} == {"net.onnx", "net.lipcert.json"}
    checked = check(issued.path.read_bytes(), model, Choices())
    assert checked.verdict is Verdict.CONDITIONAL
    grad_norm = lipcert.analyze(net, X[:1], SETTINGS).network.grad_norm
    assert issued.certificate.network.grad_norm == pytest.approx(grad_norm, rel=1e-6)
    report = lipcert.audit(issued.path, data=(X, Y))
    assert (report.verdict.value, report.bounds_from) == ("pass", str(issued.path))


def test_certify_of_a_file_is_the_command(file) -> None:
    issued = lipcert.certify(file, SETTINGS)
    assert issued.path == file.with_name("net.lipcert.json")
    assert issued.path.read_bytes() == issued.data


def test_without_a_certificate_files_stay_as_they_were(tmp_path) -> None:
    model, target = tmp_path / "net.onnx", tmp_path / "net.lipcert.json"
    model.write_bytes(b"before")
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False))
    with pytest.raises(NoVerdictError):
        lipcert.certify(module, X[:1, 0, 0, :4], SETTINGS, out=target)
    assert (model.read_bytes(), list(tmp_path.iterdir())) == (b"before", [model])


def test_audit_takes_a_module(net: nn.Module, file) -> None:
    live = lipcert.audit(net, X[:1], SETTINGS, data=(X, Y), attack_steps=2, precision="float64")
    kept = file.parent / "results"
    of_file = lipcert.audit(file, SETTINGS, data=(X, Y), limit=3, results=kept)
    assert (kept / "results" / "0.json").exists()
    assert (live.verdict.value, live.model, live.examples) == ("pass", "Net", 12)
    assert (live.modes.data, live.modes.attack_steps, live.dtype) == ("arrays", 2, "float64")
    assert (of_file.model, of_file.examples) == (str(file), 3)
    assert live.model_sha256 == of_file.model_sha256
    assert {group.name for group in live.groups} == {"norm", "head"}

    def gradients(x: Tensor, y: Tensor) -> float:
        """By autograd, of the module itself."""
        net.zero_grad()
        nn.functional.cross_entropy(net(x[None]), y[None]).backward()
        return sum(float(p.grad.square().sum()) for p in net.parameters() if p.grad is not None)

    net.eval()
    largest = max(gradients(x, y) for x, y in zip(X, Y, strict=True)) ** 0.5
    net.train()
    assert live.gradient.grad_norm_max == pytest.approx(largest, rel=1e-5)


def test_a_module_that_is_not_its_file_is_not_audited() -> None:
    """Whatever the bounds say, they are of another function."""

    class Sly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(x)
            return out if torch.compiler.is_exporting() else 2 * out

    with pytest.raises(NoVerdictError, match="exported graph differ"):
        lipcert.audit(Sly(), torch.rand(1, 4), SETTINGS, attack_steps=1)


@pytest.mark.parametrize("verb", ["analyze", "certify", "audit", "suggest"])
def test_what_does_not_fit_together_is_told_with_what_to_write(
    verb: str, net: nn.Module, tmp_path
) -> None:
    function = getattr(lipcert, verb)
    call = rf"lipcert\.{verb}\(module, x\[:1\], settings\)"
    words = {"certify": {"out": tmp_path / "a.json"}, "audit": {"attack_steps": 1}}.get(verb, {})
    for given, reason in (
        ((net,), call),
        ((net, SETTINGS), call),
        ((net, X[:1], 3), r"a int is not a Settings"),
        ((3, SETTINGS), rf"a int is not a network.*{call}"),
        ((path_of("digits_mlp"), X[:1]), r"a Tensor is not a Settings"),
        (("none.onnx", SETTINGS), r"none\.onnx"),
    ):
        with pytest.raises(LipCertError, match=reason):
            function(*given, **words)
    assert not list(tmp_path.iterdir())


def test_words_of_certificates_and_audits(net: nn.Module, tmp_path) -> None:
    certificate = tmp_path / "net.lipcert.json"
    for call, reason in (
        (lambda: lipcert.certify(net, X[:1], SETTINGS), "out="),
        (
            lambda: lipcert.certify(net, X[:1], SETTINGS, out="net.onnx"),
            "does not name a certificate",
        ),
        (lambda: lipcert.audit(net, X[:1], SETTINGS), "nothing to audit"),
        (lambda: lipcert.audit(net, X[:1], steps=3), "unknown argument 'steps'"),
        (lambda: lipcert.audit(net, X[:1], cluster="local", attack_steps=1), "are for files"),
        (
            lambda: lipcert.audit(net, X[:1], model="net.onnx", attack_steps=1),
            "is for certificates",
        ),
        (lambda: lipcert.audit(certificate, attack_steps=1), "does not exist"),
        (lambda: lipcert.audit(certificate, SETTINGS, attack_steps=1), "states its settings"),
    ):
        with pytest.raises(UsageError, match=reason):
            call()


@pytest.mark.parametrize(
    "code",
    [
        "import lipcert; verb = lipcert.audit; import lipcert.audit.job",
        "import lipcert.audit.job; import lipcert; verb = lipcert.audit",
        "from lipcert import audit as verb; from lipcert.audit import job; import lipcert",
    ],
)
def test_audit_is_a_verb_and_a_package(code: str) -> None:
    """Whatever is imported first; and nothing heavy with it."""
    told = (
        "import sys; print(verb is lipcert.audit, callable(verb), lipcert.audit.job.Job.__name__,"
        " 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; {told}"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "True True Job False\n"


@pytest.mark.nightly
def test_suggest_takes_a_module_a_file_and_a_model(net: nn.Module, file) -> None:
    of_model = lipcert.suggest(lipcert.load_model(file), SETTINGS, budget=0.0)
    of_file = lipcert.suggest(file, SETTINGS, budget=0.0)
    of_module = lipcert.suggest(net, X[:1], SETTINGS, budget=0.0)
    assert of_file.baseline == of_model.baseline
    assert isinstance(of_module.module, Net)
    assert np.isfinite(of_model.baseline.grad_norm or np.inf)


class Heads(nn.Module):
    """Two inputs, two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.tokens = nn.BatchNorm1d(3), nn.Embedding(9, 3)
        self.kind, self.size = nn.Linear(6, 4), nn.Linear(6, 1)

    def forward(self, x: Tensor, ids: Tensor) -> dict[str, Tensor]:
        read = torch.cat([self.norm(x), self.tokens(ids).mean(1)], 1).tanh()
        return {"kind": self.kind(read), "size": self.size(read)}


@pytest.mark.nightly
def test_modules_of_several_inputs_and_outputs(tmp_path) -> None:
    """Their names in settings are those of arguments and results."""
    torch.manual_seed(0)
    module, rows = Heads(), (torch.rand(6, 3), torch.randint(9, (6, 4)))
    settings = Settings(
        loss="kind=cross-entropy,size=mse", label_norm=1.0, input_norms=(("x", 2.0),)
    )
    issued = lipcert.certify(module, list(rows), settings, out=tmp_path / "net.lipcert.json")
    bound = issued.certificate.network.grad_norm
    assert bound is not None
    report = lipcert.audit(module, rows, settings, attack_steps=3)
    assert report.verdict.value == "pass"
    assert report.gradient.grad_norm_max is not None
    assert 0.0 < report.gradient.grad_norm_max < bound
    module.eval()
    out = module(*rows)
    kinds, sizes = torch.arange(6) % 4, torch.ones(6, 1)
    losses = nn.functional.cross_entropy(out["kind"], kinds, reduction="none")
    losses = losses + (out["size"] - sizes).square().sum(1)
    for loss in losses:
        module.zero_grad()
        loss.backward(retain_graph=True)
        square = sum(
            float(p.grad.square().sum()) for p in module.parameters() if p.grad is not None
        )
        assert square**0.5 <= bound
    changed = lipcert.suggest(module, rows, settings).module
    assert {name for name, _ in changed.named_parameters()} == {
        name for name, _ in module.named_parameters()
    }
    assert not any(isinstance(part, nn.BatchNorm1d) for part in changed.modules())
