"""`lipcert.export`: the file computes what the module computes, and shows what it is trained by."""

import math

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal

import lipcert
from lipcert.errors import NoVerdictError, UsageError
from lipcert.importer.load import load_model

Example = Tensor | tuple[Tensor, ...]


class Heads(nn.Module):
    """Two inputs, two heads, and parameters called as the file calls its inputs and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU())
        self.ids = nn.Embedding(9, 4)
        self.logits = nn.Parameter(torch.rand(22))
        self.picture = nn.Parameter(torch.rand(22))
        self.drop = nn.Dropout(0.5, inplace=True)

    def forward(self, picture: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        read = torch.cat([self.image(picture).flatten(1), self.ids(tokens).mean(1)], 1)
        read = self.drop(read * self.logits) + self.picture
        return {"logits": read.sin(), "size": read.square().sum(1)}


class OneHead(nn.Module):
    """One input behind `*arguments`, one output."""

    def __init__(self) -> None:
        super().__init__()
        self.input = nn.Parameter(torch.rand(6))
        self.logits = nn.Linear(6, 3)

    def forward(self, *arguments: Tensor) -> Tensor:
        out: Tensor = self.logits(arguments[0] + self.input)
        return out


class Branching(nn.Module):
    """What it computes depends on the numbers that it reads."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sin() if x.sum() > 0 else x


CASES = {
    "several": (
        *(Heads, lambda n: (torch.rand(n, 1, 5, 5), torch.randint(9, (n, 3)))),
        (["picture_", "tokens"], ["logits_", "size"]),
    ),
    "one": (OneHead, lambda n: torch.rand(n, 6), (["input_"], ["logits"])),
}
"""modules, their batches, and what the file calls inputs and outputs: as the module does, but for
names that parameters have, which an ONNX file cannot give twice"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", CASES)
def test_the_file_is_the_module_in_evaluation_mode(name: str, tmp_path) -> None:
    torch.manual_seed(0)
    made, batch, called = CASES[name]
    module = made()
    module(*batch(4)) if name == "several" else module(batch(4))  # statistics of its own
    before = {key: item.clone() for key, item in module.state_dict().items()}
    seen: list[object] = []
    hook = module.register_forward_hook(lambda *_: seen.append(0))
    path = lipcert.export(module, batch(1), tmp_path / "folder" / "net.onnx")
    hook.remove()
    assert path == tmp_path / "folder" / "net.onnx"
    assert [item.name for item in path.parent.iterdir()] == ["net.onnx"]
    assert (module.training, seen) == (True, [])
    after = module.state_dict()
    assert all(torch.equal(after[key], item) for key, item in before.items())

    onnx.checker.check_model(str(path), full_check=True)
    stored = {item.name for item in onnx.load(path).graph.initializer}
    assert stored >= {key for key, _ in module.named_parameters()}
    session = ort.InferenceSession(str(path))
    names = [item.name for item in session.get_inputs()]
    assert (names, [item.name for item in session.get_outputs()]) == called
    module.eval()
    for examples in (1, 3):
        given = batch(examples)
        given = given if isinstance(given, tuple) else (given,)
        found = session.run(None, dict(zip(names, (item.numpy() for item in given), strict=True)))
        out = module(*given)
        truth = list(out.values()) if isinstance(out, dict) else [out]
        for own, other in zip(found, truth, strict=True):
            np.testing.assert_allclose(own, other.detach().numpy(), rtol=1e-5, atol=1e-6)


class Biased(nn.Module):
    """Attention with trained scores of positions, whose heads are put side by side by `reshape`."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.rand(1, 2, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (2, 3)).transpose(1, 2)
        found = nn.functional.scaled_dot_product_attention(heads, heads, heads, self.scores)
        joined: Tensor = found.transpose(1, 2).reshape(x.shape[0], 4, -1)
        return joined


