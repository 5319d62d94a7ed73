"""Whole networks: uses of parameters, values and cotangents, against single-example autograd."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from lipcert.errors import NoVerdictError
from lipcert.graph.geometry import Window
from lipcert.graph.ir import Graph, Operand, Parameter
from lipcert.measure.gradient_norms import NormEngine
from lipcert.measure.gradient_norms.plan import operand_gradient, prefers_channels_last
from tests.measure.gradient_norms.oracle import CPU, assert_close, network_of, truth
from tests.models.shipped import NAMES, graph_of
from tests.networks import chain, dag, reshaped, trained, transposed
from tests.ops import Activation, Add, BatchNorm, Conv, Dense, Maker, Normalize, Scale, Shift

DTYPES = {torch.float32: 1e-3, torch.float64: 1e-9}
SMALL = tuple(name for name in NAMES if name.startswith("digits"))


def cross_entropy(labels):
    return lambda logits: functional.cross_entropy(logits, labels, reduction="none")


def batch(graph: Graph, examples: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.standard_normal((examples, *graph.input_shape))).float()
    return x, torch.from_numpy(rng.integers(0, graph.output_shape[-1], examples))


def check(graph: Graph, examples: int = 3, memory_limit: int = 2**26, seed: int = 0) -> None:
    x, labels = batch(graph, examples, seed)
    for dtype, relative in DTYPES.items():
        network = network_of(graph, dtype)
        engine = NormEngine(network, memory_limit=memory_limit)
        found = engine.measure(x.to(dtype), cross_entropy(labels))
        one = truth(network, x, lambda out, i: functional.cross_entropy(out, labels[i : i + 1]))
        assert set(found.parameters) == set(graph.parameters)
        assert set(found.values) == set(one[1])
        assert {graph.output_name} <= set(found.cotangents) <= set(one[2])
        assert_close(found, one, relative)
        bare = NormEngine(network, watch_values=False).measure(x.to(dtype), cross_entropy(labels))
        assert not {**bare.values, **bare.cotangents}
        for name, measured in bare.parameters.items():
            np.testing.assert_allclose(measured.norm, found.parameters[name].norm, rtol=relative)


def weights(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape) / np.sqrt(shape[-1])


def view(name: str, theta: np.ndarray, places: np.ndarray, scale: float = 1.0) -> Operand:
    places = places.astype(np.int32)
    array = np.where(places >= 0, theta.reshape(-1)[places], 0.0) * scale
    return Operand(array, name, places=places, scale=scale)


def with_parameter(
    graph: Graph, name: str, shape: tuple[int, ...], trainable: bool = True
) -> Graph:
    parameters = {**graph.parameters, name: Parameter(name, shape, trainable)}
    return dataclasses.replace(graph, parameters=parameters)


def tokens(*steps: tuple[str, Maker, tuple[str, ...]]) -> Graph:
    """A network on [4 tokens, 6 features] that ends in 5 scores."""
    last = steps[-1][0]
    head = Dense(trained("head", weights(5, 24, seed=9)))
    return dag((4, 6), [*steps, ("flat", reshaped(24), (last,)), ("scores", head, ("flat",))])


@pytest.mark.parametrize("memory_limit", [1, 2**26])
def test_uses_of_many_kinds(memory_limit: int) -> None:
    theta = weights(12, 6)
    everywhere = np.arange(72).reshape(12, 6)
    upper, lower = everywhere[:6], everywhere[6:]
    repeated, with_zeros = np.repeat(lower[:3], 2, axis=0), lower.copy()
    with_zeros[::2] = -1
    for first, second in (
        (view("w", theta, upper), view("w", theta, lower, 3.0)),
        (view("w", theta, upper.T), view("w", theta, lower[::-1], -0.5)),
        (view("w", theta, upper), view("w", theta, everywhere[3:9])),
        (view("w", theta, upper), view("w", theta, repeated, 2.0)),
        (view("w", theta, upper), view("w", theta, with_zeros)),
        (view("w", theta, upper), view("w", theta, upper.T, -1.0)),
    ):
        graph = tokens(
            *(("a", Dense(first), ("x",)), ("r", Activation("relu"), ("a",))),
            *(("b", Dense(second), ("r",)), ("c", Add((1.0, 1.0)), ("a", "b"))),
        )
        check(with_parameter(graph, "w", (12, 6)), memory_limit=memory_limit)


def test_one_parameter_in_two_slots() -> None:
    theta = trained("s", weights(6))
    norm = Normalize((1,), 1e-3, centred=True)
    affine = Scale(theta, theta)
    check(tokens(("n", norm, ("x",)), ("a", affine, ("n",)), ("m", Scale(theta), ("a",))))


def test_a_value_that_is_passed_on_unchanged_keeps_its_own_cotangent() -> None:
    theta = trained("w", weights(6, 6))
    check(
        tokens(
            ("a", Dense(theta), ("x",)),
            ("t", transposed(0, 1), ("a",)),
            ("v", reshaped(4, 6), ("t",)),
            ("c", Add((1.0, 1.0)), ("v", "a")),
            ("d", Add((1.0, 1.0)), ("c", "t")),
        )
    )


@pytest.mark.parametrize("channels", [1, 3, 8])
def test_images_by_pixels(channels: int) -> None:
    even, odd = Window(6, 3, 1, 1, 1, 1), Window(6, 2, 2, 1, 0, 1)
    graph = chain(
        (channels, 6, 6),
        Conv(trained("k1", weights(8, channels, 3, 3)), trained("b1", weights(8)), (even, even)),
        Activation("relu"),
        Conv(trained("k2", weights(4, 4, 2, 3, seed=2)), None, (odd, even), 2),
        BatchNorm(
            weights(4),
            np.full(4, 0.8),
            trained("s", weights(4, seed=3)),
            trained("t", weights(4, seed=4)),
        ),
        Conv(trained("k3", weights(5, 4, 3, 3)), None, (Window(3, 3, 1, 1, 1, 1), even)),
        reshaped(90),
        Dense(trained("w", weights(3, 90))),
    )
    assert prefers_channels_last(graph, torch.float32, CPU)
    assert not prefers_channels_last(graph, torch.float64, CPU)
    check(graph, examples=5)


def test_a_reshaped_value_that_is_normalised_by_channels() -> None:
    statistics = weights(4, seed=2), np.full(4, 0.8)
    graph = chain(
        (2, 4, 6),
        Shift(trained("b", weights(2, 4, 6))),
        reshaped(4, 12),
        BatchNorm(*statistics, trained("s", weights(4)), trained("t", weights(4))),
        reshaped(48),
        Dense(trained("w", weights(3, 48))),
    )
    check(graph)


def test_a_second_pass_where_the_first_left_doubts() -> None:
    graph = chain(
        (8, 4),
        Dense(trained("w", weights(3, 4))),
        reshaped(24),
        Dense(trained("v", weights(2, 24))),
    )
    network = network_of(graph, torch.float32)
    x, labels = batch(graph, 6)
    passes = []

    def losses_of(logits):
        passes.append(len(logits))
        return cross_entropy(labels)(logits)

    direct = NormEngine(network).measure(x, losses_of)
    deferring = NormEngine(network, defer=True)
    found = deferring.measure(x, losses_of)
    assert len(passes) == 2
    for name, measured in direct.parameters.items():
        np.testing.assert_allclose(found.parameters[name].norm, measured.norm, rtol=1e-5)
    x[2] = 1e30  # squares that overflow are known too loosely
    again = deferring.measure(x, losses_of)
    assert len(passes) == 4
    exact = NormEngine(network).measure(x, losses_of)
    for name, measured in exact.parameters.items():
        np.testing.assert_allclose(again.parameters[name].norm, measured.norm, rtol=1e-5)


def test_no_output_is_kept_as_a_leaf_where_a_trained_map_comes_first() -> None:
    """A gradient edge of a leaf keeps the leaf, here the largest value, until the pass ends."""
    rng = np.random.default_rng(0)
    ops = [Dense(trained("w", rng.standard_normal((9, 4)))), Activation("relu")]
    network = network_of(chain((4,), *ops), torch.float32)
    begun = NormEngine(network, defer=True).begun(torch.ones(2, 4))
    assert [edge.node.name() for _, _, edge in begun.reached] != ["torch::autograd::AccumulateGrad"]


def test_frozen_and_unused_parameters() -> None:
    graph = chain((4,), Dense(trained("u", weights(4, 4))), Dense(trained("v", weights(3, 4))))
    frozen = with_parameter(with_parameter(graph, "u", (4, 4), False), "unused", (7,))
    x, labels = batch(frozen, 3)
    found = NormEngine(network_of(frozen)).measure(x.double(), cross_entropy(labels))
    assert set(found.parameters) == {"v", "unused"}
    assert not np.any([found.parameters["unused"].norm, found.parameters["unused"].error])
    assert set(found.cotangents) == {"v1"}


def test_nothing_is_trained() -> None:
    graph = with_parameter(chain((4,), Dense(trained("u", weights(3, 4)))), "u", (3, 4), False)
    x, labels = batch(graph, 2)
    found = NormEngine(network_of(graph)).measure(x.double(), cross_entropy(labels))
    assert not found.parameters
    assert len(found.losses) == 2


def test_no_examples() -> None:
    graph = chain((4,), Dense(trained("u", weights(3, 4))))
    found = NormEngine(network_of(graph)).measure(torch.zeros(0, 4).double(), lambda z: z.sum(1))
    assert found.losses.shape == found.parameters["u"].norm.shape == (0,)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_show_in_their_own_example_only(bad: float) -> None:
    graph = tokens(
        ("a", Dense(trained("w", weights(6, 6)), trained("b", weights(6))), ("x",)),
        ("n", Normalize((1,), 1e-3, centred=True), ("a",)),
        ("m", Scale(trained("s", weights(6)), trained("t", weights(6))), ("n",)),
    )
    x, labels = batch(graph, 4)
    for dtype in DTYPES:
        engine = NormEngine(network_of(graph, dtype))
        good = engine.measure(x.to(dtype), cross_entropy(labels))
        spoilt = x.to(dtype)
        spoilt[2, 1, 3] = bad
        found = engine.measure(spoilt, cross_entropy(labels))
        assert not np.isfinite(found.losses[2])
        for name, measured in found.parameters.items():
            assert not np.isfinite(measured.norm[2]), name
            others = (np.delete(item.norm, 2) for item in (measured, good.parameters[name]))
            np.testing.assert_allclose(*others, rtol=1e-5)
        assert not np.isfinite(found.values["x"].norm[2])


def test_large_and_small_numbers_neither_overflow_nor_vanish() -> None:
    graph = chain((5, 6), Dense(trained("w", weights(3, 6))))
    x, _ = batch(graph, 3)
    for exponent in (-25, -12, 15, 30):
        engine = NormEngine(network_of(graph, torch.float32))
        scale = 10.0**exponent
        found = engine.measure(x * scale, lambda z: z.sum((1, 2))).parameters["w"]
        true = np.sqrt(3.0) * torch.linalg.vector_norm((x * scale).double().sum(1), dim=1).numpy()
        assert np.all(np.abs(found.norm - true) <= found.error)
        assert np.all(found.error <= 1e-3 * true + 1e-15)


@given(st.integers(2, 40), st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**31))
def test_gradients_that_cancel(positions: int, before: int, after: int, seed: int) -> None:
    """A and B nearly orthogonal: BᵀA is a millionth of ‖A‖‖B‖."""
    rng = np.random.default_rng(seed)
    graph = chain((positions, before), Dense(trained("w", rng.standard_normal((after, before)))))
    half = rng.standard_normal((3, positions, before))
    x = torch.from_numpy(half).float()
    b = rng.standard_normal((3, positions, after))
    q, _ = np.linalg.qr(half)
    b = torch.from_numpy(b - q @ (q.transpose(0, 2, 1) @ b) + 1e-6 * b).float()
    network = network_of(graph, torch.float32)
    found = NormEngine(network).measure(x, lambda z: (z * b).sum((1, 2))).parameters["w"]
    exact, _, _ = truth(network, x, lambda out, i: out * b[i : i + 1].double())
    assert np.all(np.abs(found.norm - exact["w"]) <= found.error + 1e-14)
    assert np.all(found.error <= 0.06 * found.norm + 1e-9)


@pytest.mark.parametrize("name", ["digits_cnn", "digits_mixer"])
def test_norms_repeat_to_the_bit(name: str) -> None:
    graph = graph_of(name)
    x, labels = batch(graph, 5)
    network = network_of(graph, torch.float32)
    found = [NormEngine(network).measure(x, cross_entropy(labels)) for _ in range(2)]
    for parameter, measured in found[0].parameters.items():
        np.testing.assert_array_equal(measured.norm, found[1].parameters[parameter].norm)


@pytest.mark.parametrize(
    ("name", "memory_limit"), [*((name, 2**26) for name in SMALL), ("digits_cnn", 1)]
)
def test_shipped_models(name: str, memory_limit: int) -> None:
    check(graph_of(name), examples=2, memory_limit=memory_limit, seed=3)


def test_under_autocast_the_norms_are_those_of_the_rounded_tensors() -> None:
    graph = tokens(("a", Dense(trained("w", weights(6, 6)), trained("b", weights(6))), ("x",)))
    x, labels = batch(graph, 3)
    engine = NormEngine(network_of(graph, torch.float32))
    plain = engine.measure(x, cross_entropy(labels))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = engine.measure(x, cross_entropy(labels))
    for name, measured in low.parameters.items():
        np.testing.assert_allclose(measured.norm, plain.parameters[name].norm, rtol=0.05)
        assert not np.array_equal(measured.norm, plain.parameters[name].norm)
        assert np.all(measured.error <= 1e-3 * measured.norm)


def test_an_unknown_operand_is_refused() -> None:
    own = {"weight": trained("w", weights(2, 2))}
    node = dataclasses.replace(Activation("relu")((2,)), operands=own)
    with pytest.raises(NoVerdictError, match=r"'node' \(Relu\).*weight"):
        operand_gradient(node, "weight", {})
