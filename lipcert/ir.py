"""Graph: a network as LipCert understands it: per-example shapes, typed ops, no protobuf.

Invariants, checked on construction: names are unique, every node reads values that stand before
it, shapes agree with each op's own rule, and every trained parameter that an operand names exists.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import final

from lipcert.core.program import Shape
from lipcert.modes import EvalLayer
from lipcert.ops.base import Op
from lipcert.upper import FloatArray


class BatchStatus(Enum):
    """How it is known that examples of a batch do not influence each other."""

    PROVED = "proved"
    """shown on the graph for a batch of arbitrary size"""
    PER_EXAMPLE = "per-example"
    """the file holds one example at a time; applying it to each example separately is assumed"""


@final
@dataclass(frozen=True, slots=True)
class BatchProof:
    """Batch independence: its status, the batch axis of the input, and how it was established."""

    status: BatchStatus
    axis: int
    witness: str


@final
@dataclass(frozen=True, slots=True)
class Parameter:
    """A tensor of the file that training may update.

    `folded`: the file shows that this tensor is not what is trained, because an exporter folded
    trained parameters (BatchNorm into a convolution, say) into it.
    """

    name: str
    shape: Shape
    trainable: bool = True
    folded: bool = False

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)


@final
@dataclass(frozen=True, slots=True)
class Node:
    """One use of an op: output = op(inputs); `shape` is the output's, per example."""

    name: str
    op: Op
    inputs: tuple[str, ...]
    output: str
    shape: Shape


@final
@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A feed-forward network with one data input and one output.

    eval_layers: those of the file that compute something else in train mode.
    """

    input_name: str
    input_shape: Shape
    output_name: str
    nodes: tuple[Node, ...]
    parameters: Mapping[str, Parameter]
    eval_layers: tuple[EvalLayer, ...] = ()

    def __post_init__(self) -> None:
        shapes: dict[str, Shape] = {self.input_name: self.input_shape}
        names: set[str] = set()
        for node in self.nodes:
            if node.name in names or node.output in shapes:
                raise ValueError(f"node {node.name!r} or its output {node.output!r} appears twice")
            missing = [name for name in node.inputs if name not in shapes]
            if missing:
                raise ValueError(f"node {node.name!r} reads {missing} before they are computed")
            derived = node.op.output_shape([shapes[name] for name in node.inputs])
            if derived != node.shape:
                raise ValueError(f"node {node.name!r}: shape {node.shape}, but rule {derived}")
            for operand in node.op.operands().values():
                if operand.parameter is not None and operand.parameter not in self.parameters:
                    raise ValueError(f"node {node.name!r}: unknown parameter {operand.parameter!r}")
            names.add(node.name)
            shapes[node.output] = node.shape
        if self.output_name not in shapes:
            raise ValueError(f"the output {self.output_name!r} is never computed")

    @property
    def drops(self) -> bool:
        """Whether entries are dropped at random in train mode."""
        return any(layer.is_dropout for layer in self.eval_layers)

    @property
    def output_shape(self) -> Shape:
        """Per-example shape of the output."""
        return self.shape_of(self.output_name)

    def shape_of(self, value: str) -> Shape:
        """Per-example shape of a value."""
        if value == self.input_name:
            return self.input_shape
        return next(node.shape for node in self.nodes if node.output == value)


def evaluate(graph: Graph, batch: FloatArray) -> dict[str, FloatArray]:
    """Every value of the graph for a batch [examples, *input_shape], in float64."""
    values = {graph.input_name: batch}
    for node in graph.nodes:
        values[node.output] = node.op.evaluate(*(values[name] for name in node.inputs))
    return values
