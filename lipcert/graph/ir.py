"""Graph: the steps of the core's program, with their names and the trained parameters they use.

The core knows neither the names nor which parameters the operands are views of. Audits and training
run these very steps, each of which reads values of earlier ones. Names are unique, and every
parameter that an operand names exists. The array of an operand holds the numbers of the file
exactly (every float format up to float64 embeds in float64) in the orientation in which the op uses
them; it is read-only.

`parameters_of` reads the numbers of parameters back from the operands that show them; `graph_at`
returns the graph with other numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from lipcert.core import kinds, token_kinds, window_kinds
from lipcert.core import program as p
from lipcert.core.program import FloatArray, IndexArray, Move, Shape
from lipcert.diagnostics import EXPORT
from lipcert.errors import NoVerdictError
from lipcert.graph.geometry import Geometry, geometry_of

_ROUNDINGS: Final = 4 * float(np.finfo(np.float64).eps)
PlaceArray = npt.NDArray[np.int32]
"""Places in a tensor; it has fewer than 2^31."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Operand:
    """A constant tensor used by an op.

    `parameter` names the trained parameter θ of which `array` is a linear view (transposed,
    reshaped, sliced, repeated, scaled), or is None for a constant of the architecture. `gain`
    bounds the Lipschitz constant of θ ↦ array in the Euclidean norm: 1 for rearrangements and
    slices, |α| for a scaling, √m for an m-fold repetition.

    The view is array = scale · θ[places] + plus. `places` are flat indices into θ, in the shape of
    `array`; an index of −1 stands for the number 0, and None for the entries of θ in their own
    order. plus: fixed numbers, of the shape of `array`; None: zeros.
    """

    array: FloatArray
    parameter: str | None = None
    gain: float = 1.0
    places: PlaceArray | None = None
    scale: float = 1.0
    plus: FloatArray | None = None

    def __post_init__(self) -> None:
        must_copy = None if _is_read_only(self.array) else True
        array = np.array(self.array, dtype=np.float64, order="C", copy=must_copy)
        if not np.all(np.isfinite(array)):
            raise ValueError(f"operand {self.parameter or 'constant'} holds NaN or infinity")
        array.setflags(write=False)
        object.__setattr__(self, "array", array)
        if self.places is not None and self.places.shape != array.shape:
            raise ValueError(f"operand {self.parameter}: {self.places.shape} places")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor as the op uses it."""
        return self.array.shape

    @property
    def is_plain(self) -> bool:
        """Whether it shows the entries unchanged."""
        return self.scale == 1.0 and self.plus is None


def _is_read_only(array: FloatArray) -> bool:
    """Whether neither an array nor what it is a view of can be written to."""
    base = array.base
    above = base is None or (isinstance(base, np.ndarray) and _is_read_only(base))
    return above and not array.flags.writeable


_KINDS: Final = MappingProxyType(
    {
        kinds.BatchNorm: "BatchNormalization",
        p.Dense: "Gemm",
        kinds.Embedding: "Gather",
        kinds.Divide: "Div",
        kinds.DivideByNorm: "LpNormalization",
        kinds.LocalResponse: "LRN",
        token_kinds.Multiply: "Mul",
        token_kinds.Shift: "Add",
        kinds.Sort: "TopK",
    }
)
"""Names in reports for steps that ONNX calls differently."""
ROLES: Final = MappingProxyType(
    {"weight": "weight", "table": "weight", "bias": "bias", "factor": "scale", "offset": "bias"}
    | {"slope": "slope", "scale": "scale", "shift": "bias"}
)
"""The roles of operands, by the field of the op."""
JOINED: Final = "outputs"
"""The name of the step that joins several outputs, which is not a node of the file."""
_ANYWHERE: Final = (
    p.Activation
    | token_kinds.Add
    | kinds.CotangentClip
    | kinds.Divide
    | kinds.InputClip
    | p.Move
    | token_kinds.Multiply
)


class BatchStatus(Enum):
    """How it is known that examples of a batch do not influence each other."""

    PROVED = "proved"
    """Proved on the graph for a batch of any size."""
    PER_EXAMPLE = "per-example"
    """The file holds one example at a time; it is assumed to be applied to each separately."""


@dataclass(frozen=True, slots=True)
class BatchProof:
    """Batch independence: its status, the batch axis of the input, and how it was established."""

    status: BatchStatus
    axis: int
    witness: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tensor of the file that training may update.

    `folded`: the file shows that this tensor is not what is trained, because an exporter folded
    trained parameters (BatchNorm into a convolution, say) into it. `computed`: steps use numbers
    that the file computes from it, such as a weight divided by its norm. It has bounds, but no
    operand shows these uses, so its gradients cannot be measured.
    """

    name: str
    shape: Shape
    trainable: bool = True
    folded: bool = False
    computed: bool = False

    @property
    def size(self) -> int:
        """The number of entries of the parameter."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class EvalLayer:
    """A layer that a file holds in eval mode, and that computes something else in train mode.

    kind: "BatchNormalization" or "Dropout". name: that of the module, if the file has it, or else
    of a node. node: the node that is this layer; "" if only traces of it are left.
    """

    kind: str
    name: str
    node: str = ""

    @property
    def is_dropout(self) -> bool:
        """Whether it drops entries at random in train mode, for each example separately."""
        return self.kind == "Dropout"


def name_of(op: p.Op) -> str:
    """Return the name of a step: its class, or the function that it computes."""
    match op:
        case p.Activation(name):
            return "".join(word.capitalize() for word in name.split("_"))
        case kinds.ReduceNorm(p=order):
            return f"ReduceL{order}"
        case token_kinds.ReduceSum(mean=True):
            return "ReduceMean"
        case token_kinds.Softmax(logarithm=True):
            return "LogSoftmax"
    return type(op).__name__


def example(shape: Shape) -> Shape:
    """Return the per-example shape of a value from its shape in the program for one example.

    An axis 0 of length 1 is the batch axis. Any other value has no batch axis, and is the same
    for each example.
    """
    return shape[1:] if shape[:1] == (1,) else shape


def places_of(inputs: Sequence[p.Part]) -> Iterator[tuple[p.Part, slice]]:
    """Yield each input with its slice of the flat example that holds all inputs."""
    start = 0
    for part in inputs:
        yield part, slice(start, start + part.size)
        start += part.size


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Node:
    """A step of the program; given: shapes of its inputs in the program.

    operands: weight, bias, scale, divisor, slope and, for a BatchNorm, the mean and the variance of
    the file, in the shapes of the program. A `Scale` with a bias also stands for the `Shift` by it,
    if one node of the file does both; one with a divisor divides by it.
    in_place: whether axis 0 of all its values is the batch axis, so that the same step runs for
    many examples.
    """

    name: str
    step: p.Step
    given: tuple[Shape, ...]
    operands: Mapping[str, Operand] = field(default_factory=dict)
    in_place: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "in_place", _is_in_place(self.step, self.given))

    @property
    def op(self) -> p.Op:
        """The operation of the core's step."""
        return self.step.op

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the values that it reads."""
        return self.step.inputs

    @property
    def output(self) -> str:
        """Name of the value that it computes."""
        return self.step.output

    @property
    def shape(self) -> Shape:
        """The per-example shape of the output."""
        return example(self.step.shape)

    @property
    def kind(self) -> str:
        """Name for reports, in the spelling of ONNX where ONNX has one ("Conv")."""
        match self.op:
            case window_kinds.Conv(transposed=True):
                return "ConvTranspose"
            case token_kinds.Scale():
                return "Div" if "divisor" in self.operands else "Mul"
        return _KINDS.get(type(self.op)) or name_of(self.op)

    @property
    def geometry(self) -> Geometry:
        """The windows of a convolution or pooling along each axis after the channels."""
        op, below = self.op, self.given[0]
        if not isinstance(
            op,
            window_kinds.Conv
            | window_kinds.MaxPool
            | window_kinds.AveragePool
            | window_kinds.LpPool,
        ):
            raise TypeError(f"node {self.name!r}: {self.kind} has no windows")
        if isinstance(op, window_kinds.Conv) and op.transposed:
            below = self.step.shape
        return geometry_of(op.window, below[2:])

    def uses(self) -> Iterator[Use]:
        """Yield the operands that are views of parameters."""
        for slot, operand in self.operands.items():
            if operand.parameter is not None:
                yield Use(self, slot, operand, operand.parameter)


def _is_in_place(step: p.Step, given: Sequence[Shape]) -> bool:
    """Return `Node.in_place`; axes that broadcasting adds in front have length 1 and are fine."""
    if isinstance(step.op, _ANYWHERE):
        return True
    if any(shape[:1] != (1,) for shape in (*given, step.shape)):
        return False
    match step.op:
        case p.Dense() | kinds.Embedding():
            return len(step.shape) > 1
        case token_kinds.MatMul() | token_kinds.Attention():
            return min(map(len, given)) > 2
        case token_kinds.Softmax(axis) | kinds.Sort(axis) | kinds.Concat(axis):
            return axis > 0
    return 0 not in getattr(step.op, "axes", ())


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """An operand of a node that is a view of a parameter; slot: its role."""

    node: Node
    slot: str
    operand: Operand
    parameter: str

    @property
    def is_linear_map(self) -> bool:
        """Whether it is the weight of a matrix or of a convolution."""
        return self.slot == "weight" and isinstance(self.node.op, p.Dense | window_kinds.Conv)

    @property
    def is_table(self) -> bool:
        """Whether it is the table of an embedding: its spectral norm is that of its longest row."""
        return isinstance(self.node.op, kinds.Embedding)

    @property
    def places(self) -> PlaceArray:
        """Flat places in the parameter; −1 where the operand holds a fixed 0."""
        if self.operand.places is None:
            return np.arange(self.operand.array.size, dtype=np.int32)
        return self.operand.places.reshape(-1)


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A feed-forward network with one input and one output, which may join several of the file.

    eval_layers: layers of the file that compute something else in train mode. ids: how many rows
    the tables have from which whole numbers at the input choose. whole: whether the file reads
    whole numbers. heads, parts: its outputs and inputs if there are several, as in `Program`.
    fixed: tensors that are not parameters, and why each is taken to be fixed. shown: the same
    network with steps that compute weights from parameters, if operands here do not show these; or
    the node that prevents it, "" if it is not known.
    """

    input_name: str
    input_shape: Shape
    output_name: str
    nodes: tuple[Node, ...]
    parameters: Mapping[str, Parameter]
    eval_layers: tuple[EvalLayer, ...] = ()
    ids: int | None = None
    whole: bool = False
    heads: tuple[p.Part, ...] = ()
    parts: tuple[p.Part, ...] = ()
    fixed: Mapping[str, str] = field(default_factory=dict)
    shown: Graph | str = ""

    def uses(self, parameter: str | None = None) -> Iterator[Use]:
        """Yield all uses of this parameter, or of any."""
        for node in self.nodes:
            yield from (use for use in node.uses() if parameter in {None, use.parameter})

    def trained_uses(self) -> Iterator[Use]:
        """Return all uses of trained parameters."""
        return (use for use in self.uses() if self.parameters[use.parameter].trainable)

    @property
    def computed(self) -> list[str]:
        """The trained parameters of which operands do not show all uses."""
        return [name for name, item in self.parameters.items() if item.computed and item.trainable]

    @property
    def measured(self) -> Graph:
        """The graph that shows all uses of trained parameters, if there is one."""
        if not self.computed or isinstance(self.shown, str):
            return self
        own = {name: replace(item, computed=False) for name, item in self.parameters.items()}
        return replace(self.shown, parameters=own, eval_layers=self.eval_layers, fixed=self.fixed)

    def check_shown(self) -> None:
        """Raise NoVerdictError (LC319) if gradients of a trained parameter cannot be measured."""
        if self.computed:
            names = ", ".join(map(repr, self.computed[:4]))
            remedy = (
                "train plain weights, as lipcert.training.make_trainable(module, mechanism) puts "
                "into a copy, before the optimizer is made"
                if "parametrizations." in self.computed[0]
                else "freeze them (requires_grad_(False)), or apply each to the data by itself, as "
                "(x @ a) @ b does in place of x @ (a @ b)"
            )
            where = f"through {self.shown}" if self.shown else "here"
            if isinstance(self.shown, Graph):
                where = "under this mechanism or scope; train with GradientClipping"
            raise NoVerdictError(
                f"[LC319] the file computes weights from {names}, whose gradients are not measured "
                f"{where}; {remedy}, and export with {EXPORT}"
            )

    @property
    def drops(self) -> bool:
        """Whether entries are dropped at random in train mode."""
        return any(layer.is_dropout for layer in self.eval_layers)

    @property
    def inputs(self) -> tuple[p.Part, ...]:
        """The inputs of the file."""
        shape, is_whole = (1, *self.input_shape), self.whole or self.ids is not None
        return self.parts or (p.Part(self.input_name, shape, None, self.ids, is_whole),)

    @property
    def arrays(self) -> tuple[tuple[str, Shape], ...]:
        """Names and per-example shapes of several inputs; empty for a single one."""
        return tuple((part.name, example(part.shape)) for part in self.parts)

    @property
    def output_shape(self) -> Shape:
        """Per-example shape of the output."""
        return self.shape_of(self.output_name)

    @property
    def outputs(self) -> tuple[tuple[str, Shape], ...]:
        """Names and per-example shapes of the outputs that the loss reads."""
        found = tuple((head.name, example(head.shape)) for head in self.heads)
        return found or ((self.output_name, self.output_shape),)

    def shape_of(self, value: str) -> Shape:
        """Return the per-example shape of a value."""
        if value == self.input_name:
            return self.input_shape
        return next(node.shape for node in self.nodes if node.output == value)


