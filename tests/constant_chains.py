"""Random chains of operators that move the entries of a constant, for files and onnxruntime."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnxruntime as ort
from onnx import ModelProto, NodeProto

from tests.core.lower.cases import model, node

Array = np.ndarray
ort.set_default_logger_severity(4)
_MOST = 4000
"""entries of a constant on the way"""


class Chain:
    """Nodes from an initializer "w" to the row "row", which "y" adds to the input.

    is_linear: whether all of them only move and repeat single entries.
    """

    def __init__(self, seed: int, length: int = 5) -> None:
        self.draw = np.random.default_rng(seed)
        self.shape = tuple(int(size) for size in self.draw.integers(1, 5, self.draw.integers(1, 4)))
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.is_linear = True
        self.operators: list[str] = []
        name, shape = "w", self.shape
        for number in range(length):
            moves = [self.transpose, self.reshape, self.slice, self.expand, self.gather,
                     self.pad, self.tile, self.concat, self.zeros, self.split]  # fmt: skip
            move = moves[self.draw.integers(len(moves))]
            self.operators.append(move(name, shape, f"c{number}"))
            name = f"c{number}"
            shape = computed(self.written(name, self.numbers()), name).shape
        self.size = math.prod(shape)
        self.constants["flat"] = np.array([1, -1])
        self.nodes.append(node("Reshape", f"{name} flat", "row"))
        self.nodes.append(node("Add", "x row", "y"))

    def numbers(self) -> Array:
        """1, 2, 3, … in the place of the parameter."""
        return np.arange(1.0, math.prod(self.shape) + 1.0).reshape(self.shape)

    def written(self, output: str, w: Array, size: int = 1) -> ModelProto:
        """The model with these numbers."""
        return model(self.nodes, ["N", size], {**self.constants, "w": w}, output=output)

    def row(self, w: Array) -> Array:
        """What onnxruntime makes of these numbers."""
        return computed(self.written("row", w, self.size), "row")

    def add(self, op: str, inputs: str, output: str, rest: Mapping[str, Sequence[int]] = {}, **kw):
        """A node, with constants of its own; returns its operator."""
        names = [f"{output.rsplit(maxsplit=1)[-1]}_{key}" for key in rest]
        self.constants |= dict(zip(names, map(np.asarray, rest.values()), strict=True))
        self.nodes.append(node(op, " ".join([inputs, *names]), output, **kw))
        return op

    def transpose(self, name, shape, output):
        perm = self.draw.permutation(len(shape)).tolist()
        return self.add("Transpose", name, output, perm=perm)

    def reshape(self, name, shape, output):
        size = math.prod(shape)
        factor = int(self.draw.choice([n for n in range(1, size + 1) if size % n == 0]))
        order = [[factor, -1], [-1, factor], [size], [1, factor, -1]][self.draw.integers(4)]
        return self.add("Reshape", name, output, {"shape": order})

    def slice(self, name, shape, output):
        axis = int(self.draw.integers(len(shape)))
        if self.draw.random() < 0.3:
            ends = {"a": [-1], "b": [-(2**31)], "c": [axis], "d": [-1]}
        else:
            start = int(self.draw.integers(shape[axis]))
            ends = {"a": [start], "b": [2**31], "c": [axis], "d": [int(self.draw.integers(1, 3))]}
        return self.add("Slice", name, output, ends)

    def expand(self, name, shape, output):
        wanted = [int(self.draw.integers(1, 4)) if size == 1 else 1 for size in shape]
        wanted = [int(self.draw.integers(1, 3)), *wanted]
        if math.prod(shape) * math.prod(wanted) > _MOST:
            wanted = [1]
        return self.add("Expand", name, output, {"to": wanted})

    def gather(self, name, shape, output):
        axis = int(self.draw.integers(len(shape)))
        count = int(self.draw.integers(1, 4))
        places = self.draw.integers(-shape[axis], shape[axis], count)
        if self.draw.random() < 0.3 and len(shape) > 1:
            places = np.asarray(int(places[0]))
        return self.add("Gather", name, output, {"at": places}, axis=axis)

    def pad(self, name, shape, output):
        mode = ["constant", "edge"][self.draw.integers(2)]
        pads = self.draw.integers(0, 2, 2 * len(shape)).tolist()
        return self.add("Pad", name, output, {"by": pads}, mode=mode)

    def tile(self, name, shape, output):
        counts = self.draw.integers(1, 3, len(shape)).tolist()
        if math.prod(shape) * math.prod(counts) > _MOST:
            counts = [1] * len(shape)
        return self.add("Tile", name, output, {"by": counts})

    def concat(self, name, shape, output):
        self.is_linear = False
        axis = int(self.draw.integers(len(shape)))
        return self.add("Concat", f"{name} {name}", output, axis=axis)

    def zeros(self, name, shape, output):
        """A sum with zeros of the architecture, which are no parameter."""
        self.nodes.append(node("ConstantOfShape", f"{output}_of", f"{output}_zeros"))
        self.constants[f"{output}_of"] = np.asarray([2, *shape])
        return self.add("Add", f"{name} {output}_zeros", output)

    def split(self, name, shape, output):
        axis = int(self.draw.integers(len(shape)))
        if shape[axis] < 2:
            return self.transpose(name, shape, output)
        sizes = [1, shape[axis] - 1]
        return self.add("Split", name, f"{output}_first {output}", {"sizes": sizes}, axis=axis)


def computed(proto: ModelProto, name: str) -> Array:
    """An output in onnxruntime, for an input of zeros."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options)
    given = {i.name: np.zeros((1, *i.shape[1:]), np.float32) for i in session.get_inputs()}
    return session.run([name], given)[0]
