"""Steps that are not affine: every fact and every Jacobian, with torch as the oracle."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from lipcert.core.interval import Interval, exact
from lipcert.core.program import (
    Activation,
    Attention,
    Divide,
    DivideByNorm,
    LpPool,
    MatMul,
    MaxPool,
    Multiply,
    Normalize,
    Op,
    Operand,
    PRelu,
    ReduceMax,
    ReduceNorm,
    Shape,
    Softmax,
    Sort,
    Window,
)
from lipcert.core.rules import nonlinear
from lipcert.core.rules.facts import Cotangent, Fact, Hull
from lipcert.core.rules.weights import Point
from tests.core.rules.attack import SLACK, holds, members
from tests.core.rules.cases import Rng, fact, window
from tests.core.rules.evaluate import spectral

POINT = Point({})
INF = math.inf
Array = NDArray[np.float64]
Compute = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Case:
    """An op between shapes, how torch computes it, and whether inputs must be positive."""

    op: Op
    shapes: tuple[Shape, ...]
    shape: Shape
    compute: Compute
    positive: tuple[int, ...] = ()


def _number(value: float, rank: int) -> Operand:
    array = np.full((1,) * rank, value)
    return Operand(array, array)


def _shape(rng: Rng, low: int = 1, high: int = 4) -> Shape:
    return tuple(int(n) for n in rng.integers(1, 5, size=rng.integers(low, high)))


ACTIVATIONS: dict[tuple[str, tuple[float, ...]], Compute] = {
    ("relu", ()): torch.relu,
    ("leaky_relu", (0.2,)): lambda x: F.leaky_relu(x, 0.2),
    ("abs", ()): torch.abs,
    ("clip", (-0.5, 1.0)): lambda x: torch.clamp(x, -0.5, 1.0),
    ("hard_sigmoid", (0.2, 0.5)): lambda x: torch.clamp(0.2 * x + 0.5, 0.0, 1.0),
    ("hard_swish", ()): F.hardswish,
    ("elu", (1.5,)): lambda x: F.elu(x, 1.5),
    ("selu", (1.6732632423543772, 1.0507009873554805)): F.selu,
    ("celu", (0.7,)): lambda x: F.celu(x, 0.7),
    ("sigmoid", ()): torch.sigmoid,
    ("tanh", ()): torch.tanh,
    ("atan", ()): torch.atan,
    ("softplus", ()): F.softplus,
    ("softsign", ()): F.softsign,
    ("erf", ()): torch.erf,
    ("sin", ()): torch.sin,
    ("cos", ()): torch.cos,
    ("gelu", ()): F.gelu,
    ("gelu_tanh", ()): lambda x: F.gelu(x, approximate="tanh"),
    ("silu", ()): F.silu,
    ("quick_gelu", (1.702,)): lambda x: x * torch.sigmoid(1.702 * x),
    ("mish", ()): F.mish,
    ("power", (2.0,)): lambda x: x**2,
    ("power", (3.0,)): lambda x: x**3,
    ("soft_threshold", (0.5,)): lambda x: F.softshrink(x, 0.5),
    ("log", ()): torch.log,
    ("sqrt", ()): torch.sqrt,
    ("reciprocal", ()): torch.reciprocal,
    ("power", (1.5,)): lambda x: x**1.5,
}
ON_POSITIVE = {"log", "sqrt", "reciprocal"}


def _activation(rng: Rng) -> Case:
    keys = list(ACTIVATIONS)
    key = keys[int(rng.integers(len(keys)))]
    shape = _shape(rng)
    positive = (0,) if key[0] in ON_POSITIVE or key[1] == (1.5,) else ()
    return Case(Activation(*key), (shape,), shape, ACTIVATIONS[key], positive)


def _prelu(rng: Rng) -> Case:
    shape = _shape(rng)
    slope = rng.normal(size=tuple(n if rng.random() < 0.5 else 1 for n in shape))
    operand, tensor = Operand(slope, slope, {"s": 1.0}), torch.tensor(slope)
    return Case(PRelu(operand), (shape,), shape, lambda x: torch.where(x >= 0, x, tensor * x))


def _windows(w: Window, sizes: Shape) -> list[list[int]]:
    """For each output the positions it reads, in row-major order."""
    axes = []
    for n, t, s, d, p, o in zip(
        sizes, w.taps, w.strides, w.dilations, w.before, w.outputs, strict=True
    ):
        axes.append(
            [[k * s + i * d - p for i in range(t) if 0 <= k * s + i * d - p < n] for k in range(o)]
        )
    weights = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    return [
        [
            sum(a * b for a, b in zip(place, weights, strict=True))
            for place in itertools.product(*reads)
        ]
        for reads in itertools.product(*axes)
    ]


def _pool(rng: Rng, make: Callable[[Window], Op], pooled: Compute) -> Case:
    while True:
        sizes = tuple(int(n) for n in rng.integers(1, 7, size=rng.integers(1, 3)))
        w, channels = window(rng, sizes), int(rng.integers(1, 3))
        reads = _windows(w, sizes)
        if all(reads):
            break

    def compute(x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(channels, -1)
        columns = [pooled(flat[:, places]) for places in reads]
        return torch.stack(columns, dim=1).reshape(1, channels, *w.outputs)

    return Case(make(w), ((1, channels, *sizes),), (1, channels, *w.outputs), compute)


def _max_pool(rng: Rng) -> Case:
    return _pool(rng, MaxPool, lambda x: x.max(dim=1).values)


def _lp_pool(rng: Rng) -> Case:
    p = int(rng.integers(1, 3))
    return _pool(rng, lambda w: LpPool(w, p), lambda x: torch.linalg.vector_norm(x, p, dim=1))


def _axes(rng: Rng, before: Shape) -> tuple[tuple[int, ...], Shape]:
    axes = tuple(axis for axis in range(len(before)) if rng.random() < 0.6) or (0,)
    return axes, tuple(1 if axis in axes else n for axis, n in enumerate(before))


def _reduce_max(rng: Rng) -> Case:
    before, minimum = _shape(rng), bool(rng.integers(2))
    axes, after = _axes(rng, before)
    f = torch.amin if minimum else torch.amax
    return Case(ReduceMax(axes, minimum), (before,), after, lambda x: f(x, axes, keepdim=True))


def _reduce_norm(rng: Rng) -> Case:
    before, p, floor = _shape(rng), int(rng.integers(1, 3)), float(rng.choice([0.0, 0.5]))
    axes, after = _axes(rng, before)

    def compute(x: torch.Tensor) -> torch.Tensor:
        return ((x.abs() ** p).sum(dim=axes, keepdim=True) + floor) ** (1 / p)

    return Case(ReduceNorm(axes, p, floor), (before,), after, compute)


def _sort(rng: Rng) -> Case:
    shape, descending = _shape(rng), bool(rng.integers(2))
    axis = int(rng.integers(len(shape)))
    return Case(
        Sort(axis), (shape,), shape, lambda x: torch.sort(x, axis, descending=descending).values
    )


def _pair(rng: Rng) -> tuple[Shape, Shape, Shape]:
    shape = _shape(rng)
    first = tuple(n if rng.random() < 0.7 else 1 for n in shape)
    second = tuple(n if rng.random() < 0.7 else 1 for n in shape)
    second = second[int(rng.integers(2)) if second[0] == 1 and len(second) > 1 else 0 :]
    return first, second, np.broadcast_shapes(first, second)


def _multiply(rng: Rng) -> Case:
    first, second, shape = _pair(rng)
    return Case(Multiply(), (first, second), shape, torch.mul)


def _divide(rng: Rng) -> Case:
    first, second, shape = _pair(rng)
    return Case(Divide(), (first, second), shape, torch.div, (1,))


def _matmul(rng: Rng) -> Case:
    n, k, m = (int(count) for count in rng.integers(1, 4, size=3))
    a, b, batch = _pair(rng) if rng.random() < 0.7 else ((), (), ())
    return Case(MatMul(), ((*a, n, k), (*b, k, m)), (*batch, n, m), torch.matmul)


def _softmax(rng: Rng) -> Case:
    shape, logarithm = _shape(rng), bool(rng.integers(2))
    axis = int(rng.integers(len(shape)))
    f = F.log_softmax if logarithm else F.softmax
    return Case(Softmax(axis, logarithm), (shape,), shape, lambda x: f(x, dim=axis))


def _normalize(rng: Rng) -> Case:
    shape, centred = _shape(rng), bool(rng.integers(2))
    epsilon = float(rng.choice([1e-2, 1.0]))
    axes, _ = _axes(rng, shape)

    def compute(x: torch.Tensor) -> torch.Tensor:
        moved = x - x.mean(dim=axes, keepdim=True) if centred else x
        return moved / torch.sqrt((moved**2).mean(dim=axes, keepdim=True) + epsilon)

    return Case(Normalize(axes, epsilon, centred), (shape,), shape, compute)


def _divide_by_norm(rng: Rng) -> Case:
    shape, floor = _shape(rng), float(rng.choice([0.05, 1.0]))
    share = np.full((1,) * len(shape), float(rng.choice([0.3, 1.0, 20.0])))
    axes, _ = _axes(rng, shape)

    def compute(x: torch.Tensor) -> torch.Tensor:
        norms = torch.linalg.vector_norm(x, dim=axes, keepdim=True)
        return x / (norms * float(share.flat[0])).clamp(min=floor)

    return Case(DivideByNorm(axes, Operand(share, share), floor), (shape,), shape, compute)


def _attention(rng: Rng) -> Case:
    n, m, d, e = (int(count) for count in rng.integers(1, 4, size=4))
    heads = _shape(rng, 0, 2)
    scale = float(rng.choice([-0.7, 0.5, 2.0]))
    mask = torch.zeros(n, m, dtype=torch.float64)
    mask[torch.tensor(rng.random((n, m)) < 0.3)] = -INF
    mask[:, int(rng.integers(m))] = float(rng.normal())
    array = mask.numpy()
    known = Operand(array, array) if rng.random() < 0.5 else None
    if known is None:
        mask = torch.zeros_like(mask)

    def compute(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(scale * (q @ k) + mask, dim=-1) @ v

    shapes = ((*heads, n, d), (*heads, d, m), (*heads, m, e))
    return Case(Attention(scale, known), shapes, (*heads, n, e), compute)


KINDS: dict[str, Callable[[Rng], Case]] = {
    "activation": _activation,
    "prelu": _prelu,
    "max_pool": _max_pool,
    "lp_pool": _lp_pool,
    "reduce_max": _reduce_max,
    "reduce_norm": _reduce_norm,
    "sort": _sort,
    "multiply": _multiply,
    "divide": _divide,
    "matmul": _matmul,
    "softmax": _softmax,
    "normalize": _normalize,
    "divide_by_norm": _divide_by_norm,
    "attention": _attention,
}


def _facts(rng: Rng, case: Case) -> tuple[list[Fact], list[list[Array]]]:
    facts, known = [], []
    for index, shape in enumerate(case.shapes):
        found, values = fact(rng, shape)
        if index in case.positive:
            values = [np.abs(value) + 0.3 for value in values]
            ends = np.min(values, axis=0), np.max(values, axis=0)
            found = Fact.of(shape, box=Interval(*ends))
        facts.append(found)
        known.append(values)
    return facts, known


def _jacobians(case: Case, point: Sequence[Array]) -> list[torch.Tensor]:
    tensors = tuple(torch.tensor(x) for x in point)
    found = torch.autograd.functional.jacobian(case.compute, tensors)
    return [part.reshape(math.prod(case.shape), -1) for part in found]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", KINDS)
def test_no_member_breaks_a_bound(kind: str, seed: int) -> None:
    rng = np.random.default_rng([seed, *map(ord, kind)])
    case = KINDS[kind](rng)
    facts, known = _facts(rng, case)
    arguments = facts, case.shapes, case.shape, POINT, "y"
    found = nonlinear.output_fact(case.op, *arguments)
    stretches = [
        nonlinear.lipschitz(case.op, index, *arguments) for index in range(len(case.shapes))
    ]
    for point in members(rng, facts, known, case.compute):
        value = case.compute(*(torch.tensor(x) for x in point)).numpy()
        assert value.shape == case.shape
        assert holds(found, value, SLACK)
        for stretch, jacobian in zip(stretches, _jacobians(case, point), strict=True):
            if torch.isfinite(jacobian).all():
                assert spectral(jacobian) <= stretch * (1 + SLACK) + 1e-12


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", ["activation", "prelu"])
def test_slopes_hold_the_diagonal(kind: str, seed: int) -> None:
    rng = np.random.default_rng([seed, 77])
    case = KINDS[kind](rng)
    (x,), known = _facts(rng, case)
    slopes = nonlinear.slopes(case.op, x, POINT)
    assert slopes is not None
    wide = slopes.broadcast(case.shape)
    for point in members(rng, [x], known, case.compute):
        (jacobian,) = _jacobians(case, point)
        diagonal = torch.diagonal(jacobian).numpy().reshape(case.shape)
        size = SLACK * (1 + np.abs(diagonal))
        assert (diagonal >= wide.lo - size).all()
        assert (diagonal <= wide.hi + size).all()


def _known(shape: Shape, norm: float = INF, box: Interval | None = None, **runs: float) -> Fact:
    return Fact.of(shape, norm, box, **runs)


def _output(op: Op, inputs: Sequence[Fact], shapes: Sequence[Shape], shape: Shape) -> Fact:
    return nonlinear.output_fact(op, inputs, shapes, shape, POINT, "y")


def _stretch(
    op: Op, index: int, inputs: Sequence[Fact], shapes: Sequence[Shape], shape: Shape
) -> float:
    return nonlinear.lipschitz(op, index, inputs, shapes, shape, POINT, "y")


def _everywhere(low: float, high: float, rank: int) -> Interval:
    return Interval(np.full((1,) * rank, low), np.full((1,) * rank, high))


@pytest.mark.parametrize(
    ("op", "shape", "norm", "expected"),
    [
        (Activation("relu"), (1, 5), 3.0, 3.0),
        (Activation("gelu"), (1, 5), 1e9, 1e9),
        (Activation("sigmoid"), (1, 4), 0.0, 1.0),
        (Activation("sigmoid"), (1, 4), INF, 2.0),
        (Activation("tanh"), (1, 4), INF, 2.0),
        (Softmax(1, logarithm=False), (3, 4), INF, math.sqrt(3)),
        (Softmax(1, logarithm=False), (3, 4), 0.0, math.sqrt(3) / 2),
        (Softmax(1, logarithm=True), (1, 4), 0.0, 2 * math.log(4)),
        (Normalize((1,), 1e-5, True), (1, 6), INF, math.sqrt(6)),
        (Normalize((1,), 0.5, True), (2, 6), 2.0, math.sqrt(12 * 4 / (4 + 12 * 0.5))),
        (Normalize((0, 1), 0.5, False), (2, 6), 2.0, math.sqrt(12 * 4 / (4 + 12 * 0.5))),
        (DivideByNorm((1,), _number(0.5, 2), 3.0), (1, 6), INF, 2.0),
        (DivideByNorm((1,), _number(0.5, 2), 3.0), (3, 6), INF, 2.0 * math.sqrt(3)),
        (DivideByNorm((0, 1), _number(0.5, 2), 4.0), (3, 6), 2.0, 0.5),
        (Sort(1), (2, 3), 7.0, 7.0),
        (ReduceNorm((1,), 2, 9.0), (1, 4), 4.0, 5.0),
        (MaxPool(Window((2,), (1,), (1,), (0,), (4,))), (1, 1, 5), 1.0, math.sqrt(2)),
        (LpPool(Window((2,), (2,), (1,), (0,), (2,)), 1), (1, 1, 4), 1.0, math.sqrt(2)),
    ],
    ids=str,
)
def test_norms_that_are_attained(op: Op, shape: Shape, norm: float, expected: float) -> None:
    after = {MaxPool: (1, 1, 4), LpPool: (1, 1, 2), ReduceNorm: (1, 1)}.get(type(op), shape)
    found = _output(op, [_known(shape, norm)], [shape], after).norm
    assert expected * (1 - 1e-15) <= found <= expected * (1 + 1e-9)


@pytest.mark.parametrize(
    ("op", "shape", "expected"),
    [
        (Activation("gelu"), (3,), 1.128904145185154786),
        (Activation("silu"), (3,), 1.099839320128866917),
        (Activation("sigmoid"), (3,), 0.25),
        (Activation("erf"), (3,), 2 / math.sqrt(math.pi)),
        (Softmax(0, logarithm=False), (3,), 0.5),
        (Softmax(0, logarithm=False), (1,), 0.0),
        (Softmax(0, logarithm=True), (5,), math.sqrt(5)),
        (Normalize((0,), 0.25, True), (3,), 2.0),
        (Normalize((0,), 0.0, True), (3,), INF),
        (Normalize((0,), 0.0, True), (1,), 0.0),
        (DivideByNorm((0,), _number(7.0, 1), 0.25), (3,), 4.0),
        (DivideByNorm((0,), _number(7.0, 1), 0.0), (3,), INF),
        (DivideByNorm((0,), _number(0.0, 1), 0.25), (3,), 4.0),
        (Sort(0), (4,), 1.0),
        (ReduceMax((0,), False), (4,), 1.0),
        (ReduceNorm((0,), 1, 0.0), (4,), 2.0),
    ],
    ids=str,
)
def test_lipschitz_constants_without_a_fact(op: Op, shape: Shape, expected: float) -> None:
    after = (1,) if isinstance(op, ReduceMax | ReduceNorm) else shape
    found = _stretch(op, 0, [_known(shape)], [shape], after)
    assert found == pytest.approx(expected, rel=1e-9)
    assert found >= expected * (1 - 1e-15)


def test_slopes_on_a_box_are_tight() -> None:
    box = _everywhere(1.0, 2.0, 1)
    for name, slope in (("tanh", 1 - math.tanh(1.0) ** 2), ("sigmoid", 0.19661193324148185)):
        found = _stretch(Activation(name), 0, [_known((3,), box=box)], [(3,)], (3,))
        assert found == pytest.approx(slope, rel=1e-9)


def test_normalisation_bounds_its_runs_inside_and_across_blocks() -> None:
    shape = (4, 6)
    found = _output(Normalize((1,), 0.5, True), [_known(shape, 2.0)], [shape], shape)
    assert found.run == pytest.approx(math.sqrt(6 * 4 / (4 + 6 * 0.5)))
    assert found.column == pytest.approx(math.sqrt(5 * 4 * 4 / (4 + 24 * 0.5)))
    assert found.max_abs == pytest.approx(math.sqrt(5 * 4 / (4 + 6 * 0.5)))


def test_division_by_a_norm_bounds_its_runs() -> None:
    op, shape = DivideByNorm((1,), _number(0.5, 2), 0.1), (4, 6)
    near = Fact.of(shape, 3.0, Interval(np.zeros((1, 1)), np.full((1, 1), INF)), column=0.01)
    found = _output(op, [near], [shape], shape)
    assert found.run == pytest.approx(0.1 * math.sqrt(6))  # six columns of norm 0.01, over 0.1
    assert found.column == pytest.approx(0.1)
    assert found.box.lo.min() == 0.0
    far = _output(op, [_known(shape, 1e9)], [shape], shape)
    assert far.run == pytest.approx(2.0)
    assert far.max_abs == pytest.approx(2.0)
    no_radius = _output(DivideByNorm((1,), _number(0.0, 2), 0.1), [near], [shape], shape)
    assert no_radius.norm == INF


def test_a_quotient_by_a_length_is_bounded() -> None:
    shape, length = (2, 3), (2, 1)
    x = _known(shape, 5.0)
    divisor = _output(ReduceNorm((1,), 2, 0.25), [x], [shape], length)
    assert divisor.box.lo.min() == pytest.approx(0.5)
    found = _output(Divide(), [x, divisor], [shape, length], shape)
    assert found.norm == pytest.approx(10.0)


@pytest.mark.parametrize("index", [0, 1])
def test_a_divisor_that_may_be_zero_has_no_bound(index: int) -> None:
    facts = [_known((3,), 1.0), _known((3,), box=_everywhere(-1e-9, 1.0, 1))]
    assert _stretch(Divide(), index, facts, [(3,), (3,)], (3,)) == INF
    assert _output(Divide(), facts, [(3,), (3,)], (3,)).norm == INF


@pytest.mark.parametrize("op", [Multiply(), MatMul()])
def test_products_of_unbounded_values_have_no_bound(op: Op) -> None:
    shape = (2, 2)
    facts = [_known(shape, 1.0), _known(shape)]
    assert _stretch(op, 0, facts, [shape, shape], shape) == INF
    assert _stretch(op, 1, facts, [shape, shape], shape) == pytest.approx(1.0)


def test_matrices_times_vectors_have_no_rule() -> None:
    facts = [_known((2, 3), 1.0), _known((3,), 1.0)]
    assert _output(MatMul(), facts, [(2, 3), (3,)], (2,)).norm == INF
    assert _stretch(MatMul(), 1, facts, [(2, 3), (3,)], (2,)) == INF


def test_attention_on_unbounded_tokens() -> None:
    shapes = ((2, 3), (3, 4), (4, 3))
    unknown = [_known(shape) for shape in shapes]
    assert _stretch(Attention(1.0), 0, unknown, shapes, (2, 3)) == INF
    assert _stretch(Attention(1.0), 1, unknown, shapes, (2, 3)) == INF
    assert _stretch(Attention(1.0), 2, unknown, shapes, (2, 3)) == pytest.approx(math.sqrt(2))


def test_attention_without_scores_spreads_evenly() -> None:
    """All probabilities are 1/4, unless a mask leaves one token: two queries, one column."""
    shapes = ((2, 3), (3, 4), (4, 3))
    facts = [_known(shapes[0], 0.0), _known(shapes[1], 1.0), _known(shapes[2], 1.0)]
    even = _stretch(Attention(1.0), 2, facts, shapes, (2, 3))
    assert even == pytest.approx(math.sqrt(0.5))
    lone = np.array([[0.0, -INF, -INF, -INF], [0.0, 0.0, -INF, -INF]])
    hidden = _stretch(Attention(1.0, Operand(lone, lone)), 2, facts, shapes, (2, 3))
    assert hidden == pytest.approx(math.sqrt(1.5))
    unsure = Operand(np.full((2, 4), -INF), np.zeros((2, 4)))
    assert _stretch(Attention(1.0, unsure), 2, facts, shapes, (2, 3)) == pytest.approx(math.sqrt(2))


def test_attention_to_equal_tokens_does_not_see_the_scores() -> None:
    token = exact(np.ones((4, 1)))
    shapes = ((2, 3), (3, 4), (4, 3))
    facts = [_known(shapes[0], 5.0), _known(shapes[1], 7.0), _known(shapes[2], box=token)]
    assert _stretch(Attention(2.0), 0, facts, shapes, (2, 3)) < 1e-12


def test_attention_heads_that_share_their_keys_have_no_rule() -> None:
    shapes = ((2, 2, 3), (1, 3, 4), (1, 4, 3))
    facts = [_known(shape, 1.0) for shape in shapes]
    assert _output(Attention(1.0), facts, shapes, (2, 2, 3)).norm == INF
    assert _stretch(Attention(1.0), 2, facts, shapes, (2, 2, 3)) == INF


def test_windows_that_read_padding_only_have_no_bound() -> None:
    padded = Window((1,), (1,), (1,), (1,), (3,))
    facts = [_known((1, 1, 1), 1.0)]
    for op in (MaxPool(padded), LpPool(padded, 2)):
        assert _output(op, facts, [(1, 1, 1)], (1, 1, 3)).norm == INF
        assert _stretch(op, 0, facts, [(1, 1, 1)], (1, 1, 3)) == INF


def test_lengths_with_a_negative_floor_have_no_bound() -> None:
    op, facts = ReduceNorm((0,), 2, -1.0), [_known((3,), 1.0)]
    assert _output(op, facts, [(3,)], (1,)).norm == INF
    assert _stretch(op, 0, facts, [(3,)], (1,)) == INF


def test_the_logarithm_of_a_softmax_passes_a_hull_on() -> None:
    shape, x = (1, 4), _known((1, 4))
    cotangent = Cotangent(1.5, Hull(4, 1.0))
    arguments = [x], [shape], shape, POINT, "y"
    kept = nonlinear.pulled(Softmax(1, logarithm=True), 0, cotangent, *arguments)
    assert kept == cotangent
    used = nonlinear.pulled(Softmax(1, logarithm=False), 0, cotangent, *arguments)
    assert used == Cotangent(0.75)
    two = [_known((2, 2))], [(2, 2)], (2, 2), POINT, "y"
    split = nonlinear.pulled(Softmax(1, logarithm=True), 0, cotangent, *two)
    assert split.hull is None


def test_other_steps_are_refused() -> None:
    with pytest.raises(TypeError):
        _output("no op", [_known((1,))], [(1,)], (1,))  # type: ignore[arg-type]
    assert nonlinear.slopes(Sort(0), _known((1,)), POINT) is None
