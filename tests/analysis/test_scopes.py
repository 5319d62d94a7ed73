"""Which constraint each trained parameter obeys."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lipcert.analysis.scopes import constraints_of, scope_of
from lipcert.ir import Graph
from lipcert.operand import Operand
from lipcert.ops.affine import Scale
from lipcert.ops.linear import Dense
from lipcert.ops.normalization import LayerNorm
from lipcert.scope import ConstraintScope, PointScope, Scope
from lipcert.settings import ConstraintSpec, Settings
from tests.networks import chain, trained

SPECTRAL = ConstraintSpec("spectral", 1.0)


def network() -> Graph:
    """A tensor that is a bias at one node and a scale at another, and ordinary ones."""
    both = trained("both", np.ones(2))
    return chain(
        (2,),
        Dense(trained("w", np.eye(2)), trained("b", np.zeros(2))),
        Dense(trained("v", np.eye(2)), both),
        LayerNorm(1, 0.1, both, trained("beta", np.zeros(2))),
    )


def test_the_weights_of_the_file_without_constraints() -> None:
    assert isinstance(scope_of(network(), Settings()), PointScope)
    assert constraints_of(network(), Settings()) == {}


def test_biases_obey_the_bias_norm_and_all_others_the_constraint() -> None:
    found = constraints_of(network(), Settings(constraint=SPECTRAL, bias_norm=0.5))
    bias = ConstraintSpec("frobenius", 0.5)
    assert found == {"w": SPECTRAL, "v": SPECTRAL, "b": bias, "beta": bias, "both": SPECTRAL}


def test_biases_without_bias_norm_are_unconstrained() -> None:
    found = constraints_of(network(), Settings(constraint=SPECTRAL))
    assert set(found) == {"w", "v", "both"}
    scope = scope_of(network(), Settings(constraint=SPECTRAL))
    assert isinstance(scope, ConstraintScope)
    assert not scope.norm(trained("b", np.zeros(2))).is_finite


def test_a_constraint_of_its_own_wins() -> None:
    own = ConstraintSpec("frobenius", 3.0)
    settings = Settings(constraint=SPECTRAL, bias_norm=0.5, constraints=(("b*", own), ("w", own)))
    found = constraints_of(network(), settings)
    assert {name for name, spec in found.items() if spec == own} == {"w", "b", "both", "beta"}
    assert found["v"] == SPECTRAL


@pytest.mark.parametrize("name", ["w", "both"])
def test_frozen_parameters_keep_the_numbers_of_the_file(name: str) -> None:
    graph = network()
    frozen = {k: replace(p, trainable=k != name) for k, p in graph.parameters.items()}
    graph = replace(graph, parameters=frozen)
    settings = Settings(constraint=SPECTRAL, bias_norm=0.5)
    assert name not in constraints_of(graph, settings)
    operand = next(
        o for node in graph.nodes for o in node.op.operands().values() if o.parameter == name
    )
    assert scope_of(graph, settings).entries(operand).is_exact


def weight_clipping(kind: str, radius: float) -> Settings:
    spec = ConstraintSpec(kind, radius)
    return Settings(mechanism="weight-clipping", scope="point", constraint=spec)


def test_a_clip_leaves_alone_what_its_constraint_speaks_of_and_finds_small() -> None:
    """Of a scale the largest entry, 2; its Euclidean norm is 3.5."""
    gains = np.array([2.0, -2.0, 2.0])
    graph = chain((3,), LayerNorm(1, 0.1, trained("gamma", gains), trained("beta", np.zeros(3))))

    def scope(kind: str, radius: float) -> Scope:
        spec = ConstraintSpec(kind, radius)
        return scope_of(
            graph, Settings(mechanism="weight-clipping", scope="point", constraint=spec)
        )

    assert isinstance(scope("spectral", 2.0), PointScope)
    assert isinstance(scope("spectral", 1.99), ConstraintScope)
    assert isinstance(scope("frobenius", 3.5), PointScope)
    assert isinstance(scope("frobenius", 3.4), ConstraintScope)


def test_a_clip_leaves_slices_of_a_matrix_alone_that_are_all_small() -> None:
    whole = np.diag([1.0, 1.0, 5.0, 1.0])
    places = np.arange(8, dtype=np.int32).reshape(2, 4)
    shown = Operand(whole[:2], "w", places=places)
    graph = chain((4,), Dense(shown))
    graph = replace(graph, parameters={"w": replace(graph.parameters["w"], shape=(4, 4))})

    def scope(kind: str) -> Scope:
        spec = ConstraintSpec(kind, 2.0)
        return scope_of(
            graph, Settings(mechanism="weight-clipping", scope="point", constraint=spec)
        )

    assert isinstance(scope("spectral"), PointScope)
    assert isinstance(scope("frobenius"), ConstraintScope)


def test_a_clip_of_a_whole_parameter_reads_what_an_operand_does_not_show() -> None:
    """As large as the parameter and of gain 1, and most of its entries are not there."""
    copies = np.tile(np.arange(4, dtype=np.int32), (4, 1))
    padded = np.array([-1, 0, 1, 2], dtype=np.int32)
    mirrored = np.array([3, 2, 1, 0], dtype=np.int32)

    def scope(places: np.ndarray, scale: float) -> Scope:
        factor = Operand(np.full(places.shape, 0.05), "s", places=places, scale=scale)
        graph = chain(places.shape, Scale(factor))
        spec = ConstraintSpec("frobenius", 1.0)
        return scope_of(
            graph, Settings(mechanism="weight-clipping", scope="point", constraint=spec)
        )

    assert isinstance(scope(copies, 0.5), ConstraintScope)
    assert isinstance(scope(padded, 1.0), ConstraintScope)
    assert isinstance(scope(mirrored, 1.0), PointScope)
    assert isinstance(scope(mirrored, -1.0), PointScope)
