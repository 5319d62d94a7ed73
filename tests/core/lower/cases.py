"""Small ONNX graphs written down in a line or two, and the comparison with onnxruntime."""

import json
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper, parser

from lipcert.core.lower.lower import lower
from lipcert.core.reader.model import read_model
from lipcert.graph.evaluate import evaluate

ort.set_default_logger_severity(4)


def node(op: str, inputs: str, outputs: str = "y", **attributes):
    """A node; names are separated by spaces, "-" is an input that is left out."""
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(op, names, outputs.split(), name=f"{op}_{outputs}", **attributes)


def nodes_of(text: str) -> list[NodeProto]:
    """The nodes that are written in the notation of ONNX: `[name] m = ReduceMean<axes=[1]>(x)`."""
    found = list(parser.parse_graph(f"text (x) => (y) {{ {text} }}").node)
    for item in found:
        item.name = item.name or f"{item.op_type}_{' '.join(item.output)}"
    return found


def listed(attributes) -> str:
    """Attributes in the notation of ONNX."""
    items = [f"{name}={json.dumps(value)}" for name, value in attributes.items()]
    return f"<{', '.join(items)}>" if items else ""


def used(nodes, constants):
    """Those that the nodes read."""
    items = nodes_of(nodes) if isinstance(nodes, str) else nodes
    names = {name for item in items for name in item.input}
    return {name: value for name, value in constants.items() if name in names}


def onnx_file(
    nodes,
    inputs,
    outputs,
    tensors,
    opset: int = 21,
    real: int = TensorProto.FLOAT,
) -> ModelProto:
    """A graph of nodes, or of their text, from inputs of types and shapes to outputs of numbers."""
    graph = helper.make_graph(
        nodes_of(nodes) if isinstance(nodes, str) else list(nodes),
        "graph",
        [helper.make_tensor_value_info(name, *item) for name, item in inputs.items()],
        [helper.make_tensor_value_info(name, real, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def model(
    nodes,
    shape,
    constants=None,
    opset: int = 17,
    output: str = "y",
) -> ModelProto:
    """A graph from x to an output. Floats become float32, whole numbers int64."""
    arrays = {name: np.asarray(value) for name, value in (constants or {}).items()}
    types = {"f": np.float32, "i": np.int64, "b": np.bool_}
    tensors = {name: item.astype(types[item.dtype.kind]) for name, item in arrays.items()}
    return onnx_file(nodes, {"x": (TensorProto.FLOAT, shape)}, [output], tensors, opset)


def read(proto: ModelProto | bytes, folder: Path | None = None):
    """The model through a file, in this folder or in none that stays."""
    with tempfile.TemporaryDirectory() as own:
        path = (folder or Path(own)) / "model.onnx"
        path.write_bytes(proto if isinstance(proto, bytes) else proto.SerializeToString())
        return read_model(path)


def program(proto: ModelProto, *outputs: str):
    """The program of a model, to "y" if not to these outputs."""
    return lower(read(proto), *(outputs or ["y"]))


def kinds(found) -> list[str]:
    """The steps, by their kinds or functions."""
    return [getattr(step.op, "name", type(step.op).__name__) for step in found.steps]


def agrees(
    proto: ModelProto,
    output: str = "y",
    tolerance: float = 1e-4,
    examples=None,
):
    """The program, compared with onnxruntime on single examples, and on their batch if it is
    proved; of three that are drawn where none are given.
    """
    found = program(proto, output)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options)
    if examples is None:
        shape = (3, *found.shapes[found.input])
        examples = [*np.random.default_rng(0).standard_normal(shape).astype(np.float32)]
    ours = [evaluate(found, x)[found.output] for x in examples]
    for x, value in zip(examples, ours, strict=True):
        (expected,) = session.run([output], {"x": x})
        assert expected.shape == value.shape
        np.testing.assert_allclose(value, expected, rtol=tolerance, atol=tolerance)
    symbolic = isinstance(_first(proto), str)
    if found.batch_proved and symbolic:
        (batch,) = session.run([output], {"x": np.concatenate(examples)})
        assert any(
            np.allclose(ours, parts, rtol=tolerance, atol=tolerance, equal_nan=True)
            for parts in _examples(batch, ours[0].shape, len(ours))
        )
    return found


def _first(proto: ModelProto) -> int | str:
    dim = proto.graph.input[0].type.tensor_type.shape.dim[0]
    return dim.dim_param or dim.dim_value


def _examples(batch, shape, count: int):
    """The outputs of examples, for all ways in which the longer axis may carry them."""
    sizes = enumerate(zip(batch.shape, shape, strict=True))
    (axis,) = [k for k, (a, b) in sizes if a == count * b]
    for before in range(1, shape[axis] + 1):
        if shape[axis] % before == 0:
            parts = (before, count, shape[axis] // before)
            whole = batch.reshape(*shape[:axis], *parts, *shape[axis + 1 :])
            yield np.moveaxis(whole, axis + 1, 0).reshape(count, *shape)
