"""What each mechanism makes of the bounds of a network."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from lipcert.analysis.groups import Group, group_parameters
from lipcert.analysis.mechanism import clipped_grad_norms, clipped_groups, mechanism_of
from lipcert.analysis.scopes import scope_of
from lipcert.facts import Bound, no_bound
from lipcert.ir import Graph, Parameter
from lipcert.norms.linear_map import DenseMap
from lipcert.ops.linear import Dense
from lipcert.privacy.mechanisms import (
    BackpropClipping,
    Clipless,
    ClipScope,
    Decay,
    FixedWeightNorm,
    GradientClipping,
    WeightClipping,
)
from lipcert.scope import PointScope
from lipcert.settings import ConstraintSpec, Settings
from lipcert.upper import Upper, root_sum_square
from tests.networks import ball, chain, norms, proved, trained

SPECTRAL = ConstraintSpec("spectral", 1.0)


def group(name: str, norm: float) -> Group:
    return Group(name, (Parameter(f"{name}.weight", (2, 3)),), Upper(norm))


def test_the_settings_name_the_mechanism() -> None:
    assert mechanism_of(Settings()) is None
    assert mechanism_of(Settings(mechanism="clipless", constraint=SPECTRAL)) == Clipless()
    fixed = Settings(mechanism="fixed-weight-norm", constraint=SPECTRAL)
    assert mechanism_of(fixed) == FixedWeightNorm()
    clipping = Settings(mechanism="weight-clipping", constraint=SPECTRAL)
    assert mechanism_of(clipping) == WeightClipping()
    assert (fixed.scope, clipping.scope) == ("constraint-set", "point")
    backprop = Settings(mechanism="backprop-clipping", input_clip=2.0, cotangent_clip=0.5)
    assert mechanism_of(backprop) == BackpropClipping(2.0, 0.5, l15_on_convs=True)
    euclidean = dataclasses.replace(backprop, conv_clip="l2")
    assert mechanism_of(euclidean) == BackpropClipping(2.0, 0.5, l15_on_convs=False)
    gradient = Settings(
        mechanism="gradient-clipping", clip_norm=3.0, clip_scope="group", decay="inside"
    )
    assert mechanism_of(gradient) == GradientClipping(3.0, ClipScope.GROUP, Decay.INSIDE)


def test_a_flat_clip_releases_one_group() -> None:
    groups = (group("a", 3.0), group("b", 4.0))
    (joint,) = clipped_groups(groups, GradientClipping(1.0))
    assert joint.grad_norm == Upper(1.0)
    assert joint.dimension == 12
    (loose,) = clipped_groups(groups, GradientClipping(50.0))
    assert loose.grad_norm.value == pytest.approx(5.0)
    assert clipped_groups(groups, Clipless()) == groups


def test_a_clip_per_group_bounds_all_groups_by_the_radius() -> None:
    groups = (group("a", math.inf), group("b", 0.125))
    first, second = clipped_groups(groups, GradientClipping(1.0, ClipScope.GROUP))
    assert first.grad_norm.value == pytest.approx(0.5**0.5)
    assert second.grad_norm.value == 0.125
    both = clipped_groups(
        (group("a", 9.0), group("b", 9.0)), GradientClipping(1.0, ClipScope.GROUP)
    )
    assert root_sum_square(g.grad_norm for g in both).value == pytest.approx(1.0, rel=1e-12)
    assert root_sum_square(g.grad_norm for g in both).value >= 1.0


def test_with_the_decay_inside_the_bound_of_the_network_says_nothing() -> None:
    inside = GradientClipping(1.0, decay=Decay.INSIDE)
    (joint,) = clipped_groups((group("a", 1e-3),), inside)
    assert joint.grad_norm == Upper(1.0)
    bounds = {"a": Bound(Upper(1e-3), "test"), "b": no_bound("test", "none")}
    found = {name: bound.value.value for name, bound in clipped_grad_norms(bounds, inside).items()}
    assert found == {"a": 1.0, "b": 1.0}
    outside = clipped_grad_norms(bounds, GradientClipping(1.0))
    assert {n: b.value.value for n, b in outside.items()} == {"a": 1e-3, "b": 1.0}


def clipped_gradients(gradients: list[np.ndarray], clip: float) -> np.ndarray:
    whole = np.concatenate([g.ravel() for g in gradients])
    return whole * min(1.0, clip / np.linalg.norm(whole))


def test_random_clipped_gradients_obey_the_flat_group() -> None:
    rng = np.random.default_rng(0)
    (joint,) = clipped_groups((group("a", 7.0), group("b", 2.0)), GradientClipping(1.5))
    for scale in np.logspace(-2, 2, 50):
        parts = [scale * rng.standard_normal((2, 3)) for _ in range(2)]
        assert np.linalg.norm(clipped_gradients(parts, 1.5)) <= joint.grad_norm.value * (1 + 1e-12)


def network(first: float, second: float) -> Graph:
    return chain(
        (2,),
        Dense(trained("fc1.weight", first * np.eye(2)), trained("fc1.bias", np.array([3.0, 4.0]))),
        Dense(trained("fc2.weight", second * np.eye(2)), None),
    )


def test_weight_clipping_takes_the_smaller_of_weight_and_radius() -> None:
    """fc1 (norm 5) is scaled to 1, fc2 (norm 0.5) stays: exactly known, at 0.5."""
    settings = Settings(mechanism="weight-clipping", constraint=SPECTRAL, bias_norm=2.0)
    graph = network(5.0, 0.5)
    scope = scope_of(graph, settings)
    fc1, fc2 = (node.op for node in graph.nodes)
    assert isinstance(fc1, Dense)
    assert isinstance(fc2, Dense)
    assert fc1.bias is not None
    assert scope.operator_norm(DenseMap(fc1.weight)).value == Upper(1.0)
    assert scope.operator_norm(DenseMap(fc2.weight)).value.value == pytest.approx(0.5, rel=1e-6)
    assert scope.norm(fc1.bias).value == Upper(2.0)
    bounds = proved(graph, ball((2,), 1.0), scope=scope)
    assert norms(bounds)["fc2.weight"] == pytest.approx(3.0, rel=1e-6)  # ‖x‖ + ‖b‖ = 1 + 2
    assert norms(bounds)["fc1.weight"] == pytest.approx(0.5, rel=1e-6)


def test_weights_within_the_radius_are_left_alone() -> None:
    settings = Settings(mechanism="weight-clipping", constraint=ConstraintSpec("frobenius", 99.0))
    assert isinstance(scope_of(network(5.0, 0.5), settings), PointScope)


def test_weight_clipping_holds_for_the_clipped_network_under_attack() -> None:
    rng = np.random.default_rng(1)
    weights = [rng.standard_normal((4, 4)) * s for s in (3.0, 0.1, 2.0)]
    graph = chain((4,), *(Dense(trained(f"w{i}", w), None) for i, w in enumerate(weights)))
    settings = Settings(mechanism="weight-clipping", constraint=SPECTRAL)
    limits = norms(proved(graph, ball((4,), 1.0), scope=scope_of(graph, settings)))
    clipped = [torch.tensor(w / max(1.0, np.linalg.norm(w, 2))) for w in weights]
    x = torch.tensor(rng.standard_normal((500, 4)))
    h = [x / x.norm(dim=1, keepdim=True)]
    for w in clipped:
        h.append(h[-1] @ w.T)
    g = torch.tensor(rng.standard_normal((500, 4)))
    g = g / g.norm(dim=1, keepdim=True)
    for i in (2, 1, 0):
        attained = (g.norm(dim=1) * h[i].norm(dim=1)).max().item()
        assert attained <= limits[f"w{i}"] * (1 + 1e-9)
        g = g @ clipped[i]
    assert limits["w0"] < 0.4  # the small layer is known exactly, not as 1


def test_groups_of_a_network_under_a_clip() -> None:
    graph = network(1.0, 1.0)
    bounds = proved(graph, ball((2,), 1.0))
    groups = group_parameters(graph, bounds.grad_norms, per_layer=True)
    (joint,) = clipped_groups(groups, GradientClipping(0.5))
    assert [p.name for p in joint.parameters] == ["fc1.weight", "fc1.bias", "fc2.weight"]
