"""Exports of torch as users make them: what they import as, and what their bounds are held to."""

import functools
import logging

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lipcert.analysis.pipeline import analyze
from lipcert.graph.ir import BatchStatus
from lipcert.importer.load import load_model
from lipcert.settings.settings import Settings

pytestmark = pytest.mark.filterwarnings("ignore")
"""the exporters warn of much that does not matter here"""
DRAWS = 5
DYNAMIC = {"dynamic_shapes": ({0: torch.export.Dim("batch")},)}


class Encoder(nn.Module):
    """A layer of torch's own encoder behind a linear head."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.layer(x)[:, 0])


class Tied(nn.Module):
    """One weight, read by a Gemm as it is and by a MatMul transposed."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Linear(6, 6, bias=False)

    def forward(self, x):
        h = F.relu(self.weight(x)).reshape(-1, 2, 3).reshape(-1, 1, 6)
        return self.weight(h)[:, 0]


class Wrapper(nn.Module):
    """A network with a parameter that nobody reads."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 6)
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.second(F.relu(self.first(x)))


class LayerScale(nn.Module):
    """Parameters of equal numbers: an optimiser stores them once."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.scale, self.other = (nn.Parameter(torch.full((6,), 0.5)) for _ in range(2))

    def forward(self, x):
        x = x + self.first(x) * self.scale
        return x + self.second(x) * self.other


class Images(nn.Module):
    """Untrained normalizations: ones and zeros that an optimiser stores once, for both."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 2)
        self.batch, self.again = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
        self.group = nn.GroupNorm(2, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = self.batch(F.relu(self.first(x)))
        x = self.again(F.relu(self.second(x)))
        return self.head(self.group(x).flatten(2).mean(2))


class NoBias(nn.Module):
    """A bias of zeros, which an optimiser leaves out."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 3)
        nn.init.zeros_(self.first.bias)

    def forward(self, x):
        return self.second(F.relu(self.first(x)))


NETWORKS = {
    "encoder": (Encoder, (4, 8)),
    "tied": (Tied, (6,)),
    "wrapper": (Wrapper, (6,)),
    "layer scale": (LayerScale, (6,)),
    "images": (Images, (1, 6, 6)),
    "no bias": (NoBias, (6,)),
}
OPTIONS = {
    "default, one example": {"dynamo": True},
    "plain, one example": {"dynamo": True, "optimize": False},
    "default": {"dynamo": True, **DYNAMIC},
    "torchscript, one example": {"dynamo": False},
}


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    monkeypatch.setattr(logging.getLogger("torch.onnx"), "disabled", True)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """(module, path, shape of an example) of a network under an option, each exported once."""
    folder = tmp_path_factory.mktemp("exports")

    @functools.cache
    def export(kind: str, option: str):
        torch.manual_seed(0)
        make, shape = NETWORKS[kind]
        module, path = make().eval(), folder / f"{kind} {option}.onnx"
        size = 2 if "dynamic_shapes" in OPTIONS[option] else 1
        more = {"external_data": False, "verbose": False} if OPTIONS[option]["dynamo"] else {}
        example = torch.randn(size, *shape)
        torch.onnx.export(module, (example,), str(path), **OPTIONS[option], **more)
        return module, path, shape

    return export


def bound(path, **choices) -> float | None:
    imported = load_model(path, trusted=True, **choices)
    return analyze(imported, Settings(**choices)).network.grad_norm


def largest_gradient(module, shape) -> float:
    """Of cross-entropy in all parameters, over random examples in [0, 1] and all labels."""
    torch.manual_seed(1)
    largest = 0.0
    for x in torch.rand(DRAWS, 1, *shape):
        for label in range(module(x).shape[-1]):
            module.zero_grad()
            F.cross_entropy(module(x), torch.tensor([label])).backward()
            squares = [p.grad.square().sum() for p in module.parameters() if p.grad is not None]
            largest = max(largest, float(sum(squares).sqrt()))
    return largest


@pytest.mark.sample(6)
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("kind", NETWORKS)
def test_every_export_is_bounded(exported, kind, option):
    module, path, shape = exported(kind, option)
    imported = load_model(path, trusted=True)
    assert not any(item.folded for item in imported.graph.parameters.values())
    found = analyze(imported, Settings()).network.grad_norm
    assert found >= largest_gradient(module, shape)
    if OPTIONS[option]["dynamo"]:
        used = {name for name, _ in module.named_parameters() if not name.startswith("embedding")}
        assert set(imported.graph.parameters) == used


@pytest.mark.parametrize("kind", ["tied", "wrapper", "no bias"])
def test_an_optimised_export_has_the_bound_of_a_plain_one(exported, kind):
    bounds = [bound(exported(kind, option)[1]) for option in ("plain, one example", "default")]
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-6)


@pytest.mark.parametrize("option", ["default, one example", "torchscript, one example"])
def test_a_layer_that_merges_a_batch_of_one_is_one_example(exported, option):
    imported = load_model(exported("encoder", option)[1], trusted=True)
    assert imported.batch.status is BatchStatus.PER_EXAMPLE
    assert "LC021" in {item.code for item in imported.diagnostics}
    assert imported.graph.input_shape == (4, 8)


def test_what_the_graph_computes_is_trained_as_exported(tmp_path):
    torch.manual_seed(0)
    linear = nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)).eval()
    path = tmp_path / "model.onnx"
    plain = {"dynamo": True, "optimize": False, "external_data": False, "verbose": False}
    torch.onnx.export(linear, (torch.randn(1, 6),), str(path), **plain)
    assert not load_model(path, trusted=True).diagnostics
    assert bound(path) >= largest_gradient(linear, (6,))
    taken = load_model(path, trusted=True, as_exported=True)
    assert {item.code for item in taken.diagnostics} == {"LC009"}
    found = bound(path, as_exported=True)

    nn.utils.parametrize.remove_parametrizations(linear, "weight")
    torch.onnx.export(linear, (torch.randn(1, 6),), str(path), **plain)
    assert load_model(path, trusted=True).diagnostics == ()
    assert found is None or found >= largest_gradient(linear, (6,))
    assert bound(path) >= largest_gradient(linear, (6,))


def test_a_folded_parameter_is_not_an_unused_one(tmp_path):
    """A weight that an optimiser computed away leaves a gap in the calls."""
    torch.manual_seed(0)

    class Doubled(Wrapper):
        def forward(self, x):
            return self.second(F.relu(x @ self.first.weight.exp()))

    path = tmp_path / "model.onnx"
    torch.onnx.export(
        Doubled().eval(), (torch.randn(1, 6),), str(path), dynamo=True, external_data=False
    )
    stored = {item.name for item in onnx.load(path).graph.initializer}
    assert "first.weight" not in stored
    imported = load_model(path, trusted=True)
    assert "LC009" in {item.code for item in imported.diagnostics}
    assert bound(path) is None
