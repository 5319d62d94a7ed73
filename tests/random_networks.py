"""Random small networks: branches, shared weights, every op, with a domain and a loss.

A seed determines the network. Weights are of moderate size, so that attacks come near to bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from lipcert.core.losses.base import Loss
from lipcert.graph.geometry import Window
from lipcert.graph.ir import Graph
from lipcert.graph.operand import Operand
from lipcert.losses import make_loss
from lipcert.upper import Upper
from tests.draws import Draws
from tests.mirror import View
from tests.networks import Maker, Step, dag, group_norm, moved, padded, reshaped, transposed
from tests.ops import (
    Activation,
    Add,
    Attention,
    AveragePool,
    BatchNorm,
    Concat,
    Conv,
    ConvTranspose,
    Dense,
    Divide,
    LogSoftmax,
    LpPool,
    Lrn,
    MatMul,
    MaxPool,
    Multiply,
    Normalize,
    PRelu,
    Quotient,
    ReduceLogSumExp,
    ReduceMax,
    ReduceMean,
    ReduceNorm,
    ReduceSum,
    Scale,
    Shift,
    Softmax,
    Sort,
)

Shape = tuple[int, ...]
LARGEST_VALUE = 60


@dataclass(frozen=True)
class Domain:
    """Inputs with ‖x‖ ≤ radius and every entry in box, whichever are given."""

    shape: Shape
    radius: float | None
    box: tuple[float, float] | None

    @property
    def reach(self) -> float:
        """Largest norm, roughly."""
        sizes = [] if self.radius is None else [self.radius]
        if self.box is not None:
            sizes.append(max(map(abs, self.box)) * math.sqrt(math.prod(self.shape)))
        return min(sizes)

    def project(self, x: torch.Tensor) -> torch.Tensor:
        """Into the domain: the box, then towards its point of least norm until in the ball."""
        if self.box is not None:
            x = x.clamp(*self.box)
        if self.radius is None:
            return x
        flat = x.reshape(len(x), -1)
        nearest = min(max(0.0, self.box[0]), self.box[1]) if self.box is not None else 0.0
        low, high = torch.zeros(len(x), 1), torch.ones(len(x), 1)
        low, high = low.double(), high.double()
        for _ in range(60):
            middle = 0.5 * (low + high)
            inside = (nearest + middle * (flat - nearest)).norm(dim=1, keepdim=True) <= self.radius
            low, high = torch.where(inside, middle, low), torch.where(inside, high, middle)
        whole = flat.norm(dim=1, keepdim=True) <= self.radius
        return torch.where(whole, flat, nearest + low * (flat - nearest)).reshape(x.shape)


@dataclass(frozen=True)
class Case:
    """A network with its domain and its loss; weights: those that ops see through views only."""

    graph: Graph
    domain: Domain
    loss: Loss
    views: dict[tuple[str, str], View]
    weights: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass
class Builder(Draws):
    """Adds random ops to the values that exist already."""

    shapes: dict[str, Shape]
    steps: list[Step] = field(default_factory=list)
    views: dict[tuple[str, str], View] = field(default_factory=dict)
    known: list[Operand] = field(default_factory=list)
    wide: bool = False
    """whether gates with numbers of their own and values of one number are drawn, too"""

    def emit(self, op: Maker, *inputs: str) -> str:
        name = f"v{len(self.steps)}"
        self.shapes[name] = op(*(self.shapes[i] for i in inputs)).shape
        self.steps.append((name, op, inputs))
        return name

    def tensor(self, *shape: int, size: float = 0.8) -> Operand:
        """A new parameter, seldom a constant."""
        array = size * self.rng.standard_normal(shape)
        if self.rng.random() < 0.1:
            return Operand(array)
        operand = Operand(array, f"p{len(self.known)}")
        self.known.append(operand)
        return operand

    def recent(self) -> str:
        names = list(self.shapes)
        return names[-1] if self.chance(0.7) else self.pick(names)

    def like(self, shape: Shape) -> list[str]:
        return [name for name, other in self.shapes.items() if other == shape]

    def dense(self, value: str, outputs: int | None = None) -> str:
        width = self.shapes[value][-1]
        outputs = outputs or self.whole(1, 5)
        shared = [o for o in self.known if o.shape in ((outputs, width), (width, outputs))]
        bias = self.tensor(outputs, size=0.5) if self.chance(0.6) else None
        if shared and self.chance(0.5):
            return self._shared_dense(value, self.pick(shared), (outputs, width), bias)
        size = 1.0 / math.sqrt(max(width, outputs))
        return self.emit(Dense(self.tensor(outputs, width, size=size), bias), value)

    def _shared_dense(self, value: str, old: Operand, shape: Shape, bias: Operand | None) -> str:
        factor = self.pick([1.0, -0.5, 2.0])
        turned = old.shape != shape or (shape[0] == shape[1] and self.chance(0.5))
        array = factor * (old.array.T if turned else old.array)
        places = np.arange(array.size, dtype=np.int32).reshape(old.shape)
        places = places.T if turned else places
        weight = Operand(array, old.parameter, Upper(abs(factor)), places, factor)
        self.views[f"v{len(self.steps)}_node", "weight"] = (
            (lambda t: factor * t.T) if turned else (lambda t: factor * t)
        )
        return self.emit(Dense(weight, bias), value)

    def window(self, size: int, pads: bool = True, dilation: bool = True) -> Window:
        for _ in range(100):
            taps, stride = self.whole(1, min(4, size + 1)), self.whole(1, 3)
            apart = self.whole(1, 2) if dilation else 1
            before, after = (self.whole(0, 2), self.whole(0, 2)) if pads else (0, 0)
            if apart * (taps - 1) + 1 <= size + before + after:
                return Window(size, taps, stride, apart, before, after)
        return Window(size, 1)

    def conv(self, value: str) -> str:
        channels, *sizes = self.shapes[value]
        geometry = tuple(self.window(size) for size in sizes)
        groups = self.pick([g for g in (1, 1, 2, 3) if channels % g == 0])
        outputs = groups * self.whole(1, 2)
        taps = [w.taps for w in geometry]
        size = 1.0 / math.sqrt(math.prod(taps) * channels)
        weight = self.tensor(outputs, channels // groups, *taps, size=size)
        bias = self.tensor(outputs, size=0.4) if self.chance(0.6) else None
        return self.emit(Conv(weight, bias, geometry, groups), value)

    def conv_transpose(self, value: str) -> str:
        channels, *sizes = self.shapes[value]
        geometry = tuple(self._adjoint_window(outputs) for outputs in sizes)
        groups = self.pick([g for g in (1, 1, 2, 3) if channels % g == 0])
        taps = [w.taps for w in geometry]
        each = self.whole(1, 2)
        size = 1.0 / math.sqrt(math.prod(taps) * channels)
        weight = self.tensor(channels, each, *taps, size=size)
        bias = self.tensor(each * groups, size=0.4) if self.chance(0.6) else None
        return self.emit(ConvTranspose(weight, bias, geometry, groups), value)

    def _adjoint_window(self, outputs: int) -> Window:
        for _ in range(200):
            window = self.window(self.whole(1, 2 * outputs + 2))
            if window.outputs == outputs:
                return window
        return Window(outputs, 1)

    def pool(self, value: str) -> str:
        sizes = self.shapes[value][1:]
        for _ in range(100):
            geometry = tuple(self.window(size) for size in sizes)
            if all(min(w.reads()) > 0 for w in geometry):
                break
        else:
            return value
        kind = self.whole(0, 2)
        if kind == 0:
            return self.emit(MaxPool(geometry), value)
        if kind == 1:
            return self.emit(LpPool(geometry, self.pick([1, 2, 2])), value)
        padded = self.chance(0.5)
        return self.emit(AveragePool(geometry, padded), value)

    def normalize(self, value: str) -> str:
        shape = self.shapes[value]
        epsilon = self.pick([1e-2, 0.1, 0.5])
        kind = self.whole(0, 3)
        if kind == 0:
            channels = shape[0]
            return self.emit(
                BatchNorm(
                    0.4 * self.rng.standard_normal(channels),
                    (self.rng.uniform(0.3, 2.0, channels) + epsilon) ** -0.5,
                    self.tensor(channels),
                    self.tensor(channels),
                ),
                value,
            )
        if kind == 1:
            groups = self.pick([g for g in range(1, shape[0] + 1) if shape[0] % g == 0])
            for op in group_norm(shape, groups, epsilon, None):
                value = self.emit(op, value)
            if self.chance(0.7):
                placed = (shape[0], *[1] * (len(shape) - 1))
                affine = self.tensor(*placed), self.tensor(*placed, size=0.4)
                value = self.emit(Scale(*affine), value)
            return value
        axes = self.whole(1, len(shape))
        last = tuple(range(len(shape)))[-axes:]
        value = self.emit(Normalize(last, epsilon, centred=kind == 3), value)
        places = shape[-axes:] if self.chance(0.7) else shape[-1:]
        if not self.chance(0.7):
            return value
        bias = self.tensor(*places, size=0.4) if self.chance(0.6) else None
        return self.emit(Scale(self.tensor(*places), bias), value)

    def activate(self, value: str) -> str:
        number = self.rng.uniform
        if self.wide and self.chance(0.3):
            return self.emit(self.own_gate(), value)
        function = self.pick(
            [
                Activation("relu"),
                Activation("relu"),
                Activation("abs"),
                Activation("leaky_relu", (float(number(-2, 2)),)),
                Activation("soft_threshold", (float(number(0.0, 0.5)),)),
                Activation("clip", (-0.5, float(number(-0.5, 1.0)))),
                Activation("hard_sigmoid", (float(number(-1, 1)), float(number(-1, 1)))),
                Activation("elu", (float(number(-1, 2)),)),
                Activation("selu", (1.6732632423543772, 1.0507009873554805)),
                Activation("celu", (float(number(0.2, 2)),)),
                Activation("sigmoid"),
                Activation("tanh"),
                Activation("atan"),
                Activation("softplus"),
                Activation("softsign"),
                Activation("erf"),
                Activation("sin"),
                Activation("cos"),
                Activation("gelu"),
                Activation("gelu_tanh"),
                Activation("silu"),
                Activation("quick_gelu", (float(number(0.5, 2)),)),
                Activation("mish"),
                Activation("hard_swish"),
            ]
        )
        return self.emit(function, value)

    def own_gate(self) -> Activation:
        """With the numbers of a file, which are next to those of the textbook, or elsewhere."""
        off = 1.0 + float(self.pick([2.0**-23, -(2.0**-21), 0.1, -0.3]))
        return self.pick(
            [
                Activation("gelu_tanh", (math.sqrt(2 / math.pi) * off, 0.044715)),
                Activation("gelu_tanh", (math.sqrt(2 / math.pi), 0.044715 * off)),
                Activation("quick_gelu", (1.0 / (0.6 * off),)),
            ]
        )

    def single(self, value: str) -> str:
        """A value of one number for an example, with operators on it."""
        shape = self.shapes[value]
        if shape:
            axes = tuple(range(len(shape)))
            reduction = self.pick(
                [
                    ReduceSum(axes),
                    ReduceMean(axes),
                    ReduceNorm(self.pick([1, 2]), axes),
                    ReduceLogSumExp(axes),
                ]
            )
            value = self.emit(reshaped(), self.emit(reduction, value))
        for _ in range(self.whole(0, 3)):
            value = self.on_number(value)
        return value

    def on_number(self, value: str) -> str:
        """One operator that takes single numbers, and leaves one."""
        match self.whole(0, 7):
            case 0 | 1:
                return self.activate(value)
            case 2 | 3:
                return self.affine(value)
            case 4:
                return self.emit(Add((1, -1)), value, self.pick(self.like(())))
            case 5:
                return self.emit(Multiply(), value, self.pick(self.like(())))
            case 6:
                return self.extreme(value, self.pick(self.like(())))
            case _:
                return self.emit(padded((), ()), self.emit(transposed(), value))

    def from_single(self, value: str) -> str:
        """A vector made of a single number."""
        row = self.emit(reshaped(1), self.single(value))
        return self.dense(row) if self.chance(0.7) else self.emit(expanded(2), row)

    def broadcastable(self, shape: Shape) -> Shape:
        """A random shape that broadcasts into this one."""
        kept = self.whole(0, len(shape))
        return tuple(1 if self.chance(0.4) else n for n in shape[len(shape) - kept :])

    def affine(self, value: str) -> str:
        shape = self.broadcastable(self.shapes[value])
        kind = self.whole(0, 3)
        if kind == 0:
            return self.emit(Scale(self.tensor(*shape)), value)
        if kind == 1:
            return self.emit(Shift(self.tensor(*shape, size=0.4)), value)
        if kind == 2:
            return self.emit(PRelu(self.tensor(*shape)), value)
        signs = np.where(self.rng.random(shape) < 0.5, -1.0, 1.0)
        divisor = signs * self.rng.uniform(0.5, 2.0, shape)
        operand = Operand(divisor, f"p{len(self.known)}")
        self.known.append(operand)
        return self.emit(Divide(operand), value)

    def combine(self, value: str) -> str:
        shape = self.shapes[value]
        partners = self.like(shape)
        kind = self.whole(0, 4)
        other = self.pick(partners)
        if kind <= 1:
            coefficients = tuple(float(self.pick([1.0, 1.0, -1.0, 0.5, -2.0])) for _ in range(2))
            return self.emit(Add(coefficients), value, other)
        if kind == 2:
            return self.emit(Concat(self.whole(0, len(shape) - 1)), value, other)
        if kind == 3:
            return self.emit(Multiply(), value, other)
        small = [
            name
            for name, candidate in self.shapes.items()
            if len(candidate) <= len(shape)
            and all(a in (1, b) for a, b in zip(candidate[::-1], shape[::-1], strict=False))
        ]
        if self.chance(0.5):
            return self.emit(Multiply(), value, self.pick(small))
        return self.emit(Add((1, -1)), value, self.pick(small))

    def rearrange(self, value: str) -> str:
        shape = self.shapes[value]
        axis = self.whole(0, len(shape) - 1)
        kind = self.whole(0, 6)
        if kind == 0:
            return self.emit(transposed(*self.rng.permutation(len(shape))), value)
        if kind == 1:
            count = self.whole(1, shape[axis] + 1)
            indices = [self.whole(0, shape[axis] - 1) for _ in range(count)]
            return self.emit(moved(lambda own: own.take(indices, axis)), value)
        if kind == 2:
            mode = self.pick(["constant", "reflect", "edge", "wrap"])
            limit = [n - 1 if mode == "reflect" else min(n, 2) for n in shape]
            begin = tuple(self.whole(0, min(1, n)) for n in limit)
            end = tuple(self.whole(0, min(2, n)) for n in limit)
            return self.emit(padded(begin, end, mode), value)
        if kind == 3:
            repeats = [self.whole(1, 2) for _ in shape]
            return self.emit(moved(lambda own: np.tile(own, repeats)), value)
        if kind == 4:
            return self.emit(Sort(axis), value)
        if kind == 5:
            return self.emit(expanded(self.whole(1, 2), *shape), value)
        return self.emit(reshaped(*self.pick(_factorizations(math.prod(shape)))), value)

    def reduce(self, value: str) -> str:
        shape = self.shapes[value]
        axes = tuple(i for i in range(len(shape)) if self.chance(0.5)) or (0,)
        op = self.pick([ReduceSum(axes), ReduceMean(axes), ReduceMax(axes, self.chance(0.5))])
        return self.without(axes, self.emit(op, value))

    def without(self, axes: Shape, value: str) -> str:
        """Often without the axes of length 1 that a reduction leaves."""
        shape = self.shapes[value]
        rest = [length for axis, length in enumerate(shape) if axis not in axes]
        return self.emit(reshaped(*rest), value) if rest and self.chance(0.5) else value

    def attend(self, value: str) -> str:
        """Several heads of softmax(q kᵀ) v over the last two axes, as one op or as three."""
        width, outputs = self.whole(1, 3), self.whole(1, 3)
        query, key, content = (self.dense(value, n) for n in (width, width, outputs))
        rank = len(self.shapes[value])
        swap = (*range(rank - 2), rank - 1, rank - 2)
        turned = self.emit(transposed(*swap), key)
        if self.chance(0.5):
            scores = self.emit(Softmax(-1), self.emit(MatMul(), query, turned))
            return self.emit(MatMul(), scores, content)
        tokens = self.shapes[value][-2]
        mask = np.triu(np.full((tokens, tokens), -2.0), 1) if self.chance(0.3) else None
        attention = Attention(float(self.rng.uniform(-2, 2)), mask)
        return self.emit(attention, query, turned, content)

    def normed(self, value: str) -> str:
        """Reductions that are not linear, and local response normalization."""
        shape = self.shapes[value]
        axes = tuple(i for i in range(len(shape)) if self.chance(0.5)) or (0,)
        kind = self.whole(0, 3)
        if kind == 0:
            return self.without(axes, self.emit(ReduceLogSumExp(axes), value))
        if kind == 1:
            low, high = self.pick([(0.5, 1.0), (0.1, 3.0), (2.0, 0.75)])
            return self.emit(Lrn(self.whole(1, 4), low, high, self.pick([0.5, 1.0])), value)
        norm = self.emit(ReduceNorm(self.pick([1, 2]), axes), value)
        if kind == 2:
            return norm
        floor = self.emit(Activation("clip", (0.3, math.inf)), norm)
        return self.emit(Quotient(), value, floor)

    def powered(self, value: str) -> str:
        """A function with a restricted domain, behind something that keeps its input there."""
        away = self.pick([(0.2, 1.5), (0.05, 0.9), (-2.0, -0.25)])
        kind = self.whole(0, 4)
        if kind == 0:
            return self.emit(Activation("exp"), value)
        if kind == 1:
            scaled = self.emit(Scale(Operand(np.array(math.log(self.pick([0.4, 2.5]))))), value)
            return self.emit(Activation("exp"), scaled)
        if kind == 2:
            whole = self.pick([2.0, 3.0, 4.0, 5.0])
            return self.emit(Activation("power", (whole,)), value)
        positive = abs(away[0]), abs(away[1])
        if kind == 3:
            function = self.pick([Activation("reciprocal"), *map(power, (-1.0, -2.0, -3.0))])
            inside = self.emit(Activation("clip", away), value)
            return self.emit(function, inside)
        inside = self.emit(Activation("clip", (min(positive), max(positive))), value)
        plain = Activation("log"), Activation("sqrt")
        function = self.pick([*plain, *map(power, (0.5, 1.7, -0.3, -0.5))])
        return self.emit(function, inside)

    def compare(self, value: str) -> str:
        """Maximum or quotient of two values."""
        other = self.pick(self.like(self.shapes[value]))
        if self.chance(0.6):
            return self.extreme(value, other)
        divisor = self.emit(Activation("clip", (0.3, 2.0)), other)
        return self.emit(Quotient(), value, divisor)

    def extreme(self, value: str, other: str) -> str:
        """Maximum or minimum of two values of one shape."""
        shape = self.shapes[value]
        pair = [self.emit(reshaped(1, *shape), name) for name in (value, other)]
        largest = self.emit(ReduceMax((0,), self.chance(0.5)), self.emit(Concat(0), *pair))
        return self.emit(reshaped(*shape), largest)

    def soften(self, value: str) -> str:
        axis = self.whole(0, len(self.shapes[value]) - 1)
        return self.emit(self.pick([Softmax, LogSoftmax])(axis), value)

    def grow(self) -> None:
        """One more op on some value, if it stays small."""
        value = self.recent()
        rank = len(self.shapes[value])
        choices: list[Callable[[str], str]] = [
            self.dense,
            self.dense,
            self.activate,
            self.activate,
            self.affine,
            self.combine,
            self.combine,
            self.rearrange,
            self.normalize,
        ]
        if rank >= 2:
            choices += [self.conv, self.conv, self.conv_transpose, self.pool, self.reduce]
            choices += [self.attend] if self.chance(0.4) else []
        if self.chance(0.3):
            choices += [self.soften, self.normed, self.powered, self.compare]
        if self.wide and self.chance(0.25):
            choices = [self.from_single]
        if not rank:
            choices = [self.from_single, self.on_number]
        before = dict(self.shapes), list(self.steps), list(self.known), dict(self.views)
        self.pick(choices)(value)
        last = self.shapes[list(self.shapes)[-1]]
        if math.prod(last) > LARGEST_VALUE or len(last) > 4 or not (last or self.wide):
            self.shapes, self.steps, self.known, self.views = before


def expanded(*shape: int) -> Maker:
    return moved(lambda own: np.broadcast_to(own, shape))


def power(exponent: float) -> Activation:
    return Activation("power", (exponent,))


def _factorizations(size: int) -> list[Shape]:
    found: list[Shape] = [(size,)]
    for first in range(1, size + 1):
        if size % first == 0:
            found.append((first, size // first))
            found += [
                (first, n, size // first // n)
                for n in range(1, size // first + 1)
                if (size // first) % n == 0
            ]
    return found


def random_loss(builder: Builder, outputs: int) -> Loss:
    pick, chance = builder.pick, builder.chance
    terms = pick(["mean", "sum"])
    label_norm = float(builder.rng.uniform(0, 2))
    pointwise = [
        lambda: make_loss("bce", temperature=pick([1.0, 0.5, 3.0]), output_reduction=terms),
        lambda: make_loss("mse", label_norm=label_norm, output_reduction=terms, half=chance(0.5)),
        lambda: make_loss("mae", output_reduction=terms),
        lambda: make_loss("huber", huber_delta=0.7, label_norm=label_norm, output_reduction=terms),
        lambda: make_loss("cosine", cosine_floor=0.5),
    ]
    if outputs < 2 or chance(0.25):
        return pick(pointwise)()
    smoothing = pick([0.0, 0.0, 0.1, 0.5])
    return pick(
        [
            lambda: make_loss("cross-entropy"),
            lambda: make_loss("cross-entropy", temperature=pick([0.3, 1.0, 4.0])),
            lambda: make_loss(
                "cross-entropy", temperature=pick([0.5, 1.0]), label_smoothing=smoothing
            ),
            lambda: make_loss("focal", focal_gamma=pick([0.0, 0.5, 2.0])),
            lambda: make_loss("multiclass-hinge", margin=1.0, output_reduction=terms),
            lambda: make_loss("multi-margin", margin=0.5, output_reduction=terms),
            lambda: make_loss("kr"),
            lambda: make_loss("hkr", hkr_weight=2.0, margin=1.0),
            lambda: make_loss("nll"),
        ]
    )()


def random_domain(builder: Builder, shape: Shape) -> Domain:
    low = float(builder.rng.uniform(-1.0, 0.8))
    box = (low, low + float(builder.rng.uniform(0.1, 1.5)))
    least = max(0.0, box[0], -box[1]) * math.sqrt(math.prod(shape))
    radius = float(builder.rng.uniform(0.2, 3.0))
    return builder.pick(
        [
            Domain(shape, radius, None),
            Domain(shape, None, box),
            Domain(shape, least + radius, box),
        ]
    )


def random_case(seed: int, ops: int = 7, *, wide: bool = False) -> Case:
    """A network whose output is one vector (sometimes with unit axes) and that has parameters.

    wide: also one that passes through, or ends in, a single number, and has gates with numbers of
    their own.
    """
    rng = np.random.default_rng(seed)
    shape = [(4,), (3, 4), (2, 3, 3), (3, 5), (1, 4, 4)][int(rng.integers(5))]
    builder = Builder(rng, {"x": shape}, wide=wide)
    for _ in range(int(rng.integers(2, ops + 1))):
        builder.grow()
    value = list(builder.shapes)[-1]
    if builder.chance(0.7):
        value = builder.emit(reshaped(math.prod(builder.shapes[value])), value)
        value = builder.dense(value, builder.whole(1, 5))
        if builder.chance(0.3):
            value = _decorated(builder, value)
    elif not builder.known:
        value = builder.dense(value if builder.shapes[value] else builder.from_single(value))
    if wide and builder.chance(0.5):
        value = builder.single(value)
    graph = dag(shape, builder.steps)
    domain = random_domain(builder, shape)
    return Case(graph, domain, random_loss(builder, _classes(graph.output_shape)), builder.views)


def _decorated(builder: Builder, value: str) -> str:
    """After the last layer: what may keep or must lose the hull of a logit gradient."""
    classes = builder.shapes[value][-1]
    for _ in range(builder.whole(1, 2)):
        kind = builder.whole(0, 4)
        if kind == 0:
            value = builder.emit(reshaped(1, classes), value)
        elif kind == 1:
            value = builder.emit(Shift(builder.tensor(classes)), value)
        elif kind == 2:
            value = builder.emit(LogSoftmax(-1), value)
        elif kind == 3:
            value = builder.emit(Scale(Operand(np.array(builder.pick([2.0, 0.5, -1.0])))), value)
        else:
            value = builder.emit(Add((1, 1)), value, value)
    return value


def _classes(shape: Shape) -> int:
    long = [n for n in shape if n != 1]
    return long[0] if len(long) == 1 else 1
