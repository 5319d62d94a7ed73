"""Private runs of networks that read token ids: bounded, clipped, projected, certified, audited."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from lipcert.errors import NoVerdictError
from lipcert.training import (
    BackpropClipping,
    Clipless,
    GradientClipping,
    Loss,
    WeightClipping,
)
from lipcert.training.network import trained_network
from tests.commands import lipcert
from tests.training.runs import CLASSES, EXAMPLES, audited, private_run, train

ROWS, LENGTH = 20, 7
LOSS = Loss("cross-entropy")
MECHANISMS = {
    "gradient-clipping": GradientClipping(clip_norm=0.5, loss=LOSS),
    "backprop-clipping": BackpropClipping(input_clip=1.0, cotangent_clip=1.0, loss=LOSS),
    "clipless": Clipless(radius=0.5, bias_norm=0.5, loss=LOSS),
    "weight-clipping": WeightClipping(radius=0.5, bias_norm=0.5, loss=LOSS),
}


class Bag(nn.Module):
    """The mean of embedded tokens, and two layers; torch gives the row of padding no gradient, and
    others a sparse one by how often they are read."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(ROWS, 6, 0, scale_grad_by_freq=True, sparse=True)
        self.hidden = nn.Linear(6, 5)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.hidden(self.tokens(x).mean(dim=1)).relu())
        return logits


class Columns(Bag):
    """Numbers of which every column has rows of its own in one table."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(ROWS * LENGTH, 6)
        self.register_buffer("first", ROWS * torch.arange(LENGTH))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.first)


class Last(Bag):
    """The last token that is no padding, as classifiers on decoders read it."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden(self.tokens(x)).relu()
        shown = torch.arange(LENGTH) * (x != 0)
        logits: Tensor = self.head(hidden[torch.arange(x.shape[0]), shown.argmax(-1)])
        return logits


class Counted(Bag):
    """The same by a count, which fails on an example of padding alone."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden(self.tokens(x)).relu()
        place = ((x != 0).sum(1) - 1)[:, None, None].expand(-1, 1, 5)
        logits: Tensor = self.head(hidden.gather(1, place).squeeze(1))
        return logits


class OneHot(nn.Module):
    """Numbers of categories, one-hot: none of them chooses a row of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(ROWS * LENGTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(nn.functional.one_hot(x, ROWS).flatten(1).float())
        return logits


def tokens(most: int = ROWS) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(most, (EXAMPLES, LENGTH), generator=generator)
    x[::3] = x[::3, :1]  # one token, again and again
    return TensorDataset(x, torch.randint(CLASSES, (EXAMPLES,), generator=generator))


@pytest.mark.sample(1)
@pytest.mark.parametrize("network", [Columns, Last, Counted, OneHot])
def test_ids_that_are_computed_with_train(network, tmp_path):
    """The numbers of the run are those of the module, and the checker reads its file."""
    examples = tokens()
    x, _ = examples.tensors
    x[:, 0] = x[:, 0].clamp(min=1)  # no example is padding alone
    mechanism = MECHANISMS["gradient-clipping"]
    private = private_run(tmp_path / "run", mechanism, network=network, examples=examples)
    train(private)
    private.close()
    audited(tmp_path / "run")


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", MECHANISMS)
def test_a_run_on_tokens_passes_its_audit(kind, tmp_path):
    mechanism = MECHANISMS[kind]
    private = private_run(tmp_path / "run", mechanism, network=Bag, examples=tokens())
    train(private)
    table = private.model.get_parameter("tokens.weight").detach().double()
    if kind in {"clipless", "weight-clipping"}:
        longest = table.norm(dim=1).max().item()
        assert longest <= 0.5
        assert longest > 0.4
    private.close()
    report = audited(tmp_path / "run")
    assert "tokens" in {group["name"] for group in report["groups"]} or len(report["groups"]) == 1


def test_tokens_that_no_row_belongs_to_are_refused():
    network = Bag()
    given = {"network": lambda: network, "examples": tokens(ROWS + 30)}
    with pytest.raises((NoVerdictError, IndexError)):
        private_run(mechanism=MECHANISMS["clipless"], **given)
    assert network.tokens.padding_idx == 0


def test_an_audit_speaks_of_rows_only(tmp_path):
    private = private_run(tmp_path / "run", MECHANISMS["clipless"], network=Bag, examples=tokens())
    private.close()
    x, y = tokens()[:]
    numbers = x.numpy().astype(np.float64)
    numbers[1, 2] = 3.5
    np.savez(tmp_path / "halves.npz", x=numbers, y=y.numpy())
    folder = tmp_path / "run"
    target = [str(folder / "model.lipcert.json"), "--model", str(folder / "model.onnx")]
    found = lipcert(["audit", *target, "--data", str(tmp_path / "halves.npz")])
    assert found.exit_code == 1
    assert "not a whole number" in found.output


def test_a_module_that_reads_other_ids_otherwise_is_not_its_graph(tmp_path):
    """Of which id 0 alone says nothing."""

    class Sly(Bag):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x if torch.compiler.is_exporting() else x // 2)

    with pytest.raises(NoVerdictError, match="exported graph differ"):
        trained_network(Sly(), tokens()[:1][0], tmp_path / "net.onnx")
