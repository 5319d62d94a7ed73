"""A causal language model with a tied head: from the module to an audited private run."""

import math

import onnx
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import lipcert
from lipcert.core.losses.base import NO_LABEL
from lipcert.errors import LipCertError, NoVerdictError, UsageError
from lipcert.training import BackpropClipping, Clipless, GradientClipping, Private
from lipcert.training.layers import AddBias
from lipcert.training.mechanisms import Loss, TrainingMechanism
from tests.training.runs import audited, private_run

VOCABULARY, LENGTH, WIDTH, HEADS = 12, 6, 8, 2
LOSS = Loss("cross-entropy", per_token="mean")
BACKPROP = BackpropClipping(input_clip=1.0, cotangent_clip=0.1, loss=LOSS)
MECHANISMS: dict[str, tuple[TrainingMechanism, str]] = {
    "gradient-clipping": (GradientClipping(clip_norm=1.0, loss=LOSS), "pass"),
    "backprop-clipping": (BACKPROP, "pass"),
    "clipless": (Clipless(radius=1.0, bias_norm=0.5, loss=LOSS), "inconclusive"),
}
"""and what an audit says: without clips no gradient comes near the bounds of deep transformers"""
MASKS = ("is_causal", "triu", "masked_fill", "tril")


class Block(nn.Module):
    """Causal attention and a perceptron, each behind a normalization."""

    def __init__(self, mask: str, epsilon: float) -> None:
        super().__init__()
        self.mask = mask
        self.first, self.second = (nn.LayerNorm(WIDTH, eps=epsilon) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def attended(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
        )
        if self.mask == "is_causal":
            found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(WIDTH // HEADS)
            later = torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1)
            match self.mask:
                case "triu":
                    hidden = torch.full((LENGTH, LENGTH), float("-inf"))
                    scores = scores + torch.triu(hidden, 1)
                case "tril":
                    seen = torch.tril(torch.ones(LENGTH, LENGTH))
                    scores = scores.masked_fill(seen == 0, float("-inf"))
                case _:
                    scores = scores.masked_fill(later, float("-inf"))
            found = scores.softmax(-1) @ v
        return self.out(found.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attended(self.first(x))
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Model(nn.Module):
    """Embedding and positions, blocks, and the embedding again as the head."""

    def __init__(self, mask: str = "is_causal", blocks: int = 2, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCABULARY, WIDTH), AddBias(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block(mask, epsilon) for _ in range(blocks)))
        self.last = nn.LayerNorm(WIDTH, eps=epsilon)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.last(self.blocks(self.position(self.embed(ids)))))


