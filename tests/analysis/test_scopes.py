"""Which constraint each trained parameter obeys."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lipcert.analysis.premises import constraints_of, scaled_down, scope_claim
from lipcert.core.coverage import tensors_read
from lipcert.core.lower.lower import lower
from lipcert.core.reader.model import read_model
from lipcert.graph.ir import Graph
from lipcert.settings.settings import ConstraintSpec, Settings
from tests.core.lower.cases import model as onnx_model
from tests.core.lower.cases import node
from tests.networks import chain, trained
from tests.ops import Dense, Scale

SPECTRAL2 = ConstraintSpec("spectral", 2.0)
SPECTRAL = ConstraintSpec("spectral", 1.0)


def network() -> Graph:
    """A tensor that is a bias at one node and a scale at another, and ordinary ones."""
    both = trained("both", np.ones(2))
    return chain(
        (2,),
        Dense(trained("w", np.eye(2)), trained("b", np.zeros(2))),
        Dense(trained("v", np.eye(2)), both),
        Scale(both, trained("beta", np.zeros(2))),
    )


def test_the_weights_of_the_file_without_constraints() -> None:
    assert constraints_of(network(), Settings()) == {}


def test_biases_obey_the_bias_norm_and_all_others_the_constraint() -> None:
    found = constraints_of(network(), Settings(constraint=SPECTRAL, bias_norm=0.5))
    bias = ConstraintSpec("frobenius", 0.5)
    assert found == {"w": SPECTRAL, "v": SPECTRAL, "b": bias, "beta": bias, "both": SPECTRAL}


def test_biases_without_bias_norm_are_unconstrained() -> None:
    found = constraints_of(network(), Settings(constraint=SPECTRAL))
    assert set(found) == {"w", "v", "both"}


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


def kept(folder: Path, nodes: list, tensors: dict[str, object], spec: ConstraintSpec) -> bool:
    """Whether weight clipping leaves the tensors of a file as they are."""
    path = folder / "net.onnx"
    path.write_bytes(onnx_model(nodes, ["N", 4], tensors).SerializeToString())
    model = read_model(path)
    program = lower(model, "y")
    trained = {name: (name,) for name in tensors if name in tensors_read(program.steps)}
    scope = scope_claim("point", trained, dict.fromkeys(trained, spec))
    return scaled_down(scope, model, program).kind == "point"


@pytest.mark.parametrize(
    ("kind", "radius", "stays"),
    [
        ("spectral", 2.001, True),
        ("spectral", 1.99, False),
        ("frobenius", 4.001, True),
        ("frobenius", 3.9, False),
    ],
)
def test_a_clip_leaves_alone_what_its_constraint_speaks_of_and_finds_small(
    tmp_path: Path, kind: str, radius: float, stays: bool
) -> None:
    """Of a scale the largest entry, 2; its Euclidean norm is 4."""
    tensors = {"gamma": [2.0, -2.0, 2.0, 2.0], "beta": [0.0] * 4}
    nodes = [node("LayerNormalization", "x gamma beta", epsilon=0.1)]
    assert kept(tmp_path, nodes, tensors, ConstraintSpec(kind, radius)) is stays


def test_a_clip_reads_what_an_operand_does_not_show(tmp_path: Path) -> None:
    """Half of a matrix is small; its norm as a whole is 5."""
    whole = np.diag([1.0, 1.0, 5.0, 1.0]).tolist()
    tensors = {"w": whole, "starts": [0], "ends": [2]}
    nodes = [node("Slice", "w starts ends", "half"), node("Gemm", "x half", transB=1)]
    assert not kept(tmp_path, nodes, tensors, ConstraintSpec("frobenius", 2.0))
    assert kept(tmp_path, nodes, tensors, ConstraintSpec("frobenius", 5.4))


def test_what_is_not_within_is_bounded_by_its_radius_alone(tmp_path: Path) -> None:
    tensors = {"w": np.eye(4).tolist(), "v": (9.0 * np.eye(4)).tolist()}
    nodes = [node("Gemm", "x w", "h"), node("Gemm", "h v")]
    path = tmp_path / "net.onnx"
    path.write_bytes(onnx_model(nodes, ["N", 4], tensors).SerializeToString())
    model = read_model(path)
    scope = scope_claim("point", {"w": ("w",), "v": ("v",)}, {"w": SPECTRAL2, "v": SPECTRAL2})
    found = scaled_down(scope, model, lower(model, "y"))
    assert (found.kind, found.trained) == ("constraint-set", ("v",))
    assert [item.tensor for item in found.constraints] == ["v"]