def test_kernels_of_attention_do_not_show(tmp_path) -> None:
    """The strides of a fused kernel are not those of the operators that the file has."""
    module, x = Biased(), torch.rand(3, 4, 6)
    path = lipcert.export(module, x[:1], tmp_path / "net.onnx")
    (found,) = ort.InferenceSession(str(path)).run(None, {"input": x.numpy()})
    np.testing.assert_allclose(found, module(x).detach().numpy(), rtol=1e-5)


def test_how_kernels_lie_in_memory_does_not_show(tmp_path) -> None:
    """Of images with channels last, exporters write views by strides and the size of the batch."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.MaxPool2d(3, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    plain = lipcert.export(module, torch.zeros(1, 2, 8, 8), tmp_path / "plain.onnx").read_bytes()
    module = module.to(memory_format=torch.channels_last)
    found = lipcert.export(module, torch.zeros(1, 2, 8, 8), tmp_path / "last.onnx").read_bytes()
    assert found == plain
    assert module[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_convolutions_may_have_a_precision_of_their_own(tmp_path) -> None:
    """As where TF32 is switched off for them."""
    convolutions = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before = convolutions.fp32_precision
    convolutions.fp32_precision = "ieee"
    try:
        lipcert.export(nn.Conv2d(1, 2, 3), torch.zeros(1, 1, 4, 4), tmp_path / "net.onnx")
        assert convolutions.fp32_precision == "ieee"
    finally:
        convolutions.fp32_precision = before


class Packed(nn.LSTM):
    """Reads sequences whose lengths are data."""

    def forward(self, x):
        lengths = (x[:, :, 0] >= 0).sum(1)
        packed = nn.utils.rnn.pack_padded_sequence(x.transpose(0, 1), lengths, enforce_sorted=False)
        return super().forward(packed)[1][0][-1]


def test_nothing_is_written_where_there_is_nothing_to_write(tmp_path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(b"before")
    for module, example, error, reason in (
        (nn.Linear(8, 2), torch.rand(1, 7), NoVerdictError, r"fails on a batch .*\[2, 7\]"),
        (Branching(), torch.rand(1, 8), NoVerdictError, "cannot be exported: .*data-dependent"),
        (orthogonal(nn.Linear(4, 4)), torch.rand(1, 4), NoVerdictError, "make_trainable"),
        (Packed(4, 2), torch.rand(1, 3, 4), NoVerdictError, "without pack_padded_sequence"),
        (nn.Linear(8, 2), 3, UsageError, r"lipcert\.export\(module, x\[:1\]"),
        (nn.Linear(8, 2), torch.tensor(1.0), UsageError, r"one batch"),
        (Heads(), (torch.rand(2, 1), torch.rand(1, 1)), UsageError, "equally many of each"),
        (torch.sin, torch.rand(1, 8), UsageError, r"not an nn\.Module"),
    ):
        with pytest.raises(error, match=reason):
            lipcert.export(module, example, path)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_sharded_module_is_refused(tmp_path) -> None:
    """As `fully_shard` leaves it: every parameter lies on a mesh of devices."""
    module = nn.Linear(3, 2)
    module.weight.device_mesh = object()
    for refuse in (
        lambda: lipcert.export(module, torch.rand(2, 3), tmp_path / "net.onnx"),
        lambda: lipcert.analyze(module, torch.rand(2, 3), lipcert.Settings()),
    ):
        with pytest.raises(UsageError, match="use DistributedDataParallel"):
            refuse()
    assert list(tmp_path.iterdir()) == []


class Features(nn.Module):
    """A frozen layer, whose bias is used once more, and a head; a weight has a second name."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 3)
        self.body.requires_grad_(requires_grad=False)
        self.twin = self.body.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(self.body(x) / (self.body.bias.exp() + 5)))
        return out


