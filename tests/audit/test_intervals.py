"""The audit's intervals attacked: independent truth, attained bounds, and what is not a number."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lipcert.audit.bounds import Claims, claims_of_analysis
from lipcert.audit.replay import Bench, scale_of
from lipcert.audit.unit_results import ALL, Family, Tallies
from lipcert.core import program
from lipcert.gradient_stats.examples import Examples
from lipcert.graph.ir import Graph, Operand, Parameter
from lipcert.losses import targets_of
from lipcert.measure.losses import per_example_loss
from lipcert.measure.lowering import lowered
from lipcert.measure.precision import Precision
from lipcert.privacy.noise import Group
from lipcert.settings.settings import Settings
from tests.audit.test_replay import replayer
from tests.measure.gradient_norms.oracle import network_of, truth
from tests.networks import (
    chain,
    dag,
    group_norm,
    orthogonal,
    random_graph,
    reshaped,
    trained,
    transposed,
)
from tests.ops import Activation, Dense, Normalize, ReduceNorm, Scale, Sort, evaluate
from tests.plain_losses import CLASS_LOSSES, TARGET_LOSSES
from tests.written import model_of

CPU = torch.device("cpu")
EXACT, SINGLE, HALF = Precision.FLOAT64, Precision.FLOAT32, Precision.BFLOAT16
KINKED_OPS = {"PRelu", "MaxPool", "LpPool", "Sort", "ReduceMax", "ReduceNorm"}
KINKED = {"relu", "abs", "leaky_relu", "soft_threshold", "clip", "hard_sigmoid", "hard_swish"}
KINKED_LOSSES = {"mae", "multiclass-hinge", "multi-margin", "hkr"}


def claims_of(graph: Graph, settings: Settings) -> Claims:
    return claims_of_analysis(model_of(graph), settings)


def unclaimed(graph: Graph, loss) -> Claims:
    """A network of which nothing is claimed, each parameter a group."""
    premises = SimpleNamespace(clip=None)
    engine = SimpleNamespace(graph=graph, loss=loss, premises=premises)
    groups = tuple(Group(name, 1, parameters=(name,)) for name in graph.parameters)
    return Claims("test", Settings(), engine, {}, {}, groups)


def random_inputs(shape: tuple[int, ...], count: int, generator: torch.Generator) -> torch.Tensor:
    sizes = torch.logspace(-3, 1, count, dtype=torch.float64).reshape(-1, *[1] * len(shape))
    return sizes * torch.randn(count, *shape, generator=generator, dtype=torch.float64)


def replayed(claims: Claims, x, y, precision: Precision) -> Tallies:
    examples = Examples(np.asarray(x), np.asarray(y), "test")
    found = replayer(claims, precision).replay(examples, 0, len(examples))
    assert found.checks == ()
    return found.tallies


def violated(tallies: Tallies) -> set[tuple[Family, str]]:
    return {(f, n) for f, found in tallies.items() for n, t in found.items() if t.violations}


def undecided(tallies: Tallies) -> set[tuple[Family, str]]:
    return {(f, n) for f, found in tallies.items() for n, t in found.items() if t.undecided}


def is_smooth(graph: Graph) -> bool:
    ops = [node.op for node in graph.nodes]
    inner = {op.name for op in ops if isinstance(op, program.Activation)}
    return not ({type(op).__name__ for op in ops} & KINKED_OPS or inner & KINKED)


def truth_of(graph: Graph, x, y, loss):
    """One example after another, by autograd through plain code."""
    gradients, values, cotangents = truth(
        network_of(graph), torch.tensor(x), lambda z, i: per_example_loss(loss, z, y[i : i + 1])
    )
    whole = np.sqrt(sum(norms**2 for norms in gradients.values()))
    return {
        Family.VALUE: values,
        Family.COTANGENT: cotangents,
        Family.GRADIENT: gradients,
        Family.WHOLE: {ALL: whole},
    }


@pytest.mark.sample(5)
@pytest.mark.parametrize("seeds", [range(k, k + 10) for k in range(0, 90, 10)], ids=str)
def test_intervals_of_smooth_networks_hold_the_truth(seeds: range) -> None:
    tried = [check_intervals(seed) for seed in seeds]
    assert any(tried)


def check_intervals(seed: int) -> bool:
    """Whether the network of a seed is smooth, and all is within its interval."""
    graph = random_graph(seed)
    if (
        graph is None
        or not is_smooth(graph)
        or len(graph.output_shape) > 1
        or graph.output_shape[0] < 2
    ):
        return False
    losses = [one for one in CLASS_LOSSES + TARGET_LOSSES if one.kind not in KINKED_LOSSES]
    loss = losses[seed % len(losses)]
    claims = unclaimed(graph, loss)
    generator = torch.Generator().manual_seed(seed)
    x = random_inputs(graph.input_shape, 3, generator).numpy()
    y = np.random.default_rng(seed).random((3, *graph.output_shape)) / graph.output_shape[0]
    if not targets_of(loss):
        y = y.argmax(axis=1)
    true = truth_of(graph, x, torch.tensor(y), loss)
    for precision in (EXACT, SINGLE):
        bench = Bench(claims, precision, CPU, None, watch_values=True)
        norms = bench.measure(x, y)
        for family in Family:
            if family is Family.WHOLE and precision is SINGLE:
                continue  # not judged, and so without a share for what cancels in the filter
            largest = scale_of(norms, family)
            share = precision.cancelled if precision is EXACT else 1e-6
            for name, measured in norms[family].items():
                expected = true[family][name]
                width = measured.error + precision.margin * measured.norm + share * largest
                slack = 1e-12 * expected + 1e-14  # of the oracle itself
                off = np.abs(measured.norm - expected)
                assert np.all(off <= width + slack), (seed, family, name)
    return True


def at_kinks(rng: np.random.Generator) -> tuple[Claims, np.ndarray, np.ndarray, np.ndarray]:
    """A ReLU network, and examples at which one neuron is as near to 0 as float32 can say."""
    weight = rng.standard_normal((8, 6)).astype(np.float32).astype(float)
    last = rng.standard_normal((3, 8)).astype(np.float32).astype(float)
    first = Dense(trained("a", weight))
    graph = chain((6,), first, Activation("relu"), Dense(trained("b", last)))
    x = rng.standard_normal((100, 6))
    x -= np.outer(x @ weight[0], weight[0]) / (weight[0] @ weight[0])
    x = (0.9 * x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32).astype(float)
    y = rng.integers(0, 3, 100)
    claims = claims_of(graph, Settings(input_norm=1.0, group="parameter"))
    return claims, x, y, _gradients_of_a(weight, last, x, y)


def _gradients_of_a(weight, last, x, y) -> np.ndarray:
    """‖∂loss/∂a‖ by hand."""
    hidden = x @ weight.T
    logits = np.maximum(hidden, 0.0) @ last.T
    odds = np.exp(logits)
    errors = odds / odds.sum(axis=1, keepdims=True) - np.eye(3)[y]
    cotangents = (errors @ last) * (hidden > 0.0)
    return np.linalg.norm(cotangents, axis=1) * np.linalg.norm(x, axis=1)


def test_beside_a_kink_float32_speaks_of_its_own_branch_and_float64_tells() -> None:
    """What an interval is not: it covers right bounds, not the other slope of a ReLU."""
    claims, x, y, true = at_kinks(np.random.default_rng(0))
    outside = {}
    for precision in (SINGLE, EXACT):
        bench = Bench(claims, precision, CPU, None)
        found = bench.measure(x, y)[Family.GRADIENT]["a"]
        width = found.error + precision.margin * found.norm + 1e-13
        outside[precision] = int(np.count_nonzero(np.abs(found.norm - true) > width))
    assert outside[SINGLE] > 0
    assert outside[EXACT] == 0
    for precision in (SINGLE, EXACT, HALF):
        assert not violated(replayed(claims, x, y, precision))


def lipschitz_network() -> Graph:
    """Orthogonal layers around a sort: every bound is attained, up to the rounding of weights."""
    first, last = (Dense(trained(n, orthogonal(6, k))) for k, n in enumerate(("a", "b")))
    return chain((6,), first, reshaped(3, 2), Sort(1), reshaped(6), last)


def sphere(count: int, radius: float, dtype: type = np.float64) -> np.ndarray:
    x = np.random.default_rng(3).standard_normal((count, 6))
    return (radius * x / np.linalg.norm(x, axis=1, keepdims=True)).astype(dtype)


ATTAINED = [
    ({"loss": "kr"}, False),
    ({"loss": "mae"}, True),
    ({"loss": "cosine", "cosine_floor": 5.0}, True),
    ({"loss": "mse", "label_norm": 0.7}, True),
    ({"loss": "cross-entropy", "loss_clip": 0.25}, False),
    ({"mechanism": "backprop-clipping", "input_clip": 0.5, "cotangent_clip": 0.1}, False),
    ({"mechanism": "gradient-clipping", "clip_norm": 0.1}, False),
    ({"mechanism": "gradient-clipping", "clip_norm": 0.1, "clip_scope": "group"}, False),
]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(("settings", "by_target"), ATTAINED, ids=str)
def test_bounds_that_are_attained_pass_and_any_smaller_ones_do_not(
    settings, by_target: bool, dtype: type
) -> None:
    graph = lipschitz_network()
    claims = claims_of(graph, Settings(input_norm=2.0, **settings))
    x = sphere(24, 2.0, dtype)
    y: np.ndarray = np.arange(24) % 6
    if by_target:
        away = -evaluate(graph, x.astype(np.float64))[graph.output_name]
        away *= settings.get("label_norm", 1.0) / np.linalg.norm(away, axis=1, keepdims=True)
        y = away.astype(dtype)
    small = dataclasses.replace(
        claims,
        groups=tuple(
            dataclasses.replace(g, grad_norm=g.grad_norm * (1.0 - 1e-5)) for g in claims.groups
        ),
        cotangents={name: bound * (1.0 - 1e-5) for name, bound in claims.cotangents.items()},
    )
    for precision in (SINGLE, EXACT):
        right = replayed(claims, x, y, precision)
        assert violated(right) == set()
        assert undecided(right) == set()
        clipped = settings.get("mechanism") == "gradient-clipping"
        wrong = {family for family, _ in violated(replayed(small, x, y, precision))}
        assert wrong == ({Family.GRADIENT} if clipped else {Family.GRADIENT, Family.COTANGENT})


@pytest.mark.parametrize("box", [(0.5, 1.0), (-1.0, 0.25), (-2.0, -1.0)])
def test_corners_of_the_box_pass(box: tuple[float, float]) -> None:
    graph = chain((4,), Dense(trained("w", np.eye(4))))
    claims = claims_of(graph, Settings(input_box=box, loss="kr"))
    far = max(box, key=abs)
    for precision in (SINGLE, EXACT):
        found = replayed(claims, np.full((3, 4), far), np.arange(3), precision)
        assert violated(found) == set()
        assert undecided(found) == set()


def test_saturation_and_unit_vectors_attain_their_bounds() -> None:
    """Values that equal their bound in every digit, whatever the loss."""
    graph = dag(
        (4,),
        [
            ("large", Scale(Operand(np.array(1e4))), ("x",)),
            ("signs", Activation("tanh"), ("large",)),
            ("length", ReduceNorm(2, (0,)), ("signs",)),
            ("scores", Dense(trained("w", np.ones((3, 1)))), ("length",)),
        ],
    )
    claims = claims_of(graph, Settings(input_norm=1.0))
    x = np.array([[0.5, -0.5, 0.4, 0.5], [0.1, 0.2, -0.3, 0.4]])
    for precision in (SINGLE, EXACT):
        found = replayed(claims, x, np.array([0, 1]), precision)
        assert violated(found) == set()
        assert (Family.VALUE, "signs") not in undecided(found)


@pytest.mark.parametrize("precision", [SINGLE, EXACT, HALF])
def test_gradients_that_vanish_are_within_a_bound_of_zero(precision: Precision) -> None:
    first, last = Dense(trained("a", np.eye(6))), Dense(trained("b", np.zeros((3, 6))))
    graph = chain((6,), first, Activation("tanh"), last)
    graph = dataclasses.replace(
        graph, parameters={**graph.parameters, "unused": Parameter("unused", (7,))}
    )
    claims = claims_of(graph, Settings(input_norm=2.0, group="parameter"))
    assert {g.name: g.grad_norm for g in claims.groups}["unused"] == 0.0
    found = replayed(claims, sphere(5, 1.0), np.arange(5) % 3, precision)
    assert violated(found) == undecided(found) == set()
    nothing = replayed(claims, sphere(5, 1.0)[:0], np.arange(0), precision)
    assert violated(nothing) == undecided(nothing) == set()


@pytest.mark.parametrize("watch_values", [True, False])
def test_gradients_that_cancel_are_within_a_bound_of_zero(watch_values: bool) -> None:
    """Below a layer of equal rows nothing tells the classes apart, and rounding is left."""
    rng = np.random.default_rng(0)
    first = Dense(trained("a", rng.standard_normal((6, 6))))
    row = rng.standard_normal(6)
    last = Dense(trained("b", np.tile(row, (3, 1))))
    graph = chain((6,), first, Activation("tanh"), last)
    claims = claims_of(graph, Settings(input_norm=2.0, group="parameter"))
    assert {g.name: g.grad_norm for g in claims.groups}["a"] < 1e-20
    examples = Examples(sphere(64, 1.9), np.arange(64) % 3, "test")
    bent = {"a": np.eye(6), "b": np.tile(row, (3, 1)) + 1e-9 * np.eye(3, 6)}
    for weights, expected in ((None, set()), (bent, {(Family.GRADIENT, "a")})):
        again = replayer(claims, SINGLE, weights, watch_values=watch_values)
        found = again.replay(examples, 0, 64).tallies
        assert found[Family.GRADIENT]["a"].recomputed == 64
        gradients = {item for item in violated(found) if item[0] is Family.GRADIENT}
        assert gradients - {(Family.GRADIENT, "b")} == expected
        assert undecided(found) == set()


def test_group_norm_behind_a_transpose_is_computed_from_centred_values() -> None:
    """Channels last in memory: E x² − (E x)² would make norms ten times too large."""
    rng = np.random.default_rng(1)
    affine = trained("s", np.ones(4)), trained("t", np.zeros(4))
    norm = group_norm((4, 6, 6), 2, 1e-5, *affine)
    last = Dense(trained("w", rng.standard_normal((3, 144))))
    graph = chain((6, 6, 4), transposed(2, 0, 1), *norm, reshaped(144), last)
    x = (100.0 + 0.05 * rng.standard_normal((5, 6, 6, 4))).astype(np.float32)
    radius = float(np.linalg.norm(x.astype(float).reshape(5, -1), axis=1).max()) * 1.01
    claims = claims_of(graph, Settings(input_norm=radius))
    for precision in (SINGLE, EXACT):
        assert violated(replayed(claims, x, np.arange(5) % 3, precision)) == set()
    moved = torch.from_numpy(x).permute(0, 3, 1, 2)
    assert moved.is_contiguous(memory_format=torch.channels_last)
    node = Normalize((1, 2), 1e-5, centred=True)((4, 6, 6))
    plain = lowered(node, [moved], {})
    exact = lowered(node, [moved.double()], {})
    assert float((plain - exact).norm() / exact.norm()) < 1e-2
