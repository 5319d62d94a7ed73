"""Per-example gradients in numpy are those of torch's autograd, whatever shows the parameters."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lipcert.gradient_stats.examples import random_examples
from lipcert.gradient_stats.measure import Network, parameter_gradients, stack_size
from lipcert.graph.ir import Graph, Operand, Parameter
from lipcert.losses import loss_gradients, make_loss
from lipcert.measure.losses import per_example_loss
from tests.domains import box_and_ball
from tests.measure.gradient_norms.oracle import gradients
from tests.models.shipped import NAMES, graph_of
from tests.networks import chain, random_graph
from tests.ops import Activation, Dense, Embedding, moved
from tests.plain_losses import CLASS_LOSSES, TARGET_LOSSES

RNG = np.random.default_rng(3)
COUNT = 4
WEIGHTS = np.array([0.5, -1.0, 2.0, 0.25])


def agrees(
    graph: Graph, x: np.ndarray, y: np.ndarray, loss, rtol: float = 1e-9, least: float = 1e-5
) -> int:
    """Every gradient, one by one, in norm and in a weighted sum; how many are not 0.

    least: what counts as a gradient at all.
    """
    truth = gradients(graph, x, y, partial(per_example_loss, loss))
    found = parameter_gradients(Network.of(graph), x, lambda z: loss_gradients(loss, z, y))
    lively = 0
    for name, expected in truth.items():
        rows = expected.reshape(len(x), -1)
        if name not in found:
            assert not rows.any()
            continue
        scale = max(float(np.abs(rows).max()), least)
        np.testing.assert_allclose(
            np.sqrt(found[name].squares()), np.linalg.norm(rows, axis=1), rtol=rtol,
            atol=rtol * scale,
        )  # fmt: skip
        weights = np.resize(WEIGHTS, len(x))
        np.testing.assert_allclose(
            found[name].total(weights), weights @ rows, rtol=rtol, atol=10 * rtol * scale
        )
        lively += bool(rows.any())
    return lively


@given(seed=st.integers(0, 10**6), loss=st.sampled_from([*CLASS_LOSSES, *TARGET_LOSSES]))
def test_random_networks(seed: int, loss) -> None:
    """Every kind of step, branches, shared and transposed and scaled weights, every loss."""
    graph = random_graph(seed)
    assume(graph is not None and len(graph.output_shape) == 1 and graph.output_shape[0] > 1)
    shape = graph.input_shape
    drawn = random_examples(
        shape, box_and_ball(math.prod(shape), 2.0), loss, graph.output_shape, COUNT
    )
    # the softplus of torch is linear from 20 on: what is left of a slope there is 2e-9
    agrees(graph, drawn.x, drawn.y, loss, rtol=1e-7, least=0.1)


@pytest.mark.parametrize("name", NAMES)
def test_shipped_networks(name: str) -> None:
    graph = graph_of(name)
    x = RNG.random((2, *graph.input_shape))
    y = RNG.integers(graph.output_shape[-1], size=2)
    lively = agrees(graph, x, y, make_loss("cross-entropy"))
    assert lively == len(graph.parameters)
    assert stack_size(Network.of(graph)) > 1


def view(theta: np.ndarray, places: np.ndarray, scale: float = 1.0) -> Operand:
    places = places.astype(np.int32)
    array = np.where(places >= 0, theta.reshape(-1)[places], 0.0) * scale
    return Operand(array, "theta", places=places, scale=scale)


VIEWS = {
    "transposed": np.arange(12).reshape(4, 3).T,
    "repeated": np.arange(12).reshape(3, 4) % 5,
    "padded": np.where(np.arange(12).reshape(3, 4) % 4 == 3, -1, np.arange(12).reshape(3, 4)),
    "one entry": np.full((3, 4), 7),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("uses", [1, 2])
def test_views_of_a_parameter(name: str, uses: int) -> None:
    """Each entry once, several times or not at all; by one step, or by two with other factors."""
    theta = RNG.standard_normal(12)
    first = Dense(view(theta, VIEWS[name], 0.5))
    again = Dense(view(theta, np.arange(12).reshape(4, 3), -2.0))
    graph = chain((4,), first, Activation("tanh"), *([again] if uses == 2 else []))
    graph = replace(graph, parameters={"theta": Parameter("theta", (12,))})
    x, outputs = RNG.standard_normal((COUNT, 4)), graph.output_shape[0]
    y = RNG.integers(outputs, size=COUNT)
    assert agrees(graph, x, y, make_loss("cross-entropy")) == 1


@pytest.mark.parametrize("repeated", [False, True])
def test_tables_of_embeddings(repeated: bool) -> None:
    """Rows that examples choose, some of them twice; with a row that a view shows again."""
    theta = RNG.standard_normal((6, 4))
    places = np.arange(24).reshape(6, 4)
    table = view(theta, places[[0, 1, 2, 3, 4, 0]] if repeated else places)
    last = Operand(RNG.standard_normal((3, 20)), "last")
    graph = chain((5,), Embedding(table), moved(lambda x: x.reshape(1, 20)), Dense(last))
    parameters = {**graph.parameters, "theta": Parameter("theta", (6, 4))}
    graph = replace(graph, parameters=parameters, ids=6)
    x = RNG.integers(6, size=(COUNT, 5)).astype(np.float64)
    y = RNG.integers(3, size=COUNT)
    assert agrees(graph, x, y, make_loss("cross-entropy")) == 2


def test_frozen_parameters_have_no_gradients() -> None:
    weights = [Operand(RNG.standard_normal((3, 3)), name) for name in ("a", "b")]
    graph = chain((3,), *map(Dense, weights))
    frozen = {name: replace(item, trainable=name == "b") for name, item in graph.parameters.items()}
    network = Network.of(replace(graph, parameters=frozen))
    assert list(parameter_gradients(network, np.ones((2, 3)), np.ones_like)) == ["b"]