def test_what_needs_no_gradient_is_frozen_in_the_file(tmp_path) -> None:
    torch.manual_seed(0)
    module, x = Features(), torch.rand(2, 6)
    settings = lipcert.Settings(loss="cross-entropy", input_box=(0.0, 1.0))
    path = lipcert.export(module, x, tmp_path / "m.onnx")
    of_file, of_module = lipcert.analyze(path, settings), lipcert.analyze(module, x, settings)
    assert of_file.network.grad_norm is not None
    assert of_file.network.grad_norm == of_module.network.grad_norm
    names = {item.name: item.trainable for item in of_file.parameters}
    frozen = {"twin": False, "body.bias": False}  # the first of its names
    assert names == {**frozen, "head.weight": True, "head.bias": True}
    assert of_file.assumptions.frozen == ("body.bias", "twin")
    issued = lipcert.certify(path, settings, out=tmp_path / "m.lipcert.json")
    assert issued.certificate.scope.trained == ("head.bias", "head.weight")
    with pytest.raises(UsageError, match="matches no parameter that the file leaves trained"):
        lipcert.analyze(path, lipcert.Settings(trainable=("body.*",)))
    thawed = lipcert.export(module.requires_grad_(), x, path)
    found = lipcert.analyze(thawed, settings)  # of which a divisor is computed from a bias
    assert {item.name for item in found.parameters if item.trainable} == names.keys()
    assert of_file.network.grad_norm < found.network.grad_norm < math.inf


@pytest.mark.parametrize("note", ["", "[", '{"body.weight": 1}', "[1]", "[" * 100_000])
def test_a_note_of_another_form_freezes_nothing(tmp_path, note: str) -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> g (float[N, 2] x) => (float[N, 2] y)'
        "<float[2, 2] w = {1, 2, 3, 4}> { y = MatMul(x, w) }"
    )
    entry = proto.graph.metadata_props.add()
    entry.key, entry.value = "lipcert.frozen", note
    onnx.save(proto, tmp_path / "m.onnx")
    (weight,) = lipcert.load_model(tmp_path / "m.onnx", trusted=True).graph.parameters.values()
    assert weight.trainable
    entry.value = '["w"]'
    onnx.save(proto, tmp_path / "m.onnx")
    (weight,) = lipcert.load_model(tmp_path / "m.onnx", trusted=True).graph.parameters.values()
    assert not weight.trainable


class Encoder(nn.Module):
    """torch's own encoder, which in evaluation mode leaves out the tokens that are padding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(9, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 1), nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        seen = self.encoder(self.tokens(tokens), src_key_padding_mask=tokens == 0)
        out: Tensor = self.head(seen[:, 0])
        return out


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:.*nested tensors.*")
def test_an_encoder_with_a_padding_mask(tmp_path) -> None:
    torch.manual_seed(0)
    module, x = Encoder(), torch.tensor([[3, 1, 4, 0, 0], [1, 5, 0, 0, 0]])
    assert torch.backends.mha.get_fastpath_enabled()
    path = lipcert.export(module, x, tmp_path / "m.onnx")
    (logits,) = ort.InferenceSession(path).run(None, {"input": x.numpy()})
    np.testing.assert_allclose(logits, module(x).detach().numpy(), atol=1e-5)
    analysis = lipcert.analyze(module, x, lipcert.Settings(loss="cross-entropy"))
    assert analysis.network.grad_norm is not None
    with pytest.raises(NoVerdictError):
        lipcert.export(Branching(), torch.rand(2, 3), path)
    assert torch.backends.mha.get_fastpath_enabled()


class Patches(nn.Module):
    """Attention's queries, keys and values, of patches whose number follows from a size of -1."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.within, self.out = nn.LayerNorm(4), nn.Linear(4, 12), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(-1, 4, 2, 4, 2).permute(0, 1, 3, 2, 4).reshape(-1, 16, 4)
        queries, keys, values = self.within(self.norm(x)).chunk(3, -1)
        out: Tensor = self.out((x + queries * keys * values).mean(1))
        return out


def test_numbers_that_no_training_has_changed_yet_are_those_of_parameters(tmp_path) -> None:
    """Scales of 1 and shifts of 0 would hide a call that a file lacks: one of sizes alone does."""
    path = lipcert.export(Patches(), torch.rand(1, 1, 8, 8), tmp_path / "net.onnx")
    found = load_model(path).graph.parameters
    assert found.keys() == dict(Patches().named_parameters()).keys()
    assert not any(item.folded for item in found.values())
