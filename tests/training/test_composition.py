"""What a module is made of is told apart, whatever it holds, and however that hangs together."""

import threading
import weakref
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD

from lipcert.errors import UsageError
from lipcert.training.composition import Composition, KeptNumbers
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


CHANGES = {
    "deque item": "module.waiting[1][0] = 3.0",
    "set item": "module.known.add(4)",
    "keyed tensor": 'module.one_of_many["a", 1][0].data[1] = 2.0',
    "deep number": 'module.one_of_many[7]["deep"][0][0][0] = 4.0',
    "far number": "module.far.one.two.scale = 2.0",
    "complex number": "module.complex[0] = 1j",
    "object in array": "module.mixed[0] = 1.0",
    "equal tensor": "module.plain = module.plain.clone()",
    "name of a part": 'module._modules = {"head": module.hidden, "hidden": module.head}',
    "mode of a part": "module.hidden.eval()",
    "hook on a part": "module.head.register_forward_hook(lambda m, x, output: None)",
    "hook on a parameter": "module.head.weight.register_hook(lambda g: None)",
    "frozen": "module.head.weight.requires_grad_(requires_grad=False)",
    "new attribute": "module.more = None",
    "no attribute": "del module.sparse",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_seen(change: str) -> None:
    module = Odd()
    known = Composition(module)
    assert known.is_present()
    exec(change)
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


REGISTERED = {
    "another buffer": 'module.inner.register_buffer("more", torch.zeros(1), persistent=False)',
    "buffer in place of one": "module.inner.held = module.inner.held.clone()",
    "parameter in place of one": "w = module.inner.weight\n"
    "module.inner.weight = nn.Parameter(w.detach().clone())",
    "another part": "module.inner.further = nn.Identity()",
    "no parameter": "del module.inner.bias",
}


def registering() -> nn.Module:
    module = nn.Module()
    module.inner = nn.Linear(2, 2)
    module.inner.register_buffer("held", torch.zeros(3))
    module.again = module.inner
    return module


@pytest.mark.parametrize("change", REGISTERED.values(), ids=REGISTERED)
def test_what_is_registered_is_known_until_it_changes(change: str) -> None:
    module = registering()
    known = Composition(module)
    with torch.no_grad():
        module.inner.weight.zero_()
    assert known.is_present()
    exec(change)
    assert not known.is_present()
    assert Composition(module).is_present()


def test_a_module_that_names_its_own_way_is_looked_through_every_time() -> None:
    class Naming(nn.Module):
        value = 1.0

        def named_buffers(self, *unused: object, **more: object) -> Any:
            yield "new", torch.full((1,), self.value)

    numbers = KeptNumbers(Naming(), {})
    numbers.keep()
    numbers.require(is_still=True)
    Naming.value = 2.0
    with pytest.raises(UsageError, match="new is not trained, and was changed"):
        numbers.require(is_still=True)


def test_what_was_refused_is_refused_again() -> None:
    module = registering()
    numbers = KeptNumbers(module, {"inner.weight": module.inner.weight})
    numbers.keep()
    numbers.require(is_still=True)
    module.register_buffer("late", torch.zeros(2))
    for is_still in (False, True):
        with pytest.raises(UsageError, match="late was added to the module"):
            numbers.require(is_still=is_still)


def test_numbers_that_lie_elsewhere_by_now_are_compared() -> None:
    module = registering()
    trained = {"weight": module.inner.weight}
    numbers = KeptNumbers(module, trained)
    numbers.keep()
    numbers.require()
    module.inner.held.data = torch.zeros(3)
    numbers.require()
    module.inner.held.data = torch.ones(3)
    with pytest.raises(UsageError, match="held is not trained"):
        numbers.require()
