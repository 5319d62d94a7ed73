"""Random networks of two to four inputs, and what is assumed of each: numbers, ids and masks.

A seed determines all of it. Real inputs have a box, a norm, or both, of sizes that differ by
decades; wide ones are averaged into functions that saturate, so that an input that is allowed by
what is assumed of all inputs together, but not by what is assumed of it alone, has other slopes.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from onnx import ModelProto, TensorProto

from lipcert.core.ledger.premises import JOINT, InputPart, Premises
from lipcert.core.ledger.updates import Clipless
from tests.core.lower.cases import onnx_file
from tests.core.random_models import Builder
from tests.heads import part

REAL = [(1, 4), (1, 3, 4), (1, 2, 3, 3), (1, 1)]
WIDE = [(1, 64), (1, 200), (1, 400)]
RADIUS = 0.5
"""about the norm of a wide input"""
ROWS = 6
FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


@dataclass
class SeveralBuilder(Builder):
    """A graph of several inputs. kinds: of each input, by name; outputs: names of them."""

    kinds: dict[str, str] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)

    def add_input(self, kind: str) -> str:
        """A new input; the value by which other nodes read it."""
        name = f"x{len(self.kinds)}"
        self.kinds[name] = kind
        tokens = self.whole(1, 3)
        if kind == "ids":
            self.values[name] = torch.from_numpy(self.rng.integers(0, ROWS, (1, tokens)))
            return self.emit("Gather", self.tensor(ROWS, self.whole(1, 4)), name)
        if kind == "mask":
            self.values[name] = torch.from_numpy(self.rng.integers(0, 2, (1, tokens)))
            op = self.pick(["Equal", "Greater"])
            (flag,) = self.constant_node(op, name, self.whole_numbers(0))
            return self.emit("Cast", flag, to=FLOAT)
        shape = self.pick(WIDE if kind == "wide" else REAL)
        self.values[name] = torch.from_numpy(self.rng.standard_normal(shape))
        self.live.append(name)
        return self.average(name) if kind == "wide" else name

    def average(self, value: str) -> str:
        """Sums of groups of entries, and a function that is flat where these are small.

        Within the norm `RADIUS` no sum leaves the flat part; in the middle of the box all have.
        """
        width, outputs = self.shape(value)[-1], self.whole(1, 16)
        reach, sign = self.rng.uniform(2.0, 6.0), self.pick([-1.0, 1.0])
        weight = np.zeros((width, outputs), np.float32)
        for group, entries in enumerate(np.array_split(np.arange(width), outputs)):
            gain = sign * reach / (RADIUS * len(entries) ** 0.5)
            weight[entries, group] = gain * self.rng.uniform(0.9, 1.1, len(entries))
        offset = np.full(outputs, -sign * reach * self.rng.uniform(1.0, 2.5), np.float32)
        y = self.emit("Gemm", value, self.store(weight), self.store(offset))
        return self.emit(self.pick(["Sigmoid", "Sigmoid", "Tanh", "HardSigmoid", "Erf"]), y)

    def tried(self) -> None:
        """One more piece, unless torch finds that its windows do not fit."""
        kept = dict(self.values), list(self.nodes), dict(self.tensors), list(self.live)
        try:
            self.grow()
        except RuntimeError:
            self.values, self.nodes, self.tensors, self.live = kept

    def joined(self, values: list[str]) -> str:
        """One value of all of them."""
        flat = [self.emit("Flatten", value, axis=1) for value in values]
        way = self.pick(["Concat", "Concat", "Add", "Mul"])
        if way == "Concat":
            return self.emit(way, *flat, axis=1)
        width = self.whole(1, 4)
        total, *others = [self.dense(value, width) for value in flat]
        for other in others:
            total = self.emit(way, total, other)
        return total

    def model(self) -> ModelProto:
        """The graph of these outputs."""
        inputs = {
            name: (INT if kind in {"ids", "mask"} else FLOAT, ["N", *self.shape(name)[1:]])
            for name, kind in self.kinds.items()
        }
        return onnx_file(self.nodes, inputs, self.outputs, self.tensors)


def several_inputs(seed: int) -> ModelProto:
    """A network of two to four inputs, and now and then of two outputs."""
    rng = np.random.default_rng(seed)
    builder = SeveralBuilder(rng, {})
    others = ["real", "real", "wide", "ids", "mask"]
    kinds = ["wide" if builder.chance(0.5) else "real"]
    kinds += [builder.pick(others) for _ in range(builder.pick([1, 1, 2, 3]))]
    read = []
    for kind in [kinds[i] for i in rng.permutation(len(kinds))]:
        builder.live = []
        read.append(builder.add_input(kind))
        for _ in range(builder.whole(0, 2)):
            builder.tried()
        read[-1] = builder.live[-1]
    builder.live = [builder.joined(read)]
    for _ in range(builder.whole(0, 3)):
        builder.tried()
    last = builder.emit("Flatten", builder.live[-1], axis=1)
    for _ in range(2 if builder.chance(0.2) else 1):
        builder.outputs.append(builder.dense(last, builder.whole(2, 4)))
    return builder.model()


def random_premises(program, proto: ModelProto, rng: np.random.Generator) -> Premises:
    """What is assumed of each input, and perhaps of all together; a loss of each output."""
    whole = {item.name for item in proto.graph.input if item.type.tensor_type.elem_type == INT}
    parts, least, reach = [], 0.0, 0.0
    for item in program.parts:
        if item.name in whole:
            box = _of_whole_numbers(item.ids, rng)
            parts.append(InputPart(item.name, item.shape, None, box))
            continue
        low = 0.0 if rng.random() < 0.6 else float(rng.uniform(-1.0, 0.5))
        box = (low, low + 10.0 ** float(rng.uniform(-1.0, 1.5)))
        nearest = max(0.0, low, -box[1]) * item.size**0.5
        is_wide = item.shape in WIDE
        own = RADIUS * rng.uniform(0.5, 1.1) if is_wide else 10.0 ** rng.uniform(-1.0, 1.5)
        radius, kind = nearest + float(own), int(rng.integers(2 if is_wide else 0, 4))
        norm = None if kind == 1 else radius
        parts.append(InputPart(item.name, item.shape, norm, None if kind == 0 else box))
        least, reach = least + nearest**2, reach + radius**2
    joint = None
    if not whole and rng.random() < 0.3:
        joint = least**0.5 + float(rng.uniform(0.1, 1.0)) * reach**0.5
    names = [item.name for item in program.heads]
    if names:
        kinds = rng.choice(["cross-entropy", "bce"], len(names))
        losses = [
            part(*pair, float(rng.uniform(0.2, 3.0))) for pair in zip(names, kinds, strict=True)
        ]
        loss, known, joined = JOINT, (), tuple(losses)
    else:
        loss, joined = str(rng.choice(["cross-entropy", "bce"])), ()
        known = part("", loss, 1.0).parameters
    return Premises(
        input_norm=joint, input_box=None, loss=loss, loss_parameters=known, loss_clip=None,
        mechanism=Clipless(), relation="add-remove",
        input_parts=tuple(parts), loss_parts=joined,
    )  # fmt: skip


def _of_whole_numbers(ids: int | None, rng: np.random.Generator) -> tuple[float, float] | None:
    """Of ids, or of a mask: all, or some."""
    if ids is None:
        return [(0.0, 1.0), (0.0, 1.0), (-2.0, 3.0), (1.0, 1.0)][int(rng.integers(4))]
    return [(0.0, ids - 1.0), (1.0, ids - 2.0), None][int(rng.integers(3))]