class Padding(Enum):
    """What a padding adds around a value."""

    ZEROS = "zeros"
    WRAPPED = "wrapped"
    """Entries of the opposite side."""
    REPEATED = "repeated"
    """Entries of the border or from inside, such as reflected ones."""


def is_arrangement(node: Node) -> bool:
    """Whether the output has every entry of the input exactly once, and nothing else."""
    if not isinstance(node.op, Move):
        return False
    sources = node.op.sources
    if sources.size != math.prod(node.given[0]) or sources.min(initial=0) < 0:
        return False
    return bool((np.bincount(sources.reshape(-1)) == 1).all())


def padding_of(node: Node) -> Padding | None:
    """Return the kind of padding that a node adds around x; None if it does anything else.

    Entries of x keep their order; they only shift by the width of the padding.
    """
    if not isinstance(node.op, Move):
        return None
    return _padding(node.op.sources.reshape(node.shape), example(node.given[0]))


def _padding(sources: IndexArray, size: Shape) -> Padding | None:
    full = sources.shape
    if len(size) != len(full) or size == full or min(np.subtract(full, size)) < 0:
        return None
    own = np.arange(math.prod(size)).reshape(size)
    for start in np.argwhere(sources == 0):
        ends = list(zip(start, size, strict=True))
        if np.array_equal(sources[tuple(slice(a, a + n) for a, n in ends)], own):
            widths = [(a, all_ - a - n) for (a, n), all_ in zip(ends, full, strict=True)]
            for padding, padded in (
                (Padding.ZEROS, np.pad(own, widths, constant_values=-1)),
                (Padding.WRAPPED, np.pad(own, widths, mode="wrap")),
            ):
                if np.array_equal(padded, sources):
                    return padding
            return Padding.REPEATED
    return None


