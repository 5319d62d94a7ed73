"""Numbers that only a step may change are compared, whatever is done to them."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lipcert.errors import UsageError
from lipcert.training import kept_numbers
from lipcert.training.kept_numbers import (
    KeptNumbers,
    are_equal,
    first_difference,
    first_without_number,
    is_finite,
)


def registering() -> nn.Module:
    module = nn.Module()
    module.inner = nn.Linear(2, 2)
    module.inner.register_buffer("held", torch.zeros(3))
    module.again = module.inner
    return module


def test_what_was_refused_is_refused_again() -> None:
    module = registering()
    numbers = KeptNumbers(module, {"inner.weight": module.inner.weight}, {})
    numbers.keep()
    numbers.require(anew=True)
    module.register_buffer("late", torch.zeros(2))
    numbers.require()
    for _ in range(2):
        with pytest.raises(UsageError, match="late was added to the module"):
            numbers.require(anew=True)
        numbers.keep()


def test_numbers_that_lie_elsewhere_by_now_are_compared() -> None:
    module = registering()
    numbers = KeptNumbers(module, {"inner.weight": module.inner.weight}, {})
    numbers.keep()
    numbers.require(anew=True)
    before = module.inner.held.data
    module.inner.held.data = torch.zeros(3)
    numbers.require(anew=True)
    before[0] = 1.0  # what is bounded reads it there
    with pytest.raises(UsageError, match="held is not trained"):
        numbers.require()
    before[0] = 0.0
    module.inner.held.data = torch.ones(3)
    with pytest.raises(UsageError, match="held is not trained"):
        numbers.require(anew=True)


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
    monkeypatch.setattr(kept_numbers, "_are_here", lambda tensors: is_here)
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
    monkeypatch.setattr(kept_numbers, "_are_here", lambda tensors: is_here)
    tensors = [torch.full((5,), LARGE), torch.zeros(2, 2), torch.full((3,), LARGE)]
    assert first_without_number(tensors) is None
    assert first_without_number([]) is None
    tensors[2][1], tensors[1][0, 0] = math.nan, math.inf
    assert first_without_number(tensors) == 1
    assert first_without_number([tensors[0].double(), *tensors[1:]]) == 1
