"""Every method of every layer against single examples in float64, inside its own error bound.

Each graph is one op, and the loss is linear in its output: value and cotangent are then given
exactly, and only the computation of the norm rounds.
"""

from __future__ import annotations

from fractions import Fraction
from math import prod

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from lipcert.graph.geometry import Window
from lipcert.measure.gradient_norms.methods import Method, Pair
from lipcert.measure.gradient_norms.operands import TableGradient
from lipcert.measure.gradient_norms.plan import channels_last, operand_gradient
from lipcert.measure.gradient_norms.squares import Squares, sum_of_squares, sums_of_squares, widened
from tests.measure.gradient_norms.oracle import assert_within, network_of, truth
from tests.networks import by_channel, chain, trained
from tests.ops import BatchNorm, Conv, ConvTranspose, Dense, Divide, Maker, PRelu, Scale, Shift

DTYPES = {torch.float32: 1e-3, torch.float64: 1e-9}
seeds = st.integers(0, 2**31)


def random(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape)


def check(op: Maker, shape: tuple[int, ...], seed: int, examples: int = 3) -> set[str]:
    """All slots, all methods, both dtypes; the names of the methods tried."""
    graph = chain(shape, op)
    node = graph.nodes[0]
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(random(rng, examples, *shape)).float()
    b = torch.from_numpy(random(rng, examples, *node.shape)).float()
    tried = set()
    x_norms, b_norms = (np.linalg.norm(t.double().reshape(examples, -1), axis=1) for t in (x, b))
    reach = (x_norms + prod(node.shape) ** 0.5) * b_norms  # of scales, of biases
    for dtype, relative in DTYPES.items():
        network = network_of(graph, dtype)
        exact, _, _ = truth(network, x, lambda out, i: out * b[i : i + 1].double())
        for slot, operand in node.operands.items():
            if operand.parameter is None:
                continue
            gradient = operand_gradient(node, slot, network.operands(node))
            for how, pair in pairs(x.to(dtype), b.to(dtype)).items():
                known = gradient.of_norms(pair)
                by_norms = [] if known is None else [Method("norms", 0, lambda _, own=known: own)]
                for method in (*by_norms, *gradient.methods(pair)):
                    tried.add(method.name)
                    squares = method.squares(pair)
                    what = f"{slot} {method.name} {dtype} {how}"
                    norms = exact[operand.parameter]
                    limit = 1e30 if method.cancels else relative
                    assert_within(squares.measured(), norms, limit, what, reach)
                found = gradient.gradients(pair)
                squares = widened(sum_of_squares(found.gradient), found.distance)
                assert_within(squares.measured(), exact[operand.parameter], relative, slot, reach)
                assert found.gradient[0].numel() == operand.array.size
                entries = found.gradient.double().reshape(examples, -1)
                if how == "as it is":
                    first = entries
                slack = float(found.distance.max()) + 1e-4 * float(first.abs().max())
                assert torch.all((entries - first).abs() <= 2.0 * slack)
    return tried


def pairs(a: torch.Tensor, b: torch.Tensor) -> dict[str, Pair]:
    """The same numbers in several orders."""
    found = {"as it is": Pair.of(a, b)}
    if a.dim() == 4:
        a_last = channels_last(a)
        found["a by pixels"] = Pair.of(a_last, b)
        if b.dim() == 4:
            found["by pixels"] = Pair.of(a_last, channels_last(b))
    return found


@given(st.lists(st.integers(1, 7), max_size=2), st.integers(1, 9), st.integers(1, 9), seeds)
def test_dense(lead: list[int], before: int, after: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    op = Dense(trained("w", random(rng, after, before)), trained("b", random(rng, after)))
    check(op, (*lead, before), seed)


def test_dense_tries_every_method() -> None:
    rng = np.random.default_rng(0)
    op = Dense(trained("w", random(rng, 9, 8)), trained("b", random(rng, 9)))
    assert check(op, (5, 8), 1) == {"instantiated", "gram", "reduced"}
    assert check(op, (8,), 1) == {"norms", "instantiated", "gram", "reduced"}
    assert "gram" not in check(op, (300, 8), 1)


@st.composite
def windows(draw: st.DrawFn) -> Window:
    taps, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    reach = dilation * (taps - 1) + 1
    return Window(
        draw(st.integers(reach, reach + 4)),
        taps,
        draw(st.integers(1, 3)),
        dilation,
        draw(st.integers(0, 2)),
        draw(st.integers(0, 2)),
    )


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Maker, tuple[int, ...]]:
    geometry = tuple(draw(st.lists(windows(), min_size=1, max_size=3)))
    groups, read, written = (draw(st.integers(1, 3)) for _ in range(3))
    rng = np.random.default_rng(draw(seeds))
    taps = [window.taps for window in geometry]
    kernel = trained("w", random(rng, written * groups, read, *taps))
    if draw(st.booleans()):
        bias = trained("b", random(rng, written * groups))
        return Conv(kernel, bias, geometry, groups), (read * groups, *(w.size for w in geometry))
    bias = trained("b", random(rng, read * groups))
    shape = (written * groups, *(w.outputs for w in geometry))
    return ConvTranspose(kernel, bias, geometry, groups), shape


@given(convolutions(), seeds)
def test_convolutions(drawn: tuple[Maker, tuple[int, ...]], seed: int) -> None:
    check(*drawn, seed)


