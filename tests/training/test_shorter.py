"""The forward pass of a step under gradient clipping: whose it is, and that no hook misses one."""

import copy
from collections.abc import Callable
from itertools import islice

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

from lipcert.errors import UsageError
from lipcert.training import GradientClipping, Loss, Private
from tests.training.runs import BATCH, CLASSES, Small, clipless, private_run
from tests.training.test_dropout import images

MECHANISM = GradientClipping(clip_norm=0.3, input_norm=1.0)


passes: list[int] = []


class Counting(Small):
    """Counts its passes where nothing sees it."""

    def forward(self, x: Tensor) -> Tensor:
        passes.append(len(x))
        return super().forward(x)


class Remembering(Small):
    """Holds its last hidden values."""

    def forward(self, x: Tensor) -> Tensor:
        passes.append(len(x))
        self.last = self.hidden(x).detach()
        logits: Tensor = self.head(self.hidden(x).relu())
        return logits


def own_passes(private: Private, steps: int = 4) -> list[int]:
    """How many own forward passes of the module each step takes."""
    found = []
    for x, y in islice(private.loader, steps):
        passes.clear()
        private.step(x, y)
        found.append(sum(count == len(x) for count in passes))
    return found


def run(network: Callable[[], nn.Module] = Counting) -> Private:
    return private_run(None, MECHANISM, network=network, record_every=None, steps=20)


def test_the_pass_that_is_clipped_is_the_only_one() -> None:
    with run() as private:
        assert own_passes(private, 8) == [1] + [0] * 7
        passes.clear()
        with torch.no_grad():
            private.model(torch.zeros(4, 6))
        private.model.eval()
        private.model(torch.zeros(4, 6))
        assert passes == [4] * 2


def test_weights_that_a_network_computes_are_not_held_for_all_of_a_batch() -> None:
    """As an open pass would: each example has its own."""

    def normed() -> nn.Module:
        network = Counting()  # whose file has a fixed batch, as it asks for the length of one
        weight_norm(network.hidden)
        return network

    with run(normed) as private:
        assert min(own_passes(private, 8)) > 0


IDLE = GradientClipping(clip_norm=1e3, loss=Loss(temperature=4.0), input_norm=1.0)


class Gathered(nn.Module):
    """Reads its weights in another order than they lie in memory, and in a wider type."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(6, 6)
        self.weight = nn.Parameter(torch.randn(CLASSES, 6).double() / 6.0)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden(x.flatten(1)).relu()
        return functional.linear(hidden.to(self.weight.dtype), self.weight.flip(0))


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, CLASSES))


@pytest.mark.parametrize(
    ("network", "mechanism"),
    [
        (convolution, clipless()),
        (convolution, IDLE),
        (lambda: convolution().to(memory_format=torch.channels_last), clipless()),
        (Gathered, clipless()),
    ],
)
def test_gradients_are_those_of_the_module(network, mechanism) -> None:
    plain = network()
    given = {"noise_multiplier": 1e-9, "max_physical_batch": 8, "examples": images()}
    with private_run(None, mechanism, network=lambda: copy.deepcopy(plain), **given) as private:
        for x, y in private.loader:
            plain.load_state_dict(private.model.state_dict())
            loss = functional.cross_entropy(plain(x) / 4.0, y, reduction="sum") / BATCH
            expected = torch.autograd.grad(loss, list(plain.parameters()))
            private.step(x, y)  # in two slices
            for found, wanted in zip(private.model.parameters(), expected, strict=True):
                assert torch.allclose(found.grad, wanted, rtol=1e-4, atol=1e-6)
        assert private.release.hooks._shorter._is_quiet


@pytest.mark.parametrize(
    "registered",
    [
        lambda model, hook: model.hidden.register_forward_hook(hook),
        lambda model, hook: model.hidden.register_forward_pre_hook(hook),
        lambda model, hook: nn.modules.module.register_module_forward_hook(hook),
    ],
)
def test_hooks_miss_no_pass(registered) -> None:
    with run() as private:
        own_passes(private)
        seen: list[object] = []
        with registered(private.model, lambda *given: seen.append(given)):
            for _ in range(2):
                seen.clear()
                private.step(*next(iter(private.loader)))
                assert seen
        assert own_passes(private, 6).count(0) > 1  # others are compared anew, as they are larger


@pytest.mark.parametrize("way", [lambda z: z.mul_(9.0), lambda z: z.register_hook(torch.neg)])
def test_earlier_hooks_reach_no_gradient(way: Callable[[Tensor], object]) -> None:
    """The hook of the run is not the first one to see the output."""
    module, acts = Small(), list[Callable[[Tensor], object]]()
    module.register_forward_hook(lambda *given: (acts and acts.pop()(given[2]), None)[1])
    with private_run(None, clipless(), network=lambda: module, record_every=None) as private:
        own_passes(private)
        x, y = next(iter(private.loader))
        private.optimizer.zero_grad()
        acts.append(way)
        logits = module(x)
        with pytest.raises(UsageError, match=r"takes the output|besides private.criterion"):
            private.criterion(logits, y).backward()


def test_a_module_that_remembers_makes_its_own_passes() -> None:
    with run(Remembering) as private:
        for x, y in private.loader:
            private.step(x, y)
            assert len(private.model.last) == len(x)


def test_slices_of_a_batch_may_go_forward_before_one_goes_back() -> None:
    with run() as private, run() as other:
        for _ in range(3):
            x, y = next(iter(private.loader))
            private.optimizer.zero_grad()
            parts = zip(x.split(4), y.split(4), strict=True)
            sum(private.criterion(private.model(part), own) for part, own in parts).backward()
            private.optimizer.step()
            other.step(*next(iter(other.loader)))
        pairs = zip(private.model.parameters(), other.model.parameters(), strict=True)
        assert all(torch.allclose(one, two, atol=1e-5) for one, two in pairs)


@pytest.mark.parametrize("mechanism", [MECHANISM, clipless()])
def test_weights_that_change_between_the_passes_reach_no_gradient(mechanism) -> None:
    found = []
    for factor in (1.0, 1.5):
        private = private_run(None, mechanism, record_every=None)
        own_passes(private, 3)
        x, y = next(iter(private.loader))
        private.optimizer.zero_grad()
        loss = private.criterion(private.model(x), y)
        private.model.head.weight.data.mul_(factor)
        loss.backward()
        found.append([item.grad for item in private.model.parameters()])
    assert all(map(torch.equal, *found))
    with pytest.raises(UsageError, match="was changed since the last step"):
        private.optimizer.step()


def test_a_closed_run_leaves_the_forward_of_the_module() -> None:
    private = run()
    assert "forward" in vars(private.model)
    private.close()
    assert "forward" not in vars(private.model)