class Encoder(nn.Module):
    """The same of torch's layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 16, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        x = self.embed(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.blocks(x, mask=mask))


def examples(count: int = 40) -> tuple[Tensor, Tensor]:
    """Ids and those that follow them; a few are left out."""
    random = torch.Generator().manual_seed(0)
    text = torch.randint(VOCABULARY, (count, LENGTH + 1), generator=random)
    ids, following = text[:, :-1].contiguous(), text[:, 1:].contiguous()
    following[:5, 2] = NO_LABEL
    return ids, following


def private(model: nn.Module, mechanism: TrainingMechanism, folder=None) -> Private:
    return private_run(
        folder, mechanism, network=lambda: model, examples=TensorDataset(*examples()), batch=10,
        delta=1e-3, steps=3, dataset_size=40,
    )  # fmt: skip


@pytest.mark.sample(1)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_from_a_module_to_an_audited_run(mechanism: str, tmp_path) -> None:
    torch.manual_seed(0)
    model, folder = Model(blocks=1), tmp_path / "run"
    own, expected = MECHANISMS[mechanism]
    with private(model, own, folder) as run:
        for _, (x, y) in zip(range(3), run.loader, strict=False):
            run.step(x, y)
        assert model.head.weight is model.embed.weight
    found = audited(folder, expected)
    assert all(item["verdict"] in {"pass", "inconclusive"} for item in found["checks"])
    assert not any(item["violations"] for item in found["groups"])


@pytest.mark.parametrize("view", ["whole", "flat", "view", "turned"])
def test_the_criterion_is_the_mean_over_all_tokens(view: str) -> None:
    """As torch has it of scores in either form, where every token has a label."""
    torch.manual_seed(0)
    model = Model(blocks=1)
    with private(model, GradientClipping(clip_norm=1e6, loss=LOSS)) as run:
        x, y = next(iter(run.loader))
        y = y.clamp(min=0)
        match view:
            case "flat":
                run.criterion(model(x).flatten(0, 1), y.flatten()).backward()
            case "view":
                scores = model(x)
                run.criterion(scores.view(-1, VOCABULARY), y.view(-1)).backward()
            case "turned":
                run.criterion(model(x).transpose(1, 2), y).backward()
            case _:
                run.criterion(model(x), y).backward()
        found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    plain = Model(blocks=1)
    plain.load_state_dict(model.state_dict())
    functional.cross_entropy(plain(x).flatten(0, 1), y.flatten()).backward()
    assert found.keys() == dict(plain.named_parameters()).keys()
    for name, parameter in plain.named_parameters():  # the sum over the examples, not their mean
        expected = len(x) * parameter.grad
        assert torch.allclose(found[name], expected, rtol=1e-3, atol=1e-5), name


@pytest.mark.sample(2)
@pytest.mark.parametrize("mask", MASKS)
def test_no_gradient_of_an_example_exceeds_its_bound(mask: str) -> None:
    """Normalizations that stretch little, so that bounds are near; labels of the lowest scores."""
    torch.manual_seed(0)
    model = Model(mask, blocks=1, epsilon=1.0).eval()
    ids, _ = examples(12)
    found = lipcert.analyze(model, ids[:1], lipcert.Settings(loss="cross-entropy", per_token="sum"))
    bounds = {item.name: item.grad_norm for item in found.parameters}
    assert bounds.keys() == dict(model.named_parameters()).keys()
    ids[0] = ids[0, 0]
    for row in ids:
        scores = model(row[None])[0]
        for labels in (scores.argmin(1), torch.full((LENGTH,), int(scores.sum(0).argmin()))):
            loss = functional.cross_entropy(scores, labels, reduction="sum")
            gradients = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            for (name, _), gradient in zip(model.named_parameters(), gradients, strict=True):
                assert float(gradient.norm()) <= bounds[name] * (1.0 + 1e-5), name


def test_a_tied_table_has_one_name_in_files_and_in_modules(tmp_path) -> None:
    path = lipcert.export(Encoder(), examples()[0][:1], tmp_path / "net.onnx")
    stored = {item.name for item in onnx.load(path).graph.initializer}
    assert "embed.weight" in stored
    assert "head.weight" not in stored
    graph = lipcert.load_model(path).graph
    assert graph.parameters.keys() & {"embed.weight", "head.weight"} == {"embed.weight"}
    assert not any(item.folded for item in graph.parameters.values())


def test_a_tied_table_counts_both_of_its_uses(tmp_path) -> None:
    """Of every exporter: it holds the table once, or a turned copy beside it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 6, bias=False))
    model[1].weight = model[0].weight
    ids = torch.randint(6, (2, 5))
    settings = lipcert.Settings(loss="cross-entropy", per_token="sum")
    shapes = ({0: torch.export.Dim("batch", min=1)},)
    ways = {
        "plain": {"dynamo": True, "optimize": False, "dynamic_shapes": shapes, "verbose": False},
        "folded": {"dynamo": True, "dynamic_shapes": shapes, "verbose": False},
        "legacy": {"dynamo": False, "input_names": ["x"], "dynamic_axes": {"x": {0: "n"}}},
    }
    found = {"lipcert": lipcert.analyze(model, ids[:1], settings)}
    for name, options in ways.items():
        path = tmp_path / f"{name}.onnx"
        torch.onnx.export(model.eval(), (ids,), str(path), external_data=False, **options)
        found[name] = lipcert.analyze(path, settings)
    largest = 0.0
    for row in [*ids, *torch.arange(6)[:, None].expand(6, 5)]:
        scores = model(row[None])[0]
        for label in range(6):
            loss = functional.cross_entropy(scores, torch.full((5,), label), reduction="sum")
            (gradient,) = torch.autograd.grad(loss, [model[0].weight], retain_graph=True)
            largest = max(largest, float(gradient.norm()))
    for name, analysis in found.items():
        (only,) = analysis.parameters
        assert only.grad_norm is not None, name
        assert largest <= only.grad_norm == pytest.approx(found["lipcert"].parameters[0].grad_norm)
    assert largest >= 0.5 * found["lipcert"].parameters[0].grad_norm


