"""Structure: what a network is made of, as far as suggestions speak of it.

What enters: a graph. What leaves: its normalisations with what scales and shifts them, biases with
the number of positions that they are added at, residual sums, activations and the last layer.
Layers are recognised by lowering already; here they get the names of modules.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, final

import numpy as np

from lipcert.core import program as p
from lipcert.core.program import Shape
from lipcert.graph.ir import Graph, Node
from lipcert.graph.moves import is_arrangement

_BENDS: Final = frozenset(
    {"relu", "leaky_relu", "elu", "selu", "celu", "gelu", "gelu_tanh", "silu", "quick_gelu", "mish"}
    | {"hard_swish", "softplus", "tanh"}
)
"""activations in whose place another may stand"""
_GROUPS: Final = 8
_IN_ROWS: Final = (
    p.Activation
    | p.BatchNorm
    | p.Centre
    | p.DivideByNorm
    | p.Move
    | p.Normalize
    | p.Scale
    | p.Shift
)
"""steps that stand between a layer and its activation"""


@final
@dataclass(frozen=True, slots=True)
class Norm:
    """A normalisation within examples. output: of its step; shape: of what it normalises.

    affine: trained parameters that scale or shift what it computes. channels: of a value whose
    channels are normalised in groups, with all their positions; 0: it normalises along its axes.
    """

    name: str
    output: str
    op: p.Normalize
    shape: Shape
    affine: tuple[str, ...]
    channels: int

    @property
    def by_group(self) -> bool:
        """Whether it normalises groups of channels, not tokens."""
        return self.channels > 0

    @property
    def groups(self) -> int:
        """Of channels."""
        return self.shape[1]

    @property
    def widths(self) -> int | Shape:
        """Lengths of the axes that it normalises along."""
        found = tuple(self.shape[axis] for axis in self.op.axes)
        return found[0] if len(found) == 1 else found


@final
@dataclass(frozen=True, slots=True)
class BatchNorm:
    """A batch normalisation, with its scale and shift. shape: of its values."""

    name: str
    output: str
    shape: Shape
    affine: tuple[str, ...]

    @property
    def groups(self) -> int:
        """Of channels, as many as divide them, but few, for a normalisation within examples."""
        return math.gcd(self.shape[1], _GROUPS)


@final
@dataclass(frozen=True, slots=True)
class Bias:
    """A trained bias of a linear layer, added at so many positions. op: of the layer."""

    name: str
    op: p.Conv | p.Dense
    positions: int


@final
@dataclass(frozen=True, slots=True)
class Sum:
    """A residual sum: its output, and the number of the input that the branch is."""

    output: str
    branch: int
    shape: Shape


@final
@dataclass(frozen=True)
class Structure:
    """What a graph is made of, in the order of its nodes."""

    graph: Graph

    @cached_property
    def norms(self) -> tuple[Norm, ...]:
        """Normalisations within examples."""
        return tuple(self._norms())

    @cached_property
    def batch_norms(self) -> tuple[BatchNorm, ...]:
        """Batch normalisations that are still steps of their own, and mix examples in training."""
        if all(layer.is_dropout for layer in self.graph.eval_layers):
            return ()
        return tuple(
            BatchNorm(self._name(node, affine), node.output, node.step.shape, affine)
            for node in self.graph.nodes
            if isinstance(node.op, p.BatchNorm)
            for affine in [tuple(use.parameter for use in node.uses())]
        )

    @cached_property
    def biases(self) -> tuple[Bias, ...]:
        """Trained biases of linear layers."""
        found = []
        for use in self.graph.trained_uses():
            node = use.node
            op = self._linear_below(node)
            if use.slot == "bias" and op is not None:
                size = max(1, use.operand.array.size)
                found.append(Bias(use.parameter, op, math.prod(node.step.shape) // size))
        return tuple(found)

    @cached_property
    def sums(self) -> tuple[Sum, ...]:
        """Residual sums of two values of one shape."""
        found = []
        for node in self.graph.nodes:
            if isinstance(node.op, p.Add) and node.op.signs == (1, 1):
                below = [self._below[name] for name in node.inputs]
                if node.given[0] == node.given[1] and below[0] & below[1]:
                    branch = int(len(below[1]) > len(below[0]))
                    found.append(Sum(node.output, branch, node.given[branch]))
        return tuple(found)

    @cached_property
    def attentions(self) -> tuple[Node, ...]:
        """Attention heads, all of a layer together."""
        return tuple(node for node in self.graph.nodes if isinstance(node.op, p.Attention))

    @cached_property
    def pools(self) -> tuple[Node, ...]:
        """Maxima over windows."""
        return tuple(node for node in self.graph.nodes if isinstance(node.op, p.MaxPool))

    @cached_property
    def activations(self) -> tuple[tuple[Node, int], ...]:
        """Activations with the axis of their channels, where these come in pairs."""
        found = []
        for node in self.graph.nodes:
            if isinstance(node.op, p.Activation) and node.op.name in _BENDS:
                axis = self._channel_axis(node)
                if axis is not None and node.step.shape[axis] % 2 == 0:
                    found.append((node, axis))
        return tuple(found)

    @cached_property
    def head(self) -> tuple[str, ...]:
        """The trained parameters of the last layer that has any; none where it is the only one."""
        names = [use.parameter for use in self.graph.trained_uses()]
        last = module_of(names[-1]) if names else ""
        found = tuple(dict.fromkeys(name for name in names if module_of(name) == last))
        return found if last and set(names) != set(found) else ()

    @cached_property
    def _makers(self) -> Mapping[str, Node]:
        return {node.output: node for node in self.graph.nodes}

    @cached_property
    def _readers(self) -> Mapping[str, tuple[Node, ...]]:
        found: dict[str, list[Node]] = {}
        for node in self.graph.nodes:
            for name in dict.fromkeys(node.inputs):
                found.setdefault(name, []).append(node)
        return {name: tuple(nodes) for name, nodes in found.items()}

    @cached_property
    def _below(self) -> Mapping[str, frozenset[str]]:
        """By value, all values that it depends on, and itself."""
        found = {self.graph.input_name: frozenset({self.graph.input_name})}
        for node in self.graph.nodes:
            below = frozenset[str]().union(*(found[name] for name in node.inputs))
            found[node.output] = below | {node.output}
        return found

    def _norms(self) -> Iterator[Norm]:
        for node in self.graph.nodes:
            if isinstance(node.op, p.Normalize):
                affine = tuple(self._affine_behind(node))
                source = self._makers.get(node.inputs[0])
                by_group = source is not None and _is_reshape(source)
                channels = source.given[0][1] if source is not None and by_group else 0
                name = self._name(node, affine)
                yield Norm(name, node.output, node.op, node.step.shape, affine, channels)

    def _affine_behind(self, node: Node) -> Iterator[str]:
        """The trained parameters of the scalings and shifts that alone read a value."""
        trained = {name for name, item in self.graph.parameters.items() if item.trainable}
        value = node.output
        while len(readers := self._readers.get(value, ())) == 1:
            (reader,) = readers
            is_affine = isinstance(reader.op, p.Scale | p.Shift)
            if not (is_affine or is_arrangement(reader)) or value == self.graph.output_name:
                return
            yield from (use.parameter for use in reader.uses() if use.parameter in trained)
            value = reader.output

    def _linear_below(self, node: Node) -> p.Conv | p.Dense | None:
        """The linear layer that a node is, or that it adds a bias to."""
        maker: Node | None = node
        if isinstance(node.op, p.Shift):
            maker = self._makers.get(node.inputs[0])
        op = None if maker is None else maker.op
        return op if isinstance(op, p.Conv | p.Dense) else None

    def _channel_axis(self, node: Node) -> int | None:
        """The axis of channels: 1 behind a convolution, the last behind a dense layer."""
        maker: Node | None = node
        while maker is not None and isinstance(maker.op, _IN_ROWS):
            maker = self._makers.get(maker.inputs[0])
        if maker is None or maker.step.shape != node.step.shape:
            return None
        if isinstance(maker.op, p.Conv):
            return 1
        return len(node.step.shape) - 1 if isinstance(maker.op, p.Dense) else None

    def _name(self, node: Node, affine: tuple[str, ...]) -> str:
        return module_of(affine[0]) if affine and module_of(affine[0]) else node.name


def _is_reshape(node: Node) -> bool:
    """Whether entries only change their axes, and keep their order."""
    if not is_arrangement(node) or not isinstance(node.op, p.Move):
        return False
    return bool((np.diff(node.op.sources.reshape(-1)) == 1).all())


def module_of(parameter: str) -> str:
    """The module that a state_dict says a parameter belongs to; "" where it says none."""
    return parameter.rpartition(".")[0]


def named(names: list[str], most: int = 4) -> str:
    """Names in a row, of many the first ones."""
    unique = list(dict.fromkeys(names))
    more = f" and {len(unique) - most} more" if len(unique) > most else ""
    return ", ".join(unique[:most]) + more
