"""Projections of live tensors: what is stored obeys its constraint, and loses hardly anything."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lipcert.audit.bounds import claims_of_analysis
from lipcert.audit.checks.assumptions import file_weights
from lipcert.audit.records import Verdict
from lipcert.errors import NoVerdictError, UsageError
from lipcert.graph.geometry import Window
from lipcert.graph.ir import Graph, Operand, graph_at
from lipcert.settings.settings import ConstraintSpec, Settings
from lipcert.training.projection import Projector
from tests.networks import chain, dag, trained
from tests.ops import Conv, Dense, Normalize, PRelu, Scale, Shift
from tests.training.projection.networks import (
    convolutions,
    declared,
    floats,
    graph_of,
    input_shape,
    projector,
    true_norm,
)
from tests.written import model_of

INSIDE = 1.0 - 1e-9
"""of a radius: projections leave more room than a norm in float64 is off by"""


def dense(rows: int, columns: int) -> Graph:
    return graph_of((columns,), Dense(trained("w", np.ones((rows, columns)))))


def draw(shape: tuple[int, ...], seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return scale * np.random.default_rng(seed).standard_normal(shape)


@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(-20, 20),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(0, 2**32 - 1),
)
def test_dense_weights(rows: int, columns: int, power: int, dtype: torch.dtype, seed: int) -> None:
    """From outside to just inside; a second projection changes nothing; nor does one from inside"""
    graph, radius = dense(rows, columns), 0.7
    weights = {"w": floats(draw((rows, columns), seed, 2.0**power), dtype)}
    before, norm = weights["w"].clone(), true_norm(graph, weights)
    projection = projector(graph, weights, declared(radius=radius))
    projection.project()
    after = true_norm(graph, weights)
    assert after <= radius * INSIDE or norm <= radius
    assert projection.norms()["w"] <= radius, "what is said of them is within it, too"
    if norm <= radius * INSIDE:
        assert torch.equal(weights["w"], before)
    else:
        assert after >= 0.999 * radius
    again = weights["w"].clone()
    projection.project()
    projector(graph, weights, declared(radius=radius)).project()
    assert torch.equal(weights["w"], again)


@pytest.mark.parametrize("size", [33, 64, 96, 150])
@pytest.mark.parametrize("spectrum", ["orthogonal", "random", "low rank", "clustered"])
def test_dense_weights_of_all_spectra(size: int, spectrum: str) -> None:
    """Also right after the weights have jumped, when the last estimates are worthless."""
    graph, random = dense(size, size + 7), np.random.default_rng(size)
    weights = {"w": floats(np.zeros((size, size + 7)))}
    projection = projector(graph, weights)
    for _ in range(3):
        left = np.linalg.qr(random.standard_normal((size, size)))[0]
        right = np.linalg.qr(random.standard_normal((size + 7, size)))[0].T
        values = {
            "orthogonal": np.ones(size),
            "random": random.random(size),
            "low rank": np.arange(size) < 2,
            "clustered": 1.0 - 1e-4 * random.random(size),
        }[spectrum]
        weights["w"].copy_(floats(1.3 * left @ np.diag(values.astype(float)) @ right))
        projection.project()
        assert 0.999 <= true_norm(graph, weights) <= INSIDE


@given(convolutions(), st.integers(0, 2**32 - 1))
def test_convolutions(case, seed: int) -> None:
    kind, geometry, groups, shape = case
    op = kind(trained("w", np.ones(shape)), None, geometry, groups)
    graph = graph_of(input_shape(*case), op)
    weights = {"w": floats(draw(shape, seed, 10.0))}
    projection = projector(graph, weights)
    norm = true_norm(graph, weights)
    projection.project()
    assert 0.8 * min(norm, 1.0) <= true_norm(graph, weights) <= INSIDE or norm <= 1.0
    again = weights["w"].clone()
    projection.project()
    assert torch.equal(weights["w"], again)


@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_on_larger_maps_lose_little(stride: int) -> None:
    window = Window(15, 3, stride, 1, 1, 1)
    graph = graph_of((2, 15, 15), Conv(trained("w", np.ones((3, 2, 3, 3))), None, (window, window)))
    for seed in range(3):
        weights = {"w": floats(draw((3, 2, 3, 3), seed))}
        projector(graph, weights).project()
        assert 0.98 <= true_norm(graph, weights) <= INSIDE


def test_a_step_after_another() -> None:
    """Weights that move a little at every step stay inside, and do not fade away."""
    graph, random = dense(24, 40), np.random.default_rng(0)
    weights = {"w": floats(draw((24, 40)))}
    projection = projector(graph, weights)
    for _ in range(60):
        weights["w"].add_(floats(0.003 * random.standard_normal((24, 40))))
        norm = true_norm(graph, weights)
        projection.project()
        assert 0.999 * min(norm, 1.0) <= true_norm(graph, weights) <= INSIDE


@pytest.mark.parametrize("size", [1, 10, 40, 130])
def test_weights_that_were_inside_for_long_and_leave(size: int) -> None:
    """Inside they are not touched; outside nothing that was proved before counts."""
    weights = {"w": floats(draw((size, size + 5)))}
    graph = dense(size, size + 5)
    weights["w"].mul_(0.99 / true_norm(graph, weights))
    projection = projector(graph, weights)
    for factor in (1.0, 1.0, 1.005, 1.0, 1.02, 1.0, 3.0, 1e-3, 1.0, 1000.0, 1.0, 4.0):
        weights["w"].mul_(factor)
        before, norm = weights["w"].clone(), true_norm(graph, weights)
        projection.project()
        assert 0.999 * min(norm, 1.0) <= true_norm(graph, weights) <= INSIDE
        assert norm > INSIDE or torch.equal(before, weights["w"])


@pytest.mark.parametrize("kind", ["spectral", "frobenius"])
def test_entrywise_constraints(kind: str) -> None:
    """Scales and slopes under a spectral constraint: the largest magnitude; biases: their norm."""
    graph = chain(
        (4,),
        Scale(trained("s", np.ones(4))),
        Shift(trained("b", np.ones(4))),
        PRelu(trained("p", np.ones(4))),
        Normalize((0,), 0.1, centred=True),
        Scale(trained("g", np.ones(4)), trained("h", np.ones(4))),
    )
    numbers = np.array([3.0, -4.0, 0.0, 0.5])
    weights = {name: floats(numbers) for name in "sbpgh"}
    projector(graph, weights, declared(kind)).project()
    length = math.sqrt(25.25)
    for name in "sbpgh":
        largest = 4.0 if kind == "spectral" and name in "spg" else length
        assert weights[name].double().numpy() == pytest.approx(numbers / largest, rel=1e-6)
        value = weights[name].double().numpy()
        assert (np.abs(value).max() if largest == 4.0 else np.linalg.norm(value)) <= INSIDE


def test_a_view_with_a_gain_may_be_larger() -> None:
    """array = 2θ: bounds assume 2r of the op; array = θ/2: they assume r of it."""
    for scale, expected in ((2.0, 2.0), (0.5, 1.0)):
        operand = Operand(scale * np.eye(5), "w", scale, scale=scale)
        graph = graph_of((5,), Dense(operand))
        weights = {"w": floats(draw((5, 5), scale=9.0))}
        projector(graph, weights).project()
        assert true_norm(graph, weights) == pytest.approx(expected, rel=1e-3)
        assert true_norm(graph, weights) <= expected * INSIDE


@pytest.mark.parametrize("factor", [3.0, 0.3])
def test_every_use_of_a_parameter_counts(factor: float) -> None:
    """Two slices of one tensor, and the transpose of one of them behind another op."""
    places = np.arange(24, dtype=np.int32).reshape(6, 4)
    top = Operand(np.ones((2, 4)), "w", places=places[:2])
    rest = Operand(np.ones((4, 2)), "w", places=np.ascontiguousarray(places[4:].T))
    nodes = [("h", Dense(top), ("x",)), ("o", Dense(rest), ("h",))]
    graph = dag((4,), nodes)
    whole = {"w": type(next(iter(graph.parameters.values())))("w", (6, 4))}
    graph = Graph("x", (4,), "o", graph.nodes, whole)
    numbers = draw((6, 4))
    numbers[2:4] *= 100.0
    numbers[4:] *= factor
    weights = {"w": floats(numbers)}
    projector(graph, weights).project()
    after = weights["w"].double().numpy()
    norms = [np.linalg.norm(after[:2], 2), np.linalg.norm(after[4:], 2)]
    assert 0.999 <= max(norms) <= INSIDE
    assert after == pytest.approx(numbers * (after[0, 0] / numbers[0, 0]), rel=1e-6)


def test_fixed_norms_are_reached_from_both_sides() -> None:
    graph, fixed = dense(6, 9), declared(mechanism="fixed-weight-norm", radius=2.0)
    for scale in (1e-6, 0.1, 1.0, 1e5):
        weights = {"w": floats(draw((6, 9), scale=scale))}
        projection = projector(graph, weights, fixed)
        projection.project()
        assert 0.998 * 2.0 <= true_norm(graph, weights) <= 2.0 * INSIDE
        again = weights["w"].clone()
        projection.project()
        assert torch.equal(weights["w"], again)


def test_zero_weights_stay_zero() -> None:
    graph = dense(6, 9)
    for mechanism in ("clipless", "weight-clipping", "fixed-weight-norm"):
        weights = {"w": torch.zeros(6, 9)}
        turned = 3 if mechanism == "clipless" else 0
        projection = projector(graph, weights, declared(mechanism=mechanism), orthogonalize=turned)
        projection.project()
        assert not weights["w"].any()
        assert projection.norms()["w"] <= 1e-11


def test_norms_are_upper_bounds_and_change_nothing() -> None:
    graph = chain((9,), Dense(trained("w", np.ones((6, 9))), trained("b", np.ones(6))))
    for scale in (0.01, 1.0, 50.0):
        weights = {"w": floats(draw((6, 9), scale=scale)), "b": floats(draw((6,), scale=scale))}
        before = {name: tensor.clone() for name, tensor in weights.items()}
        projection = projector(graph, weights)
        norms = projection.norms()
        exact = np.linalg.norm(weights["w"].double().numpy(), 2)
        assert exact <= norms["w"] <= 1.001 * exact
        assert norms["b"] == pytest.approx(float(weights["b"].double().norm()), rel=1e-12)
        assert all(torch.equal(weights[name], before[name]) for name in before)
    assert projection.radii == {"w": 1.0, "b": 1.0}


@pytest.mark.parametrize("mechanism", ["clipless", "weight-clipping", "fixed-weight-norm"])
def test_norms_are_of_the_present_weights(mechanism: str) -> None:
    """What is known from a projection is forgotten as soon as one entry is another."""
    graph = dense(6, 9)
    weights = {"w": floats(draw((6, 9), scale=0.1))}
    projection = projector(graph, weights, declared(mechanism=mechanism))
    for scale in (1.0, 30.0, 1.0, 0.01):
        weights["w"].mul_(scale)
        projection.project()
        exact = true_norm(graph, weights)
        within = 1.0 if mechanism == "clipless" else 1.0 + 1e-12
        assert exact <= projection.norms()["w"] <= min(within, 1.001 * exact)
        weights["w"][0, 0] += 0.5
        exact = true_norm(graph, weights)
        assert exact <= projection.norms()["w"] <= 1.001 * exact


def test_storage_of_the_module_is_what_is_projected() -> None:
    """Through a transposed view as well; the parameter knows that it was changed in place."""
    layer = nn.Linear(5, 3, bias=False)
    with torch.no_grad():
        layer.weight.mul_(100.0)
    version = layer.weight._version
    weights = {"w": layer.weight.detach().T}
    graph = graph_of((3,), Dense(trained("w", np.ones((5, 3)))))
    projector(graph, weights).project()
    assert float(torch.linalg.matrix_norm(layer.weight.detach().double(), 2)) <= INSIDE
    assert layer.weight._version > version


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["w", "b", "k"])
def test_numbers_that_are_none_are_named(bad: float, name: str) -> None:
    window = Window(12, 3, 1, 1, 1, 1)
    graph = chain(
        (2, 12),
        Conv(trained("k", np.ones((2, 2, 3))), None, (window,)),
        Dense(trained("w", np.ones((12, 12))), trained("b", np.ones(12))),
    )
    shapes = {"k": (2, 2, 3), "w": (12, 12), "b": (12,)}
    weights = {key: floats(draw(shape)) for key, shape in shapes.items()}
    projection = projector(graph, weights)
    projection.project()
    weights[name].reshape(-1)[1] = bad
    for act in (projection.project, projection.norms):
        with pytest.raises(NoVerdictError, match=f"'{name}' holds NaN"):
            act()


def test_numbers_beyond_all_measure_are_refused() -> None:
    weights = {"w": floats(np.full((3, 3), 1e200), torch.float64)}
    with pytest.raises(NoVerdictError, match="too large"):
        projector(dense(3, 3), weights).project()


def test_huge_weights_are_brought_back() -> None:
    for scale in (1e20, 1e29):
        weights = {"w": floats(draw((3, 3), scale=scale))}
        projector(dense(3, 3), weights).project()
        assert 0.99 <= true_norm(dense(3, 3), weights) <= INSIDE


def test_what_the_analysis_and_the_audit_assume_holds() -> None:
    """The audit's own check of constraints, which certifies norms by other means."""
    window = Window(8, 3, 2, 1, 1, 1)
    graph = chain(
        (2, 8, 8),
        Conv(trained("k", np.ones((4, 2, 3, 3))), trained("c", np.ones(4)), (window, window)),
        Dense(trained("w", np.ones((6, 4))), trained("b", np.ones(6))),
    )
    shapes = {"k": (4, 2, 3, 3), "c": (4,), "w": (6, 4), "b": (6,)}
    for kind in ("spectral", "frobenius"):
        weights = {key: floats(draw(shape, scale=5.0)) for key, shape in shapes.items()}
        projector(graph, weights, declared(kind)).project()
        numbers = {key: tensor.double().numpy() for key, tensor in weights.items()}
        claims = claims_of_analysis(model_of(graph_at(graph, numbers)), declared(kind))
        (report,) = file_weights(claims, numbers)
        assert report.verdict is Verdict.PASS
        assert report.measured <= report.expected


