"""A network with a classifier and a regressor: from the module to an audited private run."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

import lipcert
from lipcert.errors import LipCertError, UsageError
from lipcert.training import BackpropClipping, Clipless, GradientClipping, Private
from lipcert.training.mechanisms import Loss, TrainingMechanism
from tests.commands import lipcert as run_lipcert
from tests.training.runs import audited, private_run

DOMAIN: dict[str, Any] = {"input_box": (0.0, 0.25)}
LOSS = Loss({"cls": "cross-entropy", "reg": "mse"}, label_norm=1.0, weight={"reg": 0.5})
MECHANISMS: dict[str, TrainingMechanism] = {
    "clipless": Clipless(radius=1.0, bias_norm=1.0, loss=LOSS, **DOMAIN),
    "gradient-clipping": GradientClipping(clip_norm=100.0, loss=LOSS, **DOMAIN),
    "backprop-clipping": BackpropClipping(
        input_clip=50.0, cotangent_clip=50.0, loss=LOSS, **DOMAIN
    ),
}
"""under which the first gradients are not clipped"""
AUDITED = MECHANISMS | {
    "backprop-clipping": BackpropClipping(input_clip=1.0, cotangent_clip=1.0, loss=LOSS, **DOMAIN),
    "gradient-clipping": GradientClipping(clip_norm=1.0, loss=LOSS, **DOMAIN),
}


class Net(nn.Module):
    """Outputs in another order than that of the loss, and one that has none."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.trunk = nn.Linear(64, 8)
        self.dropout = nn.Dropout(dropout)
        self.cls, self.reg, self.aux = nn.Linear(8, 3), nn.Linear(8, 2), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = torch.relu(self.conv(x)).flatten(1)
        h = self.dropout(torch.relu(self.trunk(h)))
        return {"reg": self.reg(h), "aux": self.aux(h).detach(), "cls": self.cls(h)}


class Examples(Dataset[Any]):
    """An image, its class, and two numbers."""

    def __init__(self) -> None:
        random = torch.Generator().manual_seed(0)
        self.x = torch.rand((60, 1, 4, 4), generator=random) / 4
        self.classes = torch.randint(3, (60,), generator=random)
        self.numbers = torch.rand((60, 2), generator=random) / 2

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        return self.x[index], (self.classes[index], self.numbers[index])


def private(model: Net, mechanism: TrainingMechanism, folder=None) -> Private:
    model.aux.requires_grad_(False)
    return private_run(
        folder, mechanism, network=lambda: model, examples=Examples(), batch=12, delta=1e-3,
        steps=3, optimizer=lambda own, lr: torch.optim.SGD([p for p in own if p.requires_grad], lr),
    )  # fmt: skip


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_criterion_differentiates_the_sum_of_the_losses(mechanism: str) -> None:
    """Where nothing is long enough to be clipped; by autograd of torch's losses."""
    torch.manual_seed(0)
    model = Net()
    with private(model, MECHANISMS[mechanism]) as run:
        x, (classes, numbers) = next(iter(run.loader))
        out = model(x)
        assert {name: z.shape for name, z in run.outputs(out).items()} == {
            "cls": (len(x), 3),
            "reg": (len(x), 2),
        }
        matrix = torch.cat([classes[:, None].double(), numbers.double()], dim=1)
        reduced = run.criterion
        value = reduced(out, {"reg": numbers, "cls": classes})
        value.backward()
        found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        plain = Net()
        plain.load_state_dict(model.state_dict())
        seen = plain(x)
        total = functional.cross_entropy(seen["cls"], classes, reduction="sum")
        total = total + 0.5 * (seen["reg"] - numbers).square().mean(dim=1).sum()
        total.backward()
        assert float(value) == pytest.approx(float(total) / 12, rel=1e-5)
        for name, parameter in plain.named_parameters():
            if not name.startswith("aux"):
                assert torch.allclose(found[name], parameter.grad, rtol=1e-3, atol=1e-5), name
        run.optimizer.zero_grad()
        reduced.reduction = "none"
        with pytest.raises(UsageError, match="outputs cls, reg"):
            reduced(out, {"cls": classes})
        singles = [reduced(out, labels) for labels in (matrix, (classes, numbers))]
        assert torch.equal(*singles)
    model.eval()
    assert model(x).keys() == {"reg", "aux", "cls"}


