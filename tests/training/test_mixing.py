"""What mixes examples only in batches larger than the few that any module is compared at."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import Function, FunctionCtx

from lipcert.errors import NoVerdictError
from lipcert.training import BackpropClipping, GradientClipping, TrainingMechanism, same_network
from tests.training.runs import CLASSES, FEATURES, STEPS, Small, clipless, private_run, train

MANY = 8
Mixing = Callable[[Tensor], Tensor]


def mean(x: Tensor) -> Tensor:
    """A virtual batch normalisation."""
    return x - x.mean(dim=0, keepdim=True)


def last_row(x: Tensor) -> Tensor:
    """One example alone has something of another."""
    return torch.cat([x[:-1], x[-1:] + 0.01 * x[:1]])


def order(x: Tensor) -> Tensor:
    return x.flip(0)


def within_eights(x: Tensor) -> Tensor:
    """Blocks of examples, as a ghost batch normalisation has them."""
    whole = len(x) - len(x) % MANY
    blocks = x[:whole].reshape(-1, MANY, *x.shape[1:])
    return torch.cat([(blocks + blocks.roll(1, dims=1)).reshape(x[:whole].shape), x[whole:]])


def size(x: Tensor) -> Tensor:
    """No other example, but how many there are."""
    return x * (1.0 + len(x) / 100.0)


class _Mixed(Function):
    """Nothing on the way forward, and the sum of all cotangents on the way back."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> Tensor:
        del ctx
        return x.clone()

    @staticmethod
    def backward(ctx: FunctionCtx, *cotangents: Any) -> Tensor:
        del ctx
        (cotangent,) = cotangents
        return cotangent + cotangent.roll(1, dims=0)


def backwards(x: Tensor) -> Tensor:
    mixed: Tensor = _Mixed.apply(x)  # type: ignore[no-untyped-call]
    return mixed


MIXINGS = (mean, last_row, order, within_eights, size, backwards)


class Large(Small):
    """Mixes in larger batches."""

    mixing: Mixing = staticmethod(mean)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden(x).relu()
        logits: Tensor = self.head(type(self).mixing(hidden) if len(x) >= MANY else hidden)
        return logits


MECHANISMS = (clipless(), GradientClipping(input_norm=1.0),
              BackpropClipping(input_clip=1.0, cotangent_clip=1.0, input_norm=1.0))  # fmt: skip


def network_of(chosen: Mixing) -> nn.Module:
    class Chosen(Large):
        mixing = staticmethod(chosen)

    return Chosen()


def kinds() -> Sequence[tuple[Mixing, TrainingMechanism]]:
    return [*((item, MECHANISMS[0]) for item in MIXINGS), *((mean, item) for item in MECHANISMS)]


@pytest.mark.parametrize(("mixing", "mechanism"), kinds())
def test_mixing_in_larger_batches_is_refused(mixing: Mixing, mechanism: TrainingMechanism) -> None:
    private = private_run(None, mechanism, network=lambda: network_of(mixing), record_every=None)
    with pytest.raises(NoVerdictError, match="mixes examples in larger batches"):
        train(private)
    assert private.releases == 0


def test_a_batch_that_is_larger_than_all_before_is_compared() -> None:
    """A batch of physical size that never occurred, after smaller ones which were right."""
    private = private_run(network=lambda: network_of(order), record_every=None)
    private.max_physical_batch = MANY - 1
    x, y = next(iter(private.loader))
    private.step(x, y)
    assert private.releases == 1
    private.max_physical_batch = None
    with pytest.raises(NoVerdictError, match="mixes examples in larger batches"):
        train(private)
    assert private.releases == 1


def test_only_what_is_larger_than_before_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    plain = same_network.require_apart

    def watched(network: Any, graph: Any, x: Tensor, known: int) -> None:
        compared.append(len(x))
        plain(network, graph, x, known)

    monkeypatch.setattr(same_network, "require_apart", watched)
    private = private_run(record_every=None)
    drawn = []
    for x, y in private.loader:
        drawn.append(len(x))
        private.step(x, y)
    largest = [size for place, size in enumerate(drawn) if size > max([3, *drawn[:place]])]
    assert compared == largest
    assert len(compared) < len(drawn)


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
