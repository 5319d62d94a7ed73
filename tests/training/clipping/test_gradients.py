"""Factors and clipped sums against single examples in float64."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from lipcert import load_model
from lipcert.analysis.bounded import bounded
from lipcert.core.losses.softmax import CrossEntropy
from lipcert.errors import NoVerdictError, UsageError
from lipcert.graph.geometry import Window
from lipcert.graph.ir import Graph, Operand, Parameter
from lipcert.measure.gradient_norms import NormEngine
from lipcert.settings.settings import Settings
from lipcert.training.clipping import gradients
from lipcert.training.clipping.gradients import (
    ClippedGradients,
    ClipRule,
    LiveNetwork,
    clip_factors,
)
from tests.measure.gradient_norms.test_engine import view, weights
from tests.models.shipped import NAMES, module, path_of
from tests.models.shipped import graph_of as shipped
from tests.networks import chain, dag, random_graph, trained
from tests.ops import (
    Activation,
    Add,
    Conv,
    ConvTranspose,
    Dense,
    Divide,
    Normalize,
    ReduceSum,
    Scale,
)
from tests.training.clipping import oracle

SMALL = tuple(name for name in NAMES if name.startswith("digits"))
ROUNDED = {torch.float64: 1e-5, torch.float32: 2e-3}
DECAYS = (0.0, 0.05)


def summed(graph: Graph, rule: ClipRule, x, labels, dtype=torch.float64):
    live = LiveNetwork.of(graph, oracle.tensors_of(graph, dtype))
    return ClippedGradients(live, rule).summed(x.to(dtype), labels)


def check(graph: Graph, rule: ClipRule, x, labels, dtype=torch.float64) -> None:
    tensors = oracle.tensors_of(graph, dtype)
    truth, factors = oracle.clipped_sum(graph, tensors, rule, x.to(dtype), labels)
    found = summed(graph, rule, x, labels, dtype)
    allowed = ROUNDED[dtype]
    np.testing.assert_allclose(found.factors.numpy(), factors, rtol=allowed)
    assert set(found.gradients) == set(truth)
    scale = max(float(item.norm()) for item in truth.values())
    for name, expected in truth.items():
        gradient = found.gradients[name]
        assert gradient.shape == expected.shape
        assert gradient.dtype is dtype
        assert float((gradient - expected).norm()) <= allowed * scale, name


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("name", SMALL)
def test_shipped_networks(name: str, decay: float) -> None:
    graph = shipped(name)
    x, _ = oracle.batch(graph, 3)
    labels = torch.tensor([0, 9, 3])
    check(graph, oracle.flat(graph, 0.5, decay, CrossEntropy()), x, labels, torch.float32)
    check(graph, oracle.by_parameter(graph, 0.1, decay, CrossEntropy()), x, labels)


@given(st.integers(0, 2**31), st.sampled_from(DECAYS), st.booleans())
def test_random_networks(seed: int, decay: float, is_flat: bool) -> None:
    """Branches, tied and rescaled weights, every operation with operands."""
    graph = random_graph(seed)
    assume(graph is not None and oracle.trained_names(graph))
    rule = (oracle.flat if is_flat else oracle.by_parameter)(graph, 0.3, decay)
    check(graph, rule, *oracle.batch(graph, 3, seed % 1000))


def test_a_divisor_that_is_also_a_weight() -> None:
    theta = trained("w", np.abs(weights(1, 1)))
    graph = chain((1, 1), Divide(theta), Dense(theta))
    check(graph, oracle.flat(graph, 0.3), *oracle.batch(graph, 3))


def tied(first: Operand, second: Operand, shape: tuple[int, ...]) -> Graph:
    graph = dag(
        (4, 6),
        [
            ("a", Dense(first), ("x",)),
            ("r", Activation("relu"), ("a",)),
            ("b", Dense(second), ("r",)),
            ("c", Add((1.0, 1.0)), ("a", "b")),
        ],
    )
    return dataclasses.replace(graph, parameters={"w": Parameter("w", shape)})


THETA = weights(12, 6)
EVERYWHERE = np.arange(72).reshape(12, 6)
WITH_ZEROS = np.where(np.arange(6)[:, None] % 2 == 0, -1, EVERYWHERE[6:])
REPEATED = np.repeat(EVERYWHERE[6:9], 2, axis=0)
FIRST = view("w", THETA, EVERYWHERE[:6])
SECOND = {
    "twice the same": FIRST,
    "transposed": view("w", THETA, EVERYWHERE[:6].T, -1.0),
    "overlapping": view("w", THETA, EVERYWHERE[3:9], 3.0),
    "repeated": view("w", THETA, REPEATED, 2.0),
    "zeros": view("w", THETA, WITH_ZEROS),
}
TIED = {kind: tied(FIRST, second, (12, 6)) for kind, second in SECOND.items()}


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("kind", list(TIED))
def test_tied_weights(kind: str, decay: float) -> None:
    graph = TIED[kind]
    for dtype in ROUNDED:
        check(graph, oracle.flat(graph, 0.7, decay), *oracle.batch(graph, 3), dtype)


def mlp() -> Graph:
    return chain(
        (5,),
        Dense(trained("u", weights(7, 5)), trained("a", weights(7))),
        Activation("relu"),
        Dense(trained("v", weights(3, 7)), trained("b", weights(3))),
    )


def test_no_examples() -> None:
    graph = mlp()
    found = summed(graph, oracle.by_parameter(graph, 1.0, 0.1), *oracle.batch(graph, 0))
    assert found.factors.shape == (0, 4)
    assert not any(gradient.any() for gradient in found.gradients.values())
    assert summed(graph, oracle.flat(graph, 1.0), *oracle.batch(graph, 0)).factors.shape == (0, 1)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("decay", DECAYS)
def test_an_example_that_is_not_finite_is_left_out(bad: float, decay: float) -> None:
    graph = chain(
        (4, 6),
        Normalize((1,), 0.0, centred=False),
        Scale(trained("s", weights(6))),
        Dense(trained("w", weights(3, 6)), trained("b", weights(3))),
    )
    x, y = oracle.batch(graph, 4)
    rule = oracle.by_parameter(graph, 0.5, decay)
    others = [0, 1, 3]
    expected = summed(graph, rule, x[others], y[others], torch.float32)
    x[2, 1, 3] = y[2, 0, 0] = bad
    found = summed(graph, rule, x, y, torch.float32)
    if not np.isfinite(bad):
        assert torch.all(found.factors[2] == 0.0)
    for name, gradient in expected.gradients.items():
        others_alone = found.gradients[name] - gradient
        assert torch.all(torch.isfinite(others_alone))
        assert float(others_alone.norm()) <= 0.5 * (1.0 + 1e-5)
        if not np.isfinite(bad):
            torch.testing.assert_close(found.gradients[name], gradient)


@pytest.mark.parametrize("dtype", list(ROUNDED))
@pytest.mark.parametrize(
    ("read", "written", "groups", "transposed"),
    [(1, 3, 1, False), (9, 8, 1, False), (8, 9, 1, False), (4, 6, 2, False), (3, 4, 1, True)],
)
def test_gradients_that_were_made_for_norms_are_added_up(
    read: int, written: int, groups: int, transposed: bool, dtype: torch.dtype
) -> None:
    window = Window(10, 3, 1, 1, 1, 1)
    shape = (read, written, 3, 3) if transposed else (written, read // groups, 3, 3)
    kernel, bias = trained("k", weights(*shape)), trained("b", weights(written))
    op = ConvTranspose if transposed else Conv
    graph = chain((read, 10, 10), op(kernel, bias, (window, window), groups), Activation("relu"))
    x, y = oracle.batch(graph, 5)
    live = LiveNetwork.of(graph, oracle.tensors_of(graph, dtype))
    engine = NormEngine(live.present(), defer=True)
    passed = engine.caught(x.to(dtype), lambda z: oracle.flat(graph, 1.0).losses(z, y))
    assert set(passed.caught[0].rows) == {"weight", "bias"}
    assert passed.caught[0].value is passed.caught[0].cotangent is None
    check(graph, oracle.by_parameter(graph, 4.0), x, y, dtype)
    left = [0, 1, 3, 4]
    expected = summed(graph, oracle.flat(graph, 4.0), x[left], y[left], dtype)
    x[2, 0, 3, 3] = np.nan
    found = summed(graph, oracle.flat(graph, 4.0), x, y, dtype)
    for name, gradient in expected.gradients.items():
        torch.testing.assert_close(found.gradients[name], gradient)


def test_a_single_column_of_windows_on_one_channel() -> None:
    """In float32 torch convolves such images wrongly with channels last."""
    rows, columns = Window(8, 3, 1, 1, 0, 0), Window(5, 4, 3, 1, 0, 0)
    kernel, bias = trained("k", weights(4, 1, 3, 4)), trained("b", weights(4))
    graph = chain((1, 8, 5), Conv(kernel, bias, (rows, columns)), Activation("relu"))
    assert graph.nodes[0].shape == (4, 6, 1)
    check(graph, oracle.flat(graph, 0.5), *oracle.batch(graph, 3), torch.float32)


def test_nothing_is_left_of_a_batch() -> None:
    window = Window(4, 3, 1, 1, 1, 1)
    graph = chain((1, 4, 4), Conv(trained("k", weights(2, 1, 3, 3)), None, (window, window)))
    x, y = oracle.batch(graph, 2)
    for decay in DECAYS:
        found = summed(graph, oracle.flat(graph, 0.5, decay), x * np.nan, y)
        assert not found.factors.any()
        assert not found.gradients["k"].any()


def test_norms_that_are_known_too_loosely_are_measured_again() -> None:
    """As on a GPU, which is asked once for all of them."""
    graph = shipped("digits_cnn")
    labels = torch.tensor([1, 2, 3])
    x, _ = oracle.batch(graph, 3)
    rule = oracle.flat(graph, 0.5, loss=CrossEntropy())
    expected = summed(graph, rule, x, labels, torch.float32).factors
    live = LiveNetwork.of(graph, oracle.tensors_of(graph, torch.float32))
    waiting = NormEngine(live.present(), defer=True)
    for scale in (1.0, 1e25, 1.0):
        passed = waiting.caught(scale * x.float(), lambda z: rule.losses(z, labels))
        with torch.no_grad():
            found = clip_factors(live.present(), rule, passed)
        if scale == 1.0:
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=0.0)


@pytest.mark.parametrize("exponent", [-20, -3, 0, 3, 8, 15])
@pytest.mark.parametrize("decay", [0.0, 3.0])
def test_the_clip_holds(exponent: int, decay: float) -> None:
    """No single example, however large, adds more than its radius to what is summed."""
    graph = mlp()
    rule = ClipRule(
        (oracle.clipped("first", ("u", "a"), 0.3), oracle.clipped("second", ("v", "b"), 2.0)),
        oracle.LOSS,
        weight_decay=decay,
    )
    x, y = oracle.batch(graph, 20)
    for dtype, slack in ((torch.float32, 1e-6), (torch.float64, 1e-12)):
        live = LiveNetwork.of(graph, oracle.tensors_of(graph, dtype))
        sums = ClippedGradients(live, rule)
        for i in range(20):
            one = slice(i, i + 1)
            found = sums.summed(x[one].to(dtype) * 10.0**exponent, y[one]).gradients
            for group, radius in zip(rule.groups, rule.radii, strict=True):
                assert oracle.length(found, group.parameters) <= radius * (1.0 + slack)


def test_clipping_to_much_or_to_nothing() -> None:
    graph = mlp()
    x, y = oracle.batch(graph, 3)
    free = summed(graph, oracle.flat(graph, np.inf), x, y)
    assert torch.all(free.factors == 1.0)
    closed = summed(graph, oracle.flat(graph, 0.0), x, y)
    assert torch.all(closed.factors == 0.0)
    assert not any(gradient.any() for gradient in closed.gradients.values())
    dead = dataclasses.replace(graph, parameters={**graph.parameters, "n": Parameter("n", (2,))})
    rule = ClipRule(
        (oracle.clipped("dead", ("n",), 0.0), oracle.clipped("all", ("u", "a", "v", "b"), np.inf)),
        oracle.LOSS,
    )
    tensors = {**oracle.tensors_of(graph), "n": torch.zeros(2).double()}
    found = ClippedGradients(LiveNetwork.of(dead, tensors), rule).summed(x, y)
    torch.testing.assert_close(found.gradients["u"], free.gradients["u"])
    assert not found.gradients["n"].any()


def test_decay_inside_the_clip_follows_its_formula() -> None:
    """Guo: clip(∇ℓ + λθ) for linear regression, ∇ℓ = −y·x here, θ in one dimension."""
    graph = chain((1,), Dense(trained("w", np.array([[2.0]]))))
    x, y = (
        torch.tensor([[1.0], [1.0], [1.0]]).double(),
        torch.tensor([[0.0], [3.8], [2.2]]).double(),
    )
    found = summed(graph, oracle.flat(graph, 1.0, 0.5), x, y)
    steps = np.array([2.0, -1.8, -0.2]) + 0.5 * 2.0
    np.testing.assert_allclose(
        found.gradients["w"].numpy(), np.clip(steps, -1.0, 1.0).sum(), rtol=1e-5
    )


def test_decay_that_cancels_the_gradient() -> None:
    """∇ℓ + λθ may be far shorter than both: the factor is exact, or errs to the short side."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((4, 6))
    graph = chain((6,), Dense(trained("w", w)))
    x = torch.from_numpy(rng.standard_normal((1, 6)))
    decay = 0.3
    # one example whose gradient (Wx − y)xᵀ is the best rank-one answer to −λW
    y = x @ torch.from_numpy(w.T) + decay * x @ torch.from_numpy(w.T) / x.square().sum()
    rule = oracle.flat(graph, 0.2, decay)
    for dtype in ROUNDED:
        tensors = oracle.tensors_of(graph, dtype)
        found = summed(graph, rule, x, y, dtype)
        own = oracle.of_one(graph, tensors, rule, x.to(dtype), y)
        assert float(found.factors) * oracle.length(own, ["w"]) <= 0.2 * (1.0 + 1e-6)
        assert oracle.length(found.gradients, ["w"]) >= 0.19


