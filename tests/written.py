"""ONNX files of graphs that tests build by hand, with the names of the graph throughout."""

import hashlib
import math
import tempfile
from functools import cache
from itertools import permutations
from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from lipcert.core import kinds, token_kinds, window_kinds
from lipcert.core import program as p
from lipcert.core.lower.lower import lower
from lipcert.graph.ir import BatchProof, BatchStatus, Graph, Node, Operand, example
from lipcert.importer.model import ImportedModel, Reading, Verification, stored_model


def model_of(graph: Graph) -> ImportedModel:
    """The graph as if it had been imported from a file that says the same in float64."""
    path = file_of(_Writer(graph).model())
    proof, (model, _) = BatchProof(BatchStatus.PROVED, 0, "by hand"), stored_model(path)
    reading = Reading(model, lower(model, graph.output_name), (graph.output_name,))
    return ImportedModel(graph, str(path), model, reading, proof, Verification(1, 0.0), ())


def file_of(proto: ModelProto) -> Path:
    """A file that is removed at the end of the process, called by its digest."""
    content = bytes(proto.SerializeToString(deterministic=True))
    path = _folder() / f"{hashlib.sha256(content).hexdigest()}.onnx"
    path.write_bytes(content)
    return path


@cache
def _folder() -> Path:
    held = tempfile.TemporaryDirectory()
    _HELD.append(held)
    return Path(held.name)


_HELD: list[tempfile.TemporaryDirectory[str]] = []
"""removed at the end of the process"""


class _Writer:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.tensors: dict[str, np.ndarray] = {}

    def model(self) -> ModelProto:
        graph = self.graph
        nodes = [proto for node in graph.nodes for proto in self.nodes(node)]
        ends = [
            helper.make_tensor_value_info(name, TensorProto.DOUBLE, ["N", *shape])
            for name, shape in (
                (graph.input_name, graph.input_shape),
                (graph.output_name, graph.output_shape),
            )
        ]
        tensors = [numpy_helper.from_array(array, name) for name, array in self.tensors.items()]
        body = helper.make_graph(nodes, "written", ends[:1], ends[1:], tensors)
        opsets = [helper.make_opsetid("", 21)]
        return helper.make_model(body, opset_imports=opsets, ir_version=10)

    def stored(self, operand: Operand) -> str:
        name = operand.parameter or f"constant{len(self.tensors)}"
        array = np.asarray(operand.array, dtype=np.float64)
        own = self.graph.parameters.get(name)
        self.tensors[name] = array if own is None else array.reshape(own.shape)
        return name

    def numbers(self, *numbers: int) -> str:
        name = f"numbers{len(self.tensors)}"
        self.tensors[name] = np.array(numbers, dtype=np.int64)
        return name

    def nodes(self, node: Node):
        op, out, (x, *_) = node.op, node.output, node.inputs

        def made(kind: str, *inputs: str, output: str = out, **attributes: object) -> NodeProto:
            outputs = [output] if kind != "TopK" else [output, f"{output}_places"]
            return helper.make_node(kind, inputs, outputs, f"{output}_{kind}", **attributes)

        stored = {role: self.stored(item) for role, item in node.operands.items()}
        match op:
            case p.Dense():
                yield from self.dense(stored, x, node, made)
            case window_kinds.Conv(groups=groups, transposed=False):
                windows = node.geometry
                begins, ends = zip(*((w.pad_begin, w.pad_end) for w in windows), strict=True)
                yield made(
                    "Conv", x, *stored.values(), group=groups, pads=[*begins, *ends],
                    strides=[w.stride for w in windows], dilations=[w.dilation for w in windows],
                )  # fmt: skip
            case window_kinds.AveragePool(counts_padding=counted):
                windows = node.geometry
                begins, ends = zip(*((w.pad_begin, w.pad_end) for w in windows), strict=True)
                yield made(
                    "AveragePool", x, kernel_shape=[w.taps for w in windows],
                    strides=[w.stride for w in windows], pads=[*begins, *ends],
                    count_include_pad=int(counted),
                )  # fmt: skip
            case p.Activation(numbers=()):
                yield made(node.kind, x)
            case token_kinds.Scale() if stored.keys() == {"scale"}:
                yield made("Mul", x, stored["scale"])
            case token_kinds.Scale() if stored.keys() == {"scale", "bias"}:
                yield made("Mul", x, stored["scale"], output=f"{out}_scaled")
                yield made("Add", f"{out}_scaled", stored["bias"])
            case token_kinds.Shift():
                yield made("Add", x, stored["bias"])
            case token_kinds.Add(signs=(1, 1)):
                yield made("Add", *node.inputs)
            case kinds.Concat(axis=axis):
                yield made("Concat", *node.inputs, axis=axis)
            case kinds.BatchNorm(inverse=inverse):
                variance = self.stored(Operand(inverse.lo**-2.0))
                named = [*(stored[role] for role in ("scale", "bias", "mean")), variance]
                yield made("BatchNormalization", x, *named, epsilon=0.0)
            case p.Move(sources):
                size = example(node.given[0])
                yield self.move(sources.reshape(node.shape), size, x, made)
            case kinds.ReduceNorm(axes=axes):
                yield made(node.kind, x, self.numbers(*axes), keepdims=1)
            case token_kinds.Softmax(axis=axis, logarithm=False):
                yield made("Softmax", x, axis=axis)
            case kinds.Sort(axis=axis):
                count = self.numbers(node.step.shape[axis])
                yield made("TopK", x, count, axis=axis, largest=0, sorted=1)
            case token_kinds.Normalize(axes=axes, epsilon=epsilon, centred=True):
                if axes != tuple(range(len(node.step.shape)))[axes[0] :]:
                    raise ValueError(f"axes {axes} are not the last ones")
                ones = self.stored(Operand(np.ones(node.step.shape[axes[0] :])))
                yield made("LayerNormalization", x, ones, axis=axes[0], epsilon=epsilon)
            case _:
                raise ValueError(f"{node.kind} is not written yet")

    def move(self, sources: np.ndarray, size: tuple[int, ...], x: str, made) -> NodeProto:
        """A reshape, a transposition, or a padding."""
        own, full = np.arange(math.prod(size)).reshape(size), sources.shape
        if np.array_equal(sources.reshape(-1), own.reshape(-1)):
            return made("Reshape", x, self.numbers(0, *full))
        for axes in permutations(range(len(size))):
            if np.array_equal(own.transpose(axes), sources):
                return made("Transpose", x, perm=[0, *(axis + 1 for axis in axes)])
        for begins in np.argwhere(sources == 0) if len(size) == len(full) else ():
            ends = np.subtract(full, size) - begins
            if min(ends) < 0:
                continue
            for mode in ("constant", "wrap", "reflect", "edge"):
                zeros = {"constant_values": -1} if mode == "constant" else {}
                found = np.pad(own, np.stack((begins, ends), axis=1), mode, **zeros)
                if np.array_equal(found, sources):
                    return made("Pad", x, self.numbers(0, *begins, 0, *ends), mode=mode)
        raise ValueError(f"a move from {size} to {full} is not written yet")

    def dense(self, stored: dict[str, str], x: str, node: Node, made):
        weight = stored["weight"]
        biases = [stored["bias"]] if "bias" in stored else []
        if len(node.shape) == 1:
            yield made("Gemm", x, weight, *biases, transB=1)
            return
        turned, product = f"{node.output}_turned", f"{node.output}_product"
        yield made("Transpose", weight, output=turned)
        yield made("MatMul", x, turned, output=product if biases else node.output)
        if biases:
            yield made("Add", product, *biases)
