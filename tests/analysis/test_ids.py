"""Inputs of whole numbers that choose rows: what is said of them, and what is drawn."""

import numpy as np
from onnx import TensorProto
from onnx.helper import make_node

from lipcert.analysis.bounded import bounded
from lipcert.analysis.observing import observed_at
from lipcert.analysis.pipeline import analyze
from lipcert.gradient_stats.examples import Examples, random_examples
from lipcert.importer.load import load_model
from lipcert.settings.settings import Settings
from tests.importer.models import model, saved

ROWS = 9


def weights(*shape):
    return np.random.default_rng(0).standard_normal(shape)


def embedded(tmp_path):
    """[N, 4] → [N, 4, 3] → [N, 3]."""
    nodes = [
        make_node("Gather", ["table", "x"], ["e"]),
        make_node("ReduceSum", ["e", "axes"], ["s"], keepdims=0),
        make_node("Gemm", ["s", "w", "b"], ["y"], transB=1),
    ]
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
