"""What is released is the gradient of the bounded graph, whatever the module's code does."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from lipcert.errors import NoVerdictError, UsageError
from lipcert.training import TrainingMechanism, guards
from lipcert.training.kept_numbers import KeptNumbers
from tests.training.runs import Small, clipless, private_run, train
from tests.training.test_attack_guards import FalseBackward
from tests.training.test_compiled import MECHANISMS

LOUD = 9.0
MANY = 4
OUTSIDE = {"loudness": 1.0, "passes": 0.0}
"""What code reads that is not of the module."""


def outside(x: Tensor) -> Tensor:
    return x * OUTSIDE["loudness"]


def counted(x: Tensor) -> Tensor:
    OUTSIDE["passes"] += 1.0
    return x * (OUTSIDE["loudness"] if OUTSIDE["passes"] % 3 == 0 else 1.0)


def backwards(x: Tensor) -> Tensor:
    return FalseBackward.apply(x) if len(x) >= MANY else x  # type: ignore[no-any-return]


def hooked(x: Tensor) -> Tensor:
    if x.requires_grad:
        x.register_hook(lambda cotangent: OUTSIDE["loudness"] * cotangent)
    return x


def order(x: Tensor) -> Tensor:
    return x.flip(0) if len(x) >= MANY else x


class Coded(Small):
    """It writes into its input, too."""

    codes: tuple[Callable[[Tensor], Tensor], ...] = (outside, counted, backwards, hooked, order)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden(x)
        for code in self.codes:
            hidden = code(hidden)
        if OUTSIDE["loudness"] > 1.0:
            x.data.mul_(LOUD)
        logits: Tensor = self.head(hidden.relu())
        return logits


def trained(
    network: type[nn.Module], mechanism: TrainingMechanism, louder: Callable[[], None]
) -> list[Tensor]:
    with private_run(None, mechanism, network=network, record_every=None) as private:
        private.model.hidden.register_forward_hook(lambda *unused: None)  # the code runs each time
        private.step(*next(iter(private.loader)))
        louder()
        train(private)
        assert private.releases == 6
    return [item.detach() for item in private.model.parameters()]


@pytest.mark.parametrize("kind", ["clipless", "backprop-clipping"])
def test_code_reaches_no_release(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "require_output", lambda *unused: None)

    def replaced() -> None:
        own = nn.functional.linear
        for name in ("linear", "cross_entropy"):
            monkeypatch.setattr(nn.functional, name, lambda *given, **_: LOUD * own(*given[:2]))

    loud = partial(monkeypatch.setitem, OUTSIDE, "loudness", LOUD)
    plain = trained(Small, MECHANISMS[kind], lambda: None)
    for network, louder in ((Coded, loud), (Small, replaced)):
        found = trained(network, MECHANISMS[kind], louder)
        assert all(map(torch.equal, found, plain)), network


@pytest.mark.parametrize("code", [outside, order])
def test_code_that_computes_something_else_is_told(code, monkeypatch) -> None:
    class Chosen(Coded):
        codes = (code,)

    with pytest.raises(NoVerdictError, match="output of the module for this batch"):
        trained(Chosen, clipless(), partial(monkeypatch.setitem, OUTSIDE, "loudness", LOUD))


def test_equal_weights_in_another_layout_are_refused() -> None:
    layer = nn.Linear(3, 3)
    numbers = KeptNumbers(layer, {"weight": nn.init.eye_(layer.weight)}, {})  # type: ignore[dict-item]
    layer.weight.data = layer.weight.data.T
    with pytest.raises(UsageError, match="in another layout"):
        numbers.require()
    numbers = KeptNumbers(layer, {"weight": layer.weight}, {})
    layer.weight.data[0, 1] = 2.0
    with pytest.raises(UsageError, match="was changed"):
        numbers.require()


def test_a_run_may_be_made_where_nothing_is_differentiated() -> None:
    module = Small()
    with torch.inference_mode():
        private = private_run(None, network=lambda: module, record_every=None)
    train(private)
    assert private.releases == 6
