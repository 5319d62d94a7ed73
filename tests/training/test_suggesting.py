"""Suggestions made in modules: the edited module, exported anew, has the claimed bounds."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lipcert
from lipcert.analysis.bounded import Bounded, bounded
from lipcert.errors import UsageError
from lipcert.gradient_stats.examples import Examples
from lipcert.gradient_stats.network import Network
from lipcert.graph.evaluate import evaluate_batch
from lipcert.settings.settings import Settings
from lipcert.suggestions.analyst import Analyst
from lipcert.suggestions.changes import changes_of
from lipcert.suggestions.mechanisms import families
from lipcert.suggestions.records import Change
from lipcert.suggestions.structure import Structure
from lipcert.suggestions.subject import Subject
from lipcert.training import (
    GradientClipping,
    make_private,
)
from lipcert.training.layers import Residual
from lipcert.training.replacing import make_trainable
from lipcert.training.suggesting import ModuleSuggestions, analysed_again, exported, suggest
from lipcert.training.surgery import edited

SETTINGS = Settings(
    input_box=(0.0, 1.0),
    dataset_size=2000,
    batch_size=100,
    epochs=5,
    noise_multiplier=1.0,
    delta=1e-5,
    sampling="poisson",
    tier="quick",
    loss="nll",  # of any scores: bounded at once
)


class Tutorial(nn.Module):
    """BatchNorm, dropout, one ReLU and one pool for several places, code in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 8, 3, padding=1)
        self.pool, self.act, self.drop = nn.MaxPool2d(2), nn.ReLU(), nn.Dropout(0.2)
        self.hidden, self.head = nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.act(self.bn1(self.conv1(x))))
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        return self.head(self.act(self.hidden(self.drop(x.flatten(1)))))


class ResNet(nn.Module):
    """GroupNorm, and a residual sum in the code."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4)
        self.conv2, self.norm2 = nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4)
        self.act1, self.act2 = nn.ReLU(), nn.ReLU(inplace=True)
        self.pool, self.head = nn.MaxPool2d(2), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act1(self.norm1(self.conv1(x)))
        x = x + self.act2(self.norm2(self.conv2(x)))
        return self.head(self.pool(x).flatten(1))


class Encoder(nn.Module):
    """Tokens, and torch's own encoder block, whose code is not that of the module."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Linear(4, 8)
        self.block = nn.TransformerEncoderLayer(
            8, 2, 8, dropout=0.1, batch_first=True, norm_first=True
        )
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x.reshape(-1, 4, 4))
        return self.head(self.norm(self.block(tokens)).mean(dim=1))


class Attention(nn.Module):
    """Attention as it is written by hand, with a parameter of the module itself."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.places = nn.Linear(4, 8), nn.Parameter(0.1 * torch.randn(1, 4, 8))
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x.reshape(-1, 4, 4)) + self.places
        q, k, v = self.qkv(self.norm(x)).reshape(-1, 4, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        heads = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(functional.gelu(heads.transpose(1, 2).reshape(-1, 4, 8)))
        return self.head(x.mean(1))


def parts() -> nn.Module:
    """Of modules alone."""
    branch = nn.Sequential(nn.Linear(6, 6), nn.GELU())
    return nn.Sequential(
        nn.Flatten(), nn.Linear(16, 6), Residual(branch), nn.LayerNorm(6), nn.Linear(6, 3)
    )


class Deciding(nn.Module):
    """Code that asks for values."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.head = nn.LayerNorm(16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        if x.shape[0] > 100_000:
            raise ValueError(len(x))
        x = self.norm(x)
        return self.head(x + functional.relu(self.first(x)))


@pytest.fixture(autouse=True)
def exported_once() -> None:
    """Every module is exported as it is: edited ones may print as others do."""


NETWORKS = {
    "tutorial": Tutorial,
    "resnet": ResNet,
    "encoder": Encoder,
    "attention": Attention,
    "parts": parts,
}
EXAMPLE = torch.zeros(1, 1, 4, 4)
IN_CODE = {"input", "norm", "residual"}
"""whose numbers become float32 when the module is exported"""


@cache
def found(name: str, budget: float = 600.0) -> ModuleSuggestions:
    torch.manual_seed(0)
    return suggest(NETWORKS[name](), EXAMPLE, SETTINGS, budget=budget)


def test_every_recipe_is_made_as_it_was_claimed():
    whole = found("resnet")
    kinds = {recipe.mechanism for recipe in whole.suggestions.recipes}
    assert {"clipless", "gradient-clipping", "backprop-clipping"} <= kinds
    for kind in kinds:
        made = whole.under(kind)
        assert not made.to_edit
        assert made.is_whole
        close = 1e-7 if {change.topic for change in made.recipe.changes} & IN_CODE else 1e-9
        assert made.grad_norm == pytest.approx(made.recipe.outcome.grad_norm, rel=close)
        assert made.mechanism().kind == kind


