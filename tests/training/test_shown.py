"""What the caller of a pass has leads to nothing that could change its gradient."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipcert.training import Private
from tests.training.configured import FACTOR, scaled
from tests.training.runs import private_run


def gradients(private: Private) -> dict[str, Tensor]:
    return {name: item.grad.clone() for name, item in private.model.named_parameters()}


def examples_after_the_pass(x: Tensor, y: Tensor, logits: Tensor) -> None:
    x.data.mul_(FACTOR)


def labels_after_the_loss(x: Tensor, y: Tensor, logits: Tensor) -> None:
    y.data.zero_()


def nodes_behind_the_output(x: Tensor, y: Tensor, logits: Tensor) -> None:
    nodes = [logits.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is not None:
            node.register_prehook(scaled)
            nodes += [following for following, _ in node.next_functions]


@pytest.mark.parametrize(
    "change", [examples_after_the_pass, labels_after_the_loss, nodes_behind_the_output]
)
def test_what_a_caller_has_does_not_reach_the_backward_pass(
    change: Callable[[Tensor, Tensor, Tensor], None],
) -> None:
    found: list[dict[str, Tensor]] = []
    for attack in (None, change):
        with private_run(record_every=None) as private:
            x, y = next(iter(private.loader))
            x, y = 0.5 * x, y.clone()  # well within the domain, so that nothing draws them in
            logits = private.model(x)
            loss = private.criterion(logits, y)
            if attack is not None:
                attack(x, y, logits)
            loss.backward()
            found.append(gradients(private))
            private.optimizer.step()
            assert private.releases == 1
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


class LouderExamples(Tensor):
    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        found = super().__torch_function__(func, types, args, kwargs or {})
        return FACTOR * found if func is nn.functional.linear else found


def test_examples_of_another_class_are_plain_tensors_within_the_network() -> None:
    found: list[dict[str, Tensor]] = []
    for kind in (Tensor, LouderExamples):
        with private_run(record_every=None) as private:
            x, y = next(iter(private.loader))
            private.criterion(private.model(x.as_subclass(kind)), y).backward()
            found.append(gradients(private))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
