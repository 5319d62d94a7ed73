"""Bounds of the norms of runs (tokens): they hold for every op that hands them on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.facts import Bound, Runs, ValueFacts
from lipcert.norms.operator_norm import Tier
from lipcert.operand import Operand
from lipcert.ops.activation import Activation
from lipcert.ops.affine import Scale, Shift
from lipcert.ops.combine import Add
from lipcert.ops.functions import Gelu, Sigmoid
from lipcert.ops.linear import Dense
from lipcert.ops.normalization import LayerNorm, RmsNorm
from lipcert.ops.reduced_norm import DivideByNorm
from lipcert.ops.reduction import Centre
from lipcert.ops.shape import Reshape, Transpose
from lipcert.scope import PointScope
from lipcert.upper import ONE, Upper

SHAPE = (3, 4, 6)  # tokens of 6 features
RNG = np.random.default_rng(0)


def draw(*shape):
    return Operand(RNG.standard_normal(shape))


OPS = [
    LayerNorm(1, 0.1, draw(6), draw(6)),
    LayerNorm(1, 0.1, draw(1), None),
    LayerNorm(2, 0.1, draw(4, 6), draw(4, 6)),
    RmsNorm(1, 0.1, draw(6)),
    Dense(draw(5, 6), draw(5)),
    Dense(draw(5, 6)),
    Shift(draw(6)),
    Shift(draw(4, 1)),
    Shift(draw(3, 4, 6)),
    Scale(draw(4, 1)),
    Activation(Gelu()),
    Activation(Sigmoid()),
    Reshape((3, 4, 2, 3)),
    Reshape((12, 6)),
    Reshape((3, 24)),
    Reshape((3, 1, 4, 6)),
    Reshape((6, 2, 6)),
    Reshape((3, 4, 6, 1)),
    Transpose((2, 0, 1)),
    Transpose((0, 2, 1)),
    Add((1.0, -2.0)),
    Centre((2,)),
    Centre((1, 2)),
    DivideByNorm((2,), 1.0, 0.5),
    DivideByNorm((1,), 0.3, 2.0),
]


def tokens(norm, axis):
    """Examples whose runs along the axis have a norm of at most `norm`, many exactly that."""
    generator = np.random.default_rng(7)
    x = generator.standard_normal((200, *SHAPE))
    x[::3] = np.sign(x[::3])
    x[1::3] *= generator.random((67, *SHAPE)) ** 8
    lengths = np.linalg.norm(x, axis=axis + 1, keepdims=True)
    return norm * x / np.maximum(lengths, 1e-30)


@pytest.mark.parametrize("op", OPS, ids=lambda op: f"{op.kind}_{op.family}")
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("norm", [0.1, 3.0])
def test_runs_hold(op, axis, norm):
    count = len(op.coefficients) if isinstance(op, Add) else 1
    whole = Upper(norm * np.sqrt(np.prod(SHAPE) / SHAPE[axis]) * 1.01)
    facts = ValueFacts.of(SHAPE, Bound(whole, "test"), None, Runs(axis, Upper(norm * 1.0001)))
    assert facts.run_norm(axis).value == norm * 1.0001
    claimed = op.output_facts([facts] * count, PointScope(Tier.FAST))
    x = tokens(norm, axis)
    y = op.evaluate(*(np.roll(x, shift, axis=0) for shift in range(count)))
    assert np.all((y >= claimed.box.lo - 1e-9) & (y <= claimed.box.hi + 1e-9))
    assert np.linalg.norm(y.reshape(len(y), -1), axis=1).max() <= claimed.norm.value.value + 1e-9
    if claimed.runs is not None:
        longest = np.linalg.norm(y, axis=claimed.runs.axis + 1).max()
        assert longest <= claimed.runs.norm.value * (1 + 1e-9)


@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    data=st.data(),
)
def test_reshape_keeps_only_runs_that_stay_whole(shape, data):
    """Every run of the new axis lies within one run of the old axis."""
    axis = data.draw(st.integers(0, len(shape) - 1))
    size = int(np.prod(shape))
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    first = data.draw(st.sampled_from(divisors))
    rest = size // first
    second = data.draw(st.sampled_from([d for d in range(1, rest + 1) if rest % d == 0]))
    target = (first, second, rest // second)
    facts = ValueFacts.of(tuple(shape), Bound(Upper(1e3), "test"), None, Runs(axis, ONE))
    moved = Reshape(target).moved_runs(facts)
    if moved is None:
        return
    index = np.arange(size).reshape(shape)
    owner = np.zeros(size, dtype=int)
    rows = np.moveaxis(index, axis, -1).reshape(-1, shape[axis])
    for number, row in enumerate(rows):
        owner[row] = number
    new = np.moveaxis(owner.reshape(target), moved.axis, -1)
    assert np.all(new == new[..., :1])


def test_the_tighter_runs_survive_a_meeting():
    loose = ValueFacts.of((2, 3), Bound(Upper(9.0), "test"), None, Runs(1, Upper(3.0)))
    tight = ValueFacts.of((2, 3), Bound(Upper(8.0), "test"), None, Runs(1, Upper(2.0)))
    for met in (loose.meet(tight), tight.meet(loose)):
        assert met.runs == Runs(1, Upper(2.0))
        assert met.max_abs == Upper(2.0)
    assert ValueFacts.of((2, 3), Bound(ONE, "test"), None, Runs(1, Upper(2.0))).runs is None