USUAL = ("parts", "attention")
"""of which every change is exported in the usual run; of the others at night"""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in USUAL else pytest.mark.nightly) for name in NETWORKS],
)
def test_every_change_is_made_as_it_was_claimed(name):
    """Each by itself, or it is left to do by hand; exported anew, and analysed as any file is."""
    torch.manual_seed(0)
    module = make_trainable(NETWORKS[name](), GradientClipping()).module
    network = exported(module, EXAMPLE)
    base = bounded(network.model, SETTINGS)
    x, y = torch.rand(4, 1, 4, 4), torch.tensor([0, 1, 2, 0])
    drawn = Examples(x.double().numpy(), y.numpy(), "generated", is_private=False)
    subject = Subject(Structure(base.unclipped), SETTINGS, base.loss, base.at_input, drawn)
    (home, *_) = families(SETTINGS, biased=True)
    analyst = Analyst(base, SETTINGS, drawn)
    compared, left = set(), set()
    for change in changes_of(subject):
        if change.is_setting and "freeze" not in change.settings:
            continue
        claimed = analyst.analysed((home, change))
        done = edited(network, [change], SETTINGS, claimed.settings)
        if done.to_edit:
            left.add(change.topic)
            continue
        settings = claimed.settings
        if change.prepared is not None:
            assert done.prepares
            settings = replace(settings, input_box=(0.0, 1.0), input_norm=None)
        _, grad_norm = analysed_again(done.module, EXAMPLE, settings)
        close = 1e-7 if change.topic in IN_CODE else 1e-9
        assert grad_norm == pytest.approx(claimed.outcome.grad_norm, rel=close), change
        assert_computes(done.module, x, claimed.found, change)
        compared.add(change.topic)
    made = {
        "tutorial": {"norm", "pool", "activation", "affine"},
        "resnet": {"norm", "pool", "activation", "residual", "affine"},
        "encoder": {"norm", "affine"},
        "attention": {"norm", "affine", "residual", "attention"},
        "parts": {"norm", "activation", "residual", "affine"},
    }
    assert compared >= made[name] | {"input", "biases", "weights"}
    by_hand = {"encoder": {"attention", "residual", "activation"}, "attention": {"attention"}}
    assert left <= by_hand.get(name, set())


def assert_computes(module: nn.Module, x: Tensor, found: Bounded, change: Change) -> None:
    """The module does what was analysed: its outputs are those of the network with the change."""
    given = x.double().numpy()
    prepared = given if change.prepared is None else change.prepared(given)
    program = Network.of(found.unclipped).program
    values = evaluate_batch(program, prepared.reshape(4, *program.shapes[program.input]))
    with torch.no_grad():
        outputs = module(x).double().numpy()
    truth = values[program.output].reshape(outputs.shape)
    assert np.abs(outputs - truth).max() <= 1e-5 * np.abs(truth).max(), change


def test_the_given_module_stays_as_it_is_and_its_modes_are_kept():
    torch.manual_seed(0)
    module = ResNet().train()
    module.norm1.eval()
    numbers, text = copy.deepcopy(module.state_dict()), repr(module)
    made = suggest(module, EXAMPLE, SETTINGS, budget=600.0).under("clipless")
    assert made.changes
    assert repr(module) == text
    assert [name for name, part in module.named_modules() if not part.training] == ["norm1"]
    assert all(torch.equal(tensor, numbers[name]) for name, tensor in module.state_dict().items())
    assert all(parameter.requires_grad for parameter in module.parameters())
    still = [name for name, part in made.module.named_modules() if not part.training]
    assert set(still) <= {"norm1"}
    plain = nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    double = suggest(plain, EXAMPLE.double(), SETTINGS, budget=0.0).module
    assert {parameter.dtype for parameter in double.parameters()} == {torch.float64}


class Dropping(nn.Module):
    """Code that does something else in training."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        x = functional.dropout(x + functional.relu(self.first(x)), 0.5, self.training)
        return self.head(x)


def test_code_that_depends_on_the_mode_is_not_written_anew():
    torch.manual_seed(0)
    network = exported(Dropping(), EXAMPLE)
    base = bounded(network.model, SETTINGS)
    subject = Subject(Structure(base.unclipped), SETTINGS, base.loss, base.at_input, None)
    changes = {change.topic: change for change in changes_of(subject)}
    done = edited(network, [changes["residual"], changes["activation"]], SETTINGS, SETTINGS)
    assert isinstance(done.module, Dropping)
    assert len(done.to_edit) == 2
    assert not done.changes


class Functional(nn.Module):
    """A part whose parameters the code reads, and which is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(x.flatten(1) @ self.first.weight.T + self.first.bias)
        return self.head(x)


