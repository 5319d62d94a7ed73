"""ONNX files of graphs that tests build by hand, with the names of the graph throughout."""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Iterator
from functools import cache
from itertools import permutations
from pathlib import Path

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from lipcert.importer.model import ImportedModel, Verification
from lipcert.ir import BatchProof, BatchStatus, Graph, Node
from lipcert.operand import Operand
from lipcert.ops.affine import Scale, Shift
from lipcert.ops.combine import Add, Concat
from lipcert.ops.conv import Conv
from lipcert.ops.entrywise import Activation
from lipcert.ops.linear import Dense
from lipcert.ops.move import Move
from lipcert.ops.normalize import BatchNorm, Normalize
from lipcert.ops.reduction import ReduceNorm
from lipcert.ops.sort import Sort


def model_of(graph: Graph) -> ImportedModel:
    """The graph as if it had been imported from a file that says the same in float64."""
    content = _Writer(graph).model()
    digest = hashlib.sha256(content).hexdigest()
    path = _folder() / f"{digest}.onnx"
    path.write_bytes(content)
    proof = BatchProof(BatchStatus.PROVED, 0, "by hand")
    return ImportedModel(graph, str(path), digest, {}, "", proof, Verification(1, 0.0), ())


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

    def model(self) -> bytes:
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
        made = helper.make_model(body, opset_imports=opsets, ir_version=10)
        return bytes(made.SerializeToString(deterministic=True))

    def stored(self, operand: Operand) -> str:
        name = operand.parameter or f"constant{len(self.tensors)}"
        self.tensors[name] = np.asarray(operand.array, dtype=np.float64)
        return name

    def numbers(self, *numbers: int) -> str:
        name = f"numbers{len(self.tensors)}"
        self.tensors[name] = np.array(numbers, dtype=np.int64)
        return name

    def nodes(self, node: Node) -> Iterator[NodeProto]:
        op, out, (x, *_) = node.op, node.output, node.inputs

        def made(kind: str, *inputs: str, output: str = out, **attributes: object) -> NodeProto:
            outputs = [output] if kind != "TopK" else [output, f"{output}_places"]
            return helper.make_node(kind, inputs, outputs, f"{output}_{kind}", **attributes)

        match op:
            case Dense():
                yield from self.dense(op, x, node, made)
            case Conv(weight=weight, bias=bias, geometry=windows, groups=groups):
                begins, ends = zip(*((w.pad_begin, w.pad_end) for w in windows), strict=True)
                operands = [self.stored(weight), *([] if bias is None else [self.stored(bias)])]
                yield made(
                    "Conv", x, *operands, group=groups, pads=[*begins, *ends],
                    strides=[w.stride for w in windows], dilations=[w.dilation for w in windows],
                )  # fmt: skip
            case Activation(numbers=()):
                yield made(op.kind, x)
            case Scale(scale=factor, bias=None):
                yield made("Mul", x, self.stored(factor))
            case Scale(scale=factor, bias=offset):
                yield made("Mul", x, self.stored(factor), output=f"{out}_scaled")
                yield made("Add", f"{out}_scaled", self.stored(offset))
            case Shift(bias=offset):
                yield made("Add", x, self.stored(offset))
            case Add(coefficients=(1.0, 1.0)):
                yield made("Add", *node.inputs)
            case Concat(axis=axis):
                yield made("Concat", *node.inputs, axis=axis + 1)
            case BatchNorm(mean=mean, inverse=inverse, scale=scale, bias=bias):
                constants = Operand(mean), Operand(inverse**-2.0)
                named = [self.stored(operand) for operand in (scale, bias, *constants)]
                yield made("BatchNormalization", x, *named, epsilon=0.0)
            case Move():
                yield self.move(op, x, made)
            case ReduceNorm(p=p, axes=axes):
                places = self.numbers(*(axis + 1 for axis in axes))
                yield made(f"ReduceL{p}", x, places, keepdims=1)
            case Sort(axis=axis):
                count = self.numbers(node.shape[axis])
                yield made("TopK", x, count, axis=axis + 1, largest=0, sorted=1)
            case Normalize(axes=axes, epsilon=epsilon, centred=True):
                if axes != tuple(range(len(node.shape)))[axes[0] :]:
                    raise ValueError(f"axes {axes} are not the last ones")
                ones = self.stored(Operand(np.ones(node.shape[axes[0] :])))
                yield made("LayerNormalization", x, ones, axis=axes[0] + 1, epsilon=epsilon)
            case _:
                raise ValueError(f"{op.kind} is not written yet")

    def move(self, op: Move, x: str, made) -> NodeProto:
        """A reshape, a transposition, or a padding."""
        if op.is_reshape:
            return made("Reshape", x, self.numbers(0, *op.sources.shape))
        size, full = op.shape, op.sources.shape
        own = np.arange(math.prod(size)).reshape(size)
        for axes in permutations(range(len(size))):
            if np.array_equal(own.transpose(axes), op.sources):
                return made("Transpose", x, perm=[0, *(axis + 1 for axis in axes)])
        for begins in np.argwhere(op.sources == 0) if len(size) == len(full) else ():
            ends = np.subtract(full, size) - begins
            if min(ends) < 0:
                continue
            for mode in ("constant", "wrap", "reflect", "edge"):
                zeros = {"constant_values": -1} if mode == "constant" else {}
                found = np.pad(own, np.stack((begins, ends), axis=1), mode, **zeros)
                if np.array_equal(found, op.sources):
                    return made("Pad", x, self.numbers(0, *begins, 0, *ends), mode=mode)
        raise ValueError(f"a move from {size} to {full} is not written yet")

    def dense(self, op: Dense, x: str, node: Node, made) -> Iterator[NodeProto]:
        weight = self.stored(op.weight)
        biases = [] if op.bias is None else [self.stored(op.bias)]
        if len(node.shape) == 1:
            yield made("Gemm", x, weight, *biases, transB=1)
            return
        turned, product = f"{node.output}_turned", f"{node.output}_product"
        yield made("Transpose", weight, output=turned)
        yield made("MatMul", x, turned, output=product if biases else node.output)
        if biases:
            yield made("Add", product, *biases)
