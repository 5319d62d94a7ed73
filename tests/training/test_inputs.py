"""What may enter the network: examples of the declared domain; rounding alone is forgiven."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipcert.errors import NoVerdictError
from lipcert.settings.settings import Settings
from lipcert.training.batches import admitted

BALL = Settings(input_norm=1.0)
BOX = Settings(input_box=(0.0, 1.0))


def batch(lengths: list[float], entries: int = 12, seed: int = 0) -> torch.Tensor:
    x = torch.randn(len(lengths), entries, generator=torch.Generator().manual_seed(seed)).double()
    scaled = x / torch.linalg.vector_norm(x, dim=1, keepdim=True) * torch.tensor(lengths)[:, None]
    return scaled.float()


def square(example: torch.Tensor) -> Fraction:
    """‖x‖², exactly."""
    return sum((Fraction(entry) ** 2 for entry in example.flatten().tolist()), Fraction())


@given(st.integers(0, 10**6), st.integers(1, 3000), st.floats(-1e-5, 1e-5))
def test_what_rounding_left_outside_is_drawn_in(seed: int, entries: int, off: float) -> None:
    x = batch([1.0 + off, 0.5, 1.0], entries, seed)
    drawn = admitted(x, BALL)
    assert all(square(example) <= 1 for example in drawn)
    torch.testing.assert_close(drawn, x, rtol=2e-5, atol=0.0)
    assert torch.equal(drawn[1], x[1])


def test_norms_that_float32_took_are_forgiven() -> None:
    x = torch.rand(4, 150528, generator=torch.Generator().manual_seed(0))
    drawn = admitted(x / x.norm(dim=1, keepdim=True), BALL)
    assert float(torch.linalg.vector_norm(drawn.double(), dim=1).max()) <= 1.0


@pytest.mark.parametrize("length", [1.0001, 2.0, 1e30])
def test_what_is_outside_is_refused_by_its_place(length: float) -> None:
    with pytest.raises(NoVerdictError, match="example 1 of the batch has the norm"):
        admitted(batch([0.5, length]), BALL)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("declared", [BALL, BOX, Settings(input_norm=1.0, input_box=(0.0, 1.0))])
def test_what_is_no_number_is_refused(bad: float, declared: Settings) -> None:
    x = torch.full((3, 4), 0.1)
    x[1, 2] = bad
    with pytest.raises(NoVerdictError, match="NaN or infinity"):
        admitted(x, declared)


def test_entries_beside_the_box_are_refused() -> None:
    x = torch.full((3, 4), 0.5)
    assert admitted(x, BOX) is x
    x[2, 0] = 1.01
    with pytest.raises(NoVerdictError, match=r"example 2 of the batch has the entry 1\.01"):
        admitted(x, BOX)


def test_a_batch_inside_is_the_same_tensor() -> None:
    x = batch([0.9, 0.1])
    assert admitted(x, BALL) is x
    empty = torch.zeros(0, 12)
    assert admitted(empty, BALL) is empty