def test_weights_that_are_not_finite_cannot_decay() -> None:
    graph = mlp()
    tensors = oracle.tensors_of(graph)
    sums = ClippedGradients(LiveNetwork.of(graph, tensors), oracle.flat(graph, 1.0, 0.1))
    tensors["v"][0, 0] = float("nan")
    with pytest.raises(NoVerdictError, match=r"weights of 'all' hold NaN"):
        sums.summed(*oracle.batch(graph, 2))


def test_the_gradient_of_the_loss_may_be_clipped_before() -> None:
    graph = mlp()
    rule = dataclasses.replace(oracle.flat(graph, 0.4), loss_clip=0.05)
    check(graph, rule, *oracle.batch(graph, 4))


def test_frozen_parameters_have_no_gradient() -> None:
    graph = mlp()
    parameters = {
        name: dataclasses.replace(item, trainable=name not in {"u", "b"})
        for name, item in graph.parameters.items()
    }
    graph = dataclasses.replace(graph, parameters=parameters)
    for decay in DECAYS:
        check(graph, oracle.flat(graph, 0.4, decay), *oracle.batch(graph, 4))


def test_an_output_that_depends_on_nothing_trained() -> None:
    graph = chain((3,), ReduceSum((0,)))
    graph = dataclasses.replace(graph, parameters={"n": Parameter("n", (2,))})
    live = LiveNetwork.of(graph, {"n": torch.ones(2).double()})
    for decay, expected in ((0.0, 0.0), (0.5, 1.5)):
        rule = oracle.flat(graph, 10.0, decay)
        found = ClippedGradients(live, rule).summed(*oracle.batch(graph, 3)).gradients
        assert found["n"].tolist() == [expected, expected]


