"""torch's own attention as torch exports it: lowered, bounded, and held against autograd."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from lipcert.core.check import Choices, check
from lipcert.core.lower.lower import lower
from lipcert.core.reader.model import read_model
from lipcert.core.verdict import Verdict
from lipcert.graph.evaluate import evaluate
from lipcert.text.certificate import write_certificate
from tests.core.forged import PREMISES, Forgery
from tests.core.lower.cases import kinds

SHAPE = (3, 6)


class Classifier(nn.Module):
    """A layer of a transformer with a width of 3 per head, and a linear map of all tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.head = nn.Linear(18, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        return self.head(self.attention(x, x, x, need_weights=False)[0].flatten(1))


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return Classifier().eval()


@pytest.fixture(scope="module")
def path(network, tmp_path_factory):
    path = tmp_path_factory.mktemp("attention") / "model.onnx"
    torch.onnx.export(
        network,
        (torch.zeros(2, *SHAPE),),
        path,
        dynamo=True,
        optimize=False,
        verbose=False,
        external_data=False,
        dynamic_shapes=({0: torch.export.Dim("batch")},),
    )
    return path


def test_the_program_is_the_network(network, path):
    model = read_model(path)
    program = lower(model, model.outputs[0])
    assert program.batch_proved
    assert kinds(program).count("Attention") == 2
    x = torch.randn(1, *SHAPE, generator=torch.Generator().manual_seed(1))
    found = evaluate(program, x.double().numpy())[program.output]
    assert np.abs(found - network(x).detach().numpy()).max() < 1e-5


@pytest.mark.parametrize("engine", ["float", "exact"])
def test_bounds_are_accepted_and_no_gradient_exceeds_them(network, path, engine):
    names = [name for name, _ in network.named_parameters()]
    premises = replace(
        PREMISES,
        input_norm=1.0,
        input_box=None,
        loss_parameters=(("label_smoothing", 0.0), ("temperature", 1.0)),
    )
    forgery = Forgery(path, names, premises)
    data = write_certificate(forgery.certificate())
    assert check(data, path, Choices(engine=engine)).verdict is Verdict.CONDITIONAL
    (derived,) = forgery.derived
    generator = torch.Generator().manual_seed(2)
    for label in range(3):
        x = functional.normalize(torch.randn(1, 18, generator=generator)).reshape(1, *SHAPE)
        loss = functional.cross_entropy(network(x), torch.tensor([label]))
        found = torch.autograd.grad(loss, list(network.parameters()))
        for name, gradient in zip(names, found, strict=True):
            assert float(gradient.double().norm()) <= derived.gradients[name]
