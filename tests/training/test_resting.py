"""Frozen features keep the statistics that they have learnt, and stay in evaluation mode."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.utils.data import TensorDataset

import lipcert
from lipcert import training
from lipcert.errors import LipCertError, NoVerdictError, UsageError
from lipcert.settings.settings import Settings
from lipcert.training.modes import resting
from tests.training.runs import BATCH, CLASSES, DELTA, EXAMPLES, audited, lines, private_run, train

SHAPE = (1, 6, 6)
BOX = {"input_box": (0.0, 1.0)}
MECHANISMS: dict[str, training.TrainingMechanism] = {
    "clipless": training.Clipless(radius=1.0, bias_norm=1.0, **BOX),
    "weight-clipping": training.WeightClipping(radius=1.0, bias_norm=1.0, **BOX),
    "fixed-weight-norm": training.FixedWeightNorm(radius=1.0, bias_norm=1.0, **BOX),
    "backprop-clipping": training.BackpropClipping(input_clip=1.0, cotangent_clip=1.0, **BOX),
    "gradient-clipping": training.GradientClipping(clip_norm=0.5, **BOX),
}
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "BatchNorm": nn.BatchNorm2d,
    "without affine": lambda channels: nn.BatchNorm2d(channels, affine=False),
    "SyncBatchNorm": nn.SyncBatchNorm,
}


class Features(nn.Module):
    """Convolutions whose normalisations have learnt, and a head on top."""

    def __init__(self, norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(1, 4, 3), norm(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten())
        )
        self.head = nn.Linear(64, CLASSES)
        plain = self.features[1]
        if isinstance(plain, nn.modules.batchnorm._NormBase):
            for buffer in (plain.running_mean, plain.running_var):
                buffer.add_(0.5 + torch.rand(4))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits


def images() -> TensorDataset:
    random = torch.Generator().manual_seed(0)
    x = torch.rand(EXAMPLES, *SHAPE, generator=random)
    return TensorDataset(x, torch.randint(CLASSES, (EXAMPLES,), generator=random))


def pretrained(norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> nn.Module:
    network = Features(norm)
    network.features.eval().requires_grad_(requires_grad=False)
    return network


def statistics(module: nn.Module) -> dict[str, Tensor]:
    return {name: item.clone() for name, item in module.named_buffers()}


def run_of(folder, name: str, network: Callable[[], nn.Module] = pretrained) -> training.Private:
    return private_run(
        folder, MECHANISMS[name], network=network, optimizer=trained_alone, examples=images()
    )


def trained_alone(parameters: list[nn.Parameter], lr: float) -> Optimizer:
    return SGD([item for item in parameters if item.requires_grad], lr=lr)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", MECHANISMS)
def test_a_loop_that_calls_train_leaves_features_at_rest(name: str, tmp_path) -> None:
    with run_of(tmp_path / "run", name) as private:
        before = copy.deepcopy(private.model.features.state_dict())
        for x, y in private.loader:
            private.model.train()
            private.step(x, y)
            private.model.eval()
            private.model.train()
            with torch.no_grad():
                private.model(x)
                private.model.train()
                private.model.features(x)  # as who computes features beforehand
        after = private.model.features.state_dict()
    assert not any(part.training for part in private.model.features.modules())
    assert all(torch.equal(before[key], after[key]) for key in before)
    audited(tmp_path / "run")


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("name", ["clipless", "gradient-clipping"])
def test_every_layer_that_holds_statistics_is_an_affine_map(kind: str, name: str) -> None:
    private = run_of(None, name, lambda: pretrained(NORMS[kind]))
    train(private)
    private.close()
    assert private.releases == 6


@pytest.mark.parametrize("name", MECHANISMS)
def test_scale_and_shift_may_be_trained(name: str) -> None:
    """Statistics alone are constants then."""

    def network() -> nn.Module:
        found = Features()
        found.features[3] = nn.Identity()
        found.features[1].eval()
        return found

    with run_of(None, name, network) as private:
        before, weight = statistics(private.model), private.model.features[1].weight.clone()
        train(private)
    after = statistics(private.model)
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert not torch.equal(weight, private.model.features[1].weight)


NOT_AT_REST = (
    "network.train()",
    "network.features[1].train()",
    "network.features[1] = nn.BatchNorm2d(4, track_running_stats=False).eval()",
)


@pytest.mark.parametrize("change", NOT_AT_REST)
def test_what_is_not_at_rest_is_refused_with_the_remedy(change: str) -> None:
    def network() -> nn.Module:
        found = pretrained()
        exec(change, {"network": found, "nn": nn})
        return found

    with pytest.raises(UsageError, match=r"features\.1 .*in which they stay: model\.features\.e"):
        run_of(None, "gradient-clipping", network)


@pytest.mark.parametrize(
    "attack",
    ["norm.running_mean.add_(1.0)", "norm.running_mean = norm.running_var = None"],
)
def test_statistics_stay_what_they_were(attack: str) -> None:
    private = run_of(None, "gradient-clipping")
    lines(private, attack, norm=private.model.features[1])
    with pytest.raises(LipCertError):
        train(private)
    assert private.releases == 0
    with pytest.raises(UsageError):
        private.close()


def test_dropout_elsewhere_is_in_the_mode_that_it_is_put_in() -> None:
    """Of frozen features it is at rest with them, and needs no gradients one by one."""

    def network() -> nn.Module:
        found = pretrained()
        found.head = nn.Sequential(nn.Dropout(0.5), nn.Linear(64, CLASSES))
        return found.eval()

    private = run_of(None, "gradient-clipping", network)
    private.model.train()
    assert private.release.enforcement.masked == ("head.0",)
    train(private)
    assert private.model.head[0].training
    assert run_of(None, "gradient-clipping").release.enforcement.masked == ()
    with pytest.raises(UsageError, match=r"head\.0 \(Dropout in training mode\)"):
        run_of(None, "clipless", network)


def test_a_refused_run_leaves_no_hooks() -> None:
    """The next call of make_private, with other labels, has the same model and optimizer."""
    model = pretrained()
    optimizer = SGD(model.head.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader
    x, y = images().tensors
    with pytest.raises(NoVerdictError, match="is not a class"):
        private_with(model, optimizer, loader(TensorDataset(x, y + CLASSES), BATCH))
    hooks = [part._forward_pre_hooks or part._forward_hooks for part in model.modules()]
    assert not any(hooks)
    with private_with(model, optimizer, loader(images(), BATCH)) as private:
        train(private)


def private_with(model: nn.Module, optimizer: Optimizer, loader: object) -> training.Private:
    return training.make_private(
        model,
        optimizer,
        loader,  # type: ignore[arg-type]
        MECHANISMS["backprop-clipping"],
        noise_multiplier=1.0,
        delta=DELTA,
        steps=2,
        dataset_size=EXAMPLES,
    )


MADE = {
    "at rest": (pretrained, True),
    "frozen, and not yet at rest": (lambda: pretrained().train(), True),
    "trained, at rest": (lambda: Features().eval(), True),
    "trained": (Features, False),
    "as it is made, at rest": (lambda: nn.Sequential(nn.BatchNorm2d(1).eval()), False),
}


@pytest.mark.parametrize("name", MADE)
def test_what_has_learnt_and_stays_is_not_replaced(name: str) -> None:
    made, kept = MADE[name]
    network = made()
    found = training.make_trainable(network, MECHANISMS["clipless"]).module
    norms = [part for part in found.modules() if isinstance(part, nn.BatchNorm2d)]
    assert bool(norms) == kept
    assert not any(part.training for part in norms)
    if kept:
        x = torch.rand(3, *SHAPE)
        assert torch.equal(found.eval()(x), network.eval()(x))


def test_suggestions_keep_features() -> None:
    """`batch normalisation` is no reason to stop, and no layer takes its place."""
    network = pretrained()
    settings = Settings(
        input_box=(0.0, 1.0), target_epsilon=8.0, delta=DELTA, epochs=10.0, dataset_size=EXAMPLES,
        batch_size=BATCH, sampling="poisson",
    )  # fmt: skip
    x = torch.rand(3, *SHAPE)
    found = lipcert.suggest(network, x[:1], settings, budget=2.0)
    assert "STOP" not in str(found)
    assert "BatchNorm" not in str(found)
    for recipe in (found, *(found.under(item.mechanism) for item in found.suggestions.recipes)):
        kept = recipe.module.get_submodule("features")
        assert torch.equal(kept[1](x.expand(-1, 4, -1, -1)),
                           network.features[1](x.expand(-1, 4, -1, -1)))  # fmt: skip
        assert kept[1] in resting(recipe.module)
