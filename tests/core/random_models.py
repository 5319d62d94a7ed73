"""Random small ONNX models over what the checker knows, with tied, shared and computed weights."""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from onnx import ModelProto, NodeProto, TensorProto, helper

from tests.core.lower.cases import onnx_file
from tests.core.onnx_torch import apply
from tests.draws import Draws

LARGEST = 64
_PLAIN = ["Relu", "Relu", "Relu", "Abs", "Sigmoid", "Tanh", "Atan", "Softplus", "Softsign", "Erf"]
_PLAIN += ["Sin", "Cos", "Mish", "Gelu", "HardSwish", "Selu", "Neg", "Identity"]


@dataclass
class Builder(Draws):
    """A graph that grows by random nodes; `values` holds what each name is for one input."""

    values: dict[str, torch.Tensor]
    nodes: list[NodeProto] = field(default_factory=list)
    tensors: dict[str, np.ndarray] = field(default_factory=dict)
    live: list[str] = field(default_factory=list)

    def emit(self, op: str, *inputs: str, outputs: int = 1, **attributes: object) -> str:
        """A node; the name of its first output, which later nodes may read."""
        made = self.constant_node(op, *inputs, outputs=outputs, **attributes)
        self.live += made
        return made[0]

    def constant_node(
        self, op: str, *inputs: str, outputs: int = 1, **attributes: object
    ) -> list[str]:
        """A node that is not read by chance."""
        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        node = helper.make_node(op, inputs, names, name=f"n{len(self.nodes)}", **attributes)
        self.values.update(zip(names, apply(node, self.values), strict=True))
        self.nodes.append(node)
        return names

    def shape(self, name: str) -> list[int]:
        return list(self.values[name].shape)

    def recent(self) -> str:
        return self.live[-1] if self.chance(0.7) else self.pick(self.live)

    def store(self, array: np.ndarray) -> str:
        name = f"p{len(self.tensors)}"
        self.tensors[name] = array.copy()
        tensor = torch.from_numpy(self.tensors[name].copy())
        self.values[name] = tensor.double() if tensor.is_floating_point() else tensor
        return name

    def whole_numbers(self, *numbers: int) -> str:
        return self.store(np.array(numbers, dtype=np.int64))

    def tensor(self, *shape: int, size: float = 0.8) -> str:
        """A weight: new, one that there is already, or computed from one."""
        same = [n for n, t in self.tensors.items() if t.dtype == np.float32 and t.shape == shape]
        if same and self.chance(0.3):
            return self.pick(same)
        if len(shape) == 2 and self.chance(0.3):
            turned = [
                n
                for n, t in self.tensors.items()
                if t.dtype == np.float32 and t.shape == shape[::-1]
            ]
            if turned:
                return self.constant_node("Transpose", self.pick(turned), perm=[1, 0])[0]
        array = (size * self.rng.standard_normal(shape)).astype(np.float32)
        if not self.chance(0.2):
            return self.store(array)
        kind = self.whole(0, 3)
        if kind == 0:
            return self.constant_node("Mul", self.store(array), self.store(_float(-0.7)))[0]
        if kind == 1:
            flat = self.store(array.reshape(-1))
            return self.constant_node("Reshape", flat, self.whole_numbers(*shape))[0]
        if kind == 2 and shape[-1] > 1:
            parts = self.store(array[..., :1]), self.store(array[..., 1:])
            return self.constant_node("Concat", *parts, axis=len(shape) - 1)[0]
        return self.constant_node("Add", self.store(array), self.store(array[..., :1] * 0.5))[0]

    # ops -----------------------------------------------------------------------------------

    def dense(self, value: str, outputs: int | None = None) -> str:
        width = self.shape(value)[-1]
        outputs = outputs or self.whole(1, 5)
        size = 1.0 / math.sqrt(max(width, outputs))
        if len(self.shape(value)) == 2 and self.chance(0.6):
            turned = self.chance(0.5)
            shape = (outputs, width) if turned else (width, outputs)
            weight = self.tensor(*shape, size=size)
            bias = [self.tensor(outputs, size=0.5)] if self.chance(0.6) else []
            alpha, beta = self.pick([1.0, 1.0, -0.5, 2.0]), self.pick([1.0, 1.0, 0.5, -2.0])
            return self.emit(
                "Gemm", value, weight, *bias, transB=int(turned), alpha=alpha, beta=beta
            )
        y = self.emit("MatMul", value, self.tensor(width, outputs, size=size))
        return self.emit("Add", y, self.tensor(outputs, size=0.5)) if self.chance(0.4) else y

    def windows(self, sizes: list[int], *, dilate: bool = True) -> dict[str, list[int]]:
        taps, strides, dilations, before, after = [], [], [], [], []
        for size in sizes:
            for _ in range(100):
                t, s, d = self.whole(1, 4), self.whole(1, 3), self.whole(1, 2) if dilate else 1
                b, e = self.whole(0, 2), self.whole(0, 2)
                if d * (t - 1) + 1 <= size + b + e and b < t and e < t:
                    break
            else:
                t, s, d, b, e = 1, 1, 1, 0, 0
            for items, item in zip(
                (taps, strides, dilations, before, after), (t, s, d, b, e), strict=True
            ):
                items.append(item)
        return {
            "kernel_shape": taps,
            "strides": strides,
            "dilations": dilations,
            "pads": before + after,
        }

    def conv(self, value: str) -> str:
        channels, *sizes = self.shape(value)[1:]
        geometry = self.windows(sizes)
        group = self.pick([g for g in (1, 1, 2, 3) if channels % g == 0])
        outputs = group * self.whole(1, 2)
        taps = geometry["kernel_shape"]
        size = 1.0 / math.sqrt(math.prod(taps) * channels)
        inputs = [value, self.tensor(outputs, channels // group, *taps, size=size)]
        inputs += [self.tensor(outputs, size=0.4)] if self.chance(0.6) else []
        return self.emit("Conv", *inputs, group=group, **geometry)

    def conv_transpose(self, value: str) -> str:
        channels, *sizes = self.shape(value)[1:]
        geometry = self.windows([n + 3 for n in sizes])
        group = self.pick([g for g in (1, 1, 2, 3) if channels % g == 0])
        each, taps = self.whole(1, 2), geometry["kernel_shape"]
        size = 1.0 / math.sqrt(math.prod(taps) * channels)
        inputs = [value, self.tensor(channels, each, *taps, size=size)]
        inputs += [self.tensor(each * group, size=0.4)] if self.chance(0.6) else []
        more = [self.whole(0, stride - 1) for stride in geometry["strides"]]
        pads, rank = geometry["pads"], len(sizes)
        rows = zip(sizes, geometry["strides"], geometry["dilations"], taps, strict=True)
        whole = [(n - 1) * s + d * (t - 1) + 1 for n, s, d, t in rows]
        if any(n <= pads[k] + pads[k + rank] for k, n in enumerate(whole)):
            geometry["pads"] = [0] * len(pads)  # which would leave nothing
        return self.emit("ConvTranspose", *inputs, group=group, output_padding=more, **geometry)

    def pool(self, value: str) -> str:
        kind = self.pick(["MaxPool", "AveragePool", "LpPool", "Global"])
        if kind == "Global":
            return self.emit(self.pick(["GlobalAveragePool", "GlobalMaxPool"]), value)
        geometry: dict[str, object] = {**self.windows(self.shape(value)[2:])}
        if kind == "LpPool":
            return self.emit(kind, value, p=self.pick([1, 2]), **geometry)
        geometry["ceil_mode"] = self.whole(0, 1)
        if kind == "AveragePool" and not geometry["ceil_mode"]:
            geometry["count_include_pad"] = self.whole(0, 1)
        return self.emit(kind, value, **geometry)

    def normalize(self, value: str) -> str:
        shape = self.shape(value)
        epsilon = self.pick([1e-3, 1e-1, 10.0])
        kind = self.pick(["Batch", "Layer", "Layer", "Instance", "Group", "Rms"])
        if kind == "Layer":
            axis = self.whole(1, len(shape) - 1)
            scale = [self.tensor(*shape[axis:])]
            scale += [self.tensor(*shape[axis:])] if self.chance(0.6) else []
            return self.emit("LayerNormalization", value, *scale, axis=axis, epsilon=epsilon)
        if kind == "Rms":
            return self.root_mean_square(value, epsilon)
        if len(shape) < 3:
            kind = "Batch"
        channels = shape[1]
        scale = [self.tensor(channels), self.tensor(channels)]
        if kind == "Batch":
            mean = self.store((0.4 * self.rng.standard_normal(channels)).astype(np.float32))
            variance = self.store(self.rng.uniform(0.3, 2.0, channels).astype(np.float32))
            return self.emit("BatchNormalization", value, *scale, mean, variance, epsilon=epsilon)
        if kind == "Instance":
            return self.emit("InstanceNormalization", value, *scale, epsilon=epsilon)
        groups = self.pick([g for g in range(1, channels + 1) if channels % g == 0])
        return self.emit("GroupNormalization", value, *scale, num_groups=groups, epsilon=epsilon)

    def root_mean_square(self, value: str, epsilon: float) -> str:
        axes = self.whole_numbers(-1)
        two = self.store(_float(2.0))
        square = (
            self.emit("Pow", value, two) if self.chance(0.5) else self.emit("Mul", value, value)
        )
        mean = self.emit("ReduceMean", square, axes, keepdims=1)
        root = self.emit("Sqrt", self.emit("Add", mean, self.store(_float(epsilon))))
        y = self.emit("Div", value, root)
        return self.emit("Mul", y, self.tensor(self.shape(value)[-1]))

    def activate(self, value: str) -> str:
        number = self.rng.uniform
        op = self.pick([*_PLAIN, "LeakyRelu", "Elu", "Celu", "HardSigmoid", "Clip", "Gelu", "silu"])
        match op:
            case "LeakyRelu" | "Elu":
                return self.emit(op, value, alpha=float(number(-2, 2)))
            case "Celu":
                return self.emit(op, value, alpha=float(number(0.2, 2)))
            case "HardSigmoid":
                return self.emit(op, value, alpha=float(number(-1, 1)), beta=float(number(-1, 1)))
            case "Gelu":
                return self.emit(op, value, approximate=self.pick(["none", "tanh"]))
            case "silu":
                return self.emit("Mul", value, self.emit("Sigmoid", value))
            case "Clip":
                low = self.store(_float(-0.5))
                return self.emit(op, value, low, self.store(_float(float(number(-0.5, 1.0)))))
        return self.emit(op, value)

    def affine(self, value: str) -> str:
        shape = self.shape(value)
        kept = self.whole(0, len(shape) - 1)
        part = [1 if self.chance(0.4) else n for n in shape[len(shape) - kept :]]
        op = self.pick(["Add", "Sub", "Mul", "Div", "PRelu", "Max"])
        if op == "Div":
            divisor = self.rng.uniform(0.5, 2.0, part).astype(np.float32)
            return self.emit(op, value, self.store(divisor))
        operand = self.tensor(*(part or [1]))
        if op in {"Add", "Sub", "Mul"} and self.chance(0.5):
            return self.emit(op, operand, value)
        return self.emit(op, value, operand)

    def combine(self, value: str) -> str:
        shape = self.shape(value)
        like = [name for name in self.live if self.shape(name) == shape]
        small = [
            name
            for name in self.live
            if len(self.shape(name)) <= len(shape)
            and all(a in (1, b) for a, b in zip(self.shape(name)[::-1], shape[::-1], strict=False))
        ]
        op = self.pick(["Add", "Sub", "Mul", "Concat", "Max", "Min", "Sum", "Div"])
        other = self.pick(like if op == "Concat" or self.chance(0.5) else small)
        if op == "Concat":
            return self.emit(op, value, other, value, axis=self.whole(1, len(shape) - 1))
        if op == "Sum":
            return self.emit(op, value, other, self.pick(small))
        if op == "Div":
            low = self.store(_float(0.3))
            other = self.emit("Clip", other, low, self.store(_float(2.0)))
        pair = (value, other) if self.chance(0.5) or op == "Div" else (other, value)
        return self.emit(op, *pair)

    def rearrange(self, value: str) -> str:
        shape = self.shape(value)
        rank = len(shape)
        axis = self.whole(1, rank - 1)
        kind = self.whole(0, 7)
        if kind == 0 and rank > 2:
            order = [0, *(1 + int(i) for i in self.rng.permutation(rank - 1))]
            return self.emit("Transpose", value, perm=order)
        if kind == 1:
            indices = [
                self.whole(0, shape[axis] - 1) for _ in range(self.whole(1, shape[axis] + 1))
            ]
            return self.emit("Gather", value, self.whole_numbers(*indices), axis=axis)
        if kind == 2:
            mode = self.pick(["constant", "constant", "reflect", "edge", "wrap"])
            limit = [0, *((n - 1 if mode == "reflect" else n) for n in shape[1:])]
            begin = [self.whole(0, min(1, n)) for n in limit]
            end = [self.whole(0, min(2, n)) for n in limit]
            number = [self.store(_float(self.pick([0.0, 0.3])))] if mode == "constant" else []
            return self.emit("Pad", value, self.whole_numbers(*begin, *end), *number, mode=mode)
        if kind == 3:
            repeats = [1, *(self.whole(1, 2) for _ in shape[1:])]
            return self.emit("Tile", value, self.whole_numbers(*repeats))
        if kind == 4:
            size = shape[axis]
            start, step = self.whole(0, size - 1), self.pick([1, 1, 2])
            parts = [self.whole_numbers(n) for n in (start, 100, axis, step)]
            return self.emit("Slice", value, *parts)
        if kind == 5 and shape[axis] > 1:
            first = self.whole(1, shape[axis] - 1)
            sizes = self.whole_numbers(first, shape[axis] - first)
            return self.emit("Split", value, sizes, axis=axis, outputs=2)
        if kind == 6 and rank == 4 and shape[1] % 4 == 0:
            mode = self.pick(["DCR", "CRD"])
            return self.emit("DepthToSpace", value, blocksize=2, mode=mode)
        count = math.prod(shape[1:])
        first = self.pick([n for n in range(1, count + 1) if count % n == 0])
        return self.emit("Reshape", value, self.whole_numbers(0, first, count // first))

    def reduce(self, value: str) -> str:
        shape = self.shape(value)
        axes = [i for i in range(1, len(shape)) if self.chance(0.5)] or [len(shape) - 1]
        names = ["Sum", "Mean", "Mean", "Max", "Min", "L1", "L2", "SumSquare"]
        op = f"Reduce{self.pick(names)}"
        keep = int(self.chance(0.6) or len(axes) == len(shape) - 1)
        return self.emit(op, value, self.whole_numbers(*axes), keepdims=keep)

    def attend(self, value: str) -> str:
        width, outputs = self.whole(1, 3), self.whole(1, 3)
        query, key, content = (self.dense(value, n) for n in (width, width, outputs))
        rank = len(self.shape(value))
        turned = self.emit("Transpose", key, perm=[*range(rank - 2), rank - 1, rank - 2])
        scores = self.emit("MatMul", query, turned)
        if self.chance(0.7):
            scores = self.emit("Mul", scores, self.store(_float(self.pick([0.7, -1.3]))))
        if self.chance(0.4):
            tokens = self.shape(value)[-2]
            hidden = self.pick([-2.0, -1e9])
            mask = np.triu(np.full((tokens, tokens), hidden, dtype=np.float32), 1)
            scores = self.emit("Add", scores, self.store(mask))
        return self.emit("MatMul", self.emit("Softmax", scores, axis=-1), content)

    def soften(self, value: str) -> str:
        axis = self.whole(1, len(self.shape(value)) - 1)
        return self.emit(self.pick(["Softmax", "LogSoftmax"]), value, axis=axis)

    def powered(self, value: str) -> str:
        low, high = self.pick([(0.2, 1.5), (0.05, 0.9)])
        inside = self.emit("Clip", value, self.store(_float(low)), self.store(_float(high)))
        op = self.pick(["Sqrt", "Log", "Reciprocal", "Exp", "Pow"])
        if op != "Pow":
            return self.emit(op, inside)
        return self.emit(op, inside, self.store(_float(self.pick([0.5, 1.7, -0.5, 3.0, -2.0]))))

    def grow(self) -> None:
        """One more piece on some value, if all stays small."""
        value = self.recent()
        rank = len(self.shape(value))
        choices = [self.dense] * 3 + [self.activate] * 4
        choices += [self.affine, self.combine, self.combine, self.rearrange, self.rearrange]
        choices += [self.normalize]
        if rank >= 3:
            choices += [self.conv] * 3 + [self.conv_transpose, self.pool, self.pool, self.reduce]
            choices += [self.attend]
        if self.chance(0.4):
            choices += [self.soften, self.powered, self.reduce]
        kept = dict(self.values), list(self.nodes), dict(self.tensors), list(self.live)
        self.pick(choices)(value)
        last = self.shape(self.live[-1])
        if math.prod(last) > LARGEST or not 2 <= len(last) <= 4 or not math.prod(last):
            self.values, self.nodes, self.tensors, self.live = kept

    def model(self) -> ModelProto:
        """The graph, of which the last live value is the output."""
        inputs = {"x": (TensorProto.FLOAT, ["N", *self.shape("x")[1:]])}
        return onnx_file(self.nodes, inputs, self.live[-1:], self.tensors)


def _float(number: float) -> np.ndarray:
    return np.array(number, dtype=np.float32)


def random_model(seed: int, pieces: int = 7) -> ModelProto:
    """A model whose output is one vector."""
    rng = np.random.default_rng(seed)
    shape = [(1, 4), (1, 3, 4), (1, 2, 3, 3), (1, 3, 5), (1, 1, 4, 4)][int(rng.integers(5))]
    builder = Builder(rng, {"x": torch.from_numpy(rng.standard_normal(shape))}, live=["x"])
    for _ in range(int(rng.integers(2, pieces + 1))):
        builder.grow()
    value = builder.live[-1]
    if len(builder.shape(value)) > 2 or builder.chance(0.7):
        value = builder.emit("Flatten", value, axis=1)
        builder.dense(value, builder.whole(2, 5))
        if builder.chance(0.2):
            builder.emit("LogSoftmax", builder.live[-1], axis=1)
    return builder.model()
