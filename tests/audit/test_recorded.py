"""Weights and batches of a trace by the names of a graph; what does not belong together is refused.

Traces are written by the torch-free writer, so that any shape of a trace can be made.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from lipcert.audit.recorded import RecordedTensors
from lipcert.audit.trace.blobs import stored
from lipcert.audit.trace.reading import Trace, read_trace
from lipcert.audit.trace.records import Batch, Manifest, Step
from lipcert.audit.trace.writing import PrivateDataWarning, TraceWriter
from lipcert.errors import NoVerdictError
from lipcert.graph.ir import Graph, Parameter
from tests.networks import dag, trained
from tests.ops import Activation, BatchNorm, Dense

pytestmark = pytest.mark.filterwarnings(
    f"ignore::{PrivateDataWarning.__module__}.{PrivateDataWarning.__name__}"
)
Tensors = Mapping[str, np.ndarray]
VARIANCE = np.array([1.0, 4.0, 9.0])
RANDOM = np.random.default_rng(0)
FIRST = RANDOM.standard_normal((4, 3)).astype(np.float32)
LAST = RANDOM.standard_normal((2, 4)).astype(np.float32)


def graph_with(first: str = "a.weight", last: str = "b.weight") -> Graph:
    return dag(
        (3,),
        [("h", Dense(trained(first, FIRST)), ("x",)), ("o", Dense(trained(last, LAST)), ("h",))],
    )


def trace_of(
    folder: Path,
    sets: list[Tensors],
    *,
    buffers: Tensors | None = None,
    batches: list[list[Tensors]] | None = None,
    ranks: int = 1,
) -> Trace:
    """One step for each set of weights, and its micro-batches."""
    shapes = {name: item.shape for name, item in sets[0].items()}
    held = {} if buffers is None else {name: item.shape for name, item in buffers.items()}
    for rank in range(ranks):
        manifest = Manifest({}, ranks, shapes, held)
        with TraceWriter(folder, manifest, rank) as writer:
            for number, weights in enumerate(sets):
                named = {**weights, **(buffers or {})}
                blob = writer.store({name: stored(item) for name, item in named.items()})
                parts = tuple(
                    Batch(
                        examples=len(part["input"]),
                        tensors=writer.store({name: stored(item) for name, item in part.items()}),
                    )
                    for part in (batches[number] if batches else [])
                )
                last = number == len(sets) - 1
                step = Step(
                    rank,
                    number,
                    1.0,
                    parts,
                    weights_before=blob,
                    weights_after=blob if last else None,
                )
                writer.append(step)
    return read_trace(folder)


def moved(weights: Tensors) -> Tensors:
    return {name: item + np.float32(1.0) for name, item in weights.items()}


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "_module.", "net.trunk."])
def test_names_that_agree_up_to_a_prefix(tmp_path: Path, prefix: str) -> None:
    weights = {f"{prefix}a.weight": FIRST, f"{prefix}b.weight": LAST}
    trace = trace_of(tmp_path / "t", [weights, moved(weights)])
    found = RecordedTensors(trace, graph_with()).weights("step 1")
    assert np.array_equal(found["a.weight"], (FIRST + np.float32(1.0)).astype(np.float64))
    assert found["b.weight"].dtype == np.float64


def test_the_graph_may_have_the_longer_name(tmp_path: Path) -> None:
    trace = trace_of(tmp_path / "t", [{"a.weight": FIRST, "b.weight": LAST}])
    found = RecordedTensors(trace, graph_with("model.a.weight", "model.b.weight")).weights("step 0")
    assert np.array_equal(found["model.a.weight"], FIRST.astype(np.float64))


def test_made_up_names_are_matched_by_numbers_also_transposed(tmp_path: Path) -> None:
    weights = {"a.weight": FIRST.T.copy(), "b.weight": LAST}
    trace = trace_of(tmp_path / "t", [weights, moved(weights)])
    found = RecordedTensors(trace, graph_with("onnx::MatMul_1", "onnx::MatMul_2")).weights("step 1")
    assert np.array_equal(found["onnx::MatMul_1"], (FIRST + np.float32(1.0)).astype(np.float64))
    assert np.array_equal(found["onnx::MatMul_2"], (LAST + np.float32(1.0)).astype(np.float64))


def test_a_file_exported_at_the_end_is_matched_by_its_numbers(tmp_path: Path) -> None:
    weights = {"a.weight": FIRST, "b.weight": LAST}
    trace = trace_of(tmp_path / "t", [moved(weights), weights])
    assert RecordedTensors(trace, graph_with("onnx::MatMul_1", "onnx::MatMul_2")).weights("step 0")


def test_made_up_names_with_other_numbers_are_refused(tmp_path: Path) -> None:
    trace = trace_of(tmp_path / "t", [moved({"a.weight": FIRST, "b.weight": LAST})])
    with pytest.raises(NoVerdictError, match=r"LC319.*onnx::MatMul_1"):
        RecordedTensors(trace, graph_with("onnx::MatMul_1", "onnx::MatMul_2")).weights("step 0")


def test_numbers_of_two_tensors_are_no_match(tmp_path: Path) -> None:
    trace = trace_of(tmp_path / "t", [{"a.weight": FIRST, "c.weight": FIRST, "b.weight": LAST}])
    with pytest.raises(NoVerdictError, match="LC319"):
        RecordedTensors(trace, graph_with("onnx::MatMul_1", "onnx::MatMul_2")).weights("step 0")


def test_a_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    trace = trace_of(tmp_path / "t", [{"a.weight": FIRST[:, :2].copy(), "b.weight": LAST}])
    with pytest.raises(NoVerdictError, match=r"a\.weight \[4, 3\]"):
        RecordedTensors(trace, graph_with()).weights("step 0")


def test_two_tensors_with_one_ending_are_refused(tmp_path: Path) -> None:
    weights = {"x.a.weight": FIRST + 1, "y.a.weight": FIRST + 2, "b.weight": LAST}
    trace = trace_of(tmp_path / "t", [weights])
    with pytest.raises(NoVerdictError, match="LC319"):
        RecordedTensors(trace, graph_with()).weights("step 0")


def test_nan_is_refused_with_its_name(tmp_path: Path) -> None:
    bad = FIRST.copy()
    bad[1, 1] = np.nan
    trace = trace_of(tmp_path / "t", [{"a.weight": bad, "b.weight": LAST}])
    with pytest.raises(NoVerdictError, match=r"LC306.*a\.weight"):
        RecordedTensors(trace, graph_with()).weights("step 0")


def test_frozen_parameters_are_those_of_the_file(tmp_path: Path) -> None:
    graph = graph_with()
    frozen = Graph(
        graph.input_name,
        graph.input_shape,
        graph.output_name,
        graph.nodes,
        {**graph.parameters, "b.weight": Parameter("b.weight", (2, 4), trainable=False)},
    )
    good = trace_of(tmp_path / "g", [{"a.weight": FIRST + 1, "b.weight": LAST}])
    assert RecordedTensors(good, frozen).weights("step 0")
    bad = trace_of(tmp_path / "b", [{"a.weight": FIRST, "b.weight": LAST + 1}])
    with pytest.raises(NoVerdictError, match=r"LC319.*b\.weight"):
        RecordedTensors(bad, frozen).weights("step 0")


def normalised() -> Graph:
    op = BatchNorm(
        mean=np.array([1.0, 2.0, 3.0]),
        inverse=(VARIANCE + 1e-5) ** -0.5,
        scale=trained("bn.weight", np.ones(3)),
        bias=trained("bn.bias", np.zeros(3)),
        variance=VARIANCE,
    )
    return dag((3,), [("o", op, ("x",))])


@pytest.mark.parametrize(
    ("mean", "says"), [([1.0, 2.0, 3.0], ""), ([1.0, 2.0, 3.5], "running_mean")]
)
def test_stored_statistics_are_those_of_the_file(
    tmp_path: Path, mean: list[float], says: str
) -> None:
    buffers = {
        "net.bn.running_mean": np.array(mean, dtype=np.float32),
        "net.bn.running_var": np.array([1.0, 4.0, 9.0], dtype=np.float32),
        "net.bn.num_batches_tracked": np.array(3),
    }
    weights = {"net.bn.weight": np.ones(3, np.float32), "net.bn.bias": np.zeros(3, np.float32)}
    trace = trace_of(tmp_path / "t", [weights], buffers=buffers)
    if not says:
        assert RecordedTensors(trace, normalised()).weights("step 0")
        return
    with pytest.raises(NoVerdictError, match=f"LC319.*{says}"):
        RecordedTensors(trace, normalised()).weights("step 0")


def test_statistics_that_the_graph_does_not_know_are_refused(tmp_path: Path) -> None:
    buffers = {"bn.running_mean": np.zeros(4, np.float32), "bn.running_var": np.ones(4, np.float32)}
    trace = trace_of(tmp_path / "t", [{"a.weight": FIRST, "b.weight": LAST}], buffers=buffers)
    with pytest.raises(NoVerdictError, match=r"LC319.*bn\.running"):
        RecordedTensors(trace, graph_with()).weights("step 0")


def test_checkpoints_are_those_that_steps_start_from(tmp_path: Path) -> None:
    weights = {"a.weight": FIRST, "b.weight": LAST}
    trace = trace_of(tmp_path / "t", [weights, weights, moved(weights)])
    assert RecordedTensors(trace, graph_with()).checkpoints == ["step 0", "step 2"]
    assert RecordedTensors(trace, graph_with()).weights("after step 2")
    with pytest.raises(NoVerdictError, match="step 7"):
        RecordedTensors(trace, graph_with()).weights("step 7")


def part(count: int, start: int) -> Tensors:
    x = np.arange(start, start + 3 * count, dtype=np.float32).reshape(count, 3)
    return {"input": x, "labels": np.arange(count)}


def test_micro_batches_are_joined_and_empty_ones_left_out(tmp_path: Path) -> None:
    weights = {"a.weight": FIRST, "b.weight": LAST}
    trace = trace_of(tmp_path / "t", [weights], batches=[[part(2, 0), part(0, 0), part(3, 6)]])
    assert RecordedTensors(trace, graph_with()).batch_sizes == {"step 0": 5}
    examples = RecordedTensors(trace, graph_with()).examples("step 0")
    assert np.array_equal(examples.x, np.arange(15, dtype=np.float32).reshape(5, 3))
    assert examples.y.tolist() == [0, 1, 0, 1, 2]


def test_ranks_have_names_of_their_own(tmp_path: Path) -> None:
    weights = {"a.weight": FIRST, "b.weight": LAST}
    trace = trace_of(tmp_path / "t", [weights], batches=[[part(2, 0)]], ranks=2)
    assert RecordedTensors(trace, graph_with()).batch_sizes == {
        "step 0, rank 0": 2,
        "step 0, rank 1": 2,
    }
    assert RecordedTensors(trace, graph_with()).checkpoints == ["step 0, rank 0"]


def test_a_batch_without_labels_is_not_replayed(tmp_path: Path) -> None:
    weights = {"a.weight": FIRST, "b.weight": LAST}
    unlabelled = {"input": np.zeros((2, 3), np.float32)}
    trace = trace_of(tmp_path / "t", [weights], batches=[[part(2, 0), unlabelled]])
    assert RecordedTensors(trace, graph_with()).batch_sizes == {}


def test_a_second_input_is_refused(tmp_path: Path) -> None:
    weights = {"a.weight": FIRST, "b.weight": LAST}
    two = {**part(2, 0), "input.mask": np.zeros((2, 3), np.float32)}
    trace = trace_of(tmp_path / "t", [weights], batches=[[two]])
    with pytest.raises(NoVerdictError, match=r"input\.mask"):
        RecordedTensors(trace, graph_with()).examples("step 0")


def test_examples_of_another_shape_are_refused(tmp_path: Path) -> None:
    weights = {"a.weight": FIRST, "b.weight": LAST}
    trace = trace_of(tmp_path / "t", [weights], batches=[[part(2, 0)]])
    with pytest.raises(NoVerdictError, match="reshape"):
        RecordedTensors(trace, dag((1, 3), [("o", Activation("relu"), ("x",))])).examples("step 0")
