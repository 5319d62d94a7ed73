"""A module that computes something else is told; what ordinary programs do goes on."""

import copy
import io
import warnings
from contextlib import suppress

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

from lipcert.audit.trace.reading import read_trace
from lipcert.errors import NoVerdictError, UsageError
from lipcert.training import BackpropClipping, GradientClipping, TrainingMechanism
from lipcert.training.same_network import OtherNetworkWarning
from tests.training.configured import FACTOR, step
from tests.training.runs import (
    CLASSES,
    FEATURES,
    STEPS,
    Small,
    audited,
    clipless,
    private_run,
    train,
)


class Named(Small):
    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        logits: Tensor = self.head(scale * self.hidden(x).relu())
        return logits


def test_a_further_argument_is_refused() -> None:
    with private_run(network=Named, record_every=None) as private:
        x, _ = next(iter(private.loader))
        with pytest.raises(UsageError, match="nothing else"):
            private.model(x, scale=FACTOR)


@pytest.mark.parametrize("between", [nn.ReLU(), nn.Dropout(0.1)])
def test_a_part_in_two_places_keeps_its_parameters(between: nn.Module) -> None:
    """`functional_call` leaves copies in it where both of its names are given."""
    part = nn.Linear(6, 6)
    weight = part.weight
    network = nn.Sequential(part, between, part, nn.Linear(6, CLASSES))
    with private_run(None, GradientClipping(), network=lambda: network) as private:
        assert part.weight is weight
        train(private)
        assert part.weight is weight


class Positioned(nn.Module):
    """A learnt token with its place before others, and learnt scores of windows beside a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.places = nn.Parameter(torch.rand(1, 1, 3)), nn.Parameter(torch.rand(3, 3))
        self.scores, self.head = nn.Parameter(torch.rand(1, 1, 3, 3)), nn.Linear(9, CLASSES)
        self.register_buffer("mask", torch.tril(torch.ones(2, 1, 3, 3)) - 1.0)

    def forward(self, x: Tensor) -> Tensor:
        first = (self.token + self.places[:1]).expand(x.shape[0], -1, -1)
        tokens = torch.cat([first, x.unflatten(1, (2, 3)) + self.places[1:]], 1)
        scores = (tokens @ tokens.mT)[:, None, None] + (self.scores + self.mask)
        found = scores.softmax(-1).mean((1, 2)) @ tokens
        logits: Tensor = self.head(found.flatten(1))
        return logits


def test_sums_of_what_is_learnt_train(tmp_path) -> None:
    with private_run(tmp_path / "run", GradientClipping(), network=Positioned) as private:
        assert private.network.graph.computed == []
        train(private)
    audited(tmp_path / "run")


def test_a_parameter_that_is_frozen_later_is_named() -> None:
    with private_run(record_every=None) as private:
        private.model.head.weight.requires_grad_(requires_grad=False)
        with pytest.raises(UsageError, match=r"head\.weight .* frozen"):
            step(private)


class Configurable(Small):
    scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * super().forward(x)


@pytest.mark.parametrize("change", ["model.scale = 2.0", "model.head = nn.Identity()", ""])
def test_a_module_that_is_another_network_is_told_when_it_is_exported_and_at_the_end(
    change: str, tmp_path
) -> None:
    """Its own pass is left out of the last steps."""
    private = private_run(network=Configurable, record_every=None)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", OtherNetworkWarning)
        train(private)
        assert not found
        exec(change, {"model": private.model, "nn": nn})
        with suppress(UsageError):  # of a parameter that is gone
            private.export(tmp_path / "model.onnx")
        with suppress(UsageError):
            private.close()
    told = [item for item in found if item.category is OtherNetworkWarning]
    assert len(told) == (2 if "scale" in change else 0)
    assert all("no longer the network" in str(item.message) for item in told)


def test_averaged_weights_may_be_evaluated_between_steps() -> None:
    with private_run(record_every=None) as private:
        for x, y in private.loader:
            private.step(x, y)
            kept = [item.detach().clone() for item in private.model.parameters()]
            with torch.no_grad():
                for parameter in private.model.parameters():
                    parameter.mul_(0.5)
                private.model.eval()(x)
                for parameter, own in zip(private.model.parameters(), kept, strict=True):
                    parameter.copy_(own)
            private.model.train()
        assert private.releases == 6


def test_a_copy_of_the_module_is_made_before_the_run() -> None:
    torch.manual_seed(0)
    averaged = AveragedModel(Small())
    with private_run() as private:
        for x, y in private.loader:
            private.step(x, y)
            averaged.update_parameters(private.model)
            averaged.eval()(x)
        assert private.releases == 6
        for copied in (copy.deepcopy, AveragedModel, lambda item: torch.save(item, io.BytesIO())):
            with pytest.raises(UsageError, match="copy it before make_private"):
                copied(private.model)
    copy.deepcopy(private.model)


class Remembering(Small):
    """Keeps what it saw and how often, for whoever looks at it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.seen: list[Tensor] = []
        self.last: Tensor | None = None
        self.sum = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if not torch.compiler.is_exporting():
            self.sum += x.detach().sum()
        self.last = self.hidden(x)
        self.seen.append(self.last.detach())
        logits: Tensor = self.head(self.last.relu())
        return logits


def test_a_module_that_remembers_its_passes_is_allowed() -> None:
    with private_run(network=Remembering, record_every=None) as private:
        train(private)
        assert private.releases == 6


def test_what_changes_no_number_is_let_through() -> None:
    with private_run(record_every=None) as private:
        for x, y in private.loader:
            private.optimizer.zero_grad()
            with torch.device("cpu"), save_on_cpu():
                logits = checkpoint(private.model, x, use_reentrant=False)
            private.criterion(logits, y).backward()
            private.optimizer.step()
        assert private.releases == 6


class Checkpointed(Small):
    """Evaluates its hidden part again in the backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoint(self.hidden, x, use_reentrant=False)
        logits: Tensor = self.head(hidden.relu())
        return logits


@pytest.mark.parametrize("mechanism", [clipless(), GradientClipping()])
def test_a_part_that_is_evaluated_again_backwards(mechanism: TrainingMechanism) -> None:
    with (
        private_run(None, mechanism, network=Checkpointed, record_every=None) as private,
        private_run(None, mechanism, record_every=None) as plain,
    ):
        train(private)
        train(plain)
        for found, expected in zip(
            private.model.parameters(), plain.model.parameters(), strict=True
        ):
            assert torch.equal(found, expected)
    with pytest.raises(NoVerdictError, match="called 2 times"):
        private_run(None, BackpropClipping(), network=Checkpointed, record_every=None)


@pytest.mark.usefixtures("uncertified")
def test_a_trace_holds_no_pass_that_was_made_to_compare(tmp_path) -> None:
    with private_run(tmp_path, network=Remembering) as private:
        train(private)
    batches = [item.batches for item in read_trace(tmp_path / "trace").steps(0)]
    assert len(batches) == 6
    assert all(len(item) == 1 for item in batches)


def test_dropout_and_autocast_are_no_mixing() -> None:
    """Masks of dropout are no mixing; and autocast, which gradient clipping allows, no other
    network."""
    private = private_run(
        None,
        GradientClipping(input_norm=1.0),
        network=lambda: nn.Sequential(nn.Linear(FEATURES, 5), nn.Dropout(), nn.Linear(5, CLASSES)),
        record_every=None,
    )
    with torch.autocast("cpu"):
        train(private)
    assert private.releases == STEPS
