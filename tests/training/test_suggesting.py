"""Suggestions for modules: the module that is returned runs the recipe that is printed."""

import copy
import itertools
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lipcert
from lipcert.analysis.bounded import bounded
from lipcert.errors import UsageError
from lipcert.settings.settings import Settings
from lipcert.training import make_private
from lipcert.training.network import exported_network
from lipcert.training.suggesting import ModuleSuggestions, suggest
from tests.plans import planned

OF_ANY_SCORES = {"loss": "nll", "tier": "quick"}  # bounded at once
SETTINGS = Settings(**planned(2000, 100, input_box=(0.0, 1.0), epochs=5, **OF_ANY_SCORES))


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


class Two(nn.Module):
    """Two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.head(functional.relu(self.left(a) + self.right(b.flatten(1))))


def parts() -> nn.Module:
    """Of modules alone."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(16, 6), nn.GELU(), nn.LayerNorm(6), nn.Linear(6, 3)
    )


NETWORKS = {"tutorial": Tutorial, "resnet": ResNet, "parts": parts}
EXAMPLE = torch.zeros(1, 1, 4, 4)


@cache
def found(name: str, budget: float = 600.0) -> ModuleSuggestions:
    torch.manual_seed(0)
    return suggest(NETWORKS[name](), EXAMPLE, SETTINGS, budget=budget)


def test_the_module_of_a_recipe_has_the_bound_that_is_stated() -> None:
    """Exported anew and analysed as any file, under its mechanism and what needs a gradient."""
    whole = found("resnet")
    kinds = {recipe.mechanism for recipe in whole.suggestions.recipes}
    assert {"clipless", "gradient-clipping", "backprop-clipping"} <= kinds
    for kind in kinds:
        made = whole.under(kind)
        assert made.mechanism().kind == kind
        with exported_network(made.module, EXAMPLE, SETTINGS) as network:
            own = network.under(replace(made.settings, freeze=(), trainable=()))
            groups = bounded(network.model, own).groups
        bound = sum(group.grad_norm**2 for group in groups) ** 0.5
        assert bound == pytest.approx(made.recipe.outcome.grad_norm, rel=1e-9)


def test_the_given_module_stays_as_it_is_and_its_modes_are_kept() -> None:
    torch.manual_seed(0)
    module = ResNet().train()
    module.norm1.eval()
    numbers, text = copy.deepcopy(module.state_dict()), repr(module)
    made = suggest(module, EXAMPLE, SETTINGS, budget=600.0).under("backprop-clipping")
    assert repr(module) == text
    assert all(torch.equal(tensor, numbers[name]) for name, tensor in module.state_dict().items())
    assert all(parameter.requires_grad for parameter in module.parameters())
    for each in (module, made.module):
        assert [name for name, part in each.named_modules() if not part.training] == ["norm1"]
    plain = nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    double = suggest(plain, EXAMPLE.double(), SETTINGS, budget=0.0).module
    assert {parameter.dtype for parameter in double.parameters()} == {torch.float64}


HEADS = ("STOP", "Now", "Recipe", "Done", "Other networks", "Other mechanisms")


def test_other_networks_are_printed_and_not_made() -> None:
    made = found("resnet").under("clipless")
    assert any(edit.startswith("normalisation with a floor") for edit in made.to_edit)
    assert "BoundedGroupNorm(2, 4, 1.0)  # norm1, norm2" in str(made)
    assert made.changes == ()
    assert "Done in .module\n  nothing" in str(made)
    assert type(made.module) is ResNet
    assert all(line.startswith((" ", *HEADS)) for line in str(made).splitlines())


def test_a_useless_bound_becomes_a_run_without_retyping() -> None:
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
            bounds = [group.grad_norm for group in private.calibration.groups]
        whole = sum(bound * bound for bound in bounds) ** 0.5
        if kind != "gradient-clipping":  # whose one clip is stated for every group
            assert whole == pytest.approx(own.recipe.outcome.grad_norm, rel=1e-9)


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
    assert torch.equal(made.module[0].weight, module[0].weight)
    assert made.module(x).shape == (4, 3)


def test_batch_normalisation_is_replaced_and_said() -> None:
    made = found("tutorial", budget=0.0)
    assert made.changes[0].startswith("bn1: BatchNorm2d")
    assert "Done in .module\n  bn1: BatchNorm2d" in str(made)
    assert not [part for part in made.module.modules() if isinstance(part, nn.BatchNorm2d)]
    assert made.module.drop.p == 0.2  # which clipped gradients may keep


@pytest.mark.nightly
def test_examples_of_several_inputs_are_measured() -> None:
    torch.manual_seed(0)
    module, (a, b) = Two(), (torch.rand(30, 3), torch.rand(30, 2, 2))
    y = torch.randint(3, (30,))
    settings = replace(SETTINGS, input_box={"a": (0.0, 1.0), "b": (0.0, 1.0)})
    for x in ((a, b), {"b": b, "a": a}):
        made = suggest(module, (a[:1], b[:1]), settings, budget=20.0, probe=True, public=(x, y))
        assert made.suggestions.examples == 30
        assert made.suggestions.rehearsal is not None
        assert made.recipe.accuracy_probe is not None
    for wrong in ((a,), (b, a), (a, b[:3]), a):
        with pytest.raises(UsageError, match=r"public examples .*(its|2) inputs|the input 'a'"):
            suggest(module, (a[:1], b[:1]), settings, budget=0.0, public=(wrong, y))


class Latents(nn.Module):
    """Learnt queries, which meet the weights of the attention before they meet data."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.rand(2, 4))
        self.attend, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        asked = self.queries.unsqueeze(0).repeat(x.shape[0], 1, 1)
        return self.head(self.attend(asked, x, x, need_weights=False)[0].mean(1))


def test_a_network_with_computed_weights_gets_a_recipe() -> None:
    torch.manual_seed(0)
    found = suggest(Latents(), torch.zeros(1, 5, 4), SETTINGS, budget=1.0)
    assert found.settings.mechanism == "gradient-clipping"
    assert found.changes == ()
