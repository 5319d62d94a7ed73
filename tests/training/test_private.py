"""A private run from Python: what it releases, what it costs, and how it goes on."""

import json
import math
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer, RMSprop
from torch.optim.lr_scheduler import StepLR

from lipcert import load_model
from lipcert.analysis.pipeline import analyze
from lipcert.cli.sources import effective_settings
from lipcert.core.certificate import read_certificate
from lipcert.errors import NoVerdictError, UsageError
from lipcert.privacy.accounting import epsilon
from lipcert.settings.settings import ConstraintSpec
from lipcert.training import (
    BackpropClipping,
    FixedWeightNorm,
    GradientClipping,
    Loss,
    WeightClipping,
)
from lipcert.training.assembly import SeedWarning
from lipcert.training.calibration import CertificateWarning
from lipcert.training.intake import UntrainedWarning
from lipcert.training.release import NoiseSource
from tests.training.runs import BATCH, STEPS, Small, clipless, data, private_run, train

MECHANISMS = {
    "clipless": clipless(),
    "clipless, loss clip": clipless(loss_clip=0.3),
    "weight-clipping": WeightClipping(radius=2.0, bias_norm=1.0, input_norm=1.0),
    "fixed-weight-norm": FixedWeightNorm(
        radius=1.0, norm="frobenius", bias_norm=1.0, input_norm=1.0
    ),
    "backprop-clipping": BackpropClipping(input_clip=0.7, cotangent_clip=0.2, input_norm=1.0),
    "gradient-clipping": GradientClipping(clip_norm=0.3, input_norm=1.0),
    "gradient-clipping, groups": GradientClipping(
        clip_norm=0.3, clip_scope="group", input_norm=1.0
    ),
    "gradient-clipping, decay": GradientClipping(
        clip_norm=0.3, decay="inside", weight_decay=0.5, input_norm=1.0
    ),
}


@pytest.mark.usefixtures("uncertified")
@pytest.mark.sample(3)
@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_trains_to_its_plan(name: str, tmp_path: Path) -> None:
    with private_run(tmp_path, MECHANISMS[name], noise_multiplier=None, target_epsilon=3.0) as run:
        train(run)
        assert run.releases == STEPS
        assert 2.9 < run.epsilon <= 3.0
        assert run.epsilon == epsilon(run.calibration.plan, run.noise_multiplier)
        assert not list(run.loader)


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", MECHANISMS)
def test_noise_is_what_the_certificate_says_and_no_less_than_the_analysis(
    name: str, tmp_path: Path
) -> None:
    with private_run(tmp_path, MECHANISMS[name]) as run:
        file = tmp_path / "lipcert.toml"
        settings = effective_settings({}, {}, file).settings
        assert settings == run.settings
        found = analyze(load_model(tmp_path / "model.onnx"), settings)
        stated = read_certificate((tmp_path / "model.lipcert.json").read_bytes())
        if name == "weight-clipping":  # made anew in each step
            return
        for analysed, claimed in zip(found.groups, stated.groups, strict=True):
            used = run.calibration.noise_std[claimed.name]
            assert used == pytest.approx(claimed.noise_std, rel=1e-12)
            assert analysed.noise_std <= used <= (1 + 1e-6) * analysed.noise_std


def test_noise_of_weight_clipping_is_that_of_the_analysis_within_its_radii(tmp_path: Path) -> None:
    with private_run(tmp_path, MECHANISMS["weight-clipping"]) as run:
        model = load_model(tmp_path / "model.onnx")
        for x, y in run.loader:
            present = run.release.enforcement.present()
            held = present.bounds.scope.constraints
            assert {item.tensor for item in held} == set(model.graph.parameters)
            around = replace(
                run.settings,
                mechanism="clipless",
                scope="constraint-set",
                constraint=None,
                bias_norm=None,
                constraints=tuple((c.tensor, ConstraintSpec(c.kind, c.radius)) for c in held),
            )
            groups = analyze(model, around).groups
            assert present.noise_std == {group.name: group.noise_std for group in groups}
            run.step(x, y)


