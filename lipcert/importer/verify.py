"""Comparison with onnxruntime: the graph that is bounded computes what the file computes.

What enters: the checked protobuf, the graph, the layouts, and the domain of the inputs, which may
be so small that ordinary inputs say nothing of it. What leaves: the largest difference
found, or the reason why there is no agreement. onnxruntime runs without optimisations, on one
thread, and only the nodes that lead to the output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, helper

from lipcert.errors import Refusal, UnsupportedModelError
from lipcert.importer.draws import NOWHERE, Domain, draws
from lipcert.importer.examples import Examples
from lipcert.importer.expansion import names_read, needed_nodes
from lipcert.importer.layout import Layout
from lipcert.importer.model import Verification
from lipcert.importer.modern import modernise
from lipcert.importer.raw import Array
from lipcert.importer.runtime import new_session
from lipcert.importer.static_graph import StaticGraph
from lipcert.ir import BatchStatus, Graph, evaluate

_TOLERANCE: Final = {"float64": 1e-9, "float32": 2e-4, "float16": 3e-2}
_EXAMPLES: Final = 3
_ROUNDINGS: Final = 32.0
"""how many times the effect of rounding every value once may be seen in a declared domain"""


@final
class _Run:
    """onnxruntime: examples in, outputs per example out."""

    def __init__(self, proto: ModelProto, examples: Examples) -> None:
        graph = examples.graph
        self._names = graph.input_name, graph.output_name
        self._source = examples.layouts[graph.input_name]
        self._result = examples.layouts[graph.output_name]
        is_batched = examples.proof.status is BatchStatus.PROVED
        _reduce(proto, graph, self._source, is_batched=is_batched)
        modernise(proto)
        content = proto.SerializeToString()
        proto.Clear()
        try:
            self._session = new_session(content)
        except Exception as error:
            raise _disagreement(
                f"onnxruntime cannot load the model: {_line(error)}",
                "repair the file, or export it again",
            ) from error

    def __call__(self, examples: Array) -> Array:
        """Outputs in float64: [batch, *example]."""
        name, output = self._names
        source, result = (_resized(item, len(examples)) for item in (self._source, self._result))
        try:
            (found,) = self._session.run([output], {name: source.from_examples(examples)})
        except Exception as error:
            raise _disagreement(f"onnxruntime cannot run the model: {_line(error)}") from error
        found = np.asarray(found)
        if found.shape != result.shape:
            raise _disagreement(
                f"the output has the shape {result.shape} by the definition of the operators,"
                f" but {found.shape} in onnxruntime"
            )
        return result.to_examples(found).astype(np.float64)


def _resized(layout: Layout, batch: int) -> Layout:
    """The same layout at another batch size."""
    if layout.whole:
        return layout
    size = layout.before * batch * layout.after
    shape = (*layout.shape[: layout.axis], size, *layout.shape[layout.axis + 1 :])
    return Layout(shape, batch, layout.axis, layout.before, layout.after)


def verify(
    proto: ModelProto, examples: Examples, graph: Graph, domain: Domain = NOWHERE
) -> Verification:
    """Random examples through onnxruntime, together and one by one, and through the graph.

    The protobuf is used up: what large models weigh twice is not needed twice.
    """
    value = examples.graph.values[examples.graph.input_name]
    is_batched = examples.proof.status is BatchStatus.PROVED
    count = _EXAMPLES if is_batched else 1
    tolerance = _TOLERANCE[value.dtype.name]
    run = _Run(proto, examples)
    worst, compared, drawn = 0.0, 0, 0
    for inputs, is_declared in draws((count, *graph.input_shape), domain):
        drawn += count
        batch = inputs.astype(value.dtype)
        actual = evaluate(graph, batch.astype(np.float64))[graph.output_name]
        for size in {count, 1}:
            expected = run(batch[:size])
            defined = _defined(expected)
            compared += int(np.sum(defined))
            if expected.shape != actual[:size].shape:
                worst = math.inf
            elif np.any(defined):
                found, own = expected[defined], actual[:size][defined]
                difference = _difference(found, own)
                if is_declared and tolerance < difference < math.inf:
                    rounded = _rounded(graph, batch, value.dtype)[:size][defined]
                    difference -= _ROUNDINGS * _difference(found, found + rounded - own)
                worst = max(worst, difference)
    if compared == 0:
        raise _disagreement("no input that was tried gives finite numbers in onnxruntime")
    if not worst <= tolerance:
        reason = f"the imported graph differs from onnxruntime by {worst:.3g} (relative)"
        raise _disagreement(reason)
    return Verification(drawn, worst)


def _rounded(graph: Graph, batch: Array, dtype: np.dtype[Any]) -> Array:
    """The output where every value is rounded once to the type of the file.

    A domain may be so small that little is left of the output but the rounding of what cancels.
    """
    values = {graph.input_name: batch.astype(np.float64)}
    with np.errstate(over="ignore", invalid="ignore"):
        for node in graph.nodes:
            result = node.op.evaluate(*(values[name] for name in node.inputs))
            values[node.output] = result.astype(dtype).astype(np.float64)
    return values[graph.output_name]


def _defined(outputs: Array) -> npt.NDArray[np.bool_]:
    """The examples that lie in the domain of the network (a logarithm has one): [examples]."""
    flat = outputs.reshape(len(outputs), -1)
    result: npt.NDArray[np.bool_] = np.all(np.isfinite(flat), axis=1)
    return result


def _difference(expected: Array, actual: Array) -> float:
    if not np.all(np.isfinite(actual)):
        return math.inf
    return float(np.max(np.abs(expected - actual)) / (1.0 + np.max(np.abs(expected))))


def _reduce(proto: ModelProto, graph: StaticGraph, source: Layout, *, is_batched: bool) -> None:
    """Leave the nodes before the output, for inputs of this shape, and the tensors they read."""
    kept = needed_nodes(proto.graph, [graph.output_name])
    live = {graph.output_name}.union(*(names_read(node) for node in kept))
    nodes = [_without_metadata(node) for node in kept]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    proto.graph.ClearField("value_info")
    proto.graph.ClearField("metadata_props")
    proto.ir_version = max(proto.ir_version, 4)  # initializers need not be inputs
    sizes: list[int | str] = [*source.shape]
    if is_batched:
        sizes[0] = "batch"
    _declare(proto.graph.input, graph, graph.input_name, sizes)
    _declare(proto.graph.output, graph, graph.output_name, None)
    for tensor in [item for item in proto.graph.initializer if item.name not in live]:
        proto.graph.initializer.remove(tensor)


def _declare(
    declared: Any, graph: StaticGraph, name: str, sizes: Sequence[int | str] | None
) -> None:
    """The one input or output of the model."""
    del declared[:]
    code = helper.np_dtype_to_tensor_dtype(graph.values[name].dtype)
    declared.append(helper.make_tensor_value_info(name, code, sizes))


def _without_metadata(node: Any) -> Any:
    node.ClearField("metadata_props")
    node.ClearField("doc_string")
    return node


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _disagreement(reason: str, remedy: str = "report this file") -> UnsupportedModelError:
    return UnsupportedModelError((Refusal("LC013", "", "", reason, remedy),))
