"""Runs of affine steps: against their Jacobian."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipcert.core.kinds import BatchNorm
from lipcert.core.lines.norms import norm_holds
from lipcert.core.norms.claim import NormWitness
from lipcert.core.norms.convolution import Convolution
from lipcert.core.norms.float_engine import norm_at_most_float
from lipcert.core.norms.fused import fused_kernel
from lipcert.core.norms.integer_engine import norm_at_most_exact
from lipcert.core.norms.surroundings import lines_of
from lipcert.core.program import Activation, Dense, Move, Place, Program, Step
from lipcert.core.token_kinds import Add, Scale, Shift
from lipcert.core.window_kinds import AveragePool, Conv, Window
from tests.core.forged import proved
from tests.core.rules.cases import exactly
from tests.core.rules.evaluate import run, tensors_of

from .convolutions import window_of

EXPLICIT = NormWitness("explicit")


def chain(shape, *parts):
    """Steps one after another, and the shapes of all values."""
    names = ["x", *(f"v{i}" for i in range(len(parts)))]
    shapes, steps = {"x": shape}, []
    for i, (op, after) in enumerate(parts):
        inputs = (names[i], "x") if isinstance(op, Add) else (names[i],)
        inputs = inputs if i % 2 else inputs[::-1]
        steps.append(Step(op, inputs, names[i + 1], after, i))
        shapes[names[i + 1]] = after
    return steps, shapes


def jacobian(steps, shapes):
    """By autograd."""
    program = Program("x", steps[-1].output, shapes, tuple(steps), Place(0), ())
    tensors, zeros = tensors_of(program), torch.zeros(shapes["x"], dtype=torch.float64)
    found = torch.autograd.functional.jacobian(
        lambda x: run(program, x, tensors)[program.output], zeros
    )
    return found.reshape(-1, zeros.numel()).numpy()


def batch_norm(rng, channels):
    numbers = [rng.standard_normal(channels) for _ in range(3)]
    return BatchNorm(*map(exactly, numbers), exactly(rng.random(channels) + 0.1))


def pad_move(shape, lines):
    """Lines of entries along each axis, as one table."""
    numbers = np.arange(math.prod(shape)).reshape(shape)
    places = np.ix_(range(shape[0]), range(shape[1]), *lines)
    table = numbers[places]
    for axis, line in enumerate(lines):
        table = np.where((line < 0).reshape(-1, *[1] * (len(lines) - 1 - axis)), -1, table)
    return table.astype(np.int64)


@st.composite
def runs(draw):
    """A run around a convolution: moves and factors before, factors, a sum, averages behind."""
    rank = draw(st.integers(1, 2))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    groups, transposed = draw(st.integers(1, 2)), draw(st.booleans())
    inner, outer = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    residual = draw(st.booleans())
    size = tuple(draw(st.integers(2, 4 if rank == 1 else 3)) for _ in range(rank))
    shape, parts = (1, inner, *size), []
    if draw(st.booleans()):
        parts.append((batch_norm(rng, inner), shape))
    if not transposed and not residual and draw(st.booleans()):
        lines = [rng.permutation(np.arange(-1, n)) for n in size]
        shape = (1, inner, *(len(line) for line in lines))
        parts.append((Move(pad_move((1, inner, *size), lines)), shape))
    if draw(st.booleans()):
        parts.append((Scale(exactly(rng.standard_normal((1, inner, *[1] * rank)))), shape))
    if residual:
        outer, stride, taps = inner, 1, 3
        dilation, before = draw(st.integers(1, 2)), 1
        before = dilation
    else:
        stride, taps = draw(st.integers(1, 2)), draw(st.integers(1, 2))
        dilation, before = draw(st.integers(1, 2)), draw(st.integers(0, 1))
    along = (taps,) * rank
    numbers = [(n,) * rank for n in (stride, dilation, before)]
    if transposed:
        size_out = tuple((n - 1) * stride + dilation * (taps - 1) + 1 - 2 * before for n in size)
        size_out = tuple(max(n, 1) for n in size_out)
        window = Window(along, *numbers, size)
        after = (1, outer, *size_out)
        weight = rng.standard_normal((inner, outer // groups, *along))
    else:
        window = window_of(along, shape[2:], *numbers, numbers[2])
        after = (1, outer, *window.outputs)
        weight = rng.standard_normal((outer, inner // groups, *along))
    if min(after) < 1:
        return draw(runs())
    parts.append((Conv(exactly(weight), None, window, groups, transposed), after))
    if draw(st.booleans()):
        parts.append((batch_norm(rng, outer), after))
    if residual:
        signs = tuple(draw(st.sampled_from([1, -1])) for _ in range(2))
        parts.append((Add(signs), after))
        if draw(st.booleans()):
            parts.append((Add((-1, 1)), after))
            parts.append((Shift(exactly(np.ones((1,) * len(after)))), after))
            parts.append((batch_norm(rng, outer), after))
    if not transposed and min(after[2:]) >= 2 and draw(st.booleans()):
        pool = window_of((2,) * rank, after[2:], (draw(st.integers(1, 2)),) * rank)
        after = (1, outer, *pool.outputs)
        parts.append((AveragePool(pool, draw(st.booleans())), after))
    return chain((1, inner, *size), *parts)


@given(runs())
def test_runs_are_one_map(run):
    steps, shapes = run
    exact = jacobian(steps, shapes)
    kernel = fused_kernel(steps, shapes)
    for ends in (kernel.entries.lo, kernel.entries.hi):
        frame = kernel.frame
        conv = Convolution(ends, frame.size, frame.window, frame.groups, frame.moved)
        if not conv.is_small:
            continue
        matrix = conv.matrix().T if kernel.adjoint else conv.matrix()
        assert np.allclose(matrix, exact, atol=1e-12)
    norm = float(np.linalg.norm(exact, 2))
    for check in (norm_at_most_float, norm_at_most_exact):
        if conv.is_small:
            assert norm_holds(steps, shapes, norm * (1 + 1e-7) + 1e-12, EXPLICIT, check)
        for method in ("explicit", "windows", "absolute"):
            witness = NormWitness(method)
            lower = norm * (1.0 - 1e-6) - 1e-12
            assert norm < 1e-6 or not norm_holds(steps, shapes, lower, witness, check)


@pytest.mark.parametrize("check", [norm_at_most_float, norm_at_most_exact])
def test_matrices(check):
    rng = np.random.default_rng(2)
    parts = [
        (Scale(exactly(rng.standard_normal((1, 1, 4)))), (1, 3, 4)),
        (Dense(exactly(rng.standard_normal((4, 4))), None), (1, 3, 4)),
        (Scale(exactly(rng.standard_normal((1, 1, 1)))), (1, 3, 4)),
        (Add((1, -1)), (1, 3, 4)),
    ]
    steps, shapes = chain((1, 3, 4), *parts)
    norm = float(np.linalg.norm(jacobian(steps, shapes), 2))
    assert norm_holds(steps, shapes, norm * (1.0 + 1e-8), NormWitness("dense"), check)
    assert not norm_holds(steps, shapes, norm * (1.0 - 1e-6), NormWitness("dense"), check)


def test_a_normalised_matrix():
    rng = np.random.default_rng(2)
    parts = [(Dense(exactly(np.eye(4)), None), (1, 4)), (batch_norm(rng, 4), (1, 4))]
    steps, shapes = chain((1, 4), *parts)
    norm = float(np.linalg.norm(jacobian(steps, shapes), 2))
    witness, check = NormWitness("dense"), norm_at_most_float
    assert norm_holds(steps, shapes, norm * (1.0 + 1e-8), witness, check)
    assert not norm_holds(steps, shapes, norm * (1.0 - 1e-6), witness, check)
    steps, shapes = chain((1, 4, 4), *((op, (1, 4, 4)) for op, _ in parts))
    assert not norm_holds(steps, shapes, 1e9, witness, check)  # channels are axis 1


def test_a_wrapped_convolution_is_its_own_torus():
    rng = np.random.default_rng(6)
    lines = [np.arange(-1, 7) % 6] * 2
    move = Move(pad_move((1, 2, 6, 6), lines))
    conv = Conv(
        exactly(rng.standard_normal((2, 2, 3, 3))), None, window_of((3, 3), (8, 8)), 1, False
    )
    steps, shapes = chain((1, 2, 6, 6), (move, (1, 2, 8, 8)), (conv, (1, 2, 6, 6)))
    norm = float(np.linalg.norm(jacobian(steps, shapes), 2))
    witness = NormWitness("torus", (0, 0), (6, 6))
    for check in (norm_at_most_float, norm_at_most_exact):
        assert norm_holds(steps, shapes, norm * (1.0 + 1e-8), witness, check)
        assert not norm_holds(steps, shapes, norm * (1.0 - 1e-8), witness, check)


CONV = Conv(
    exactly(np.ones((2, 2, 3))), None, window_of((3,), (5,), before=(1,), after=(1,)), 1, False
)
SHAPE = (1, 2, 5)


@pytest.mark.parametrize(
    "parts",
    [
        [(Shift(exactly(np.ones((1, 1, 1)))), SHAPE)],
        [(CONV, SHAPE), (CONV, SHAPE)],
        [(CONV, SHAPE), (Activation("relu"), SHAPE)],
        [(Activation("relu"), SHAPE), (CONV, SHAPE)],
        [(CONV, SHAPE), (Scale(exactly(np.ones((1, 1, 5)))), SHAPE)],
        [(CONV, SHAPE), (Scale(exactly(np.ones((2, 2, 1)))), (2, 2, 5))],
        [(CONV, SHAPE), (Scale(exactly(np.ones((2, 1)))), SHAPE)],
        [(CONV, SHAPE), (Shift(exactly(np.ones((3, 1, 1)))), (3, 2, 5))],
        [(CONV, SHAPE), (Move(np.arange(10).reshape(SHAPE)), SHAPE)],
        [(Move(np.arange(10)[::-1].reshape(SHAPE).copy()), SHAPE), (CONV, SHAPE)],
        [(CONV, SHAPE), (AveragePool(window_of((2,), (5,), before=(1,)), True), (1, 2, 5))],
        [(CONV, SHAPE), (AveragePool(Window((2,), (1,), (1,), (0,), (5,)), False), (1, 2, 5))],
    ],
)
def test_steps_that_are_no_run(parts):
    fused_kernel(*chain(SHAPE, (CONV, SHAPE)))
    assert proved(fused_kernel, *chain(SHAPE, *parts)) is None


def test_a_sum_with_another_value_is_no_run():
    steps, shapes = chain(SHAPE, (CONV, SHAPE), (Add((1, 1)), SHAPE))
    fused_kernel(steps, shapes)
    for inputs in (("v0", "v0"), ("x", "x"), ("v0",), ("v0", "x", "x"), ("v0", "y")):
        other = Step(Add((1,) * len(inputs)), inputs, "v1", SHAPE, 1)
        assert proved(fused_kernel, [steps[0], other], {**shapes, "y": SHAPE}) is None


def test_steps_that_do_not_follow_each_other():
    steps, shapes = chain(SHAPE, (CONV, SHAPE), (Shift(exactly(np.ones((1, 1, 1)))), SHAPE))
    other = Step(steps[1].op, ("x",), "v1", SHAPE, 1)
    assert proved(fused_kernel, [steps[0], other], shapes) is None


def test_a_sum_whose_places_differ_is_no_run():
    window = Window((3,), (1,), (1,), (0,), (5,))
    off = Conv(exactly(np.ones((2, 2, 3))), None, Window((2,), (1,), (2,), (1,), (5,)), 1, False)
    for conv in (off,):
        weight = exactly(np.ones((2, 2, *conv.window.taps)))
        shifted = Conv(weight, None, conv.window, 1, False)
        fused_kernel(*chain(SHAPE, (shifted, SHAPE)))
        assert proved(fused_kernel, *chain(SHAPE, (shifted, SHAPE), (Add((1, 1)), SHAPE))) is None
    first = Conv(exactly(np.ones((2, 2, 3))), None, window, 1, False)
    fused_kernel(*chain(SHAPE, (first, SHAPE), (Add((1, 1)), SHAPE)))


@given(st.integers(1, 3), st.integers(0, 10**6))
def test_lines_are_found_again(rank, seed):
    rng = np.random.default_rng(seed)
    shape = (1, int(rng.integers(1, 4)), *rng.integers(1, 5, rank).tolist())
    lines = [rng.integers(-1, n, int(rng.integers(1, 6))) for n in shape[2:]]
    table = pad_move(shape, lines)
    found = lines_of(table, shape)
    assert np.array_equal(pad_move(shape, found), table)
    changed = table.copy()
    place = tuple(int(rng.integers(n)) for n in table.shape)
    changed[place] += 1
    again = proved(lines_of, changed, shape)
    assert again is None or np.array_equal(pad_move(shape, again), changed)


def test_moves_of_channels_have_no_lines():
    table = np.arange(12).reshape(1, 3, 4)
    lines_of(table, (1, 3, 4))
    assert proved(lines_of, table[:, ::-1], (1, 3, 4)) is None
    assert proved(lines_of, table, (1, 4, 3)) is None
    assert proved(lines_of, table.reshape(1, 12), (1, 3, 4)) is None
    assert proved(lines_of, table[:, :2], (1, 3, 4)) is None
    for shape in itertools.permutations((1, 3, 4)):
        if shape != (1, 3, 4):
            assert proved(lines_of, table, shape) is None