def test_single_parameters_and_frozen_ones() -> None:
    graph = dense(4, 4)
    own = Settings(
        constraints=(("w", ConstraintSpec("frobenius", 0.5)),), mechanism="clipless", input_norm=1.0
    )
    weights = {"w": floats(draw((4, 4)))}
    projection = projector(graph, weights, own)
    projection.project()
    assert 0.499 <= float(weights["w"].double().norm()) <= 0.5 * INSIDE
    assert projection.radii == {"w": 0.5}


def test_one_tensor_under_two_names() -> None:
    graph = chain((4,), Dense(trained("v", np.eye(4))), Dense(trained("w", np.eye(4))))
    shared = torch.zeros(4, 4)
    with pytest.raises(UsageError, match="one tensor"):
        projector(graph, {"v": shared, "w": shared})


def test_radii_that_float32_cannot_hold() -> None:
    with pytest.raises(UsageError, match="radius"):
        projector(dense(6, 9), {"w": torch.zeros(6, 9)}, declared(radius=1e-30))


def test_nothing_is_random() -> None:
    """Two processes that project the same weights get the same bits, and draw nothing."""
    found = []
    for _ in range(2):
        weights = {"w": floats(draw((20, 30)))}
        state = torch.get_rng_state()
        projection = Projector.of(dense(20, 30), declared(), weights)
        for step in range(5):
            weights["w"].add_(floats(draw((20, 30), step, 0.01)))
            projection.project()
        assert torch.equal(torch.get_rng_state(), state)
        found.append(weights["w"])
    assert torch.equal(*found)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("size", [1, 3, 40, 130])
def test_a_checkpoint_helps_after_numbers_that_are_none(size: int, value: float) -> None:
    """Nothing of them stays behind in what the next proofs begin with."""
    graph, weights = dense(size, size), {"w": floats(draw((size, size), scale=9.0))}
    projection = projector(graph, weights)
    projection.project()
    good = weights["w"].clone()
    for place in ((0, 0), (0, -1), (-1, 0)):
        weights["w"][place] = value
        for refused in (projection.project, projection.norms):
            with pytest.raises(NoVerdictError, match="holds NaN or infinite"):
                refused()
        weights["w"].copy_(3.0 * good)
        projection.project()
        assert 0.999 <= true_norm(graph, weights) <= INSIDE


def test_storage_that_moves_is_followed() -> None:
    """Memory that processes share is other memory, under the same tensor."""
    graph, weights = dense(5, 5), {"w": floats(draw((5, 5), scale=9.0))}
    projection = projector(graph, weights)
    projection.project()
    weights["w"].share_memory_()
    weights["w"].mul_(7.0)
    assert projection.norms()["w"] >= 6.9
    projection.project()
    assert 0.999 <= true_norm(graph, weights) <= INSIDE


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
