"""Runtime: run onnxruntime without optimisations, on one thread, as a reference to compare with."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from google.protobuf.message import Message
from onnx.onnx_ml_pb2 import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
)

from lipcert.core.reader import MAX_BYTES, Folder
from lipcert.core.reader.model import read_parsed
from lipcert.core.reader.records import Branch, Node
from lipcert.core.reader.scores import score_names
from lipcert.core.reader.tensors import read_tensor
from lipcert.importer.model import Reading

_FRAME = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (?:This is an invalid model\. )?")
_LACKS = (
    "NOT_IMPLEMENTED",
    "not a registered function",
    "only *guarantees* support",
    "Unsupported model IR",
    "ailed to allocate memory",
)
_OTHERS = {TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE}
"""Types for which onnxruntime lacks operators."""
_RECURRENT = {"GRU", "LSTM", "RNN"}
"""Operators that onnxruntime lacks for doubles, which it says only when they run."""
Array = npt.NDArray[Any]
_TYPES = {"tensor(float)": "float32", "tensor(double)": "float64", "tensor(float16)": "float16"} | {
    f"tensor({sign}int{bits})": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}


class RunFailure(Exception):  # noqa: N818 (no failure of the program)
    """onnxruntime refuses a model or an input; the message is one line."""


class Runtime:
    """Runs a file as it is, and returns values of its nodes.

    Nodes that the wanted values do not depend on are left out; the inputs left keep the shapes
    that the file declares.

    Args:
        proto: the message of the file.
        folder: the folder with its external data.
        read: what the core reads in the file.
        wanted: names of the values that may be asked for.

    values: the wanted ones that nodes of the file compute. dtypes: those of the inputs.
    is_widened: whether float32 replaces other types, which onnxruntime does not run.
    """

    def __init__(
        self, proto: ModelProto, folder: Path, read: Reading, wanted: Sequence[str]
    ) -> None:
        kept, self.values = _written(proto, folder, read, wanted)
        try:
            self._session, self.is_widened = _new_session(kept)
        except Exception as error:
            raise _failure(error) from error
        kinds = {item.name: item.type for item in self._session.get_inputs()}
        for kind in kinds.values():
            if kind not in _TYPES:
                raise RunFailure(f"its input is of the type {kind}")
        self.dtypes = {name: np.dtype(_TYPES[kind]) for name, kind in kinds.items()}

    def __call__(self, given: Mapping[str, Array], values: Sequence[str]) -> list[Array]:
        """Return the values for these inputs."""
        fed = {name: array.astype(self.dtypes[name]) for name, array in given.items()}
        try:
            found = self._session.run(list(values), fed)
        except Exception as error:
            raise _failure(error) from error
        return [np.asarray(item) for item in found]


def rejection(path: Path) -> str:
    """Return why onnxruntime rejects a file, or fails on inputs of the shapes that it declares.

    The result is "" if it runs on one of them, or lacks an operator or type of the file.
    """
    _, proto = read_parsed(path)
    _embed_external_data(proto, path.parent)
    try:
        session, _ = _new_session(proto)
    except Exception as error:  # noqa: BLE001  of no common type
        return "" if _is_lack(error) else f"onnxruntime rejects it: {_said(error)}"
    given = session.get_inputs()
    if any(item.type not in _TYPES or not item.shape or _symbols(item.shape[1:]) for item in given):
        return ""  # it is unknown what to feed
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
    """Draw numbers for an input; integers are 0, a valid row of every table."""
    first, *rest = item.shape
    shape = (count if _symbols([first]) else first, *rest)
    dtype = np.dtype(_TYPES[item.type])
    drawn = np.random.default_rng(0).random(shape) if dtype.kind == "f" else np.zeros(shape)
    return np.asarray(drawn, dtype=dtype)


def _said(error: Exception) -> str:
    """Return onnxruntime's message without its error numbers and file names."""
    return _FRAME.sub("", str(_failure(error)))


def _is_lack(error: Exception) -> bool:
    """Whether onnxruntime lacks something that a valid file may hold."""
    said = str(error)
    return any(words in said for words in _LACKS)


def _written(
    proto: ModelProto, folder: Path, read: Reading, wanted: Sequence[str]
) -> tuple[ModelProto, tuple[str, ...]]:
    """Return the file reduced to what the values depend on, and which of the values it has."""
    whole = [*proto.graph.node]
    whole += [item for node in whole for item in _scores(node, wanted)]
    made = {name for node in whole for name in node.output}
    values = tuple(name for name in dict.fromkeys(wanted) if name in made)
    kept = ModelProto(ir_version=max(proto.ir_version, 4))  # initializers need not be inputs
    kept.opset_import.extend(proto.opset_import)
    kept.functions.extend(proto.functions)
    graph, source = kept.graph, proto.graph
    graph.name = source.name
    graph.node.extend(whole)
    known = {node.outputs: node for node in read.model.nodes}
    _take(((node, known.get(tuple(node.output))) for node in graph.node), read.taken)
    _keep_needed(graph, values)
    live = set(values).union(*map(_names_read, graph.node))
    graph.initializer.extend(item for item in source.initializer if item.name in live)
    graph.input.extend(item for item in source.input if item.name in read.program.inputs)
    declared = {item.name: item for item in source.output}
    graph.output.extend(declared.get(name, ValueInfoProto(name=name)) for name in values)
    _embed_external_data(kept, folder)
    return kept, values


