"""What a module is made of is told apart, whatever it holds, and however that hangs together."""

import math
import threading
import weakref
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD

from lipcert.errors import UsageError
from lipcert.training import composition
from lipcert.training.composition import (
    Composition,
    KeptNumbers,
    are_equal,
    first_difference,
    first_without_number,
    is_finite,
)
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


DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
SIZES = [0, 1, 7, 2**16 - 1, 2**16, 2**17]


@given(st.sampled_from(SIZES), st.sampled_from(DTYPES), st.sampled_from([None, 0, -1]))
def test_one_entry_makes_the_difference(size: int, dtype: torch.dtype, where: int | None) -> None:
    one = torch.linspace(1.0, 2.0, size).to(dtype)
    other = one.clone()
    if size and where is not None:
        other[where] = torch.nextafter(other[where], torch.tensor(4.0, dtype=dtype))
    assert are_equal(one, other) == torch.equal(one, other) == (not size or where is None)


@pytest.mark.parametrize("size", SIZES[1:])
def test_nan_equals_no_number_and_zero_has_no_sign(size: int) -> None:
    """The same bits are unchanged, whatever they say."""
    broken, whole = torch.full((size,), math.nan), torch.zeros(size)
    assert are_equal(broken, broken.clone())
    other = whole.clone()
    other[-1] = math.nan
    assert not are_equal(other, whole)
    assert not are_equal(whole, other)
    assert not are_equal(broken, other if size > 1 else whole)
    assert are_equal(torch.zeros(size), -torch.zeros(size))


def test_the_same_numbers_in_another_order_are_not_equal() -> None:
    square = torch.arange(2.0**17).reshape(512, 256)
    for other in (square.reshape(256, 512), square.flip(0), square.reshape(1, 512, 256)):
        assert not are_equal(square, other)
    assert are_equal(square.t(), square.t().contiguous())
    assert are_equal(square.clone().requires_grad_(), square)


LARGE = 3e38
CASES = [
    (torch.tensor([LARGE] * 100), True),
    (torch.tensor([LARGE] * 100 + [-LARGE] * 100), True),
    (torch.tensor([6e4] * 10, dtype=torch.float16), True),
    (torch.zeros(0), True),
    (torch.tensor([1.0, math.inf]), False),
    (torch.tensor([-math.inf, math.inf, 1.0]), False),
    (torch.tensor([LARGE, math.nan, LARGE]), False),
    (torch.tensor([LARGE, LARGE, -math.inf]), False),
]


@pytest.mark.parametrize(("tensor", "expected"), CASES)
def test_finite(tensor: Tensor, expected: bool) -> None:
    """Also where the sum of finite numbers is none."""
    assert is_finite(tensor) == expected
    assert is_finite(tensor.repeat(1000)) == expected


@pytest.mark.parametrize("is_here", [True, False])
@pytest.mark.parametrize("where", [None, 0, 2])
def test_the_first_pair_that_differs_is_found(
    where: int | None, is_here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(composition, "_are_here", lambda tensors: is_here)
    ones, others = ([torch.arange(4.0) for _ in range(3)] for _ in range(2))
    if where is not None:
        others[where][3] = 0.0
        others[2][0] = 7.0
    assert first_difference(ones, others) == where
    assert first_difference(ones, [torch.arange(4), *others[1:]]) == 0
    assert first_difference(ones, [torch.zeros(5), *others[1:]]) == 0
    assert first_difference([], []) is None


@pytest.mark.parametrize("is_here", [True, False])
def test_the_first_tensor_that_holds_no_number_is_found(
    is_here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(composition, "_are_here", lambda tensors: is_here)
    tensors = [torch.full((5,), LARGE), torch.zeros(2, 2), torch.full((3,), LARGE)]
    assert first_without_number(tensors) is None
    assert first_without_number([]) is None
    tensors[2][1], tensors[1][0, 0] = math.nan, math.inf
    assert first_without_number(tensors) == 1
    assert first_without_number([tensors[0].double(), *tensors[1:]]) == 1