def viewed(operand: Operand, whole: FloatArray) -> FloatArray:
    """Return the operand for the parameter `whole`: scale · θ[places], 0 where −1, + plus."""
    if operand.places is None:
        view = whole.reshape(operand.shape)
    else:
        view = np.where(operand.places >= 0, whole.reshape(-1)[operand.places], 0.0)
    shown: FloatArray = view if operand.scale == 1.0 else operand.scale * view
    return shown if operand.plus is None else shown + operand.plus


def linear_step(node: Node, weight: FloatArray) -> tuple[p.Step, Shape]:
    """Return a layer with this weight and no bias, and the shape that it reads.

    A matrix acts on one position; the norm is that of the layer.

    Raises:
        TypeError: for a node that is not a layer.
    """
    if not isinstance(node.op, p.Dense | window_kinds.Conv):
        raise TypeError(f"node {node.name!r} is not a layer")
    op = replace(node.op, weight=p.Operand(weight, weight), bias=None)
    if isinstance(op, p.Dense):
        return p.Step(op, ("x",), "y", (1, weight.shape[0]), 0), (1, weight.shape[1])
    return p.Step(op, ("x",), "y", node.step.shape, 0), node.given[0]


def parameters_of(graph: Graph) -> Mapping[str, FloatArray]:
    """Return the numbers of every parameter of the graph, in its own shape.

    They are read back from the operands; an entry that no operand reads is 0, since no output
    depends on it.

    Raises:
        NoVerdictError: if two operands show different numbers for one entry.
    """
    found: dict[str, FloatArray] = {
        name: np.zeros(parameter.shape) for name, parameter in graph.parameters.items()
    }
    # plain views last: they hold the numbers of the file without any rounding
    for use in sorted(graph.uses(), key=lambda use: use.operand.is_plain):
        _read_back(use.operand, found[use.parameter])
    for use in graph.uses():
        expected = viewed(use.operand, found[use.parameter])
        if not np.allclose(expected, use.operand.array, rtol=_ROUNDINGS, atol=0.0):
            raise NoVerdictError(
                f"node {use.node.name!r}: its operand is not a view of the parameter "
                f"{use.parameter!r}, "
                "so the network cannot be replayed with other weights; this is a defect of "
                "LipCert: report it with the model"
            )
    return found