@pytest.mark.parametrize("scope", ["flat", "group"])
@pytest.mark.parametrize("decay", ["decoupled", "inside"])
def test_the_radius_is_what_the_noise_was_set_for(scope: str, decay: str) -> None:
    plan = Settings(
        loss="cross-entropy",
        input_norm=1.0,
        mechanism="gradient-clipping",
        clip_norm=0.8,
        clip_scope=scope,
        decay=decay,
    )
    run = bounded(load_model(path_of("digits_cnn")), plan)
    rule = ClipRule.of(run, 0.1 if decay == "inside" else 0.0)
    assert rule.radii == [group.grad_norm for group in run.groups]
    share = 0.8 if scope == "flat" else 0.8 / np.sqrt(len(run.groups))
    assert all(radius <= share * (1.0 + 1e-12) for radius in rule.radii)
    covered = [name for group in rule.groups for name in group.parameters]
    assert sorted(covered) == sorted(oracle.trained_names(run.graph))


@pytest.mark.parametrize("decay", DECAYS)
def test_a_batch_is_measured_in_parts(decay: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is forward already or not; one example cannot be measured."""
    graph = shipped("digits_cnn")
    rule = oracle.by_parameter(graph, 0.1, decay, CrossEntropy())
    x, _ = oracle.batch(graph, 7)
    x[4] = np.nan
    labels = torch.tensor([1, 2, 3, 4, 5, 6, 7])
    whole = summed(graph, rule, x, labels)
    size = 8 * sum(math.prod(node.shape) for node in graph.nodes)
    monkeypatch.setattr(gradients, "_AT_ONCE", {"cpu": 2 * size})
    live = LiveNetwork.of(graph, oracle.tensors_of(graph, torch.float64))
    sums = ClippedGradients(live, rule)
    torch.testing.assert_close(sums.forward(x), live.present().forward(x), equal_nan=True)
    asked = sums.asked(x, labels)
    torch.testing.assert_close(asked.losses, rule.losses(sums.forward(x), labels), equal_nan=True)
    torch.testing.assert_close(sums.summed(x, labels).factors, whole.factors)
    for found in (asked.gradients(), sums.summed(x, labels).gradients):
        torch.testing.assert_close(found, dict(whole.gradients))


def test_a_negative_decay_is_refused() -> None:
    with pytest.raises(UsageError, match="weight-decay"):
        oracle.flat(mlp(), 1.0, -0.1)


def test_batches_repeat_to_the_bit() -> None:
    graph = shipped("digits_cnn")
    x, _ = oracle.batch(graph, 6)
    labels = torch.tensor([1, 2, 3, 4, 5, 6])
    rule = oracle.flat(graph, 0.5, loss=CrossEntropy())
    first, second = (summed(graph, rule, x, labels, torch.float32) for _ in range(2))
    for name, gradient in first.gradients.items():
        assert torch.equal(gradient, second.gradients[name])


def test_under_autocast_the_clip_still_holds() -> None:
    """The pass rounds to bfloat16; norms and sums are those of the tensors it rounded."""
    graph = shipped("digits_cnn")
    rule = oracle.flat(graph, 0.5, 0.01, CrossEntropy())
    live = LiveNetwork.of(graph, oracle.tensors_of(graph, torch.float32))
    x, _ = oracle.batch(graph, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for i in range(5):
            one = slice(i, i + 1)
            sums = ClippedGradients(live, rule)
            found = sums.summed(10.0 * x[one].float(), torch.tensor([i])).gradients
            names = list(found)
            assert 0.4 <= oracle.length(found, names) <= 0.5 * (1.0 + 1e-6)
            assert all(gradient.dtype is torch.float32 for gradient in found.values())


def test_against_opacus() -> None:
    sampled = pytest.importorskip("opacus.grad_sample")
    optimizers = pytest.importorskip("opacus.optimizers")
    name, clip = "digits_cnn", 0.5
    graph = shipped(name)
    x, _ = oracle.batch(graph, 8)
    labels = torch.arange(8)
    theirs = sampled.GradSampleModule(module(name, torch.float64).train())
    optimizer = optimizers.DPOptimizer(
        torch.optim.SGD(theirs.parameters(), 0.1),
        noise_multiplier=0.0,
        max_grad_norm=clip,
        expected_batch_size=8,
        loss_reduction="sum",
    )
    nn.functional.cross_entropy(theirs(x), labels, reduction="sum").backward()
    optimizer.clip_and_accumulate()
    ours = summed(graph, oracle.flat(graph, clip, loss=CrossEntropy()), x, labels)
    for key, parameter in theirs.named_parameters():
        own = ours.gradients[key.removeprefix("_module.")]
        torch.testing.assert_close(own, parameter.summed_grad, rtol=1e-5, atol=1e-7)


def outputs(live: LiveNetwork, x: torch.Tensor) -> torch.Tensor:
    return live.present().forward(x)


def test_plain_tensors_are_shared() -> None:
    graph = mlp()
    tensors = oracle.tensors_of(graph)
    network = LiveNetwork.of(graph, tensors).present()
    for name, tensor in tensors.items():
        assert network.parameters[name].data_ptr() == tensor.data_ptr()
    assert network.operands(graph.nodes[0])["weight"].data_ptr() == tensors["u"].data_ptr()


def test_updates_in_place_are_followed() -> None:
    """Also where the live tensor is a transposed, or an offset, view; and by scaled operands."""
    for graph in (mlp(), *TIED.values()):
        start = oracle.tensors_of(graph)
        x, _ = oracle.batch(graph, 3)
        layouts = {
            "plain": {name: item.clone() for name, item in start.items()},
            "transposed": {
                name: item.T.contiguous().T if item.dim() == 2 else item.clone()
                for name, item in start.items()
            },
            "offset": {
                name: torch.cat([torch.zeros(3).double(), item.reshape(-1)])[3:].view(item.shape)
                for name, item in start.items()
            },
        }
        for tensors in layouts.values():
            live = LiveNetwork.of(graph, tensors)
            before = outputs(live, x)
            with torch.no_grad():
                for item in tensors.values():
                    item.mul_(1.5).add_(0.1)
            fresh = LiveNetwork.of(graph, {name: item.clone() for name, item in tensors.items()})
            after = outputs(live, x)
            assert torch.equal(after, outputs(fresh, x))
            assert not torch.allclose(before, after)
            assert live.present().graph is graph


def test_parameters_that_are_not_given_are_those_of_the_file() -> None:
    graph = mlp()
    frozen = {**graph.parameters, "u": type(graph.parameters["u"])("u", (7, 5), trainable=False)}
    graph = type(graph)("x", (5,), graph.output_name, graph.nodes, frozen)
    tensors = oracle.tensors_of(graph)
    x, _ = oracle.batch(graph, 2)
    whole = outputs(LiveNetwork.of(graph, tensors), x)
    del tensors["u"]
    assert torch.equal(outputs(LiveNetwork.of(graph, tensors), x), whole)


def test_other_types_are_refused_by_name() -> None:
    graph = mlp()
    tensors = oracle.tensors_of(graph)
    mixed = {**tensors, "v": tensors["v"].float()}
    for others in (mixed, {name: item.bfloat16() for name, item in tensors.items()}):
        with pytest.raises(NoVerdictError, match=r"is torch\..*one of float32 and float64"):
            LiveNetwork.of(graph, others)


def test_gathered_operands_are_copies_that_follow() -> None:
    graph = TIED["zeros"]
    tensors = oracle.tensors_of(graph)
    live = LiveNetwork.of(graph, tensors)
    node = graph.nodes[2]
    held = live.present().operands(node)["weight"]
    with torch.no_grad():
        tensors["w"].fill_(2.0)
    live.present()
    assert np.unique(held.numpy()).tolist() == [0.0, 2.0]
    assert trained("w", np.zeros(1)).places is None
