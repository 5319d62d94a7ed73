"""Inner products of gradients and weights, each within the error that it states.

Each graph is one op, and the loss is linear in its output: value and cotangent are then given
exactly, and only the computation of the inner product rounds.
"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipcert.graph.geometry import Window
from lipcert.measure.gradient_norms import NormEngine
from lipcert.measure.lowering import lowered
from lipcert.training.clipping.gradients import Inner, decayed_squares, inner_products
from tests.measure.gradient_norms.oracle import network_of, viewed
from tests.networks import by_channel, chain, trained
from tests.ops import BatchNorm, Conv, ConvTranspose, Dense, Divide, Maker, PRelu, Scale, Shift

RELATIVE = {torch.float32: 1e-2, torch.float64: 1e-9}
"""of ‖∇‖‖θ‖: how wide an error may be"""


def normal(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def check(op: Maker, shape: tuple[int, ...], seed: int = 0) -> None:
    graph = chain(shape, op)
    for dtype, relative in RELATIVE.items():
        network = network_of(graph, dtype)
        x = torch.from_numpy(normal(3, *shape, seed=seed)).to(dtype)
        ascent = torch.from_numpy(normal(3, *graph.output_shape, seed=seed + 1)).to(dtype)
        passed = NormEngine(network, keeps=True).caught(
            x, lambda z, b=ascent: (z * b).flatten(1).sum(1)
        )
        found = inner_products(network, passed.caught)
        assert set(found) == set(graph.parameters)
        for i in range(3):
            thetas = {n: t.double().clone().requires_grad_() for n, t in network.parameters.items()}
            operands = {
                slot: viewed(operand, thetas[operand.parameter])
                if operand.parameter
                else torch.tensor(operand.array)
                for slot, operand in graph.nodes[0].operands.items()
            }
            output = lowered(graph.nodes[0], [x[i : i + 1].double()], operands)
            total = (output * ascent[i : i + 1].double()).sum()
            gradients = torch.autograd.grad(total, list(thetas.values()))
            for (name, theta), gradient in zip(thetas.items(), gradients, strict=True):
                truth = float((gradient * theta.detach()).sum())
                reach = float(gradient.norm() * theta.detach().norm())
                inner = found[name]
                error = float(inner.error[i])
                assert abs(float(inner.value[i]) - truth) <= error + 1e-14 * reach
                assert error <= relative * reach + 1e-12, (name, dtype)


@given(st.integers(1, 6), st.integers(1, 6), st.lists(st.integers(1, 4), max_size=2), st.booleans())
def test_dense(read: int, written: int, positions: list[int], with_bias: bool) -> None:
    bias = trained("b", normal(written)) if with_bias else None
    check(Dense(trained("w", normal(written, read)), bias), (*positions, read))


@given(
    st.integers(1, 2), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2)
)
def test_convolutions(groups: int, taps: int, stride: int, dilation: int, pad: int) -> None:
    window = Window(8, taps, stride, dilation, pad, min(pad, 1))
    kernel, bias = trained("k", normal(2 * groups, 3, taps, 2)), trained("b", normal(2 * groups))
    geometry = (window, Window(5, 2, 2))
    check(Conv(kernel, bias, geometry, groups), (3 * groups, 8, 5))
    outputs = (window.outputs, 2)
    back = trained("k", normal(2 * groups, 3, taps, 2))
    shift = trained("b", normal(3 * groups))
    check(ConvTranspose(back, shift, geometry, groups), (2 * groups, *outputs))


VECTOR, SHIFT = trained("s", normal(4)), trained("t", normal(4, seed=3))
CHANNELS = trained("s", normal(6)), trained("t", normal(6, seed=3))
OPS = [
    Scale(VECTOR, SHIFT),
    Scale(*(by_channel(operand, (6, 3, 4)) for operand in CHANNELS)),
    BatchNorm(normal(6), np.full(6, 0.8), *CHANNELS),
    Scale(VECTOR),
    Scale(trained("s", normal(6, 3, 1))),
    Divide(trained("s", 1.0 + np.abs(normal(4)))),
    Shift(trained("s", normal(3, 4))),
    PRelu(trained("s", normal(6, 1, 1))),
]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op((6, 3, 4)).kind)
def test_entrywise(op: Maker) -> None:
    for seed in range(3):
        check(op, (6, 3, 4), seed)


def test_an_operand_that_is_used_as_its_own_bias() -> None:
    """Both slots hold one parameter: their inner products add up."""
    check(Scale(VECTOR, VECTOR), (6, 3, 4))


@given(st.integers(0, 2**31), st.floats(1e-3, 1e3), st.floats(-1.0, 1.0))
def test_the_formula_bounds_the_norm(seed: int, decay: float, turn: float) -> None:
    """Also where θ points against the gradient, so that nearly everything cancels."""
    rng = np.random.default_rng(seed)
    gradient = rng.standard_normal(20)
    theta = -gradient / decay * (1.0 + 1e-9 * turn) if turn < 0 else rng.standard_normal(20)
    numbers = [torch.tensor([n]) for n in (gradient @ gradient, gradient @ theta, theta @ theta)]
    inner = Inner(numbers[1], numbers[1].abs() * 1e-14 + 1e-14 * numbers[0])
    squares, weights = (numbers[at][0] * (1.0 + 2e-15) for at in (0, 2))
    found = float(decayed_squares(squares, inner, weights, decay))
    truth = float(np.sum((gradient + decay * theta) ** 2))
    longest = (np.linalg.norm(gradient) + decay * np.linalg.norm(theta)) ** 2
    assert truth <= found <= longest * (1.0 + 1e-9)
    assert found <= truth + 1e-11 * longest
    vague = Inner(inner.value, torch.tensor([np.inf]).double())
    assert float(decayed_squares(squares, vague, weights, decay)) <= longest * (1.0 + 1e-9)


def test_a_group_that_no_gradient_reaches() -> None:
    assert float(decayed_squares(torch.zeros(1), None, torch.ones(1), 0.5)) == pytest.approx(0.25)