def test_a_bias_that_code_reads_stays_at_zero():
    torch.manual_seed(0)
    network = exported(Functional(), EXAMPLE)
    base = bounded(network.model, SETTINGS)
    subject = Subject(Structure(base.unclipped), SETTINGS, base.loss, base.at_input, None)
    (change,) = [item for item in changes_of(subject) if item.topic == "biases"]
    settings = replace(SETTINGS, freeze=change.settings["freeze"])
    done = edited(network, [change], SETTINGS, settings)
    assert done.changes == ("first.bias: frozen at 0", "head.bias: removed, bias=False")
    assert not done.module.first.bias.any()
    assert not done.module.first.bias.requires_grad
    done.module(EXAMPLE)


HEADS = ("STOP", "Now", "Recipe", "Done", "To be edited", "G of", "Other mechanisms")


def test_code_that_cannot_be_traced_is_left_to_whoever_wrote_it():
    torch.manual_seed(0)
    made = suggest(Deciding(), EXAMPLE, SETTINGS, budget=600.0).under("clipless")
    assert isinstance(made.module, Deciding)
    assert any("residual sum" in line for line in made.to_edit)
    assert not made.is_whole
    assert "To be edited by hand" in str(made)
    assert all(line.startswith((" ", *HEADS)) for line in str(made).splitlines())
    assert f"G of .module as it is: {made.grad_norm:.3g}" in str(made)


def test_a_useless_bound_becomes_a_run_without_retyping():
    """From what is printed to a private run that trains."""
    x, y = torch.rand(2000, 1, 4, 4), torch.randint(3, (2000,))
    made = found("resnet")
    for kind in ("clipless", "backprop-clipping", "gradient-clipping"):
        own = made.under(kind)
        optimizer = torch.optim.SGD(own.module.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(x, y), batch_size=100)
        with make_private(own.module, optimizer, loader, own.mechanism(), **own.run()) as private:
            for images, labels in itertools.islice(private.loader, 2):
                private.step(images, labels)
            bounds = [group.grad_norm.value for group in private.calibration.groups]
        whole = sum(bound * bound for bound in bounds) ** 0.5
        if kind != "gradient-clipping":  # whose one clip is stated for every group
            assert whole == pytest.approx(own.grad_norm, rel=1e-9)


def test_examples_are_told_apart():
    torch.manual_seed(0)
    module = parts()
    x, y = torch.rand(20, 1, 4, 4), torch.randint(3, (20,))
    public = suggest(module, EXAMPLE, SETTINGS, budget=0.0, public=(x, y)).suggestions
    private = suggest(module, EXAMPLE, SETTINGS, budget=0.0, data=(x, y)).suggestions
    drawn = suggest(module, EXAMPLE, SETTINGS, budget=0.0).suggestions
    assert (public.is_private, private.is_private, drawn.is_private) == (False, True, False)
    assert (public.examples, private.examples) == (20, 20)
    with pytest.raises(UsageError, match="one of data, public"):
        suggest(module, EXAMPLE, SETTINGS, public=(x, y), data=(x, y))
    with pytest.raises(UsageError, match="public examples"):
        suggest(module, EXAMPLE, SETTINGS, public=(x[:, :, :2], y))
    with pytest.raises(UsageError, match="no recipe for 'weightless'"):
        found("resnet").under("weightless")


def test_a_module_of_token_ids_with_a_table_that_is_not_trained():
    """What it reads are rows of the table, and what is frozen is neither noised nor changed."""
    torch.manual_seed(0)
    layers = [nn.Embedding(20, 6), nn.Flatten(), nn.Linear(24, 8), nn.ReLU(), nn.Linear(8, 3)]
    module = nn.Sequential(*layers)
    module[0].requires_grad_(False)
    x = torch.randint(20, (4, 4))
    made = suggest(module, x[:1], Settings(batch_size=64, noise_multiplier=1.0), budget=2.0)
    alone = lipcert.analyze(module, x[:1], Settings(batch_size=64, freeze=("0.weight",)))
    assert made.suggestions.baseline.grad_norm == pytest.approx(alone.network.grad_norm, rel=1e-9)
    assert made.recipe.outcome.grad_norm < alone.network.grad_norm
    assert made.is_whole
    assert torch.equal(made.module[0].weight, module[0].weight)
    assert made.module(x).shape == (4, 3)


def test_batch_normalisation_is_said_to_be_no_private_run():
    made = found("tutorial", budget=0.0)
    assert any(line.startswith("bn1: BatchNorm2d") for line in made.replaced)
    assert "STOP    bn1: BatchNorm2d" in str(made)
    assert not [part for part in made.module.modules() if isinstance(part, nn.BatchNorm2d)]


def test_parameters_keep_their_names():
    made = found("resnet").under("clipless")
    assert dict(made.module.named_parameters()).keys() <= dict(ResNet().named_parameters()).keys()