def test_suggestions_measure_every_token() -> None:
    """The noise of a large clip beside the mean gradient of torch's loss, summed over tokens."""
    torch.manual_seed(0)
    model, (ids, y) = (
        nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 6)),
        torch.randint(6, (2, 12, 5)),
    )
    settings = lipcert.Settings(
        loss="cross-entropy", per_token="sum", mechanism="gradient-clipping", clip_norm=1e6,
        batch_size=10, noise_multiplier=1.0,
    )  # fmt: skip
    found = lipcert.suggest(model, ids[:1], settings, data=(ids, y), budget=0.0)
    loss = functional.cross_entropy(model(ids).flatten(0, 1), y.flatten(), reduction="sum")
    own = torch.autograd.grad(loss / len(ids), list(model.parameters()))
    mean, noise = torch.cat([part.flatten() for part in own]).norm(), 1e5 * math.sqrt(6 * 4 + 30)
    shown = found.suggestions.baseline.noise_to_signal
    assert shown == pytest.approx(noise / float(mean), rel=1e-6)


def test_what_does_not_fit_says_what_does() -> None:
    with pytest.raises(LipCertError, match="add --per-token mean or sum"):
        private(Model(blocks=1), GradientClipping(clip_norm=1.0, loss=Loss("cross-entropy")))
    with pytest.raises(UsageError, match=r"position \(Embedding\) adds the same rows.*AddBias"):
        private(Encoder(), BACKPROP)
    with private(Model(blocks=1), GradientClipping(clip_norm=1.0, loss=LOSS)) as run:
        x, y = next(iter(run.loader))
        with pytest.raises(NoVerdictError, match="one class number for each token"):
            run.criterion(run.model(x), y[:, 1:])
        with pytest.raises(NoVerdictError, match="class numbers are integers"):
            run.criterion(run.model(x), y.bfloat16())
        for part in (run.model(x)[:, 1:], 2.0 * run.model(x), run.model(x).flip(1)):
            with pytest.raises(LipCertError):
                run.criterion(part, y[:, : part.shape[1]])
        run.criterion(run.model(x), y)


def test_a_weight_that_is_computed_has_a_remedy_besides_the_call_just_made() -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    held = lipcert.Settings(input_norm=1.0, constraint="spectral:1")
    with pytest.raises(NoVerdictError, match=r"LC319.*plain weights, as .*make_trainable"):
        lipcert.audit(layer, torch.zeros(2, 4), held, attack_steps=1)


def test_gradients_are_clipped_with_both_uses_of_the_table() -> None:
    """The sum of the clipped gradients of single examples, by autograd of torch's loss."""
    torch.manual_seed(0)
    model, radius = Model(blocks=1), 0.05
    with private(model, GradientClipping(clip_norm=radius, loss=LOSS)) as run:
        x, y = next(iter(run.loader))
        y = y.clamp(min=0)
        run.criterion(model(x), y).backward()
        found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    plain = Model(blocks=1)
    plain.load_state_dict(model.state_dict())
    total = {name: torch.zeros_like(p) for name, p in plain.named_parameters()}
    for row, labels in zip(x, y, strict=True):
        loss = functional.cross_entropy(plain(row[None])[0], labels)
        single = torch.autograd.grad(loss, list(plain.parameters()))
        length = math.sqrt(sum(float(g.double().square().sum()) for g in single))
        assert length > radius
        for name, gradient in zip(total, single, strict=True):
            total[name] += gradient * (radius / length)
    for name, gradient in total.items():
        assert torch.allclose(found[name], gradient, rtol=1e-3, atol=1e-6), name
