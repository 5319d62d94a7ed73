"""Raised kernels, against ascent over inputs without negative entries."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.core.certificate import ScopeClaim
from lipcert.core.interval import Interval, exact
from lipcert.core.line import NotProved
from lipcert.core.lines.gains import GainFact, constants_of, copies_of
from lipcert.core.lines.proof import Proof
from lipcert.core.norms import ENGINES
from lipcert.core.norms.claim import NormWitness
from lipcert.core.norms.convolution import Convolution, Kernel, kernel_of
from lipcert.core.norms.raised import raised_kernel, tap_of_all
from lipcert.core.program import Activation, Dense, Move, Operand, Place, Program, Step
from lipcert.core.rules.facts import Fact
from lipcert.core.token_kinds import Scale, Shift
from lipcert.core.window_kinds import Conv
from lipcert.graph.evaluate import evaluate_batch
from lipcert.search.raising import gains, numbers_to_raise
from tests.core.forged import PREMISES, proved
from tests.core.norms.convolutions import window_of
from tests.core.norms.test_fused import batch_norm, chain, pad_move, runs
from tests.core.rules.cases import exactly

RELU = Activation("relu")


def matrix_kernel(matrix: np.ndarray) -> Kernel:
    shape = (1, matrix.shape[1]), (1, matrix.shape[0])
    return Kernel.of(Dense(exactly(matrix), None), *shape)


def random_map(seed: int) -> tuple[np.ndarray, np.ndarray, float]:
    """W, b and a radius; biases of either sign, or none; some rows and columns of zeros."""
    rng = np.random.default_rng(seed)
    rows, columns = (int(n) for n in rng.integers(1, 12, 2))
    matrix = rng.standard_normal((rows, columns)) * rng.choice([1e-3, 1.0, 1e3])
    matrix = -np.abs(matrix) if rng.random() < 0.1 else matrix
    matrix[rng.random(rows) < 0.05], matrix[:, rng.random(columns) < 0.05] = 0.0, 0.0
    shift = rng.choice([-1.0, 0.0, 1.0]) * np.abs(matrix).mean()
    return matrix, shift + rng.choice([0.0, 0.3]) * matrix[:, 0], float(rng.choice([0.1, 1.0, 7.0]))


def longest(matrix: np.ndarray, constants: np.ndarray, radius: float, starts: int = 60) -> float:
    """‖relu(Wx + b)‖ at the best x ≥ 0 of some ascents: a convex function of x."""
    rng = np.random.default_rng(0)
    size = max(float(np.abs(matrix).max()), float(np.abs(constants).max())) or 1.0
    matrix, constants = matrix / size, constants / size
    x = rng.random((starts, matrix.shape[1])) * (rng.random((starts, matrix.shape[1])) < 0.6)
    best = float(np.linalg.norm(np.maximum(constants, 0.0)))
    for _ in range(60):
        x *= radius / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-150)
        values = np.maximum(x @ matrix.T + constants, 0.0)
        best = max(best, float(np.linalg.norm(values, axis=1).max()))
        x = np.maximum(values @ matrix, 0.0)
    return best * size


def bound(matrix: np.ndarray, constants: np.ndarray, radius: float, numbers) -> float:
    """That of numbers, in exact arithmetic but for the last digits; inf for none."""
    raised = proved(raised_kernel, matrix_kernel(matrix), constants, numbers)
    if raised is None:
        return math.inf
    norm = float(np.linalg.norm(raised.frame.kernel[:, :, 0], 2))
    return norm * math.hypot(radius, numbers[2][0])


@pytest.mark.sample(seed=14)
@pytest.mark.parametrize("seed", range(40))
def test_no_numbers_prove_what_is_false(seed: int) -> None:
    matrix, constants, radius = random_map(seed)
    rng, reached = np.random.default_rng(seed), longest(matrix, constants, radius)
    size = float(np.abs(matrix).mean()) ** 0.5
    for spread in (0.1, 1.0, 3.0):
        p, q = (size * np.exp(spread * rng.standard_normal(n + k)) for n, k in
                zip(matrix.shape, (0, 1), strict=True))  # fmt: skip
        numbers = (tuple(p.tolist()), tuple(q.tolist()), (float(rng.random() + 1e-3),))
        assert bound(matrix, constants, radius, numbers) >= reached * (1 - 1e-12)


def test_searched_numbers_are_next_to_what_is_attained() -> None:
    ratios = []
    for seed in range(40):
        matrix, constants, radius = random_map(seed)
        reached = longest(matrix, constants, radius)
        numbers = numbers_to_raise(matrix_kernel(matrix), constants, radius, 1, math.inf)
        assert numbers is not None or not matrix.any()
        if numbers is not None:
            found = bound(matrix, constants, radius, numbers)
            assert reached * (1 - 1e-12) <= found
            ratios += [found / reached] if reached > 0.0 else []
    assert np.median(ratios) <= 1.02
    assert np.quantile(ratios, 0.75) <= 1.2


def test_a_matrix_of_signs_by_chance() -> None:
    """Of norm 2 in the limit; where no entry is negative, √2."""
    matrix, zero = np.random.default_rng(0).standard_normal((64, 64)) / 8.0, np.zeros(64)
    numbers = numbers_to_raise(matrix_kernel(matrix), zero, 1.0, 1, math.inf)
    assert bound(matrix, zero, 1.0, numbers) <= 1.15 * longest(matrix, zero, 1.0)
    assert bound(matrix, zero, 1.0, numbers) <= 0.85 * np.linalg.norm(matrix, 2)


def test_nothing_is_searched_in_vain() -> None:
    """Where what is known is attained, and where numbers leave what float64 holds."""
    matrix, constants = np.array([[1.0, 2.0]]), np.zeros(1)
    for size, norm, limit in ((1.0, 1.0, 5.0**0.5), (1e60, 1.0, math.inf), (1.0, math.inf, 9.0)):
        kernel = matrix_kernel(size * matrix)
        assert numbers_to_raise(kernel, constants, norm, 1, limit) is None


# lines ---------------------------------------------------------------------------------------


def proof_of(
    steps,
    shapes: dict[str, tuple[int, ...]],
    norm: float,
    engine: str = "float",
    activation: Activation = RELU,
) -> Proof:
    """Of a ReLU behind steps from any x ≥ 0 of a norm."""
    end = steps[-1]
    above = Step(activation, (end.output,), "relu", end.shape, len(steps))
    shapes = {**shapes, "relu": end.shape}
    program = Program("x", "relu", shapes, (*steps, above), Place(0), ())
    proof = Proof(program, PREMISES, ScopeClaim("point", (), ()), ENGINES[engine])
    shape = shapes["x"]
    proof.facts["x"] = Fact.of(shape, norm, Interval(np.zeros(shape), np.full(shape, np.inf)))
    return proof


def affine_map(proof: Proof) -> tuple[np.ndarray, np.ndarray]:
    """The matrix of the steps below the ReLU, and what they make of 0: by unit vectors."""
    shape = proof.program.shapes["x"]
    units = np.eye(math.prod(shape)).reshape(-1, *shape)
    both = np.concatenate([np.zeros((1, *shape)), units])
    values = evaluate_batch(proof.program, both)[proof.program.steps[-2].output]
    flat = values.reshape(len(both), -1)
    return (flat[1:] - flat[0]).T, flat[0]


def follows(proof: Proof, line) -> float:
    """What a line finds; inf for nothing."""
    try:
        return line.evaluate(proof).norm
    except NotProved:
        return math.inf


def searched(proof: Proof) -> GainFact | None:
    """The first line that is proposed and follows."""
    lines = gains(proof, proof.program.steps, proof.facts["x"].norm, math.inf)
    return next((line for line in lines if follows(proof, line) < math.inf), None)


@given(runs(), st.integers(0, 10**6), st.sampled_from([1e-100, 1e-3, 1.0, 1e3, 1e100]))
def test_no_line_about_a_run_says_what_is_false(run, seed, scale):
    steps, shapes = run
    rng = np.random.default_rng(seed)
    end = steps[-1]
    shift = Shift(exactly(rng.standard_normal((1, *end.shape[1:])) * rng.choice([0.0, 1.0])))
    factor = Scale(exactly(np.full((1,) * len(end.shape), scale)))
    names = [end.output, "shifted", "scaled"]
    more = [
        Step(op, (below,), value, end.shape, len(steps) + number)
        for number, (op, below, value) in enumerate(
            zip((shift, factor), names[:-1], names[1:], strict=True)
        )
    ]
    shapes = {**shapes, "shifted": end.shape, "scaled": end.shape}
    proof = proof_of([*steps, *more], shapes, float(rng.choice([0.1, 1.0, 10.0])))
    reached = longest(*affine_map(proof), proof.facts["x"].norm, 20)
    kernel = kernel_of(proof.program.steps[:-1], proof.program.shapes)
    line, norm = searched(proof), proof.facts["x"].norm
    if kernel.adjoint or tap_of_all(kernel.frame) is None:
        assert line is None
        return
    if line is None:
        size = float(np.abs(kernel.entries.hi).mean()) ** 0.5
        entries = kernel.frame.groups * kernel.entries.hi[0].size
        drawn = ((size,) * len(kernel.entries.hi), (size,) * (entries + 1), (norm,))
        line = GainFact(
            value="relu",
            values=tuple(step.output for step in proof.program.steps[:-1]),
            numbers=drawn,
            gain=0.0,
            method="explicit",
        )
    else:
        assert follows(proof, line) >= reached * (1.0 - 1e-9)
    upper = constants_of(proof.program.steps[:-1], proof)
    for spread in (0.0, 0.5, 2.0):
        numbers = tuple(
            tuple((np.array(part) * np.exp(spread * rng.standard_normal(len(part)))).tolist())
            for part in line.numbers
        )
        raised = raised_kernel(kernel, upper, numbers)
        if raised.frame.is_small:
            gain = float(np.linalg.norm(raised.frame.matrix(), 2))
            other = replace(line, numbers=numbers, gain=gain * (1.0 + 1e-7), method="explicit")
            assert reached * (1.0 - 1e-9) <= follows(proof, other)
            copies = copies_of(end.shape, len(raised.frame.kernel), raised.frame.groups)
            stated = gain * math.hypot(norm, copies**0.5 * numbers[2][0])
            assert follows(proof, other) <= stated * (1.0 + 1e-6) or stated == 0.0
            lower = replace(line, numbers=numbers, gain=gain * (1.0 - 1e-6))
            assert math.isinf(follows(proof, lower)) or gain == 0.0


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_of_signs_by_chance(engine: str, stride: int) -> None:
    """Far below what signs of all kinds admit, and next to what is attained; also the bias."""
    rng = np.random.default_rng(1)
    kernel, bias = rng.standard_normal((8, 6, 3, 3)) / 8.0, 0.1 * rng.standard_normal(8)
    window = window_of((3, 3), (6, 6), (stride,) * 2, before=(1, 1), after=(1, 1))
    conv = Conv(exactly(kernel), exactly(bias), window, 1, transposed=False)
    after = (1, 8, *window.outputs)
    proof = proof_of(*chain((1, 6, 6, 6), (conv, after)), 4.0, engine)
    matrix, constants = affine_map(proof)
    reached, line = longest(matrix, constants, 4.0), searched(proof)
    found = follows(proof, line)
    assert reached <= found <= 1.35 * reached
    assert found <= 0.95 * (4.0 * np.linalg.norm(matrix, 2) + np.linalg.norm(constants))
    assert math.isinf(follows(proof, replace(line, gain=line.gain * (1.0 - 1e-6))))


def test_a_bias_reaches_every_output() -> None:
    """Nothing but the bias, at every place, of each of two groups."""
    conv = Conv(
        exactly(np.zeros((2, 1, 3))), exactly(np.array([3.0, 4.0])),
        window_of((3,), (4,), before=(1,), after=(1,)), 2, transposed=False,
    )  # fmt: skip
    layer = Dense(exactly(np.zeros((4, 4))), None)
    assert searched(proof_of(*chain((1, 4), (layer, (1, 4))), 1.0)) is None
    proof = proof_of(*chain((1, 2, 4), (conv, (1, 2, 4))), 0.0)
    numbers = ((1.0,) * 2, (1.0,) * 7, (1.0,))
    line = GainFact(value="relu", values=("v0",), numbers=numbers, gain=4.001, method="torus")
    assert 10.0 <= follows(proof, line) <= 11.4
    assert math.isinf(follows(proof, replace(line, gain=3.99)))


@pytest.mark.parametrize("method", ["dense", "windows"])
def test_tokens_of_a_matrix_between_limits(method: str) -> None:
    """Weights at most 3 and 4, of a number at each of two tokens, from 0 to 2 in all."""
    weight = Operand(np.array([[1.0], [2.0]]), np.array([[3.0], [4.0]]))
    proof = proof_of(*chain((1, 2, 1), (Dense(weight, None), (1, 2, 2))), 2.0)
    numbers = ((0.0,) * 2, (0.0,) * 2, (1e-9,))
    line = GainFact(value="relu", values=("v0",), numbers=numbers, gain=5.0 + 1e-6, method=method)
    assert 10.0 <= follows(proof, line) <= 10.001
    assert math.isinf(follows(proof, replace(line, gain=4.999)))


def test_where_padding_hides_a_tap() -> None:
    """A window of two taps, each of which reads padding at one end: no tap is of all outputs."""
    conv = Convolution(np.ones((1, 1, 2)), (3,), window_of((2,), (3,), before=(1,), after=(1,)))
    assert tap_of_all(conv) is None
    kernel = Kernel(exact(conv.kernel), conv, adjoint=False)
    assert proved(raised_kernel, kernel, np.ones(1), ((1.0,), (1.0,) * 3, (1.0,))) is None


def test_tokens_have_a_bias_each() -> None:
    """3 and 4 at either token: norms of rows, and of all."""
    dense = Dense(exactly(np.zeros((2, 2))), exactly(np.array([3.0, 4.0])))
    proof = proof_of(*chain((1, 2, 2), (dense, (1, 2, 2))), 0.0)
    numbers = ((0.0,) * 2, (0.0,) * 3, (1.0,))
    line = GainFact(value="relu", values=("v0",), numbers=numbers, gain=5.0001, method="dense")
    found = line.evaluate(proof)
    assert 50.0**0.5 <= found.norm <= 7.1
    assert 5.0 <= found.row_norm <= 5.01


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_to_raise_is_attained(engine: str) -> None:
    """Of W, b ≥ 0, by the x that suits them: no bound is below, in exact arithmetic."""
    matrix, constants = np.array([[0.1, 0.7], [0.3, 0.2]]), np.array([0.1, 0.3])
    dense = Dense(exactly(matrix), exactly(constants))
    for x in ([0.6, 0.8], [0.0, 1.0], [0.5, 0.5], [0.8, 0.6]):
        exact_x = [Fraction(n) for n in x]
        values = [
            sum((Fraction(w) * n for w, n in zip(row, exact_x, strict=True)), Fraction(b))
            for row, b in zip(matrix.tolist(), constants.tolist(), strict=True)
        ]
        square = sum((n * n for n in exact_x), Fraction(0))
        norm = math.nextafter(math.sqrt(square), 2.0)
        line = searched(proof_of(*chain((1, 2), (dense, (1, 2))), norm, engine))
        found = Fraction(follows(proof_of(*chain((1, 2), (dense, (1, 2))), norm, engine), line))
        assert sum((v * v for v in values), Fraction(0)) <= found**2


@pytest.mark.parametrize(
    "numbers",
    [
        (),
        ((1.0,), (1.0, 1.0), ()),
        ((1.0,), (1.0,), (1.0,)),
        ((1.0, 1.0), (1.0, 1.0), (1.0,)),
        ((1.0,), (1.0, 1.0), (0.0,)),
        ((1.0,), (1.0, 1.0), (5e-324,)),
        ((1e308,), (1e308, 1.0), (1e308,)),
        ((1.0,), (1.0, 1.0), (math.inf,)),
    ],
)
def test_unusable_numbers(numbers) -> None:
    dense = Dense(exactly(np.array([[-1.0]])), exactly(np.ones(1)))
    proof = proof_of(*chain((1, 1), (dense, (1, 1))), 0.0)
    line = GainFact(value="relu", values=("v0",), numbers=numbers, gain=1e300, method="dense")
    assert follows(proof, line) >= 1.0


def test_what_is_no_run_below_a_relu() -> None:
    """Values that are missing, in another order, of other steps; entries that may be negative."""
    dense = Dense(exactly(np.eye(2)), None)
    steps, shapes = chain((1, 2), (dense, (1, 2)), (dense, (1, 2)))
    proof = proof_of(steps, shapes, 1.0)
    line = GainFact(
        value="relu", values=("v1",), numbers=((0.0,) * 2, (0.0,) * 3, (1.0,)), gain=9.0,
        method="dense",
    )  # fmt: skip
    proof.facts["v0"] = proof.facts["x"]
    assert follows(proof, line) < math.inf
    for values in ((), ("v0",), ("v0", "v1"), ("v1", "v0"), ("relu",)):
        assert math.isinf(follows(proof, replace(line, values=values)))
    assert math.isinf(follows(proof, replace(line, value="v1", values=("v0",))))
    low = np.array([[-1e-300, 0.0]])
    proof.facts["v0"] = Fact.of((1, 2), 1.0, Interval(low, np.ones((1, 2))))
    assert math.isinf(follows(proof, line))


@pytest.mark.parametrize(
    ("activation", "is_one"),
    [
        (RELU, True),
        (Activation("clip", (0.0, 6.0)), True),
        (Activation("clip", (0.0, 0.0)), True),
        (Activation("clip", (-1e-9, 6.0)), False),
        (Activation("clip", (1e-9, 6.0)), False),
        (Activation("leaky_relu", (0.0,)), False),
    ],
)
def test_relus_with_a_limit(activation: Activation, is_one: bool) -> None:
    """Between 0 and max(x, 0); and what a line says of one, against a grid."""
    matrix, bias = np.array([[4.0, -3.0], [1.0, 5.0]]), np.array([-1.0, 1.0])
    dense = Dense(exactly(matrix), exactly(bias))
    proof = proof_of(*chain((1, 2), (dense, (1, 2))), 1.5, activation=activation)
    line = searched(proof_of(*chain((1, 2), (dense, (1, 2))), 1.5))
    assert (follows(proof, line) < math.inf) is is_one
    angles = np.linspace(0.0, np.pi / 2, 200)
    x = 1.5 * np.stack([np.cos(angles), np.sin(angles)], axis=1)[:, None]
    values = evaluate_batch(proof.program, x)["relu"]
    assert np.linalg.norm(values, axis=(1, 2)).max() <= follows(proof, line) * (1.0 + 1e-12)


def test_upper_limits_of_every_entry() -> None:
    """Normalised weights between limits, moved and with a shift: no corner is above K'."""
    rng = np.random.default_rng(0)
    low = rng.standard_normal((3, 2, 2, 2))
    high = low + 0.1 * rng.random(low.shape)
    lines = [np.array([-1, 0, 1, 2])] * 2
    move, normalisation = Move(pad_move((1, 2, 3, 3), lines)), batch_norm(rng, 3)
    window = window_of((2, 2), (4, 4))
    for own in (low, high):
        corner = Conv(exactly(own), None, window, 1, transposed=False)
        wide = Conv(replace(exactly(low), hi=high), None, window, 1, transposed=False)
        shape = (1, 3, 3, 3)
        kernels = []
        for conv in (corner, wide):
            parts = [(move, (1, 2, 4, 4)), (conv, shape), (normalisation, shape)]
            steps, shapes = chain((1, 2, 3, 3), *parts)
            kernel = kernel_of(steps, shapes)
            kernels.append(kernel)
        numbers = ((0.0,) * 3, (0.0,) * 9, (1.0,))
        raised = raised_kernel(kernels[1], np.zeros(3), numbers)
        assert (raised.frame.kernel[:, :2] >= np.maximum(kernels[0].entries.lo, 0.0)).all()


def test_a_witness_names_its_route() -> None:
    """Routes that are none, and those of another kind of map, prove nothing."""
    raised = raised_kernel(matrix_kernel(np.eye(2)), np.zeros(2), ((0.0,) * 2, (0.0,) * 3, (1.0,)))
    check = ENGINES["float"].norms
    assert raised.norm_at_most(1.01, NormWitness("dense"), check)
    assert not raised.norm_at_most(1.01, NormWitness("by the way"), check)
