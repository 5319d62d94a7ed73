"""Joint kernels and lines about windows, against convolutions one after the other, and ascent."""

import math
from dataclasses import replace

import numpy as np
import pytest

from lipcert.core.certificate import ScopeClaim
from lipcert.core.interval import Interval
from lipcert.core.lines.proof import Proof
from lipcert.core.lines.windows import WindowFact, kernels_of, layers_of, ties_of
from lipcert.core.norms import ENGINES
from lipcert.core.norms.joint_kernels import Layout
from lipcert.core.program import Activation, Place, Program, Step
from lipcert.core.rules.facts import Fact
from lipcert.core.window_kinds import Conv
from lipcert.graph.evaluate import evaluate_batch
from lipcert.search.windows import window_line
from tests.core.forged import PREMISES
from tests.core.norms.convolutions import window_of
from tests.core.norms.test_raised import follows
from tests.core.rules.cases import exactly

RELU = Activation("relu")
SCOPE = ScopeClaim("point", (), ())


def random_proof(seed: int, depth: int = 2, engine: str = "float", radius: float = 3.0) -> Proof:
    """Of convolutions and ReLUs in a row, of any geometry, from any x ≥ 0 of a norm."""
    rng = np.random.default_rng(seed)
    axes = int(rng.integers(1, 3))
    size, channels = tuple(rng.integers(4, 8, axes).tolist()), int(rng.integers(1, 3))
    shape, steps, below = (1, channels, *size), [], "x"
    shapes = {"x": shape}
    for layer in range(depth):
        taps = tuple(int(rng.integers(1, 1 + min(3, n))) for n in shape[2:])
        pads = [tuple(rng.integers(0, 2, axes).tolist()) for _ in range(2)]
        strides = tuple(rng.integers(1, 3, axes).tolist())
        dilations = tuple(rng.integers(1, 2 + (min(shape[2:]) > 4), axes).tolist())
        window = window_of(taps, shape[2:], strides, dilations, *pads)
        outputs = int(rng.integers(1, 4))
        kernel = rng.standard_normal((outputs, shape[1], *taps)) / math.prod(taps) ** 0.5
        bias = exactly(0.3 * rng.standard_normal(outputs)) if rng.random() < 0.5 else None
        shape = (1, outputs, *window.outputs)
        op = Conv(exactly(kernel), bias, window, 1, transposed=False)
        names = f"u{layer + 1}", f"v{layer + 1}"
        steps.append(Step(op, (below,), names[0], shape, 2 * layer))
        steps.append(Step(RELU, names[:1], names[1], shape, 2 * layer + 1))
        shapes.update(dict.fromkeys(names, shape))
        below = names[1]
    program = Program("x", below, shapes, tuple(steps), Place(0), ())
    proof = Proof(program, PREMISES, SCOPE, ENGINES[engine])
    box = Interval(np.zeros(shapes["x"]), np.full(shapes["x"], np.inf))
    proof.facts["x"] = Fact.of(shapes["x"], radius, box)
    for name, shape in shapes.items():
        if name.startswith("v"):
            proof.facts[name] = Fact.of(shape, 1e3)
    return proof


def climbed(proof: Proof, radius: float) -> dict[str, np.ndarray]:
    """Values at many x ≥ 0 of a norm, some of which climb towards a large end by random steps."""
    rng, shape = np.random.default_rng(0), proof.program.shapes["x"]
    x = rng.random((60, *shape)) * (rng.random((60, *shape)) < 0.6)

    def held(x: np.ndarray) -> np.ndarray:
        norms = np.sqrt((x**2).sum(axis=tuple(range(1, x.ndim)), keepdims=True))
        return x * (radius / np.maximum(norms, 1e-9))

    def lengths(values: dict[str, np.ndarray]) -> np.ndarray:
        return np.linalg.norm(values[proof.program.output].reshape(60, -1), axis=1)

    values = evaluate_batch(proof.program, x := held(x.reshape(60, *shape)))
    for turn in range(60):
        moved = held(np.maximum(x + 0.9**turn * rng.standard_normal(x.shape) * radius / 3.0, 0.0))
        others = evaluate_batch(proof.program, moved)
        better = lengths(others) > lengths(values)
        x[better] = moved[better]
        values = evaluate_batch(proof.program, x)
    return dict(values)