@pytest.mark.parametrize("kind", [Conv, ConvTranspose])
def test_a_convolution_tries_every_method(kind: type[Conv | ConvTranspose]) -> None:
    rng = np.random.default_rng(1)
    for second in (Window(5, 3, 1, 1, 0, 1), Window(5, 3, 2, 1, 0, 1)):
        geometry = (Window(6, 3, 1, 1, 1, 1), second)
        op = kind(trained("w", random(rng, 8, 8, 3, 3)), None, geometry, 1)
        shape = (8, 6, 5) if kind is Conv else (8, *(w.outputs for w in geometry))
        assert check(op, shape, 2) == {"unfolded", "gram", "grouped"}


def test_a_depthwise_convolution() -> None:
    rng = np.random.default_rng(2)
    geometry = (Window(9, 3, 1, 1, 1, 1), Window(9, 3, 1, 1, 1, 1))
    check(Conv(trained("w", random(rng, 16, 1, 3, 3)), None, geometry, 16), (16, 9, 9), 3)


def placed(rng: np.random.Generator, shape: list[int], kept: list[bool], drop: int) -> np.ndarray:
    own = [length if keep else 1 for length, keep in zip(shape, kept, strict=False)]
    while drop and own and own[0] == 1:
        own, drop = own[1:], drop - 1
    return random(rng, *own)


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.integers(0, 4),
    seeds,
)
@example([5, 5], [False] * 4, 0, 2)  # terms of the third example cancel to a hundredth
def test_entrywise_operands_of_any_shape(
    shape: list[int], kept: list[bool], drop: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    array = placed(rng, shape, kept, drop)
    away = np.where(np.abs(array) < 0.5, 0.5, array)
    for op in (
        Scale(trained("s", array)),
        Shift(trained("s", array)),
        Divide(trained("s", away)),
        PRelu(trained("s", array)),
    ):
        check(op, tuple(shape), seed)


@pytest.mark.parametrize("positions", [(), (1,), (3,), (67,), (5, 9), (130,)])
@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_norm_layers(positions: tuple[int, ...], offset: float) -> None:
    rng = np.random.default_rng(3)
    shape = (6, *positions)
    scale, bias = (trained(name, random(rng, 6)) for name in "sb")
    mean, variance = offset + random(rng, 6), rng.uniform(0.5, 2.0, 6)
    check(BatchNorm(mean, variance**-0.5, scale, bias), shape, 4)
    check(Scale(by_channel(scale, shape), by_channel(bias, shape)), shape, 4)
    last = shape[-1]
    for own in (shape, (last,)):
        own_scale, own_bias = (trained(name, random(rng, *own)) for name in "sb")
        check(Scale(own_scale, own_bias), shape, 5)


def test_squares_of_long_rows() -> None:
    rng = np.random.default_rng(6)
    for length in (0, 1, 1023, 1024, 1025, 4096):
        for dtype, relative in ((torch.float32, 1e-4), (torch.float64, 1e-12)):
            rows = torch.from_numpy(random(rng, 4, length) * 1e3).to(dtype)
            true = np.linalg.norm(rows.double().numpy(), axis=1)
            assert_within(sum_of_squares(rows).measured(), true, relative)


def test_squares_of_several_tensors_are_those_of_each() -> None:
    """The bound of a short row does not grow beside a long one."""
    given = [torch.arange(4.0 * length).reshape(4, length) for length in (3, 12, 1000)]
    for found, alone in zip(sums_of_squares(given), map(sum_of_squares, given), strict=True):
        assert torch.equal(found.value, alone.value)
        assert torch.allclose(found.error, alone.error, rtol=1e-6, atol=0.0)


def test_error_bounds_add_up() -> None:
    one = Squares.within(torch.tensor([4.0]).double(), torch.tensor([0.1]).double())
    both = one.plus(one).times(9.0).measured()
    assert both.norm[0] == pytest.approx(np.sqrt(72.0))
    assert both.norm[0] - both.error[0] <= np.sqrt(9.0 * 7.8)
    assert both.norm[0] + both.error[0] >= np.sqrt(9.0 * 8.2)


@pytest.mark.parametrize("parts", [1, 2, 7, 300])
def test_a_total_is_hardly_above_the_sum(parts: int) -> None:
    random = np.random.default_rng(parts)
    values = np.abs(random.standard_normal((parts, 5))) * 10.0 ** random.integers(-9, 9, (parts, 5))
    errors = np.abs(values) * 1e-16 * random.random((parts, 5))
    given = [*map(Squares.within, torch.tensor(values), torch.tensor(errors))]
    for own, off, found in zip(values.T, errors.T, Squares.total_upper(given), strict=True):
        exact, slack = (sum(map(Fraction, some.tolist())) for some in (own, off))
        above = Fraction(float(found)) - exact
        assert slack <= above <= 2 * (slack + Fraction(2**-49) * parts * exact)
    assert torch.isnan(Squares.total_upper([*given, Squares(*torch.full((2, 5), torch.nan))])).all()


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
    return table.grad


@pytest.mark.parametrize("positions", [1, 300])
def test_many_positions_of_one_row_add_up(positions: int) -> None:
    """As many as a bound of √P allows: P equal cotangents make a gradient P times as long."""
    b = torch.ones(1, positions, 2)
    pair = Pair.of(torch.full((1, positions), 5.0), b)
    for method in TableGradient(7).methods(pair):
        norm = method.squares(pair).measured().norm
        assert norm == pytest.approx(positions * 2**0.5, rel=1e-6)
