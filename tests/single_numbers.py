"""Random ONNX files whose examples are, or pass through, single numbers: values of shape [N].

A seed determines the file. Every operator that takes such a value is tried on it, also where that
mixes examples: on [N], axis 0 is the batch. A reader answers or refuses, with a reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.draws import Draws

Shape = tuple[int, ...]

UNARY = (
    "Abs", "Atan", "Cos", "Elu", "Erf", "Identity", "LeakyRelu", "Neg", "Relu", "Selu", "Sigmoid",
    "Sin", "Softplus", "Softsign", "Tanh", "HardSigmoid", "HardSwish", "Mish", "Celu", "Exp",
)  # fmt: skip
REDUCED = (
    "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum",
    "ReduceSumSquare",
)  # fmt: skip


class Writer(Draws):
    """Adds nodes; `shapes` holds one example of every value, the batch is in front of it."""

    def __init__(self, seed: int) -> None:
        super().__init__(np.random.default_rng(seed))
        self.nodes: list[object] = []
        self.tensors: dict[str, np.ndarray] = {}
        start: Shape = [(4,), (4,), (3,), (2, 3), (1,), ()][int(self.rng.integers(6))]
        self.shapes: dict[str, Shape] = {"x": start}

    def values(self, *ranks: int) -> list[str]:
        return [name for name, shape in self.shapes.items() if len(shape) in ranks]

    def emit(self, op: str, inputs: Sequence[str], shape: Shape, **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], f"n{name}", **attributes))
        self.shapes[name] = shape
        return name

    def fixed(self, array: object, kind: type = np.float32) -> str:
        """A constant that is not trained."""
        name = f"k{len(self.nodes)}"
        value = numpy_helper.from_array(np.asarray(array, kind))
        self.nodes.append(helper.make_node("Constant", [], [name], f"n{name}", value=value))
        return name

    def places(self, *numbers: int) -> str:
        return self.fixed(numbers, np.int64)

    def trained(self, *shape: int) -> str:
        name = f"w{len(self.tensors)}"
        self.tensors[name] = self.rng.standard_normal(shape).astype(np.float32) * 0.7
        return name

    def number(self) -> float:
        return float(np.float32(self.rng.choice([0.5, -1.0, 2.0, 0.3, 1.7])))

    # single numbers -------------------------------------------------------------------------

    def single(self) -> str:
        """A value [N]: one that is there, or one made from another value."""
        known = self.values(0)
        if known and self.rng.random() < 0.7:
            return str(self.pick(known))
        return self.made_single()

    def made_single(self) -> str:
        flat = self.values(1)
        if not flat:
            return self.reduced(str(self.pick(self.values(2) or self.values(0))))
        value = str(self.pick(flat))
        (width,) = self.shapes[value]
        match int(self.rng.integers(7)):
            case 0:
                return self.emit("Gather", [value, self.fixed(width - 1, np.int64)], (), axis=1)
            case 1:
                return self.emit("MatMul", [value, self.trained(width)], ())
            case 2:
                row = self.emit("Gemm", [value, self.trained(1, width)], (1,), transB=1)
                return self.emit("Squeeze", [row, self.places(1)], ())
            case 3:
                row = self.emit("MatMul", [value, self.trained(width, 1)], (1,))
                return self.emit("Reshape", [row, self.places(-1)], ())
            case 4:
                return self.emit("Einsum", [value, self.trained(width)], (), equation="bi,i->b")
            case 5:
                return self.emit("Einsum", [value, value], (), equation="bi,bi->b")
            case _:
                return self.reduced(value)

    def reduced(self, value: str) -> str:
        op, shape = str(self.pick(REDUCED)), self.shapes[value]
        axes = list(range(1, len(shape) + 1))
        if not axes:
            return self.emit("Identity", [value], ())
        if op == "ReduceSum":
            return self.emit(op, [value, self.places(*axes)], (), keepdims=0)
        return self.emit(op, [value], (), keepdims=0, axes=axes)

    def step(self) -> None:
        """One more operator on single numbers, or up to a vector, or back."""
        moves: list[Callable[[], object]] = [
            self.made_single, self.unary, self.with_number, self.with_trained, self.paired,
            self.limited, self.raised, self.lifted, self.joined, self.chosen, self.odd,
        ]  # fmt: skip
        self.pick(moves)()  # type: ignore[operator]

    def unary(self) -> None:
        self.emit(str(self.pick(UNARY)), [self.single()], ())

    def with_number(self) -> None:
        value, number = self.single(), self.fixed(np.full(self.pick([(), (1,)]), self.number()))
        op = str(self.pick(["Add", "Sub", "Mul", "Div"]))
        inputs = [value, number] if self.rng.random() < 0.7 or op == "Div" else [number, value]
        self.emit(op, inputs, ())

    def with_trained(self) -> None:
        tensor = self.trained(*self.pick([(), (1,)]))  # type: ignore[misc]
        self.emit(str(self.pick(["Add", "Sub", "Mul", "PRelu"])), [self.single(), tensor], ())

    def paired(self) -> None:
        op = str(self.pick(["Add", "Sub", "Mul", "Max", "Min", "Sum", "Mean"]))
        self.emit(op, [self.single(), self.single()], ())

    def limited(self) -> None:
        low, high = self.fixed(-0.5), self.fixed(np.float32(0.75))
        self.emit("Clip", [self.single(), low, high], ())

    def raised(self) -> None:
        power = self.fixed(self.pick([2.0, 3.0, 1.0]))
        self.emit("Pow", [self.single(), power], ())

    def lifted(self) -> None:
        """[N] to a vector, through an operator on it, and sometimes back."""
        value = self.single()
        match int(self.rng.integers(5)):
            case 0:
                row = self.emit("Unsqueeze", [value, self.places(1)], (1,))
            case 1:
                row = self.emit("Reshape", [value, self.places(-1, 1)], (1,))
            case 2:
                row = self.emit("Flatten", [value], (1,), axis=1)
            case 3:
                row = self.emit("Unsqueeze", [value, self.places(-1)], (1,))
            case _:
                deep = self.emit("Unsqueeze", [value, self.places(1, 2)], (1, 1))
                row = self.emit("Squeeze", [deep, self.places(2)], (1,))
        match int(self.rng.integers(6)):
            case 0:
                width = int(self.rng.integers(1, 4))
                row = self.emit("Gemm", [row, self.trained(1, width)], (width,))
            case 1:
                row = self.emit("Softmax", [row], (1,), axis=-1)
            case 2:
                norm = [row, self.trained(1), self.trained(1)]
                row = self.emit("LayerNormalization", norm, (1,), axis=-1)
            case 3:
                row = self.emit("Expand", [row, self.places(1, 3)], (3,))
            case _:
                pass
        if self.shapes[row] == (1,) and self.rng.random() < 0.7:
            self.emit("Squeeze", [row, self.places(1)], ())

    def joined(self) -> None:
        rows = [self.emit("Unsqueeze", [self.single(), self.places(1)], (1,)) for _ in range(2)]
        self.emit("Concat", rows, (2,), axis=1)

    def chosen(self) -> None:
        condition = self.fixed(self.pick([True, False]), np.bool_)
        other = self.single() if self.rng.random() < 0.5 else self.fixed(self.number())
        self.emit("Where", [condition, self.single(), other], ())

    def odd(self) -> None:
        """What mixes examples, or has no axis to work on."""
        value = self.single()
        match int(self.rng.integers(14)):
            case 0:
                self.emit("Softmax", [value], (), axis=0)
            case 1:
                self.emit("LayerNormalization", [value, self.trained(1)], (), axis=-1)
            case 2:
                self.emit("Reshape", [value, self.places(1, -1)], ())
            case 3:
                self.emit("Flatten", [value], (), axis=0)
            case 4:
                self.emit("CumSum", [value, self.fixed(0, np.int64)], ())
            case 5:
                self.emit("Transpose", [value], (), perm=[0])
            case 6:
                self.emit("Tile", [value, self.places(1)], ())
            case 7:
                self.emit("Pad", [value, self.places(0, 0)], ())
            case 8:
                self.emit("Concat", [value, value], (), axis=0)
            case 9:
                self.emit("LpNormalization", [value], (), axis=0)
            case 10:
                self.emit("ReduceSum", [value, self.places(0)], (), keepdims=1)
            case 11:
                self.emit("BatchNormalization", [value, *self.statistics()], ())
            case 12:
                self.emit("Squeeze", [value], ())
            case _:
                wide = self.values(1) or [value]
                self.emit("Mul", [value, str(self.pick(wide))], ())

    def statistics(self) -> list[str]:
        return [self.trained(1), self.trained(1), self.fixed([0.1]), self.fixed([1.5])]


def random_file(seed: int) -> ModelProto:
    """A file with a trained parameter whose output is one number, or a vector, per example."""
    writer = Writer(seed)
    for _ in range(int(writer.rng.integers(1, 6))):
        writer.step()
    last = list(writer.shapes)[-1]
    if not writer.tensors:
        last = writer.emit("Mul", [last, writer.trained(1)], writer.shapes[last])
    if math.prod(writer.shapes[last]) == 1 and writer.rng.random() < 0.8:
        shape = writer.places(-1)
        last = writer.emit("Reshape", [last, shape], ())
    graph = helper.make_graph(
        writer.nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *writer.shapes["x"]])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in writer.tensors.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8)
