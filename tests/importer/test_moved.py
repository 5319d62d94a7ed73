"""Parameters of which an optimiser stored the entries that are read, in another arrangement."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lipcert.analysis.pipeline import analyze
from lipcert.importer.load import load_model
from lipcert.settings.settings import Settings
from tests.importer.models import saved
from tests.importer.test_origins import computed, folded

pytestmark = pytest.mark.filterwarnings("ignore")


def without_bias(names, tensor, numbers=None, more=None):
    """The file of `computed` without the bias: of that it holds the tensor that is divided by."""
    proto = computed(names, tensor=tensor, read=f"%linear, %{tensor}", more=more)
    bias = next(item for item in proto.graph.initializer if item.name == "fc.bias")
    proto.graph.initializer.remove(bias)
    del proto.graph.node[0].input[2]
    entry = proto.graph.node[0].metadata_props[0]
    entry.value = entry.value.replace(", %p_b", "")
    if numbers is not None:
        stored = next(item for item in proto.graph.initializer if item.name == tensor)
        stored.raw_data = np.array(numbers, "<f4").tobytes()
    return proto


@pytest.mark.parametrize(
    ("names", "tensor", "numbers"),
    [
        (["fc.bias", "val_0", "val_1"], "slice_1", None),
        (["p_b", "unsqueeze", "val_3"], "unsqueeze_1", [1.0] * 4),
        (["fc.bias", "arange", "select_2", "view"], "permute", None),
    ],
)
def test_moved_entries_are_the_parameter(tmp_path, names, tensor, numbers) -> None:
    proto = without_bias(names, tensor, numbers)
    imported = load_model(saved(proto, tmp_path), trusted=True)
    parameters = imported.graph.parameters
    assert parameters.keys() == {"fc.weight", "fc.bias"}
    assert not any(item.folded for item in parameters.values())
    bounds = {item.name: item.grad_norm for item in analyze(imported, Settings()).parameters}
    assert bounds.keys() == parameters.keys()
    assert None not in bounds.values()


@pytest.mark.parametrize(
    ("names", "tensor", "numbers"),
    [
        (["fc.bias", "mul", "val_0"], "slice_1", None),  # may be twice the parameter
        (["fc.bias", "neg"], "view", None),
        (["fc.bias", "x"], "view", None),
        (["fc.bias", "val_0"], "expand", None),  # entries may stand in several places
        (["fc.bias", "val_0"], "val_1", None),  # of a call that is not known
        (["fc.bias", "fc.weight"], "view", None),
        (["fc.bias", "embedding"], "view", None),  # rows may be there twice
    ],
)
def test_other_tensors_may_be_anything(tmp_path, names, tensor, numbers) -> None:
    assert tensor in folded(without_bias(names, tensor, numbers), tmp_path)


def test_a_parameter_with_two_such_tensors_is_not_followed(tmp_path) -> None:
    proto = without_bias(["fc.bias"], "view", more={"view_1": ["fc.bias"]})
    assert not folded(proto, tmp_path)
    other = proto.graph.initializer.add()
    other.CopyFrom(proto.graph.initializer[-2])
    other.name = "view_1"
    assert "view" in folded(proto, tmp_path)


class Positions(nn.Module):
    """Learned positions, of which as many are read as there are tokens; the head is the table."""

    def __init__(self):
        super().__init__()
        self.table, self.scale = nn.Embedding(7, 4), nn.Parameter(torch.full((4,), 0.5))
        self.places, self.mlp = nn.Embedding(9, 4), nn.Linear(4, 4)

    def forward(self, ids):
        h = self.table(ids) + self.places(torch.arange(5))
        h = h + self.scale[None, None] * self.mlp(h)
        return F.linear(h.mean(1), self.table.weight)


def test_no_bound_of_an_optimised_file_is_too_small(tmp_path) -> None:
    torch.manual_seed(0)
    module, path = Positions(), tmp_path / "m.onnx"
    ids = torch.randint(7, (40, 5))
    batch = ({0: torch.export.Dim("batch")},)
    torch.onnx.export(
        module, (ids[:2],), str(path), dynamo=True, dynamic_shapes=batch, external_data=False,
        verbose=False,
    )  # fmt: skip
    found = analyze(load_model(path, trusted=True), Settings(loss="cross-entropy"))
    bounds = {item.name: item.grad_norm for item in found.parameters}
    named = dict(module.named_parameters())
    assert bounds.keys() == named.keys()
    for row in ids:
        logits = module(row[None])
        loss = F.cross_entropy(logits, logits.argmin(1))
        for name, gradient in zip(named, torch.autograd.grad(loss, [*named.values()]), strict=True):
            assert float(gradient.norm()) <= bounds[name], name
