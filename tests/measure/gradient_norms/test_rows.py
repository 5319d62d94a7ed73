"""Gradients of tables against autograd: repeated, negative and single numbers of rows."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipcert.measure.gradient_norms.methods import Pair
from lipcert.measure.gradient_norms.operands import TableGradient
from lipcert.measure.gradient_norms.squares import Squares, sum_of_squares, widened
from tests.measure.gradient_norms.oracle import assert_within

EXAMPLES = 4


@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 9),
    width=st.integers(1, 5),
    shape=st.lists(st.integers(1, 5), max_size=2).map(tuple),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    same=st.booleans(),
)
def test_norms_and_tables_are_those_of_autograd(
    seed: int, rows: int, width: int, shape: tuple[int, ...], dtype: torch.dtype, same: bool
) -> None:
    """same: all numbers of an example are equal, so that all cotangents add up."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(-rows, rows, size=(EXAMPLES, *shape))
    if same:
        numbers[...] = numbers.reshape(EXAMPLES, -1)[:, :1].reshape(-1, *(1,) * len(shape))
    a = torch.from_numpy(numbers)
    b = torch.from_numpy(rng.standard_normal((EXAMPLES, *shape, width))).to(dtype)
    tables = torch.stack([_table(a[i], b[i].double(), rows) for i in range(EXAMPLES)])
    truth = tables.flatten(1).norm(dim=1).numpy()
    gradient, pair = TableGradient(rows), Pair.of(a.to(dtype), b)
    relative = {torch.float32: 1e-3, torch.float64: 1e-9}[dtype]
    reach = b.double().flatten(1).norm(dim=1).numpy()
    known = gradient.of_norms(pair)
    found: list[Squares] = [] if known is None else [known]
    found += [method.squares(pair) for method in gradient.methods(pair)]
    held = gradient.gradients(pair)
    found.append(widened(sum_of_squares(held.gradient), held.distance))
    for squares in found:
        assert_within(squares.measured(), truth, relative, reach=reach)
    off = (held.gradient.double() - tables).flatten(1).norm(dim=1)
    assert torch.all(off <= held.distance)


def _table(numbers: torch.Tensor, cotangent: torch.Tensor, rows: int) -> torch.Tensor:
    """By autograd, through plain indexing."""
    table = torch.zeros(rows, cotangent.shape[-1], dtype=torch.float64, requires_grad=True)
    (table[numbers] * cotangent).sum().backward()
    assert table.grad is not None
    return table.grad


@pytest.mark.parametrize("positions", [1, 300])
def test_many_positions_of_one_row_add_up(positions: int) -> None:
    """As many as a bound of √P allows: P equal cotangents make a gradient P times as long."""
    b = torch.ones(1, positions, 2)
    pair = Pair.of(torch.full((1, positions), 5.0), b)
    for method in TableGradient(7).methods(pair):
        norm = method.squares(pair).measured().norm
        assert norm == pytest.approx(positions * 2**0.5, rel=1e-6)
