"""Random models that divide by norms with floors, and multiply by single trained numbers."""

import numpy as np
import torch
from onnx import ModelProto

from tests.core.random_models import Builder


class Floored(Builder):
    """A graph whose floors, scales and widths are stored, or computed from any real number."""

    def positive(self) -> str:
        """A single positive number."""
        number = self.store(np.array(self.rng.standard_normal(), np.float32))
        floor = self.store(np.array(self.pick([1e-2, 0.1, 1.0]), np.float32))
        match self.whole(0, 4):
            case 0:
                return floor
            case 1:
                return self.constant_node("Max", number, floor)[0]
            case 2:
                return self.constant_node("Add", *self.constant_node("Abs", number), floor)[0]
        return self.constant_node(self.pick(["Softplus", "Exp", "Sigmoid"]), number)[0]

    def normalize(self, value: str) -> str:
        """x/(‖x‖ + ε), (x − mean)/max(std, ε), x/√(Σx² + ε), over some axes."""
        rank = len(self.shape(value))
        axes = self.whole_numbers(*range(self.whole(1, rank - 1), rank))
        if self.chance(0.5):
            value = self.emit("Sub", value, self.emit("ReduceMean", value, axes))
        op = self.pick(["ReduceL2", "ReduceSumSquare", "ReduceMean"])
        size = self.emit(op, self.emit("Mul", value, value) if "Mean" in op else value, axes)
        if op != "ReduceL2":
            size = self.emit("Add", size, self.positive()) if self.chance(0.5) else size
            size = self.emit("Sqrt", size)
        floored = self.emit(self.pick(["Add", "Max"]), size, self.positive())
        return self.emit("Div", value, floored)

    def affine(self, value: str) -> str:
        """Of a single number: x·t, x/t, x + t·f(x), x·sigmoid(t·x)."""
        match self.whole(0, 3):
            case 0:
                return self.emit(
                    "Add", value, self.emit("Mul", self.activate(value), self.positive())
                )
            case 1:
                gate = self.emit("Sigmoid", self.emit("Mul", value, self.positive()))
                return self.emit("Mul", value, gate)
        return self.emit(self.pick(["Mul", "Div"]), value, self.positive())


def floored_model(seed: int) -> ModelProto:
    """A model of one to three such pieces among others."""
    rng = np.random.default_rng(seed)
    shape = [(1, 4), (1, 3, 4), (1, 2, 3, 3)][int(rng.integers(3))]
    builder = Floored(rng, {"x": torch.from_numpy(rng.standard_normal(shape))}, live=["x"])
    for _ in range(builder.whole(1, 3)):
        builder.pick([builder.normalize, builder.affine])(builder.live[-1])
        builder.grow()
    builder.dense(builder.emit("Flatten", builder.live[-1], axis=1), builder.whole(2, 4))
    return builder.model()
