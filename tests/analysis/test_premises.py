"""Premises of a run: inputs, ids, the loss if none is stated, constraints of parameters."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto

from lipcert.analysis.bounded import bounded
from lipcert.analysis.observing import observed_at
from lipcert.analysis.pipeline import analyze
from lipcert.analysis.premises import (
    check_domain,
    constraints_of,
    norm_down,
    scaled_down,
    scope_claim,
)
from lipcert.core.coverage import tensors_read
from lipcert.core.lower.lower import lower
from lipcert.core.reader.model import read_model
from lipcert.diagnostics import Level
from lipcert.errors import UsageError
from lipcert.gradient_stats.examples import Examples, random_examples
from lipcert.importer.load import load_model
from lipcert.report.analysis import assumption_rows
from lipcert.settings.settings import ConstraintSpec, Settings
from tests.core.lower.cases import model as onnx_model
from tests.importer.models import model, saved
from tests.networks import chain, trained
from tests.ops import Dense, Scale

RNG = np.random.default_rng(3)
FOUR, SIX = (RNG.standard_normal((6, n)).astype(np.float32) for n in (4, 6))


def analysis_of(folder, steps: list[str], weight: np.ndarray = FOUR, **stated: object):
    """Of x·weight and further operators, with attributes behind a colon: "Reshape:0,2,2"."""
    tensors: dict[str, np.ndarray] = {"weight": weight}
    nodes, value = "v = MatMul(x, weight)", "v"
    for index, step in enumerate(steps):
        kind, _, shape = step.partition(":")
        words = value
        if shape:
            tensors[f"shape{index}"] = np.array([int(n) for n in shape.split(",")], np.int64)
            words = f"{value}, shape{index}"
        nodes += f"  v{index} = {kind}{'<axis=-1>' if 'oftmax' in kind else ''}({words})"
        value = f"v{index}"
    nodes += f"  y = Identity({value})"
    path = folder / "model.onnx"
    path.write_bytes(onnx_model(nodes, ["N", 6], tensors).SerializeToString())
    return analyze(load_model(path, trusted=True), Settings(input_norm=1.0, **stated))


@pytest.mark.parametrize(
    ("steps", "weight", "kind", "doubt", "remedy"),
    [
        ([], FOUR, "cross-entropy", "", "--loss cross-entropy"),
        (["LogSoftmax"], FOUR, "nll", "", "--loss nll"),
        (["LogSoftmax", "Reshape:0,1,4"], FOUR, "nll", "", "--loss nll"),
        (["Sigmoid"], FOUR, "cross-entropy", "ends in Sigmoid", "mse, mae or huber"),
        (["Sigmoid"], FOUR[:, :1], "bce", "ends in Sigmoid", "without its Sigmoid"),
        (["Tanh"], FOUR, "cross-entropy", "ends in Tanh", "mse, mae or huber"),
        (["Reshape:0,2,2"], FOUR, "bce", "[2, 2] is not a vector", "mse, mae or huber"),
        ([], SIX, "cross-entropy", "autoencoder", "mse, mae or huber"),
        ([], FOUR[:, :1], "bce", "", "--loss bce"),
    ],
)
def test_what_nobody_stated_is_said(
    steps: list[str], weight: np.ndarray, kind: str, doubt: str, remedy: str, tmp_path
) -> None:
    analysis = analysis_of(tmp_path, steps, weight)
    assert analysis.assumptions.loss["kind"] == kind
    (said,) = (item for item in analysis.diagnostics if item.code == "LC108")
    assert said.level is Level.WARNING
    assert f"{kind} is assumed" in said.message
    assert doubt in said.message
    assert ("although" in said.message) is bool(doubt)
    assert remedy in said.remedy
    line = dict(assumption_rows(analysis))["loss"]
    assert line.startswith(f"ASSUMED, because nothing was stated: {kind}")


def test_what_was_stated_is_not_said_to_be_assumed(tmp_path) -> None:
    analysis = analysis_of(tmp_path, ["Sigmoid"], loss="mse", label_norm=1.0)
    assert not any(item.code == "LC108" for item in analysis.diagnostics)
    assert dict(assumption_rows(analysis))["loss"].startswith("mse")


@pytest.mark.parametrize(
    ("steps", "loss", "logits"),
    [
        (["Softmax"], "cross-entropy", "v"),
        (["Relu", "Softmax", "Reshape:0,1,4"], "nll", "v0"),
        (["Sigmoid"], "bce", "v"),
        (["Sigmoid", "Reshape:0,4"], "cross-entropy", "v"),
        (["LogSoftmax"], "cross-entropy", ""),
        (["Softmax", "Log"], "nll", ""),
        (["Softmax"], "mse", ""),
        (["Sigmoid"], "mse", ""),
    ],
)
def test_a_loss_that_takes_logits_and_reads_chances_is_named(steps, loss, logits, tmp_path) -> None:
    label = {"label_norm": 1.0} if loss == "mse" else {}
    found = analysis_of(tmp_path, steps, loss=loss, **label).diagnostics
    remedies = [item.remedy for item in found if item.code == "LC103"]
    assert remedies == [f"use --output {logits} if the loss takes logits"] * bool(logits)


@pytest.mark.parametrize("spelling", [["LogSoftmax"], ["Softmax", "Log"]])
@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_nll_behind_log_softmax_is_the_cross_entropy_of_the_logits(
    scale: float, spelling: list[str], tmp_path
) -> None:
    """The same function of the weights: bounds that differ by a few per cent at most."""
    weight = np.float32(scale) * FOUR
    logits = analysis_of(tmp_path, [], weight, loss="cross-entropy").network
    likelihood = analysis_of(tmp_path, spelling, weight, loss="nll").network
    assert likelihood.loss_cotangent_norm == 1.0
    assert likelihood.grad_norm == pytest.approx(logits.grad_norm, rel=0.05)
    assert likelihood.grad_norm >= likelihood.grad_norm_witness
    assert likelihood.grad_norm_witness >= 0.9 * logits.grad_norm_witness


@pytest.mark.parametrize("weight", [FOUR[:, :1], FOUR])
def test_nll_needs_a_vector_of_classes(weight: np.ndarray, tmp_path) -> None:
    steps = ["Reshape:-1,1,1"] if weight.shape[1] == 1 else ["Reshape:0,2,2"]
    with pytest.raises(UsageError, match="nll needs one vector of at least two class scores"):
        analysis_of(tmp_path, steps, weight, loss="nll")


@given(hnp.arrays(np.float64, st.integers(0, 12), elements=st.floats(-1e100, 1e100)))
def test_the_least_norm_is_below_the_exact_one(vector: np.ndarray) -> None:
    exact = sum((Fraction(float(v)) ** 2 for v in vector), Fraction(0))
    found = Fraction(norm_down(vector))
    assert found**2 <= exact
    assert exact <= found**2 * (1 + Fraction(1, 10**13)) or exact < Fraction(1, 10**500)


def test_the_least_norm_of_a_long_array_is_below_the_exact_one() -> None:
    """2^20 squares of a number whose square is not a float64."""
    vector = np.full(2**20 + 1, 1.0 + 2.0**-30)
    exact = len(vector) * Fraction(1.0 + 2.0**-30) ** 2
    assert Fraction(norm_down(vector)) ** 2 <= exact <= Fraction(norm_down(vector) * 1.00001) ** 2


@pytest.mark.parametrize(
    ("norm", "box"), [(0.1, (0.5, 1.0)), (1.0, (0.5, 1.0)), (0.5, (-2.0, -1.0))]
)
def test_an_empty_domain_is_a_usage_error(norm: float, box: tuple[float, float]) -> None:
    with pytest.raises(UsageError, match="the least is"):
        check_domain((100,), Settings(input_norm=norm, input_box=box))


def test_a_box_that_the_ball_reaches_is_admitted() -> None:
    check_domain((100,), Settings(input_norm=5.0, input_box=(0.5, 1.0)))
    check_domain((100,), Settings(input_norm=0.0, input_box=(-1.0, 1.0)))


ROWS = 9


def weights(*shape):
    return np.random.default_rng(0).standard_normal(shape)


def embedded(tmp_path):
    """[N, 4] → [N, 4, 3] → [N, 3]."""
    nodes = "e = Gather(table, x)  s = ReduceSum<keepdims=0>(e, axes)  y = Gemm<transB=1>(s, w, b)"
    tensors = {
        "table": weights(ROWS, 3).astype(np.float32),
        "axes": np.array([1]),
        "w": weights(5, 3).astype(np.float32),
        "b": np.zeros(5, np.float32),
    }
    proto = model(nodes, ("N", 4), tensors, dtype=TensorProto.INT64)
    return load_model(saved(proto, tmp_path))


def test_what_is_said_of_the_input(tmp_path):
    found = analyze(embedded(tmp_path), Settings(loss="cross-entropy", tier="quick"))
    assert found.assumptions.input_ids == ROWS
    assert found.assumptions.input_box == (0.0, ROWS - 1.0)
    codes = {item.code: item.message for item in found.diagnostics}
    assert "LC104" not in codes
    assert found.network.lipschitz is None
    assert "no neighbours" in codes["LC101"]
    assert found.network.grad_norm is not None


def test_a_table_receives_what_its_positions_receive(tmp_path):
    """The sum of 4 rows hands its gradient to each of them: 4 times, if they are one row."""
    found = analyze(embedded(tmp_path), Settings(loss="cross-entropy", tier="quick"))
    parameters = {item.name: item for item in found.parameters}
    (summed,) = [node for node in found.nodes if node.output == "s" or node.shape == (3,)][:1]
    assert parameters["table"].grad_norm >= 4.0 * summed.cotangent_norm * (1.0 - 1e-12)
    assert parameters["table"].grad_norm <= 4.0 * summed.cotangent_norm * (1.0 + 1e-9)


def test_random_examples_are_rows(tmp_path):
    found = bounded(embedded(tmp_path), Settings(loss="cross-entropy", input_box=(2.0, 6.0)))
    shapes = found.graph.input_shape, found.graph.output_shape
    drawn = random_examples(shapes[0], found.domain, found.loss, shapes[1], 500)
    assert set(np.unique(drawn.x)) == {2.0, 3.0, 4.0, 5.0, 6.0}


def test_numbers_of_no_row_are_not_measured_at(tmp_path):
    settings = Settings(loss="cross-entropy", input_box=(0.0, ROWS - 1.0))
    found = bounded(embedded(tmp_path), settings)
    x = np.array([[0.0, 1, 2, 8], [0, 1, 2, 9], [0, 1, 2.5, 3], [0, 0, 0, 0]])
    observed = observed_at(found, settings, Examples(x, np.zeros(4, np.int64), "some"))
    assert observed.examples == 2


SPECTRAL2 = ConstraintSpec("spectral", 2.0)
SPECTRAL = ConstraintSpec("spectral", 1.0)


def network():
    """A tensor that is a bias at one node and a scale at another, and ordinary ones."""
    both = trained("both", np.ones(2))
    return chain(
        (2,),
        Dense(trained("w", np.eye(2)), trained("b", np.zeros(2))),
        Dense(trained("v", np.eye(2)), both),
        Scale(both, trained("beta", np.zeros(2))),
    )


def test_biases_obey_the_bias_norm_and_all_others_the_constraint() -> None:
    found = constraints_of(network(), Settings(constraint=SPECTRAL, bias_norm=0.5))
    bias = ConstraintSpec("frobenius", 0.5)
    assert found == {"w": SPECTRAL, "v": SPECTRAL, "b": bias, "beta": bias, "both": SPECTRAL}
    free = constraints_of(network(), Settings(constraint=SPECTRAL))
    assert free == dict.fromkeys(("w", "v", "both"), SPECTRAL)


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


def kept(folder, nodes: list, tensors: dict[str, object], spec: ConstraintSpec) -> bool:
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
    tmp_path, kind: str, radius: float, stays: bool
) -> None:
    """Of a scale the largest entry, 2; its Euclidean norm is 4."""
    tensors = {"gamma": [2.0, -2.0, 2.0, 2.0], "beta": [0.0] * 4}
    nodes = "y = LayerNormalization<epsilon=0.1>(x, gamma, beta)"
    assert kept(tmp_path, nodes, tensors, ConstraintSpec(kind, radius)) is stays


def test_a_clip_reads_what_an_operand_does_not_show(tmp_path) -> None:
    """Half of a matrix is small; its norm as a whole is 5."""
    whole = np.diag([1.0, 1.0, 5.0, 1.0]).tolist()
    tensors = {"w": whole, "starts": [0], "ends": [2]}
    nodes = "half = Slice(w, starts, ends)  y = Gemm<transB=1>(x, half)"
    assert not kept(tmp_path, nodes, tensors, ConstraintSpec("frobenius", 2.0))
    assert kept(tmp_path, nodes, tensors, ConstraintSpec("frobenius", 5.4))


def test_what_is_not_within_is_bounded_by_its_radius_alone(tmp_path) -> None:
    tensors = {"w": np.eye(4).tolist(), "v": (9.0 * np.eye(4)).tolist()}
    nodes = "h = Gemm(x, w)  y = Gemm(h, v)"
    path = tmp_path / "net.onnx"
    path.write_bytes(onnx_model(nodes, ["N", 4], tensors).SerializeToString())
    model = read_model(path)
    scope = scope_claim("point", {"w": ("w",), "v": ("v",)}, {"w": SPECTRAL2, "v": SPECTRAL2})
    found = scaled_down(scope, model, lower(model, "y"))
    assert (found.kind, found.trained) == ("constraint-set", ("v",))
    assert [item.tensor for item in found.constraints] == ["v"]