def _read_back(operand: Operand, parameter: FloatArray) -> None:
    if operand.scale == 0.0:
        return
    numbers = operand.array if operand.plus is None else operand.array - operand.plus
    numbers = numbers if operand.scale == 1.0 else numbers / operand.scale
    if operand.places is None:
        parameter[...] = numbers.reshape(parameter.shape)
    else:
        read: npt.NDArray[np.bool_] = operand.places >= 0
        np.put(parameter, operand.places[read], numbers[read])


def is_shown(graph: Graph, parameter: str, whole: FloatArray) -> bool:
    """Whether every operand of a parameter holds what it would hold for these numbers."""
    uses = [use.operand for use in graph.uses(parameter)]
    return bool(uses) and all(
        np.allclose(
            viewed(operand, whole),
            operand.array,
            rtol=0.0 if operand.is_plain else _ROUNDINGS,
            atol=0.0,
        )
        for operand in uses
    )


def graph_at(graph: Graph, weights: Mapping[str, FloatArray]) -> Graph:
    """Return the graph with other weights; parameters that are not named keep their numbers.

    Its operands hold the new numbers; its steps hold those of the file.
    """
    nodes = tuple(
        replace(node, operands={k: _at(item, weights) for k, item in node.operands.items()})
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes)


def _at(operand: Operand, weights: Mapping[str, FloatArray]) -> Operand:
    whole = None if operand.parameter is None else weights.get(operand.parameter)
    return operand if whole is None else replace(operand, array=viewed(operand, whole))
