"""Björck iterations before a projection, where orthogonal weights have norm 1."""

import numpy as np
import pytest

from lipcert.errors import UsageError
from lipcert.graph.geometry import Window
from tests.networks import chain, trained
from tests.ops import Conv, Dense, Scale
from tests.training.projection.networks import declared, floats, graph_of, projector, true_norm

RADIUS = 0.8


def spread(matrix: np.ndarray) -> float:
    """How far the singular values are from the radius."""
    return float(np.abs(np.linalg.svd(matrix, compute_uv=False) / RADIUS - 1.0).max())


@pytest.mark.parametrize("shape", [(6, 10), (10, 6), (7, 7)])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_dense_weights_become_orthogonal(shape: tuple[int, int], scale: float) -> None:
    graph = graph_of((shape[1],), Dense(trained("w", np.ones(shape))))
    weights = {"w": floats(scale * np.random.default_rng(0).standard_normal(shape))}
    projection = projector(graph, weights, declared(radius=RADIUS), orthogonalize=25)
    for _ in range(2):
        projection.project()
        assert spread(weights["w"].double().numpy()) < 1e-5
        assert true_norm(graph, weights) <= RADIUS * (1.0 - 1e-9)


def test_a_few_iterations_after_each_small_step() -> None:
    random = np.random.default_rng(0)
    graph = graph_of((12,), Dense(trained("w", np.ones((12, 12)))))
    weights = {"w": floats(np.linalg.qr(random.standard_normal((12, 12)))[0])}
    projection = projector(graph, weights, declared(radius=RADIUS), orthogonalize=2)
    for _ in range(10):
        weights["w"].add_(floats(0.01 * random.standard_normal((12, 12))))
        projection.project()
        assert spread(weights["w"].double().numpy()) < 1e-3


def test_convolutions_of_disjoint_windows() -> None:
    window = Window(8, 2, 2)
    kernel = np.ones((6, 4, 2, 2))
    graph = graph_of((8, 8, 8), Conv(trained("w", kernel), None, (window, window), 2))
    weights = {"w": floats(np.random.default_rng(0).standard_normal(kernel.shape))}
    projector(graph, weights, declared(radius=RADIUS), orthogonalize=25).project()
    for part in weights["w"].double().numpy().reshape(2, 3, 16):
        assert spread(part) < 1e-5
    assert true_norm(graph, weights) == pytest.approx(RADIUS, rel=1e-5)


def test_zero_weights_stay_zero() -> None:
    weights = {"w": floats(np.zeros((4, 4)))}
    graph = graph_of((4,), Dense(trained("w", np.eye(4))))
    projector(graph, weights, orthogonalize=3).project()
    assert not weights["w"].any()


def test_windows_that_overlap_and_what_is_no_matrix_are_left_out() -> None:
    window = Window(8, 3, 1, 1, 1, 1)
    graph = chain(
        (2, 8),
        Conv(trained("k", np.ones((2, 2, 3))), None, (window,)),
        Scale(trained("s", np.ones(8))),
        Dense(trained("w", np.ones((5, 8))), trained("b", np.ones(5))),
    )
    shapes = {"k": (2, 2, 3), "s": (8,), "w": (5, 8), "b": (5,)}
    weights = {name: floats(np.ones(shape)) for name, shape in shapes.items()}
    projection = projector(graph, weights, orthogonalize=3)
    assert set(projection.orthogonal) == {"w"}
    assert not projector(graph, weights).orthogonal


def test_it_is_refused_where_it_means_nothing() -> None:
    graph = graph_of((4,), Dense(trained("w", np.eye(4))))
    with pytest.raises(UsageError, match="orthogonalize"):
        projector(graph, {"w": floats(np.eye(4))}, declared("frobenius"), orthogonalize=3)
