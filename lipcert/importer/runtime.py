"""Runtime: onnxruntime without optimisations, on one thread, for whatever is held against it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnx import ModelProto, ValueInfoProto

from lipcert.importer.container import read_bytes
from lipcert.importer.external import embed_external_data

Array = npt.NDArray[Any]
_TYPES = {"tensor(float)": "float32", "tensor(double)": "float64", "tensor(float16)": "float16"}


@final
class RunFailure(Exception):  # noqa: N818 (no failure of the program)
    """onnxruntime refuses a model or an input; one line."""


def new_session(content: bytes) -> onnxruntime.InferenceSession:
    """A session of a serialised model; its errors have no common type."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


@final
class Runtime:
    """A file as it stands, of which every value can be asked for.

    What the values do not depend on is left out, so that one input remains, with the shape that
    the file declares. dtype: of the input.
    """

    def __init__(self, path: Path, source: str, values: Sequence[str]) -> None:
        proto = ModelProto()
        proto.ParseFromString(read_bytes(path).content)
        embed_external_data(proto, path.parent)
        _keep(proto, source, list(dict.fromkeys(values)))
        content = proto.SerializeToString()
        del proto
        try:
            self._session = new_session(content)
        except Exception as error:
            raise _failure(error) from error
        self._source = source
        kind = self._session.get_inputs()[0].type
        if kind not in _TYPES:
            raise RunFailure(f"its input is of the type {kind}")
        self.dtype = np.dtype(_TYPES[kind])

    def __call__(self, batch: Array, values: Sequence[str]) -> list[Array]:
        """The values for this input."""
        try:
            found = self._session.run(list(values), {self._source: batch.astype(self.dtype)})
        except Exception as error:
            raise _failure(error) from error
        return [np.asarray(item) for item in found]


def _failure(error: Exception) -> RunFailure:
    return RunFailure(" ".join(str(error).split())[:200])


def _keep(proto: ModelProto, source: str, values: Sequence[str]) -> None:
    """Leave the nodes before these values, the tensors they read, and one input."""
    graph, live = proto.graph, set(values)
    graph.ClearField("value_info")
    kept = []
    for node in reversed(graph.node):
        if live.intersection(node.output):
            kept.append(node)
            live.update(node.input)
    nodes = kept[::-1]
    del graph.node[:]
    graph.node.extend(nodes)
    tensors = [item for item in graph.initializer if item.name in live]
    del graph.initializer[:]
    graph.initializer.extend(tensors)
    inputs = [item for item in graph.input if item.name == source]
    del graph.input[:]
    graph.input.extend(inputs)
    declared = {item.name: item for item in graph.output}
    del graph.output[:]
    graph.output.extend(declared.get(name, ValueInfoProto(name=name)) for name in values)
    proto.ir_version = max(proto.ir_version, 4)  # initializers need not be inputs
