"""Every misuse of a private run stops it with the reason, before anything is released."""

import math
from collections.abc import Callable

import pytest
from torch import Tensor, nn

from lipcert.errors import NoVerdictError, UsageError
from lipcert.training import GradientClipping, Loss, Private
from tests.training.runs import CLASSES, FEATURES, first, loop, private_run


def two_steps(private: Private) -> None:
    loop(private, "criterion(model(x), y).backward(); optimizer.step(); optimizer.step()")


def no_zero_grad(private: Private) -> None:
    for x, y in private.loader:
        private.criterion(private.model(x), y).backward()
        private.optimizer.step()


def skipped_batch(private: Private) -> None:
    batches = iter(private.loader)
    next(batches)
    next(batches)


def closure(private: Private) -> None:
    x, y = first(private)

    def again() -> float:
        private.optimizer.zero_grad()
        loss = private.criterion(private.model(x), y)
        loss.backward()
        return float(loss.detach())

    private.optimizer.step(again)


LOOPS: list[tuple[Callable[[Private], None], str]] = [
    (lambda private: private.optimizer.step(), "without a batch"),
    (two_steps, "without a batch"),
    (no_zero_grad, "zero_grad"),
    (skipped_batch, "not released before the next"),
    (closure, "closure"),
]
BACKWARD = "criterion(model(x), y).backward()\n"
STEP = "\noptimizer.step()"
MISUSES = {
    "own mean": ("nn.functional.cross_entropy(model(x), y).backward()" + STEP,
                 "besides private.criterion"),
    "scaled": ("(criterion(model(x), y) * 2.0).backward()", "scaled by 2"),
    "averaged again": ("(criterion(model(x), y) / len(x)).backward()", r"scaled by 0\."),
    "further term": ("z = model(x); (criterion(z, y) + z.square().sum()).backward()",
                     "besides private.criterion"),
    "softmax first": ("criterion(model(x).softmax(dim=1), y)", "takes the output of the model"),
    "evaluation mode": ("criterion(model.eval()(x), y)", r"model\.train\(\)"),
    "half of it": ("criterion(model(x[1:]), y[1:]).backward()" + STEP, "every example counts once"),
    "twice": (BACKWARD + BACKWARD, "went through the criterion"),
    "backward twice": ("loss = criterion(model(x), y)\nloss.backward(retain_graph=True)\n"
                       "loss.backward()", "examples count twice"),
    "clipped sum": (BACKWARD + "nn.utils.clip_grad_norm_(model.parameters(), 1e-6)" + STEP,
                    "not what private.criterion left"),
    "edited weights": (BACKWARD + "model.head.weight.data.mul_(1.5)" + STEP,
                       "head.weight was changed"),
    "edited data": ("model.hidden.weight.data[0, 0] += 1e-3\n" + BACKWARD,
                    "hidden.weight was changed"),
    "moved": ("model.head.weight.data = model.head.weight.data.clone()\n" + BACKWARD,
              "elsewhere in memory"),
    "negated": ("model.head.weight.data = torch._neg_view(model.head.weight.data)\n" + BACKWARD,
                "head.weight was changed"),
    "scaled by a hook": ("loss = criterion(model(x), y)\nloss.register_hook(lambda g: 2.0 * g)\n"
                         "loss.backward()", "scaled by 2 before"),
    "new parameter": ("new = nn.Parameter(torch.ones(3))\n"
                      "optimizer.add_param_group({'params': [new]})\n"
                      + BACKWARD + "new.grad = torch.ones(3)" + STEP, "did not exist"),
    "labels outside": ("criterion(model(x), y + 3)", "is not a class from 0 to 2"),
    "inputs outside": ("model(2.0 * x)", "outside the declared input domain"),
    "poisoned input": ("model(torch.full_like(x, torch.nan))", "NaN or infinity"),
}  # fmt: skip


@pytest.mark.parametrize(("script", "reason"), MISUSES.values(), ids=MISUSES)
def test_misuse_is_stopped_with_the_reason(script: str, reason: str) -> None:
    private = private_run()
    with pytest.raises((UsageError, NoVerdictError), match=reason):
        loop(private, script)
    assert private.releases == 0


@pytest.mark.parametrize(("misuse", "reason"), LOOPS)
def test_a_wrong_loop_is_stopped(misuse: Callable[[Private], None], reason: str) -> None:
    private = private_run()
    with pytest.raises(UsageError, match=reason):
        misuse(private)
    assert private.releases == (misuse in (two_steps, no_zero_grad))


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
