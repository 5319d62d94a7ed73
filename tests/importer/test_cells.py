"""Recurrent layers that plain `torch.onnx.export` writes: the optimiser joins their parameters."""

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lipcert.analysis.certificate import certify
from lipcert.analysis.pipeline import analyze
from lipcert.errors import NoVerdictError
from lipcert.importer.load import load_model
from lipcert.settings.settings import Settings
from tests.importer.models import saved

pytestmark = pytest.mark.filterwarnings("ignore")
SETTINGS = Settings(loss="cross-entropy", input_norm=1.0)


class Recurrent(nn.Module):
    """Two layers, of which one has two directions and the other one no bias."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(2, 2, batch_first=True, bidirectional=True)
        self.lstm = nn.LSTM(4, 2, batch_first=True, bias=False)
        self.head = nn.Linear(2, 3)

    def forward(self, x):
        return self.head(self.lstm(self.gru(x)[0])[0][:, -1])


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    torch.manual_seed(0)
    module, path = Recurrent(), tmp_path_factory.mktemp("m") / "m.onnx"
    batch = ({0: torch.export.Dim("batch")},)
    torch.onnx.export(
        module,
        (torch.zeros(2, 3, 2),),
        str(path),
        dynamo=True,
        dynamic_shapes=batch,
        external_data=False,
        verbose=False,
    )
    return module, path


def test_every_parameter_has_its_name_its_numbers_and_a_bound(exported) -> None:
    module, path = exported
    imported = load_model(path, trusted=True)
    named = dict(module.named_parameters())
    held = imported.reading.model.initializers
    for name, own in named.items():
        assert torch.equal(torch.tensor(held[name].values(), dtype=own.dtype), own.data), name
    bounds = {item.name: item.grad_norm for item in analyze(imported, SETTINGS).parameters}
    assert bounds.keys() == named.keys()
    for row in F.normalize(torch.randn(8, 6)).reshape(8, 1, 3, 2):
        x = row.clone().requires_grad_()
        for _ in range(3):  # ascent along the norm of all gradients
            logits = module(x)
            loss = F.cross_entropy(logits, logits.argmin(1))
            found = torch.autograd.grad(loss, [*named.values()], create_graph=True)
            for name, gradient in zip(named, found, strict=True):
                assert float(gradient.norm()) <= bounds[name], name
            (way,) = torch.autograd.grad(sum(item.square().sum() for item in found), x)
            x = F.normalize((x + way).reshape(1, 6)).reshape(1, 3, 2).detach().requires_grad_()


def test_a_certificate_asks_for_a_file_that_stores_them(exported) -> None:
    with pytest.raises(NoVerdictError, match=r"'gru.*none, of the file.*lipcert\.export"):
        certify(load_model(exported[1], trusted=True), SETTINGS)


@pytest.mark.parametrize("change", ["no note", "other list", "taken"])
def test_where_a_note_does_not_fit_nothing_is_taken_apart(exported, tmp_path, change) -> None:
    proto = onnx.load(exported[1])
    gru = next(node for node in proto.graph.node if node.op_type == "GRU")
    notes = next(item for item in proto.graph.value_info if item.name == gru.input[1])
    if change == "no note":
        del notes.metadata_props[:]
    if change == "other list":
        entry = next(item for item in gru.metadata_props if item.key.endswith("fx_node"))
        entry.value = entry.value.replace("%p_gru_weight_ih_l0,", "%mul,")
    if change == "taken":
        proto.graph.initializer.add(name=f"{gru.output[0]}@1.0", data_type=1, float_data=[1.0])
    graph = load_model(saved(proto, tmp_path), trusted=True).graph
    assert any(item.folded for item in graph.parameters.values())
