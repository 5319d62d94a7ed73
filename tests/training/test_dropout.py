"""Dropout under gradient clipping: gradients of single examples with their own masks, clipped."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from lipcert.errors import NoVerdictError, UsageError
from lipcert.training import BackpropClipping, GradientClipping, Loss, Private, WeightClipping
from lipcert.training.clipping.single import SingleGradients
from lipcert.training.modes import DropoutWarning, dropouts
from tests.commands import lipcert
from tests.training.runs import BATCH, CLASSES, EXAMPLES, STEPS, clipless, data, private_run, train

LABELS, CLIP = data().tensors[1], GradientClipping()


class Dense(nn.Sequential):
    """One layer of dropout is in place, one is called twice."""

    def __init__(self) -> None:
        again = nn.Dropout(0.3)
        super().__init__(
            nn.Linear(6, 8), nn.Tanh(), again, nn.Linear(8, 8), nn.ReLU(),
            nn.Dropout(0.4, inplace=True), again, nn.Linear(8, CLASSES),
        )  # fmt: skip


class Images(nn.Sequential):
    """Dropout of channels, and of entries of the input."""

    def __init__(self) -> None:
        super().__init__(
            nn.Dropout(0.2), nn.Conv2d(1, 4, 2), nn.ReLU(), nn.Dropout2d(0.5), nn.Flatten(),
            nn.Dropout1d(0.0), nn.Linear(8, CLASSES),
        )  # fmt: skip


class Windows(nn.Sequential):
    """Each example is cut into three, which lie one after another along the first axis."""

    def __init__(self) -> None:
        super().__init__(
            nn.Unflatten(1, (3, 2)), nn.Flatten(0, 1), nn.Linear(2, 4), nn.Dropout(0.4),
            nn.Unflatten(0, (-1, 3)), nn.Flatten(), nn.Linear(12, CLASSES),
        )  # fmt: skip


def images() -> TensorDataset:
    return TensorDataset(data().tensors[0].reshape(EXAMPLES, 1, 2, 3), LABELS)


class Recurrent(nn.Module):
    """An LSTM of three steps, which holds its weights in a list, too."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(2, 4, batch_first=True), nn.Linear(4, CLASSES)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        last = self.lstm(x.unflatten(1, (3, 2)))[0][:, -1]
        logits: Tensor = self.head(self.drop(last))
        return logits


NETWORKS = {
    "dense": (Dense, data()),
    "images": (Images, images()),
    "windows": (Windows, data()),
}
CLIPS = {
    "flat": {"clip_norm": 0.2},
    "groups": {"clip_norm": 0.2, "clip_scope": "group"},
    "decay": {"clip_norm": 0.2, "decay": "inside", "weight_decay": 0.3},
    "idle": {"clip_norm": 1e4},
}


def run_of(kind: str, clip: str, folder=None, **changes) -> Private:
    network, examples = NETWORKS[kind]
    mechanism = GradientClipping(**CLIPS[clip], loss=Loss(temperature=0.5))
    return private_run(folder, mechanism, network=network, examples=examples, **changes)


def with_masks(network: nn.Module, x: Tensor, masks: list[Tensor]) -> Tensor:
    """The layers one after another; dropout multiplies by the next mask."""
    left = list(masks)
    for layer in network._modules.values():
        x = x * left.pop(0) if isinstance(layer, nn.modules.dropout._DropoutNd) else layer(x)
    assert not left
    return x


def truth(
    network: nn.Module, x: Tensor, y: Tensor, masks: list[Tensor], clip
) -> tuple[dict[str, Tensor], float]:
    """Σ of clipped gradients and of losses, one example at a time in float64."""
    own = type(network)().double()
    own.load_state_dict(network.state_dict())
    names = [name for name, _ in own.named_parameters()]
    sums = {name: torch.zeros_like(p) for name, p in own.named_parameters()}
    layers = sorted({name.rpartition(".")[0] for name in names})
    parts = [[n for n in names if n.startswith(f"{layer}.")] for layer in layers]
    groups = parts if clip.get("clip_scope") == "group" else [names]
    losses = 0.0
    for i in range(len(x)):
        own.zero_grad()
        drawn = [mask.double().unflatten(0, (len(x), -1))[i] for mask in masks]
        logits = with_masks(own, x[i : i + 1].double(), drawn)
        loss = functional.cross_entropy(logits / 0.5, y[i : i + 1])
        loss.backward()
        losses += float(loss.detach())
        for group in groups:
            radius = clip["clip_norm"] / math.sqrt(len(groups))
            found = {
                n: own.get_parameter(n).grad + clip.get("weight_decay", 0.0) * own.get_parameter(n)
                for n in group
            }
            length = math.hypot(*(float(g.detach().norm()) for g in found.values()))
            for name, gradient in found.items():
                sums[name] += gradient.detach() * radius / max(radius, length)
    return sums, losses