class Image(nn.Module):
    """The features as an image of 2 × 3 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 2), nn.Conv2d(4, 3, (1, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x.unflatten(1, (1, 2, 3))).relu()).flatten(1)


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_gradients_lie_in_memory_as_their_parameters_do(order: torch.memory_format) -> None:
    """Fused optimizers on a GPU refuse others, also where one channel leaves a choice."""
    mechanism = GradientClipping(clip_norm=1.0, input_norm=1.0)
    with private_run(None, mechanism, network=lambda: Image().to(memory_format=order)) as run:
        for x, y in run.loader:
            run.step(x, y)
            for parameter in run.model.parameters():
                assert parameter.grad.stride() == parameter.stride()


class Silent(SGD):
    """Keeps what it was given."""

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["given"] = parameter.grad.clone()


@pytest.mark.parametrize("name", MECHANISMS)
def test_released_is_the_sum_over_a_constant_plus_noise(name: str) -> None:
    """Against a float64 loop over single examples, with the noise drawn again."""
    with private_run(None, MECHANISMS[name], optimizer=Silent) as run:
        again = NoiseSource(7)
        weights = {k: v.detach().clone() for k, v in run.model.named_parameters()}
        for x, y in run.loader:
            stds = {
                run.network.matches[p].recorded: group.noise_std
                for group in run.release.enforcement.present().groups
                for p in group.parameters
            }
            run.step(x, y)
            expected = _clipped_sums(run.settings.mechanism, name, weights, x, y)
            noise = {k: torch.zeros_like(p) for k, p in run.model.named_parameters()}
            again.add(noise, stds)
            for key, parameter in run.model.named_parameters():
                given = run.optimizer.state[parameter]["given"]
                assert torch.allclose(
                    given.double(), expected[key] / BATCH + noise[key].double(), atol=2e-6
                )


def _clipped_sums(
    mechanism: str, name: str, weights: dict[str, Tensor], x: Tensor, y: Tensor
) -> dict[str, Tensor]:
    """Σ over examples of their gradients as the mechanism clips them, one at a time."""
    network = Small().double()
    network.load_state_dict(weights)
    total = {key: torch.zeros_like(p) for key, p in network.named_parameters()}
    temperature = 0.25 if mechanism == "clipless" else 1.0
    for image, label in zip(x.double(), y, strict=True):
        network.zero_grad()
        if mechanism == "backprop-clipping":
            logits = _with_clips(network, image)
        else:
            logits = network(image[None])
        if name.endswith("loss clip"):
            logits.register_hook(lambda g: g * min(1.0, 0.3 / float(g.norm())))
        nn.functional.cross_entropy(temperature * logits, label[None]).backward()
        own = {key: p.grad.clone() for key, p in network.named_parameters()}
        for group, radius in _clips(name):
            if name.endswith("decay"):
                own |= {k: own[k] + 0.5 * weights[k].double() for k in own}
            keys = [key for key in own if key.startswith(group)]
            length = math.hypot(*(float(own[key].norm()) for key in keys))
            own |= {key: own[key] * min(1.0, radius / length) for key in keys}
        total = {key: total[key] + own[key] for key in total}
    return total


def _clips(name: str) -> list[tuple[str, float]]:
    if not name.startswith("gradient-clipping"):
        return []
    if name.endswith("groups"):
        return [("hidden", 0.3 / math.sqrt(2)), ("head", 0.3 / math.sqrt(2))]
    return [("", 0.3)]


def _with_clips(network: Small, image: Tensor) -> Tensor:
    """β = 0.7 before each layer, C = 0.2 behind it."""

    def clip_rule(v: Tensor) -> Tensor:
        length = v.norm()
        return v * (0.7 / length) if float(length) > 0.7 else v

    value = image[None]
    for layer in (network.hidden, network.head):
        value = layer(clip_rule(value))
        value.register_hook(lambda g: g * min(1.0, 0.2 / float(g.norm())))
        if layer is network.hidden:
            value = value.relu()
    return value


@pytest.mark.parametrize("kind", [Adam, RMSprop, lambda p, lr: SGD(p, lr, momentum=0.9)])
def test_any_optimizer_and_a_scheduler(kind: type[Optimizer]) -> None:
    with private_run(optimizer=kind) as run:
        schedule = StepLR(run.optimizer, 2)
        for x, y in run.loader:
            run.step(x, y)
            schedule.step()
            assert all(n <= 1.0 for n in _norms(run.model))
        assert run.releases == STEPS


def _norms(module: nn.Module) -> list[float]:
    return [float(np.linalg.norm(p.detach().double().numpy(), 2)) for p in module.parameters()]


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", MECHANISMS)
def test_slices_of_a_batch_add_up(name: str) -> None:
    weights = []
    for size in (None, 4):
        with private_run(None, MECHANISMS[name], max_physical_batch=size) as run:
            for x, y in run.loader:
                run.step(x, y)
            weights.append([p.detach().clone() for p in run.model.parameters()])
    for one, other in zip(*weights, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_empty_batches_release_noise_alone() -> None:
    with private_run(optimizer=Silent, steps=40, examples=data()) as run:
        run.loader._sampler.plan  # noqa: B018  # the sampler is real; batches below are emptied
        x, y = next(iter(run.loader))
        run.release.hooks.drawn(np.zeros(0, dtype=np.int64))
        run.step(x[:0], y[:0])
        assert all(float(run.optimizer.state[p]["given"].abs().sum()) > 0.0
                   for p in run.model.parameters())  # fmt: skip
        next(iter(run.loader))
        run.release.hooks.drawn(np.zeros(0, dtype=np.int64))
        run.optimizer.zero_grad()
        run.optimizer.step()  # not even a forward pass
        assert run.releases == 2


@pytest.mark.usefixtures("uncertified")
def test_a_run_in_a_folder_is_not_overwritten(tmp_path: Path) -> None:
    with private_run(tmp_path) as run:
        train(run)
    with pytest.raises(UsageError, match="resume=True"):
        private_run(tmp_path)
    with pytest.raises(UsageError, match="no run to continue"):
        private_run(tmp_path / "other", resume=True)


@pytest.mark.usefixtures("uncertified")
def test_a_resumed_run_keeps_weights_optimizer_and_what_was_spent(tmp_path: Path) -> None:
    with private_run(tmp_path, optimizer=Adam) as run:
        for count, (x, y) in enumerate(run.loader):
            run.step(x, y)
            if count == 2:
                held = torch.load(run.save(), weights_only=True)
                kept = [p.detach().clone() for p in run.model.parameters()]
            if count == 3:
                break
        spent = run.epsilon
    assert (held.keys(), held["parts"].keys()) == ({"releases", "parts"}, {"model", "optimizer"})
    with private_run(tmp_path, optimizer=Adam, resume=True) as run:
        assert run.releases == 4
        assert run.epsilon == spent
        for parameter, before in zip(run.model.parameters(), kept, strict=True):
            assert torch.equal(parameter, before)
        assert len(run.optimizer.state) == len(kept)
        train(run)
        assert run.releases == STEPS
    steps = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert sum(line["kind"] == "release" for line in steps) == STEPS


@pytest.mark.usefixtures("uncertified")
def test_another_run_is_not_gone_on_with(tmp_path: Path) -> None:
    with private_run(tmp_path) as run:
        train(run)
    with pytest.raises(UsageError, match="ledger"):
        private_run(tmp_path, resume=True, noise_multiplier=0.5)
    with pytest.raises(UsageError, match="ledger"):
        private_run(tmp_path, clipless(loss=Loss()), resume=True)


@pytest.mark.usefixtures("uncertified")
def test_a_given_seed_is_visible(tmp_path: Path) -> None:
    with pytest.warns(SeedWarning, match="not private"), private_run(tmp_path):
        pass
    assert "not private" in (tmp_path / "ledger.jsonl").read_text().splitlines()[0]
    with private_run(tmp_path / "secret", seed=None):
        pass
    assert "not private" not in (tmp_path / "secret" / "ledger.jsonl").read_text()


def test_frozen_parameters_stay_and_get_no_noise(tmp_path: Path) -> None:
    class HalfFrozen(Small):
        def __init__(self) -> None:
            super().__init__()
            self.hidden.requires_grad_(False)

    with private_run(tmp_path, network=HalfFrozen) as run:
        before = run.model.hidden.weight.clone()
        train(run)
        assert torch.equal(before, run.model.hidden.weight)
        assert [group.name for group in run.calibration.groups] == ["head"]
    scope = read_certificate((tmp_path / "model.lipcert.json").read_bytes()).scope
    assert set(scope.trained) == {"head.weight", "head.bias"}


def test_a_frozen_parameter_in_the_optimizer_is_refused() -> None:
    with pytest.raises(UsageError, match="frozen in the mechanism"):
        private_run(None, clipless(freeze=("hidden.*",)))


def test_what_the_optimizer_does_not_have_is_told() -> None:
    def head_alone(parameters, lr: float) -> Optimizer:
        return SGD(list(parameters)[-2:], lr=lr)

    with pytest.warns(UntrainedWarning, match=r"does not have hidden\.weight, hidden\.bias"):
        run = private_run(optimizer=head_alone)
    with run:
        assert [group.name for group in run.calibration.groups] == ["head"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UntrainedWarning)
        private_run(optimizer=head_alone, mechanism=clipless(freeze=("hidden.*",))).close()
        private_run().close()


def test_without_a_bound_nothing_is_trained() -> None:
    with pytest.raises(NoVerdictError, match=r"no constraint is declared"):
        private_run(None, clipless(bias_norm=None))


@pytest.mark.usefixtures("uncertified")
def test_the_trained_network_is_written(tmp_path: Path) -> None:
    with private_run(tmp_path) as run:
        train(run)
        run.export(tmp_path / "trained.onnx")
    graph = load_model(tmp_path / "trained.onnx").graph
    assert graph.input_shape == (6,)
    assert [item.trainable for item in graph.parameters.values()] == [True] * 4
    written = (tmp_path / "trained.onnx").read_bytes()
    assert str(Path(torch.__file__).parents[1]).encode() not in written, "tells of this machine"


def test_a_run_without_a_certificate_says_so_at_its_end_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise NoVerdictError("certify: the checker has no rule for this")

    monkeypatch.setattr("lipcert.training.calibration.issued", refused)
    with pytest.warns(CertificateWarning, match="no rule for this"):
        run = private_run(tmp_path)
    train(run)
    with pytest.warns(CertificateWarning, match="has no certificate: certify: the checker has no"):
        run.close()
    monkeypatch.undo()
    with warnings.catch_warnings():
        warnings.simplefilter("error", CertificateWarning)
        private_run(tmp_path, resume=True).close()
    assert not (tmp_path / "no_certificate.txt").exists()
    assert (tmp_path / "model.lipcert.json").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_physical_batch": 0}, "max-physical-batch"),
        ({"max_physical_batch": "8"}, "max-physical-batch"),
        ({"noise_multiplier": "1"}, "noise-multiplier"),
        ({"delta": "1e-5"}, "delta"),
        ({"steps": True}, "steps"),
        ({"seed": 1.5}, "seed"),
        ({"mechanism": "clipless"}, "not a mechanism"),
    ],
)
def test_arguments_of_other_types_are_refused_before_anything_is_made(
    changes: dict[str, object], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=words):
        private_run(tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()
