"""Weights and batches of a trace by the names of a graph; what does not belong together is refused.

Traces are written by the torch-free writer, so that any shape of a trace can be made.
"""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from lipcert.audit.trace.blobs import stored
from lipcert.audit.trace.reading import Trace, read_trace
from lipcert.audit.trace.records import Batch, Manifest, Step
from lipcert.audit.trace.writing import TraceWriter
from lipcert.core.reader.records import Tensor
from lipcert.errors import NoVerdictError
from lipcert.graph.ir import Graph, Parameter
from tests.audit.checks.runs import recorded_of
from tests.networks import dag, trained
from tests.ops import Activation, BatchNorm, Dense

pytestmark = pytest.mark.filterwarnings("ignore::lipcert.audit.trace.writing.PrivateDataWarning")

VARIANCE = np.array([1.0, 4.0, 9.0])
RANDOM = np.random.default_rng(0)
FIRST = RANDOM.standard_normal((4, 3)).astype(np.float32)
LAST = RANDOM.standard_normal((2, 4)).astype(np.float32)
WEIGHTS = {"a.weight": FIRST, "b.weight": LAST}
MADE_UP = ("onnx::MatMul_1", "onnx::MatMul_2")


def graph_with(first: str = "a.weight", last: str = "b.weight") -> Graph:
    return dag(
        (3,),
        [("h", Dense(trained(first, FIRST)), ("x",)), ("o", Dense(trained(last, LAST)), ("h",))],
    )


def trace_of(folder, sets, *, buffers=None, batches=None, ranks: int = 1) -> Trace:
    """One step for each set of weights, and its micro-batches."""
    shapes = {name: item.shape for name, item in sets[0].items()}
    held = {} if buffers is None else {name: item.shape for name, item in buffers.items()}
    for rank in range(ranks):
        manifest = Manifest({}, ranks, shapes, held)
        with closing(TraceWriter(folder, manifest, rank)) as writer:
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


def moved(weights):
    return {name: item + np.float32(1.0) for name, item in weights.items()}


def recorded(folder, sets, graph: Graph | None = None, **more):
    return recorded_of(trace_of(folder / "t", sets, **more), graph or graph_with())


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "_module.", "net.trunk."])
def test_names_that_agree_up_to_a_prefix(tmp_path, prefix: str) -> None:
    weights = {f"{prefix}{name}": item for name, item in WEIGHTS.items()}
    found = recorded(tmp_path, [weights, moved(weights)]).weights("step 1")
    assert np.array_equal(found["a.weight"], (FIRST + np.float32(1.0)).astype(np.float64))
    assert found["b.weight"].dtype == np.float64


def test_the_graph_may_have_the_longer_name(tmp_path) -> None:
    graph = graph_with("model.a.weight", "model.b.weight")
    found = recorded(tmp_path, [WEIGHTS], graph).weights("step 0")
    assert np.array_equal(found["model.a.weight"], FIRST.astype(np.float64))


def test_made_up_names_are_matched_by_numbers_also_transposed(tmp_path) -> None:
    weights = {"a.weight": FIRST.T.copy(), "b.weight": LAST}
    found = recorded(tmp_path, [weights, moved(weights)], graph_with(*MADE_UP)).weights("step 1")
    for name, array in zip(MADE_UP, (FIRST, LAST), strict=True):
        assert np.array_equal(found[name], (array + np.float32(1.0)).astype(np.float64))


def test_a_file_exported_at_the_end_is_matched_by_its_numbers(tmp_path) -> None:
    assert recorded(tmp_path, [moved(WEIGHTS), WEIGHTS], graph_with(*MADE_UP)).weights("step 0")