@pytest.mark.sample(8)
@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("kind", NETWORKS)
def test_gradients_are_clipped_with_the_masks_of_the_forward_pass(
    kind: str, clip: str, size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if size is not None:  # in chunks of three examples
        count = sum(p.numel() for p in NETWORKS[kind][0]().parameters())
        monkeypatch.setattr("lipcert.training.clipping.single._CHUNK", 3 * count)
    with run_of(kind, clip) as run:
        x, y = next(iter(run.loader))
        total, expected, losses = 0.0, {}, 0.0
        for rows in [slice(None)] if size is None else [slice(0, 4), slice(4, None)]:
            value = run.criterion(run.model(x[rows]), y[rows])
            masks = [mask for _, mask in _masks(run).drawn()]
            value.backward()
            total += float(value.detach())
            part, loss = truth(run.model, x[rows], y[rows], masks, CLIPS[clip])
            expected = {name: expected.get(name, 0.0) + item for name, item in part.items()}
            losses += loss
            assert any(bool((mask == 0.0).any()) for mask in masks)
        assert total == pytest.approx(losses / BATCH, rel=1e-5)
        for name, parameter in run.model.named_parameters():
            assert torch.allclose(parameter.grad.double(), expected[name], rtol=1e-4, atol=1e-6)
        run.optimizer.step()


def _masks(run: Private):
    """Of the run, through the closure that it asks."""
    return run.release.enforcement.gradients.__self__._masks  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", NETWORKS)
def test_no_example_moves_the_sum_by_more_than_the_clip(kind: str) -> None:
    with run_of(kind, "flat") as run:
        x, y = next(iter(run.loader))
        lengths = []
        for i in range(len(x)):
            run.optimizer.zero_grad()
            run.criterion(run.model(1e3 * x[i : i + 1]), y[i : i + 1]).backward()
            lengths.append(
                math.hypot(*(float(p.grad.double().norm()) for p in run.model.parameters()))
            )
        assert 0.19 < max(lengths) <= 0.2 * (1.0 + 1e-9)


def test_at_rest_the_gradients_are_those_of_the_graph() -> None:
    """Without masks, whatever the order of passes; evaluation in between changes nothing."""
    torch.manual_seed(3)
    with run_of("dense", "flat") as run, run_of("dense", "flat") as other:
        x, y = next(iter(run.loader))
        drawn, _ = next(iter(other.loader))
        assert torch.equal(drawn, x)
        for part in dropouts(run.model).values():
            part.eval()
        run.criterion(run.model(x), y).backward()
        logits = other.model(x)
        masks = [mask for _, mask in _masks(other).drawn()]
        other.model.eval()
        with torch.no_grad():
            other.model(x)
        other.model.train()
        other.criterion(logits, y).backward()
        for kind, found in ((run, []), (other, masks)):
            ones = found or [torch.ones(len(x), 8)] * 3
            expected, _ = truth(kind.model, x, y, ones, CLIPS["flat"])
            for name, parameter in kind.model.named_parameters():
                assert torch.allclose(parameter.grad.double(), expected[name], atol=1e-6)


def test_weights_that_change_between_the_passes_are_refused() -> None:
    run = run_of("dense", "flat")
    x, y = next(iter(run.loader))
    loss = run.criterion(run.model(x), y)
    run.model[0].weight.data.mul_(1.5)
    with pytest.raises(UsageError, match="was changed since the last step"):
        loss.backward()


def test_masks_of_steps_and_examples_differ() -> None:
    with run_of("dense", "flat") as run:
        seen = []
        for x, y in run.loader:
            run.step(x, y)
            seen.append(_masks(run).drawn()[0][1])
        rows = {tuple(row.tolist()) for mask in seen for row in mask}
        assert len(rows) > 0.5 * sum(map(len, seen))
        assert run.releases == STEPS


def test_a_run_with_dropout_is_certified_and_audited_as_far_as_can_be(tmp_path) -> None:
    folder = tmp_path / "run"
    with run_of("dense", "flat", folder) as run:
        train(run)
        assert run.release.enforcement.masked == ("2", "5")
    found = audited(folder)
    assert found.exit_code == 0, found.output
    assert "masks of dropout (2, 5) are not recorded" in " ".join(found.output.split())
    assert "clipped gradients add up to" in " ".join(found.output.split())


def test_an_audit_notices_sums_that_no_clipped_gradients_add_up_to(tmp_path, monkeypatch) -> None:
    folder = tmp_path / "run"
    plain = SingleGradients._summed

    def unclipped(*given):
        return {name: 50.0 * item for name, item in plain(*given).items()}

    monkeypatch.setattr(SingleGradients, "_summed", unclipped)
    with run_of("dense", "flat", folder) as run:
        train(run)
    found = audited(folder)
    assert found.exit_code == 1
    assert "LC312" in found.output


def audited(folder):
    words = [str(folder / "model.lipcert.json"), "--model", str(folder / "model.onnx")]
    return lipcert(["audit", *words, "--trace", str(folder / "trace")])


class Functional(Dense):
    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(super().forward(x), 0.5, self.training)


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(2, 1, dropout=0.5, batch_first=True)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, 3, 2)
        return self.head(self.attention(tokens, tokens, tokens)[0].flatten(1))


