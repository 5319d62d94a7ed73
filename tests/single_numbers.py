"""Random ONNX files whose examples pass through single numbers: values of shape [N].

A seed determines the file. What mixes examples there, `core.lower.odd_graphs` tries: on [N], axis 0
is the batch.
"""

import numpy as np
import torch

from tests.core.random_models import Builder

REDUCED = ("ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceSum")


class Singles(Builder):
    """A graph of vectors and single numbers; `live` holds values [N, width]."""

    def number(self, value: str) -> str:
        """[N], made from a vector."""
        width = self.shape(value)[1]
        match self.whole(0, 6):
            case 0:
                last = self.store(np.array(width - 1))
                return self.emit("Gather", value, last, axis=1)
            case 1:
                return self.emit("MatMul", value, self.tensor(width))
            case 2:
                row = self.emit("Gemm", value, self.tensor(1, width), transB=1)
                return self.emit("Squeeze", row, self.whole_numbers(1))
            case 3:
                row = self.emit("MatMul", value, self.tensor(width, 1))
                return self.emit("Reshape", row, self.whole_numbers(-1))
            case 4:
                return self.emit("Einsum", value, self.tensor(width), equation="bi,i->b")
            case 5:
                return self.emit("Einsum", value, value, equation="bi,bi->b")
        return self.emit(self.pick(REDUCED), value, self.whole_numbers(1), keepdims=0)

    def step(self, number: str, other: str) -> str:
        """[N], made from two of them."""
        kind = self.whole(0, 5)
        if kind == 5:
            condition = self.store(np.array(self.chance(0.5)))
            return self.emit("Where", condition, number, other)
        if kind == 4:
            op = self.pick(["Add", "Sub", "Mul", "Max", "Min", "Sum", "Mean"])
            return self.emit(op, number, other)
        return self.pick([self.activate, self.activate, self.affine, self.powered])(number)

    def vector(self, numbers: list[str]) -> str:
        """[N, width], of one or two of them side by side."""
        rows = [
            self.emit("Unsqueeze", number, self.whole_numbers(self.pick([1, -1])))
            if self.chance(0.5)
            else self.emit("Reshape", number, self.whole_numbers(-1, 1))
            for number in numbers
        ]
        row = self.emit("Concat", *rows, axis=1) if len(rows) > 1 else rows[0]
        return self.dense(row) if self.chance(0.7) else row


def random_file(seed: int):
    """A file whose output is one number, or a vector, per example."""
    rng = np.random.default_rng(seed)
    shape = [(1, 4), (1, 3), (1, 1)][int(rng.integers(3))]
    builder = Singles(rng, {"x": torch.from_numpy(rng.standard_normal(shape))}, live=["x"])
    value = builder.dense("x") if builder.chance(0.5) else "x"
    for _ in range(builder.whole(1, 3)):
        numbers = [builder.number(value) for _ in range(builder.whole(1, 2))]
        numbers[0] = builder.step(numbers[0], numbers[-1])
        value = builder.vector(numbers)
    last = builder.emit("MatMul", value, builder.tensor(builder.shape(value)[1], 1))
    if builder.chance(0.8):
        builder.emit("Squeeze", last, builder.whole_numbers(1))
    return builder.model()