BAD = np.where(np.arange(12).reshape(4, 3) == 4, np.float32(np.nan), FIRST)
REFUSED = {
    "other numbers": (moved(WEIGHTS), graph_with(*MADE_UP), r"LC319.*onnx::MatMul_1"),
    "numbers of two tensors": (WEIGHTS | {"c.weight": FIRST}, graph_with(*MADE_UP), "LC319"),
    "shape": (WEIGHTS | {"a.weight": FIRST[:, :2].copy()}, graph_with(), r"a\.weight \[4, 3\]"),
    "two tensors with one ending": (
        {"x.a.weight": FIRST + 1, "y.a.weight": FIRST + 2, "b.weight": LAST},
        graph_with(),
        "LC319",
    ),
    "NaN": (WEIGHTS | {"a.weight": BAD}, graph_with(), r"LC306.*a\.weight"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_belong_together_is_refused(name: str, tmp_path) -> None:
    weights, graph, why = REFUSED[name]
    with pytest.raises(NoVerdictError, match=why):
        recorded(tmp_path, [weights], graph).weights("step 0")


def test_frozen_parameters_are_those_of_the_file(tmp_path) -> None:
    graph = graph_with()
    held = {**graph.parameters, "b.weight": Parameter("b.weight", (2, 4), trainable=False)}
    frozen = replace(graph, parameters=held)
    assert recorded(tmp_path / "g", [WEIGHTS | {"a.weight": FIRST + 1}], frozen).weights("step 0")
    with pytest.raises(NoVerdictError, match=r"LC319.*b\.weight"):
        recorded(tmp_path / "b", [WEIGHTS | {"b.weight": LAST + 1}], frozen).weights("step 0")


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
def test_stored_statistics_are_those_of_the_file(tmp_path, mean: list[float], says: str) -> None:
    buffers = {
        "net.bn.running_mean": np.array(mean, dtype=np.float32),
        "net.bn.running_var": np.array([1.0, 4.0, 9.0], dtype=np.float32),
        "net.bn.num_batches_tracked": np.array(3),
    }
    weights = {"net.bn.weight": np.ones(3, np.float32), "net.bn.bias": np.zeros(3, np.float32)}
    found = recorded(tmp_path, [weights], normalised(), buffers=buffers)
    if not says:
        assert found.weights("step 0")
        return
    with pytest.raises(NoVerdictError, match=f"LC319.*{says}"):
        found.weights("step 0")


def test_statistics_that_the_graph_does_not_know_are_refused(tmp_path) -> None:
    buffers = {"bn.running_mean": np.zeros(4, np.float32), "bn.running_var": np.ones(4, np.float32)}
    with pytest.raises(NoVerdictError, match=r"LC319.*bn\.running"):
        recorded(tmp_path, [WEIGHTS], buffers=buffers).weights("step 0")


def test_statistics_from_which_constants_are_computed_are_those_of_the_file(tmp_path) -> None:
    """As torchvision's FrozenBatchNorm2d does, whose square roots alone are constants."""
    tensor = Tensor("float32", (4,), np.full(4, 1.5, np.float32).tobytes())
    graph, held = graph_with(), {"bn.running_var": tensor}
    buffers = {"module.bn.running_var": np.full(4, 1.5, np.float32)}
    trace = trace_of(tmp_path, [WEIGHTS], buffers=buffers)
    assert recorded_of(trace, graph, held=held).weights("step 0")
    other = {"bn.running_var": replace(tensor, content=np.ones(4, np.float32).tobytes())}
    with pytest.raises(NoVerdictError, match=r"LC319.*bn\.running_var"):
        recorded_of(trace, graph, held=other).weights("step 0")


def test_checkpoints_are_those_that_steps_start_from(tmp_path) -> None:
    found = recorded(tmp_path, [WEIGHTS, WEIGHTS, moved(WEIGHTS)])
    assert found.checkpoints == ["step 0", "step 2"]
    assert found.weights("after step 2")
    with pytest.raises(NoVerdictError, match="step 7"):
        found.weights("step 7")


def part(count: int, start: int):
    x = np.arange(start, start + 3 * count, dtype=np.float32).reshape(count, 3)
    return {"input": x, "labels": np.arange(count)}


def test_micro_batches_are_joined_and_empty_ones_left_out(tmp_path) -> None:
    found = recorded(tmp_path, [WEIGHTS], batches=[[part(2, 0), part(0, 0), part(3, 6)]])
    assert found.batch_sizes == {"step 0": 5}
    examples = found.examples("step 0")
    assert np.array_equal(examples.x, np.arange(15, dtype=np.float32).reshape(5, 3))
    assert examples.y.tolist() == [0, 1, 0, 1, 2]


def test_ranks_have_names_of_their_own(tmp_path) -> None:
    found = recorded(tmp_path, [WEIGHTS], batches=[[part(2, 0)]], ranks=2)
    assert found.batch_sizes == {"step 0, rank 0": 2, "step 0, rank 1": 2}
    assert found.checkpoints == ["step 0, rank 0"]


def test_a_batch_without_labels_is_not_replayed(tmp_path) -> None:
    unlabelled = {"input": np.zeros((2, 3), np.float32)}
    assert recorded(tmp_path, [WEIGHTS], batches=[[part(2, 0), unlabelled]]).batch_sizes == {}


@pytest.mark.parametrize(
    ("more", "graph", "why"),
    [
        ({"input.mask": np.zeros((2, 3), np.float32)}, graph_with(), r"input\.mask"),
        ({}, dag((1, 3), [("o", Activation("relu"), ("x",))]), "reshape"),
    ],
    ids=["a second input", "another shape"],
)
def test_examples_that_do_not_fit_are_refused(tmp_path, more, graph: Graph, why: str) -> None:
    found = recorded(tmp_path, [WEIGHTS], graph, batches=[[part(2, 0) | more]])
    with pytest.raises(NoVerdictError, match=why):
        found.examples("step 0")