class Thresholded(Dense):
    """Its number is called like a dropout, and is not one."""

    def __init__(self) -> None:
        super().__init__()
        self.drop_below = 0.5

    def forward(self, x: Tensor) -> Tensor:
        return super().forward((x - self.drop_below).relu())


def test_a_run_trains_without_masks_that_an_attention_draws() -> None:
    module = Attending()
    with pytest.warns(DropoutWarning, match="within attention is 0"):
        run = private_run(mechanism=CLIP, network=lambda: module)
    with run:
        train(run)
        assert module.attention.dropout == 0.0
    assert module.attention.dropout == 0.5


class OtherAxis(Dense):
    """Masks the features of all examples alike."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self[2](x.T).T)


REPLACED = r"2 \(Dropout in training mode\).*make_trainable\(module"
BESIDE = nn.Linear(6, 3)


@pytest.mark.parametrize(("mechanism", "network", "words"), [
    *((kind, Dense, REPLACED) for kind in
      (clipless(), WeightClipping(radius=1.0, input_norm=1.0), BackpropClipping())),
    (CLIP, lambda: nn.Sequential(BESIDE, nn.AlphaDropout(0.1)), "AlphaDropout"),
    (CLIP, lambda: nn.Sequential(BESIDE, nn.BatchNorm1d(3), nn.Dropout()), "BatchNorm1d"),
    (CLIP, Functional, "draws random numbe"), (CLIP, Thresholded, "exported graph differ"),
])  # fmt: skip
def test_what_no_mask_tells_apart_is_refused(mechanism, network, words: str, tmp_path) -> None:
    with pytest.raises((UsageError, NoVerdictError), match=words):
        private_run(tmp_path / "run", mechanism, network=network)
    assert not (tmp_path / "run").exists()


class Looking(Dense):
    """Its code depends on its numbers, as that of masks of Hugging Face does."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if torch.compiler.is_exporting() or x.abs().sum() < 1e9 else -x)


def test_code_that_looks_at_numbers_trains_example_by_example() -> None:
    found = []
    for network in (Dense, Looking):
        with private_run(None, GradientClipping(clip_norm=0.1), network=network) as run:
            train(run)
            found.append([item.detach() for item in run.model.parameters()])
    assert all(torch.allclose(*pair) for pair in zip(*found, strict=True))


class Remembering(Dense):
    """Turns each example as the last one of the last batch says."""

    turns = False
    sign = 1.0

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 3 and self.turns:
            self.sign = float(x[-1].sum().sign())
        return super().forward(self.sign * x)


def test_no_example_moves_the_sum_by_what_the_module_remembers_of_it(monkeypatch) -> None:
    with private_run(None, GradientClipping(clip_norm=0.2), network=Remembering) as run:
        x, y = next(iter(run.loader))
        monkeypatch.setattr(Remembering, "turns", True)
        found = []
        for last in (x[-1:], -x[-1:]):
            torch.manual_seed(1)
            run.optimizer.zero_grad()
            run.criterion(run.model(torch.cat([x[:-1], last])), y).backward()
            masks = [mask for _, mask in _masks(run).drawn()]
            assert [len(mask) for mask in masks] == [len(x)] * 3
            found.append(torch.cat([item.grad.flatten() for item in run.model.parameters()]))
            run.release.guard.drawn(len(x))
        assert float((found[0] - found[1]).norm()) <= 2 * 0.2 * (1.0 + 1e-6)


def test_dropout_in_place_alone_is_trained_with() -> None:
    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5, inplace=True), nn.Linear(8, CLASSES))

    with private_run(None, CLIP, network=network) as run:
        run.step(*next(iter(run.loader)))
        assert run.release.enforcement.masked == ("1",)
        assert run.model[1].inplace


def test_a_mask_across_examples_is_refused_before_the_release() -> None:
    with private_run(None, CLIP, network=OtherAxis) as run:
        x, y = next(iter(run.loader))
        with pytest.raises(NoVerdictError, match="along its first axis"):
            run.step(x, y)
        assert run.releases == 0


def test_a_file_that_shows_no_dropout_is_not_what_is_trained(tmp_path) -> None:
    file = tmp_path / "plain.onnx"
    names = {"input_names": ["x"], "dynamic_axes": {"x": {0: "batch"}}}
    torch.onnx.export(Dense().eval(), (torch.rand(1, 6),), str(file), dynamo=False, **names)
    with pytest.raises(UsageError, match=r"does not contain 2, 5.*without dropout"):
        run_of("dense", "idle", tmp_path / "run", model_file=file)
    assert not (tmp_path / "run").exists()


def test_a_closed_run_leaves_plain_dropout() -> None:
    run = run_of("dense", "flat")
    run.close()
    parts = run.model.modules()
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in parts)


def test_a_recurrent_network_is_trained() -> None:
    with private_run(None, GradientClipping(clip_norm=1.0), network=Recurrent) as private:
        train(private)
        assert private.releases == STEPS
