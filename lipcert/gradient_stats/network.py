"""Network: a graph as numbers that can be run, and where its steps show entries of parameters.

Input: an `ir.Graph`, with the numbers of its operands. Output: a core `Program` of the same values,
and for each operand of its steps that shows a parameter a `View`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Final, Self, final

import numpy as np

from lipcert.core import program as p
from lipcert.core.program import FloatArray, Shape
from lipcert.graph.ir import Graph, Node
from lipcert.graph.operand import Operand, PlaceArray

_SLOTS: Final = MappingProxyType(
    {"weight": "weight", "bias": "bias", "factor": "scale", "offset": "bias", "slope": "slope"}
    | {"scale": "scale", "shift": "bias"}
)
"""fields of ops, and what a graph calls the operands in them"""


@final
@dataclass(frozen=True, slots=True, eq=False)
class View:
    """An operand as scale·θ[places], or as the reciprocals of that (`divisor`: θ[places]).

    size: entries of θ. places: of `operand.Operand`, flat; None where they are θ in its order.
    is_whole: whether every entry of θ is shown exactly once, and multiplied by nothing but scale.
    """

    parameter: str
    size: int
    places: PlaceArray | None
    scale: float
    divisor: FloatArray | None
    is_whole: bool = field(init=False)

    def __post_init__(self) -> None:
        places, counts = self.places, None
        if places is not None and places.size == self.size and places.min(initial=0) >= 0:
            counts = np.bincount(places, minlength=self.size)
        is_whole = places is None or (counts is not None and bool((counts == 1).all()))
        object.__setattr__(self, "is_whole", is_whole and self.divisor is None)

    def back(self, gradients: FloatArray) -> FloatArray:
        """From gradients by the operand [rows, *shape] to those by θ, [rows, size]."""
        flat: FloatArray = self.scale * gradients
        if self.divisor is not None:
            flat = -flat / self.divisor**2
        flat = flat.reshape(len(flat), -1)
        if self.places is None:
            return flat
        shown = self.places >= 0
        rows = (self.size * np.arange(len(flat)))[:, np.newaxis] + self.places[shown]
        whole = np.bincount(rows.ravel(), flat[:, shown].ravel(), self.size * len(flat))
        return np.asarray(whole.reshape(len(flat), self.size), np.float64)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """A program and, by the outputs of its steps and the fields of their ops, what they show.

    Of trained parameters alone. output_shape: of one example, without axes of the batch.
    """

    program: p.Program
    views: Mapping[str, Mapping[str, View]]
    input_shape: Shape
    output_shape: Shape

    @classmethod
    def of(cls, graph: Graph) -> Self:
        """The steps of a graph with the numbers of its operands."""
        shapes = {graph.input_name: (1, *graph.input_shape)}
        steps: list[p.Step] = []
        views: dict[str, Mapping[str, View]] = {}
        for node in graph.nodes:
            shapes |= dict(zip(node.inputs, node.given, strict=True))
            for step, operands in _steps(node):
                shapes[step.output] = step.shape
                steps.append(step)
                views[step.output] = dict(_views(graph, operands))
        program = p.Program(
            graph.input_name, graph.output_name, shapes, tuple(steps), None, covered=()
        )
        return cls(program, views, graph.input_shape, graph.output_shape)


def _steps(node: Node) -> Iterator[tuple[p.Step, Mapping[str, tuple[str, Operand]]]]:
    """The steps of a node, and the operands of each by the fields of its op, with their slots."""
    step, operands = node.step, node.operands
    if isinstance(step.op, p.Scale) and "bias" in operands:
        between = replace(step, output=f"{step.output}#scaled")
        shift = p.Step(p.Shift(step.op.factor), (between.output,), step.output, step.shape, 0)
        yield _step(between, operands)
        yield _step(shift, operands)
    else:
        yield _step(step, operands)


def _step(
    step: p.Step, operands: Mapping[str, Operand]
) -> tuple[p.Step, Mapping[str, tuple[str, Operand]]]:
    found: dict[str, tuple[str, Operand]] = {}
    for item in fields(step.op):
        slot = _SLOTS.get(item.name, "")
        slot = "divisor" if slot == "scale" and "divisor" in operands else slot
        if slot in operands:
            found[item.name] = (slot, operands[slot])
    numbers = {name: _exact(slot, operand) for name, (slot, operand) in found.items()}
    return replace(step, op=replace(step.op, **numbers)), found


def _exact(slot: str, operand: Operand) -> p.Operand:
    array = 1.0 / operand.array if slot == "divisor" else operand.array
    return p.Operand(array, array)


def _views(graph: Graph, operands: Mapping[str, tuple[str, Operand]]) -> Iterator[tuple[str, View]]:
    for name, (slot, operand) in operands.items():
        known = graph.parameters.get(operand.parameter or "")
        if known is not None and known.trainable:
            places = None if operand.places is None else operand.places.reshape(-1)
            divisor = operand.array if slot == "divisor" else None
            yield name, View(known.name, known.size, places, operand.scale, divisor)