def path(proof: Proof) -> tuple[tuple[str, ...], str]:
    *values, value = (step.output for step in proof.program.steps)
    return tuple(values), value


def drawn(proof: Proof, seed: int) -> WindowFact:
    """Numbers by chance, and the gain that they have in truth."""
    rng = np.random.default_rng(seed)
    values, value = path(proof)
    kernels = kernels_of(proof, layers_of(proof, values, value))
    layout = Layout.of([kernel.frame for kernel in kernels])
    ties = [
        (rng.random(at.shape) * np.where(np.eye(at.shape[1]), 2.0, 0.2)).ravel()
        for at in layout.own[1:]
    ]
    added = [(0.3 * rng.random(at.size)).tolist() for at in layout.below]
    line = WindowFact(
        value=value,
        values=values,
        ties=tuple(map(tuple, (tie.tolist() for tie in ties))),
        added=tuple(map(tuple, added)),
        levels=tuple((0.1 + rng.random(len(ties))).tolist()),
        scales=tuple((0.5 + rng.random(len(ties) + 1)).tolist()),
        shift=float(rng.random() * 5.0),
        gain=0.0,
        method="explicit",
    )
    return with_gain(proof, line)


def with_gain(proof: Proof, line: WindowFact) -> WindowFact:
    """With the gain that its numbers have, and a little room."""
    layers = layers_of(proof, line.values, line.value)
    form, _ = line.joint(proof, layers)
    symmetric = matrix_of(form.frame)
    assert np.array_equal(symmetric, symmetric.T)
    return replace(line, gain=float(np.linalg.norm(symmetric, 2)) * (1.0 + 1e-9) + 1e-12)


