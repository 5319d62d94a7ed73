"""What a module is made of is told apart, whatever it holds, and however that hangs together."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD

from lipcert.training.composition import Composition
from tests.training.configured import Configured


class Odd(Configured):
    """Holds what is hard to look at: itself, views of its weights, things without attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.around: list[Any] = [self]
        self.around.append(self.around)
        self.parent = SimpleNamespace(child=self, around=self.around)
        self.views = [self.hidden.weight.view(-1), self.hidden.weight.detach()]
        self.lock = threading.Lock()
        self.itself = weakref.ref(self)
        self.numbers = (item for item in range(3))
        self.mixed = np.array([None, "a", 1.0], dtype=object)
        self.sparse = torch.eye(3).to_sparse()
        self.complex = torch.ones(2, dtype=torch.complex64)
        self.empty = torch.empty(0)
        self.waiting = deque([1.0, [2.0]])
        self.known = {1, 2, 3}
        self.one_of_many = {("a", 1): [torch.ones(2)], 7: {"deep": [[[3.0]]]}}
        self.far = SimpleNamespace(one=SimpleNamespace(two=SimpleNamespace(scale=1.0)))


def deque_item(module: Any) -> None:
    module.waiting[1][0] = 3.0


def set_item(module: Any) -> None:
    module.known.add(4)


def keyed_tensor(module: Any) -> None:
    module.one_of_many["a", 1][0].data[1] = 2.0


def deep_number(module: Any) -> None:
    module.one_of_many[7]["deep"][0][0][0] = 4.0


def far_number(module: Any) -> None:
    module.far.one.two.scale = 2.0


def complex_number(module: Any) -> None:
    module.complex[0] = 1j


def object_in_array(module: Any) -> None:
    module.mixed[0] = 1.0


def equal_tensor(module: Any) -> None:
    module.plain = module.plain.clone()


def name_of_a_part(module: Any) -> None:
    module._modules = {"head": module.hidden, "hidden": module.head}


def mode_of_a_part(module: Any) -> None:
    module.hidden.eval()


def hook_on_a_part(module: Any) -> None:
    module.head.register_forward_hook(lambda m, x, output: None)


def hook_on_a_parameter(module: Any) -> None:
    module.head.weight.register_hook(lambda g: None)


def frozen(module: Any) -> None:
    module.head.weight.requires_grad_(requires_grad=False)


def new_attribute(module: Any) -> None:
    module.more = None


def no_attribute(module: Any) -> None:
    del module.sparse


CHANGES: tuple[Callable[[Any], None], ...] = (
    deque_item,
    set_item,
    keyed_tensor,
    deep_number,
    far_number,
    complex_number,
    object_in_array,
    equal_tensor,
    name_of_a_part,
    mode_of_a_part,
    hook_on_a_part,
    hook_on_a_parameter,
    frozen,
    new_attribute,
    no_attribute,
)


@pytest.mark.parametrize("change", CHANGES, ids=[item.__name__ for item in CHANGES])
def test_a_change_is_seen(change: Callable[[Any], None]) -> None:
    module = Odd()
    known = Composition(module)
    assert known.is_present()
    change(module)
    assert not known.is_present()
    assert Composition(module).is_present()


def test_training_changes_nothing_but_numbers() -> None:
    module = Odd()
    known = Composition(module)
    optimizer = SGD(module.parameters(), lr=0.1)
    for _ in range(2):
        module(torch.ones(2, 6)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    module.eval()
    module.train()
    assert known.is_present()


def test_no_other_object_passes_for_one_that_is_gone() -> None:
    module = nn.Sequential(nn.Identity())
    module.held = [object()]
    known = Composition(module)
    for _ in range(100):
        module.held[0] = None
        module.held[0] = object()
        assert not known.is_present()