class Turned(Net):
    """Gives its outputs in another order where a batch is large."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        found = super().forward(x)
        is_large = not torch.compiler.is_compiling() and len(x) > 3
        return dict(reversed(found.items())) if is_large else found


def test_outputs_are_read_by_name_and_in_no_order_of_a_single_pass() -> None:
    model = Turned()
    with private(model, MECHANISMS["clipless"]) as run:
        x, _ = next(iter(run.loader))
        found = run.outputs(model(x))
        seen = model.eval()(x)
    assert list(seen) == ["cls", "aux", "reg"]
    assert all(torch.allclose(found[name], seen[name]) for name in ("cls", "reg"))


def test_losses_under_dropout_are_clipped_one_by_one() -> None:
    torch.manual_seed(0)
    model = Net(dropout=0.5)
    with private(model, GradientClipping(clip_norm=0.1, loss=LOSS, **DOMAIN)) as run:
        x, (classes, numbers) = next(iter(run.loader))
        run.criterion(model(x), (classes, numbers)).backward()
        total = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        assert 0.0 < float(total.norm()) <= 0.1 * len(x) * 1.0001


@pytest.mark.sample(1)
@pytest.mark.parametrize("mechanism", AUDITED)
def test_from_a_module_to_an_audited_run(mechanism: str, tmp_path) -> None:
    torch.manual_seed(0)
    model, folder = Net(), tmp_path / "run"
    settings = lipcert.Settings(
        loss="cls=cross-entropy,reg=mse", label_norm=1.0, loss_weight={"reg": 0.5}, **DOMAIN
    )
    analysis = lipcert.analyze(model, Examples().x[:1], settings)
    assert analysis.network.grad_norm is not None
    with private(model, AUDITED[mechanism], folder) as run:
        for _, (x, y) in zip(range(3), run.loader, strict=False):
            run.step(x, y)
        trained = run.export(tmp_path / "trained.onnx")
    examples = Examples()
    labels = np.concatenate([examples.classes[:, None].double(), examples.numbers.double()], axis=1)
    np.savez(tmp_path / "data.npz", x=examples.x.numpy(), y=labels)
    audited(folder)
    words = ["--config", str(folder / "lipcert.toml"), "--data", str(tmp_path / "data.npz")]
    done = run_lipcert(["audit", str(trained), *words])
    assert done.exit_code == 0, done.output


def test_outputs_that_have_no_loss_are_refused_by_name() -> None:
    model = Net()
    with pytest.raises(LipCertError, match=r"LC012.*--loss NAME=cross-entropy"):
        private(model, Clipless(radius=1.0, bias_norm=1.0, **DOMAIN))
    with pytest.raises(LipCertError, match=r"no output 'class'.*'cls'"):
        private(model, Clipless(radius=1.0, bias_norm=1.0, loss=Loss("class=nll"), **DOMAIN))


def test_suggestions_speak_of_every_output(tmp_path) -> None:
    settings = lipcert.Settings(
        loss="cls=cross-entropy,reg=0.5*mse", label_norm=1.0, dataset_size=1000, batch_size=50,
        steps=100, sampling="poisson", delta=1e-4, **DOMAIN,
    )  # fmt: skip
    found = lipcert.suggest(Net(), Examples().x[:1], settings)
    code = found.suggestions.recipe.code
    mechanism = eval(code.partition("\n")[0], vars(lipcert.training))
    assert mechanism.loss == Loss("cls=cross-entropy,reg=0.5*mse", label_norm=1.0)
    assert found.module(Examples().x[:2]).keys() == {"reg", "aux", "cls"}
    path = lipcert.export(Net(), Examples().x[:1], tmp_path / "net.onnx")
    shown = run_lipcert(["inspect", str(path), "--output", "reg", "--output", "cls"])
    assert "name = cls, shape = 3" in shown.output
