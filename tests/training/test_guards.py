"""Every misuse of a private run stops it with the reason, before anything is released."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lipcert.errors import NoVerdictError, UsageError
from lipcert.training import GradientClipping, Loss, Private
from tests.training.runs import CLASSES, FEATURES, first, private_run


def backward(private: Private) -> None:
    x, y = first(private)
    private.criterion(private.model(x), y).backward()


def own_mean(private: Private) -> None:
    x, y = first(private)
    nn.functional.cross_entropy(private.model(x), y).backward()
    private.optimizer.step()


def scaled(private: Private) -> None:
    x, y = first(private)
    (private.criterion(private.model(x), y) * 2.0).backward()


def averaged_again(private: Private) -> None:
    x, y = first(private)
    (private.criterion(private.model(x), y) / len(x)).backward()


def further_term(private: Private) -> None:
    x, y = first(private)
    logits = private.model(x)
    (private.criterion(logits, y) + logits.square().sum()).backward()


def softmax_first(private: Private) -> None:
    x, y = first(private)
    private.criterion(private.model(x).softmax(dim=1), y)


def evaluation_mode(private: Private) -> None:
    x, y = first(private)
    private.model.eval()
    private.criterion(private.model(x), y)


def half_of_it(private: Private) -> None:
    x, y = first(private)
    private.criterion(private.model(x[1:]), y[1:]).backward()
    private.optimizer.step()


def twice(private: Private) -> None:
    x, y = first(private)
    private.criterion(private.model(x), y).backward()
    private.criterion(private.model(x), y).backward()


def backward_twice(private: Private) -> None:
    x, y = first(private)
    loss = private.criterion(private.model(x), y)
    loss.backward(retain_graph=True)
    loss.backward()


def step_without_batch(private: Private) -> None:
    private.optimizer.step()


def two_steps(private: Private) -> None:
    backward(private)
    private.optimizer.step()
    private.optimizer.step()


def no_zero_grad(private: Private) -> None:
    for x, y in private.loader:
        private.criterion(private.model(x), y).backward()
        private.optimizer.step()


def clipped_sum(private: Private) -> None:
    backward(private)
    nn.utils.clip_grad_norm_(private.model.parameters(), 1e-6)
    private.optimizer.step()


def edited_weights(private: Private) -> None:
    backward(private)
    with torch.no_grad():
        private.model.head.weight.mul_(1.5)
    private.optimizer.step()


def edited_data(private: Private) -> None:
    private.model.hidden.weight.data[0, 0] += 1e-3
    backward(private)
    private.optimizer.step()


def moved(private: Private) -> None:
    private.model.head.weight.data = private.model.head.weight.data.clone()
    backward(private)
    private.optimizer.step()


def closure(private: Private) -> None:
    x, y = first(private)

    def again() -> float:
        private.optimizer.zero_grad()
        loss = private.criterion(private.model(x), y)
        loss.backward()
        return float(loss.detach())

    private.optimizer.step(again)


def new_parameter(private: Private) -> None:
    stranger = nn.Parameter(torch.ones(3))
    private.optimizer.add_param_group({"params": [stranger]})
    x, y = first(private)
    private.criterion(private.model(x), y).backward()
    stranger.grad = torch.ones(3)
    private.optimizer.step()


def skipped_batch(private: Private) -> None:
    batches = iter(private.loader)
    next(batches)
    next(batches)


def labels_outside(private: Private) -> None:
    x, y = first(private)
    private.criterion(private.model(x), y + CLASSES)


def inputs_outside(private: Private) -> None:
    x, _ = first(private)
    private.model(2.0 * x)


def poisoned_input(private: Private) -> None:
    x, _ = first(private)
    private.model(torch.full_like(x, torch.nan))


MISUSES: list[tuple[Callable[[Private], None], str]] = [
    (own_mean, "besides private.criterion"),
    (scaled, "scaled by 2"),
    (averaged_again, r"scaled by 0\."),
    (further_term, "besides private.criterion"),
    (softmax_first, "takes the output of the model itself"),
    (evaluation_mode, "model.train()"),
    (half_of_it, "every example counts once"),
    (twice, "went through the criterion"),
    (backward_twice, "examples count twice"),
    (step_without_batch, "without a batch"),
    (two_steps, "without a batch"),
    (no_zero_grad, "zero_grad"),
    (clipped_sum, "not what private.criterion left"),
    (edited_weights, "head.weight was changed"),
    (edited_data, "hidden.weight was changed"),
    (moved, "elsewhere in memory"),
    (closure, "closure"),
    (new_parameter, "was not there"),
    (skipped_batch, "not released before the next"),
    (labels_outside, "is not a class from 0 to 2"),
    (inputs_outside, "outside the declared input domain"),
    (poisoned_input, "NaN or infinity"),
]


@pytest.mark.parametrize(("misuse", "reason"), MISUSES, ids=[m.__name__ for m, _ in MISUSES])
def test_misuse_is_stopped_with_the_reason(misuse: Callable[[Private], None], reason: str) -> None:
    private = private_run()
    with pytest.raises((UsageError, NoVerdictError), match=reason):
        misuse(private)
    allowed = 1 if misuse in (two_steps, no_zero_grad) else 0
    assert private.releases == allowed


def test_weights_that_overflowed_are_not_trained_further() -> None:
    given = {"loss": Loss("cross-entropy"), "input_norm": 1.0, "neighbours": "replace-one"}
    clipping = GradientClipping(clip_norm=1.0, **given)  # type: ignore[arg-type]
    with private_run(mechanism=clipping, sampling="without-replacement") as private:
        private.step(*first(private))
        private.optimizer.param_groups[0]["lr"] = math.inf
        private.step(*first(private))
        x, y = first(private)
        with pytest.raises(NoVerdictError, match=r"hidden\.weight is NaN or infinite"):
            private.step(x, y)


class WithDropout(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.hidden = nn.Linear(FEATURES, 4)
        self.part = part
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.part(self.hidden(x)))
        return logits


def test_a_part_that_becomes_random_later_is_refused() -> None:
    part = nn.Dropout(0.0)
    with private_run(network=lambda: WithDropout(part)) as private:
        x, _ = first(private)
        part.p = 0.5
        with pytest.raises(UsageError, match="part"):
            private.model(x)
