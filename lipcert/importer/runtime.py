"""Runtime: onnxruntime without optimisations, on one thread, for whatever is held against it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnx import ModelProto, ValueInfoProto

from lipcert.core.reader.records import Model
from lipcert.errors import ModelFileError
from lipcert.importer.branches import take_branches
from lipcert.importer.container import read_bytes
from lipcert.importer.expansion import names_read, needed_nodes
from lipcert.importer.external import embed_external_data

_FRAME = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (?:This is an invalid model\. )?")
_LACKS = (
    "NOT_IMPLEMENTED",
    "not a registered function",
    "only *guarantees* support",
    "Unsupported model IR",
    "ailed to allocate memory",
)
Array = npt.NDArray[Any]
_TYPES = {"tensor(float)": "float32", "tensor(double)": "float64", "tensor(float16)": "float16"} | {
    f"tensor({sign}int{bits})": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}


@final
class RunFailure(Exception):  # noqa: N818 (no failure of the program)
    """onnxruntime refuses a model or an input; one line."""


@final
class Runtime:
    """A file as it stands, of which the values of its nodes can be asked for.

    What the values do not depend on is left out, so that these inputs remain, with the shapes that
    the file declares. model: what the core reads in it. values: those of the wanted ones that
    nodes of the file compute. dtypes: of the inputs.
    """

    def __init__(
        self, path: Path, model: Model, sources: Sequence[str], wanted: Sequence[str]
    ) -> None:
        content, self.values = _written(path, model, sources, wanted)
        try:
            self._session = _new_session(content)
        except Exception as error:
            raise _failure(error) from error
        kinds = {item.name: item.type for item in self._session.get_inputs()}
        for kind in kinds.values():
            if kind not in _TYPES:
                raise RunFailure(f"its input is of the type {kind}")
        self.dtypes = {name: np.dtype(_TYPES[kind]) for name, kind in kinds.items()}

    def __call__(self, given: Mapping[str, Array], values: Sequence[str]) -> list[Array]:
        """The values for these inputs."""
        fed = {name: array.astype(self.dtypes[name]) for name, array in given.items()}
        try:
            found = self._session.run(list(values), fed)
        except Exception as error:
            raise _failure(error) from error
        return [np.asarray(item) for item in found]


def rejection(path: Path) -> str:
    """Why onnxruntime rejects a file as it stands, or does not run it on any of a few inputs of
    the shapes that it declares; "" where it does, or lacks an operator or type that it holds."""
    proto = ModelProto()
    proto.ParseFromString(read_bytes(path).content)
    embed_external_data(proto, path.parent)
    try:
        session = _new_session(proto.SerializeToString())
    except Exception as error:  # noqa: BLE001  of no common type
        return "" if _is_lack(error) else f"onnxruntime rejects it: {_said(error)}"
    given = session.get_inputs()
    if any(item.type not in _TYPES or not item.shape or _symbols(item.shape[1:]) for item in given):
        return ""  # nobody knows what to feed
    said = ""
    for count in (1, 2, 3):
        try:
            session.run(None, {item.name: _drawn(item, count) for item in given})
        except Exception as error:  # noqa: BLE001  of no common type
            if _is_lack(error):
                return ""
            said = f"onnxruntime does not run it on inputs of its shapes: {_said(error)}"
        else:
            return ""
    return said


def _symbols(dims: Sequence[object]) -> bool:
    return any(not isinstance(size, int) or size < 1 for size in dims)


def _drawn(item: Any, count: int) -> Array:
    """Numbers for an input; of whole ones 0, which are rows of every table."""
    first, *rest = item.shape
    shape = (count if _symbols([first]) else first, *rest)
    dtype = np.dtype(_TYPES[item.type])
    drawn = np.random.default_rng(0).random(shape) if dtype.kind == "f" else np.zeros(shape)
    return np.asarray(drawn, dtype=dtype)


def _said(error: Exception) -> str:
    """What onnxruntime says, without its own numbers and names of files."""
    return _FRAME.sub("", str(_failure(error)))


def _is_lack(error: Exception) -> bool:
    """Whether onnxruntime lacks something that a valid file may hold."""
    said = str(error)
    return any(words in said for words in _LACKS)


def _written(
    path: Path, model: Model, sources: Sequence[str], wanted: Sequence[str]
) -> tuple[bytes, tuple[str, ...]]:
    """The file without what the values do not depend on, and which of the values there are."""
    proto = ModelProto()
    raw = read_bytes(path)
    if raw.sha256 != model.sha256:
        raise ModelFileError(f"{str(path)!r} changed while it was read")
    proto.ParseFromString(raw.content)
    del raw
    take_branches(proto.graph, model)
    made = {name for node in proto.graph.node for name in node.output}
    values = tuple(name for name in dict.fromkeys(wanted) if name in made)
    _keep(proto, sources, values)
    embed_external_data(proto, path.parent)
    return proto.SerializeToString(), values


def _failure(error: Exception) -> RunFailure:
    return RunFailure(" ".join(str(error).split())[:200])


def _new_session(content: bytes) -> onnxruntime.InferenceSession:
    """Its errors have no common type."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _keep(proto: ModelProto, sources: Sequence[str], values: Sequence[str]) -> None:
    """Leave the nodes before these values, the tensors they read, and these inputs."""
    graph = proto.graph
    graph.ClearField("value_info")
    nodes = needed_nodes(graph, values)
    live = set(values).union(*map(names_read, nodes))
    del graph.node[:]
    graph.node.extend(nodes)
    tensors = [item for item in graph.initializer if item.name in live]
    if len(tensors) < len(graph.initializer):
        del graph.initializer[:]
        graph.initializer.extend(tensors)
    inputs = [item for item in graph.input if item.name in sources]
    del graph.input[:]
    graph.input.extend(inputs)
    declared = {item.name: item for item in graph.output}
    del graph.output[:]
    graph.output.extend(declared.get(name, ValueInfoProto(name=name)) for name in values)
    proto.ir_version = max(proto.ir_version, 4)  # initializers need not be inputs
