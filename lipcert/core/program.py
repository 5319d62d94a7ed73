"""Program: what a model computes for one example, as steps of few kinds with one meaning each.

Values are named like tensors of the file, or by such a name followed by "#" and a number if one
node of the file becomes several steps. Shapes are those of the file's tensors for a batch of one
example, batch axis included. A step reads only earlier values. Constants of the file, and results
computed from constants only, are operands of steps and not values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Final, TypeAlias, TypeVar, dataclass_transform

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]
IndexArray: TypeAlias = npt.NDArray[np.int64]
Shape: TypeAlias = tuple[int, ...]
Acts: TypeAlias = "tuple[Callable[[npt.NDArray[Any]], npt.NDArray[Any]], ...] | None"
"""What was done, in order, to the entries of the one tensor that a constant comes from: they were
moved, repeated, put beside zeros, multiplied by numbers, `Added` to one, or inverted. None:
anything else."""
PLUS: Final = ""
"""A source with the gain 0.0 that marks an added fixed part; no initializer has this name."""


@dataclass(frozen=True, slots=True)
class Added:
    """The act that adds one number to every entry."""

    number: float

    def __call__(self, entries: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the entries plus the number."""
        return np.asarray(entries + self.number)


def then(acts: Acts, act: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> Acts:
    """Return these acts followed by one more; None stays None."""
    return None if acts is None else (*acts, act)


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """A constant tensor: every entry lies in [lo, hi] (the same array twice if it is exact).

    sources: the initializers it is computed from. A finite number g says that the operand is a
    linear function of that initializer alone, with ‖operand‖ ≤ g·‖initializer‖ (so that the norm
    of a gradient grows by at most g on the way back); inf that it depends on it in another way.
    With `PLUS` among them it is such a function plus numbers that do not depend on it: what holds
    of gradients is the same, but the norm of the initializer does not bound that of the operand.
    acts: on the source, up to axes of length 1. slopes: bounds, at the numbers of the file alone,
    of the norm of the Jacobian ∂operand/∂initializer, for some of those with inf.
    """

    lo: FloatArray
    hi: FloatArray
    sources: Mapping[str, float] = field(default_factory=dict)
    acts: Acts = None
    slopes: Mapping[str, float] = field(default_factory=dict)

    @property
    def shape(self) -> Shape:
        """The shape of the tensor as the step uses it."""
        return self.lo.shape

    @property
    def is_exact(self) -> bool:
        """Whether every entry is known exactly."""
        return self.lo is self.hi


@dataclass(frozen=True, slots=True)
class Place:
    """Where the examples of a batch lie in a tensor: dimension `axis` is before·N·after."""

    axis: int
    before: int = 1


@dataclass(frozen=True, slots=True)
class Part:
    """One of several inputs or outputs: its name and shape in the file, for one example.

    place: of an output. ids: of an input, as of a `Program`, for this input alone. whole: whether
    the file reads whole numbers.
    """

    name: str
    shape: Shape
    place: Place | None = None
    ids: int | None = None
    whole: bool = False

    @property
    def size(self) -> int:
        """Number of entries, for one example."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Op:
    """What a step computes: one of the kinds below, or in the files of further kinds."""

    hides: ClassVar[bool] = False
    """Whether its numbers may be −inf."""
    is_final: ClassVar[bool] = True
    """Whether finished programs may contain such steps."""
    clips_cotangents: ClassVar[bool] = False
    """Whether it makes cotangents shorter than by the chain rule."""
    is_function: ClassVar[bool] = False
    """Whether it applies a function of one number to every entry."""
    is_stored: ClassVar[bool] = False
    """Whether its numbers are the weights of a layer, which the file holds."""


@dataclass_transform(frozen_default=True)
def kind_of_step(op: type[_Op]) -> type[_Op]:
    """Make a class a kind of step: an immutable record, whose tensors are compared by identity."""
    return dataclass(frozen=True, slots=True)(op)


_Op = TypeVar("_Op", bound=Op)


@kind_of_step
class Dense(Op):
    """y[..., o] = Σ_i weight[o, i]·x[..., i] + bias[o]: along the last axis of x."""

    is_stored: ClassVar[bool] = True
    weight: Operand
    bias: Operand | None


@kind_of_step
class Activation(Op):
    """y = f(x) entry by entry. name: which f; numbers: its parameters in the order of ONNX.

    gelu_tanh(a, b) = x/2·(1 + tanh(a·(x + b·x³))); without numbers a = √(2/π), b = 0.044715.

    relu · leaky_relu(alpha) · abs · clip(low, high) · hard_sigmoid(alpha, beta) · hard_swish ·
    elu(alpha) · selu(alpha, gamma) · celu(alpha) · sigmoid · tanh · atan · softplus · softsign ·
    erf · sin · cos · gelu · gelu_tanh · silu · quick_gelu(alpha) = x·sigmoid(alpha·x) · mish ·
    exp · log · sqrt · reciprocal · power(exponent) · soft_threshold(lambda)
    """

    is_function: ClassVar[bool] = True
    name: str
    numbers: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Move(Op):
    """y.flat[k] = x.flat[sources[k]], or 0 where sources[k] = −1. sources: of y's shape.

    Every op that only moves, repeats or drops entries: reshape, transpose, slice, gather, pad with
    0 or by repetition, expand, tile, nearest-neighbour resize, depth to space, one part of a split.
    """

    sources: IndexArray


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """output = op(inputs); node: position of the (last) ONNX node in `Model.nodes`."""

    op: Op
    inputs: tuple[str, ...]
    output: str
    shape: Shape
    node: int


def operands(op: Op) -> list[Operand]:
    """Return the constant tensors of a step that training may change; share and floor of a
    `DivideByNorm` are plain numbers."""
    found = (getattr(op, item.name) for item in fields(op) if item.name not in {"share", "floor"})
    return [item for item in found if isinstance(item, Operand)]


def needed_steps(steps: Sequence[Step], output: str) -> tuple[Step, ...]:
    """Return the steps from which a value is computed, in order."""
    names, kept = {output}, []
    for step in reversed(steps):
        if step.output in names:
            kept.append(step)
            names.update(step.inputs)
    return tuple(reversed(kept))


def kept_entries(step: Step) -> int:
    """Count the entries of a step besides kernels, matrices, and views of shared numbers."""
    if step.op.is_stored:
        return 0
    held = (getattr(step.op, item.name) for item in fields(step.op))
    arrays = (item.lo if isinstance(item, Operand) else item for item in held)
    return sum(x.size for x in arrays if isinstance(x, np.ndarray) and x.flags.writeable)


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """The steps that the chosen output needs, in order.

    parts: of several inputs, of which `input` holds the entries one after another, [1, entries];
    each is a value too, that the first steps read. Empty where one input of the file is the input.
    heads: of several outputs, of which `output` holds the entries one after another, [1, entries];
    empty where one output of the file is the output.
    place: where the examples of a batch lie in the output, if it was shown for a batch of any size
    that no example influences another; None where the file holds one example at a time.
    covered: for each node of the model, what became of it: "step", "part" of a step that ends at
    a later node, "constant" (computed from constants and shapes), or "unused".
    untracked: initializers that enter a step as plain numbers (the limit of a clip, an epsilon, the
    number in a gate) and of which no rule bounds the gradient. They are not parameters.
    ids: of an input of whole numbers of which some choose rows of tables, how many rows the
    smallest table has: numbers from −ids to ids − 1 choose rows of all. None: of any other input.
    """

    input: str
    output: str
    shapes: Mapping[str, Shape]
    steps: tuple[Step, ...]
    place: Place | None
    covered: tuple[str, ...]
    untracked: frozenset[str] = frozenset()
    ids: int | None = None
    heads: tuple[Part, ...] = ()
    parts: tuple[Part, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs in the file."""
        return tuple(part.name for part in self.parts) or (self.input,)

    def inputs_of(self, example: FloatArray) -> list[FloatArray]:
        """Return the inputs of the file, from the input of the program."""
        if not self.parts:
            return [example]
        ends = np.cumsum([part.size for part in self.parts])
        found = np.split(example.reshape(-1), ends[:-1])
        return [item.reshape(part.shape) for item, part in zip(found, self.parts, strict=True)]

    @property
    def batch_proved(self) -> bool:
        """Whether it is proved that the examples of a batch do not influence each other."""
        return self.place is not None

    def size(self, value: str) -> int:
        """Return the number of entries of a value, for one example."""
        return math.prod(self.shapes[value])