def _scores(node: NodeProto, wanted: Sequence[str]) -> Iterator[NodeProto]:
    """Yield nodes that compute the scores which `core.reader.scores` names."""
    result = node.output[1] if node.op_type == "LinearClassifier" and len(node.output) > 1 else ""
    both, one = score_names(result)
    if result and not {both, one}.isdisjoint(wanted):
        raw = NodeProto(op_type=node.op_type, domain=node.domain, input=node.input)
        raw.output.extend([f"{both}.labels", both])
        raw.attribute.extend(item for item in node.attribute if item.name != "post_transform")
        place = f"{one}.place"
        second = AttributeProto(name="value_ints", type=AttributeProto.INTS, ints=[1])
        yield from (raw, NodeProto(op_type="Constant", output=[place], attribute=[second]))
        last = AttributeProto(name="axis", type=AttributeProto.INT, i=1)
        yield NodeProto(op_type="Gather", input=[both, place], output=[one], attribute=[last])


def _failure(error: Exception) -> RunFailure:
    return RunFailure(" ".join(str(error).split())[:200])


def _new_session(proto: ModelProto) -> tuple[onnxruntime.InferenceSession, bool]:
    """Return a session, and whether it runs with float32 in place of other types.

    It raises errors of no common type.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4

    def session() -> onnxruntime.InferenceSession:
        content = proto.SerializeToString()
        found = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        if any("bfloat16" in item.type for item in found.get_inputs()):
            raise RunFailure("numpy has no bfloat16 to feed")
        is_double = any("double" in item.type for item in found.get_inputs())
        if is_double and any(node.op_type in _RECURRENT for node in proto.graph.node):
            raise RunFailure("onnxruntime has no recurrent layers of doubles")
        return found

    try:
        return session(), False
    except Exception:
        if not _widen(proto):
            raise
        return session(), True


def _widen(message: Message) -> bool:
    """Replace other types of real numbers by float32; return whether there were any."""
    found = False
    for field, value in message.ListFields():
        for item in value if field.is_repeated else [value]:
            match item:
                case TensorProto(data_type=kind) if kind in _OTHERS:
                    with np.errstate(over="ignore"):
                        wide = read_tensor(item, Folder(Path(), 0)).values().astype("<f4")
                    item.CopyFrom(
                        TensorProto(
                            name=item.name,
                            dims=item.dims,
                            data_type=TensorProto.FLOAT,
                            raw_data=wide.tobytes(),
                        )
                    )
                case AttributeProto(name="to" | "dtype", i=kind) if kind in _OTHERS:
                    item.i = TensorProto.FLOAT
                case TypeProto.Tensor(elem_type=kind) if kind in _OTHERS:
                    item.elem_type = TensorProto.FLOAT
                case Message():
                    found |= _widen(item)
                    continue
                case _:
                    continue
            found = True
    return found


def _keep_needed(graph: GraphProto, outputs: Iterable[str]) -> None:
    """Keep the nodes from which outputs are computed, in their order."""
    live, kept = set(outputs), list[NodeProto]()
    for node in reversed(graph.node):
        if live.intersection(node.output):
            kept.append(node)
            live |= _names_read(node)
    kept.reverse()
    del graph.node[:]
    graph.node.extend(kept)


def _names_read(node: NodeProto) -> set[str]:
    """Return the names of the values that a node reads, also inside its sub-graphs."""
    names = set(node.input)
    for item in node.attribute:
        if item.type == AttributeProto.GRAPH:
            names.update(output.name for output in item.g.output)
            names.update(*map(_names_read, item.g.node))
    return names


def _take(pairs: Iterable[tuple[NodeProto, Node | None]], taken: Mapping[str, Branch]) -> None:
    """Replace the branch that an If does not take by a copy of the one it takes, recursively.

    The core decides which is taken. An If stays as it is where the core does not know, or inside a
    call of a function.
    """
    for proto, node in pairs:
        branch = None if node is None else taken.get(next(filter(None, node.outputs)))
        if node is None or branch is None:
            continue
        key = next(key for key, item in node.attributes.items() if item.value is branch)
        bodies = {item.name: item.g for item in proto.attribute}
        body = bodies.get(key, GraphProto())
        if [item.op_type for item in body.node] != [item.op_type for item in branch.nodes]:
            continue
        _take(zip(body.node, branch.nodes, strict=True), taken)
        _keep_needed(body, [item.name for item in body.output])
        for name in bodies.keys() - {key}:
            bodies[name].CopyFrom(body)


def _embed_external_data(proto: ModelProto, folder: Path) -> None:
    """Move the numbers of every tensor into the model."""
    files = Folder(folder, MAX_BYTES)
    for tensor in _tensors(proto):
        if tensor.external_data:
            content = bytes(read_tensor(tensor, files).content)
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.raw_data = content


def _tensors(message: Message) -> Iterator[TensorProto]:
    """Yield every tensor at any depth of a message."""
    for field, value in message.ListFields():
        if field.message_type is not None:
            for item in value if field.is_repeated else [value]:
                if isinstance(item, TensorProto):
                    yield item
                else:
                    yield from _tensors(item)