def matrix_of(frame) -> np.ndarray:
    """Of a convolution, by the definition of one: with zeros around."""
    places, (size, _, *taps) = frame.size, frame.kernel.shape
    found = np.zeros((size, *places, size, *places))
    for out in np.ndindex(*places):
        for tap in np.ndindex(*taps):
            at = tuple(o + t - n // 2 for o, t, n in zip(out, tap, taps, strict=True))
            if all(0 <= a < n for a, n in zip(at, places, strict=True)):
                found[(slice(None), *out, slice(None), *at)] = frame.kernel[
                    (slice(None),) * 2 + tap
                ]
    return found.reshape(size * math.prod(places), -1)


@pytest.mark.sample(seed=6)
@pytest.mark.parametrize("seed", range(40))
def test_the_form_is_what_is_said_of_it(seed: int) -> None:
    """v'Hv and 2Σγv, by convolutions of values, for all kinds of windows."""
    proof = random_proof(seed, depth=2 + seed % 2)
    values, value = path(proof)
    layers = layers_of(proof, values, value)
    kernels = kernels_of(proof, layers)
    line = drawn(proof, seed)
    form, _ = line.joint(proof, layers)
    layout = Layout.of([kernel.frame for kernel in kernels])
    rng = np.random.default_rng(seed)
    names = ["x", *(layer[-1].output for layer in layers)]
    some = {name: rng.random(proof.program.shapes[name]) for name in names}
    laid, periods = [], [(1,) * len(layout.places)]
    for kernel in reversed(kernels):
        periods.insert(0, tuple(np.multiply(periods[0], kernel.frame.window.strides).tolist()))
    for name, period, scale in zip(names, periods, line.scales, strict=True):
        channels = some[name].shape[1]
        grid = np.zeros((channels, *period, *layout.places))
        for at in np.ndindex(*some[name].shape[2:]):
            phase = tuple(a % p for a, p in zip(at, period, strict=True))
            place = tuple(a // p for a, p in zip(at, period, strict=True))
            grid[(slice(None), *phase, *place)] = some[name][(0, slice(None), *at)] / scale
        laid.append(grid.reshape(-1, *layout.places))
    flat = np.concatenate(laid).ravel()
    found = flat @ matrix_of(form.frame) @ flat - line.shift * flat @ flat
    expected = float((some[names[-1]] ** 2).sum())
    for k, (layer, kernel) in enumerate(zip(layers, kernels, strict=True)):
        conv, below, above = layer[0], some[names[k]], some[names[k + 1]][0]
        tie = ties_of(line.ties[k], layout.own[k + 1])
        added = np.array(line.added[k]).reshape(len(tie), *kernel.frame.kernel.shape)
        period = periods[k + 1]
        for number, phase in enumerate(np.ndindex(*period)):
            here = (slice(None), *(slice(p, None, n) for p, n in zip(phase, period, strict=True)))
            u, more = (
                run(proof, replace(conv.op, weight=exactly(w), bias=None), below, conv)[0][here]
                for w in (kernel.frame.kernel, added[number])
            )
            bias = np.zeros(len(u)) if conv.op.bias is None else conv.op.bias.lo
            gamma = np.maximum(tie[number] @ bias, 0.0)
            v = above[here]
            expected += 2.0 * float((v * np.tensordot(tie[number], u - v, 1)).sum())
            expected += 2.0 * float((v * more).sum())
            expected += float(
                (v**2 * (gamma / line.levels[k]).reshape(-1, *[1] * (v.ndim - 1))).sum()
            )
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)


def run(proof: Proof, op: Conv, below: np.ndarray, like: Step) -> np.ndarray:
    """A convolution of a value."""
    step = replace(like, op=op, inputs=("x",), output="y", node=0)
    shapes = {"x": below.shape, "y": like.shape}
    program = Program("x", "y", shapes, (step,), Place(0), ())
    return evaluate_batch(program, below[None])["y"][0]


@pytest.mark.sample(seed=6)
@pytest.mark.parametrize("seed", range(60))
def test_no_numbers_prove_what_is_false(seed: int) -> None:
    proof = random_proof(seed, depth=2 + seed % 2)
    for radius in (3.0, 0.01):
        proof.facts["x"] = Fact.of(proof.program.shapes["x"], radius, proof.facts["x"].box)
        values = climbed(proof, radius)
        norms = {
            name: np.linalg.norm(v.reshape(len(v), -1), axis=1).max() for name, v in values.items()
        }
        for name in list(proof.facts)[1:]:
            proof.facts[name] = Fact.of(proof.program.shapes[name], float(norms[name]) * 1.0001)
        line = drawn(proof, seed)
        found = follows(proof, line)
        assert norms[proof.program.output] * (1.0 - 1e-9) <= found < math.inf
        assert math.isinf(follows(proof, replace(line, gain=line.gain * (1.0 - 1e-6))))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", [1])
def test_searched_numbers_are_below_what_each_layer_says(seed: int, engine: str) -> None:
    proof = random_proof(seed, engine=engine)
    values, value = path(proof)
    reached = climbed(proof, 3.0)
    layers = layers_of(proof, values, value)
    norms, gain = [3.0], 3.0
    for layer, kernel in zip(layers, kernels_of(proof, layers), strict=True):
        bias = 0.0 if layer[0].op.bias is None else np.abs(layer[0].op.bias.lo).sum()
        size = math.prod(layer[0].shape[2:]) ** 0.5
        gain = gain * np.linalg.norm(kernel.frame.matrix(), 2) + bias * size
        norms.append(float(gain))
        proof.facts[layer[-1].output] = Fact.of(layer[-1].shape, float(gain))
    line = window_line(proof, proof.program.steps, norms)
    found = follows(proof, line)
    most = float(np.linalg.norm(reached[value].reshape(60, -1), axis=1).max())
    assert most * (1.0 - 1e-9) <= found <= 0.8 * norms[-1]


def one_layer(weight: list[float], bias: list[float] | None = None, least: float = 0.0) -> Proof:
    """Of relu(w·x + b) at each of four places of x, of norm 1 and at least some number."""
    outputs = len(weight)
    op = Conv(
        exactly(np.array(weight).reshape(-1, 1, 1)),
        None if bias is None else exactly(np.array(bias)),
        window_of((1,), (4,)), 1, transposed=False,
    )  # fmt: skip
    shapes = {"x": (1, 1, 4), "u": (1, outputs, 4), "v": (1, outputs, 4)}
    steps = Step(op, ("x",), "u", shapes["u"], 0), Step(RELU, ("u",), "v", shapes["v"], 1)
    proof = Proof(Program("x", "v", shapes, steps, Place(0), ()), PREMISES, SCOPE, ENGINES["float"])
    box = Interval(np.full((1, 1, 4), least), np.full((1, 1, 4), np.inf))
    proof.facts["x"], proof.facts["v"] = Fact.of(shapes["x"], 1.0, box), Fact.of(shapes["v"], 10.0)
    return proof


def line_of(tie: list[float], added: list[float], **more: object) -> WindowFact:
    numbers = {"levels": (1.0,), "scales": (1.0, 1e3), "shift": 1e7, "gain": 0.0} | more
    return WindowFact(
        value="v", values=("u",), ties=(tuple(tie),), added=(tuple(added),), method="explicit",
        **numbers,
    )  # fmt: skip


def test_ties_between_channels() -> None:
    """relu(x) and relu(−x): the second takes part in u₂ ≤ v₂ alone, as often as one likes."""
    proof = one_layer([1.0, -1.0])
    line = with_gain(proof, line_of([1.0, 0.5, 0.0, 1.0], [0.0, 1.0]))
    assert follows(proof, line) == pytest.approx(3.0**0.5, rel=1e-2)


def test_a_bias_at_every_place() -> None:
    """Attained: 3 at four places, by γτ alone."""
    line = line_of([1.0], [0.0], levels=(3.0,), scales=(1.0, 1.0), shift=0.0, gain=1e-9)
    assert 6.0 <= follows(one_layer([0.0], [3.0]), line) <= 6.0001


def test_what_a_window_needs() -> None:
    proof = one_layer([1.0])
    line = with_gain(proof, line_of([1.0], [0.0]))
    assert 1.0 <= follows(proof, line) <= 1.01
    assert math.isinf(follows(one_layer([1.0], least=-1e-9), line))
    assert math.isinf(follows(proof, replace(line, gain=line.gain * (1.0 - 1e-3))))
    for more in (
        {"levels": (0.0,)},
        {"scales": (1.0,)},
        {"scales": ()},
        {"ties": ((1.0, 1.0),)},
        {"added": ()},
    ):
        assert math.isinf(follows(proof, replace(line, **more)))
    huge = line_of([1e308], [0.0])
    assert math.isinf(follows(one_layer([1.0], [10.0]), huge))
    for steps in (proof.program.steps[:1], proof.program.steps[1:]):
        values = tuple(step.output for step in steps)
        assert math.isinf(follows(proof, replace(line, values=values[:-1], value=values[-1])))
    proof.free = frozenset({"w"})
    used = exactly(np.ones((1, 1, 1)))
    first = proof.program.steps[0]
    moved = replace(first.op, weight=replace(used, sources={"w": 1.0}))
    proof.steps["u"] = replace(first, op=moved)
    assert math.isinf(follows(proof, line))


def test_no_window_of_a_relu_with_a_limit_or_of_other_values() -> None:
    proof = one_layer([1.0])
    line = with_gain(proof, line_of([1.0], [0.0]))
    proof.steps["v"] = replace(proof.steps["v"], op=Activation("clip", (0.0, 6.0)))
    assert math.isinf(follows(proof, line))
    proof.steps["v"] = replace(proof.steps["v"], op=RELU, inputs=("x",))
    assert math.isinf(follows(proof, line))
