"""Network: a graph as numbers that can be run, and per-example gradients by its parameters.

`Network.of` takes an `ir.Graph` with the numbers of its operands. It holds a core `Program` of the
same values, and a `View` for each operand that shows a parameter.

`parameter_gradients` takes a stack of examples and the gradients of their losses at the output. It
returns for each parameter a `ParameterGradient`, which gives norms of per-example gradients and
weighted sums over them, up to rounding; exact for parameters that several steps use, whole or in
part.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Final, Self

import numpy as np

from lipcert.core import program as p
from lipcert.core import token_kinds
from lipcert.core.program import FloatArray, Shape
from lipcert.graph.evaluate import evaluate_batch
from lipcert.graph.ir import ROLES, Graph, Node, Operand, PlaceArray
from lipcert.search.operand_gradients import OperandGradient, operand_gradients
from lipcert.search.pullbacks import cotangents, pulls, squares


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """An operand as scale·θ[places], or as the reciprocals of that (`divisor`: θ[places]).

    size: entries of θ. places: as in `ir.Operand`, flat; None for θ in its own order.
    is_whole: whether every entry of θ is shown exactly once, and multiplied only by scale.
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
        """Turn gradients by the operand [rows, *shape] into gradients by θ, [rows, size]."""
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


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """A program, and views of trained parameters by step output and operand field.

    output_shape: of one example, without the batch axis.
    """

    program: p.Program
    views: Mapping[str, Mapping[str, View]]
    input_shape: Shape
    output_shape: Shape

    @classmethod
    def of(cls, graph: Graph) -> Self:
        """Return the steps of a graph with the numbers of its operands.

        Raises:
            NoVerdictError: see `Graph.check_shown`.
        """
        graph.check_shown()
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
    """Yield the steps of a node, each with its operands by field of the op, and their slots."""
    step, operands = node.step, node.operands
    if isinstance(step.op, token_kinds.Scale) and "bias" in operands:
        between = replace(step, output=f"{step.output}#scaled")
        shift = p.Step(
            token_kinds.Shift(step.op.factor), (between.output,), step.output, step.shape, 0
        )
        yield _step(between, operands)
        yield _step(shift, operands)
    else:
        yield _step(step, operands)


def _step(
    step: p.Step, operands: Mapping[str, Operand]
) -> tuple[p.Step, Mapping[str, tuple[str, Operand]]]:
    found: dict[str, tuple[str, Operand]] = {}
    for item in fields(step.op):
        slot = ROLES.get(item.name, "")
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


_NUMBERS: Final = 1 << 23
"""Most numbers held at once, for all examples of a stack."""
_MOST: Final = 256

Seeds = Callable[[FloatArray], FloatArray]
"""From outputs [examples, *shape] to the gradients of the losses by them."""


@dataclass(frozen=True, slots=True, eq=False)
class ParameterGradient:
    """The gradients of several examples by one parameter, from all operands that show it."""

    shown: tuple[tuple[View, OperandGradient], ...]

    def squares(self) -> FloatArray:
        """Return ‖·‖² of each example."""
        if len(self.shown) == 1 and self.shown[0][0].is_whole:
            view, gradient = self.shown[0]
            return np.asarray(view.scale**2 * gradient.squares())
        parts = [view.back(gradient.each()) for view, gradient in self.shown]
        return squares(np.sum(parts, axis=0))

    def total(self, weights: FloatArray) -> FloatArray:
        """Return Σ weight·gradient over the examples: [entries of the parameter]."""
        parts = [view.back(gradient.total(weights)[np.newaxis])[0] for view, gradient in self.shown]
        return np.asarray(np.sum(parts, axis=0))


Values = Mapping[str, FloatArray]
"""Output of a step → its values, [examples, *shape]."""


def passed(
    program: p.Program, x: FloatArray, output_shape: Shape, seeds: Seeds
) -> tuple[Values, Values]:
    """Return all values at a stack of examples, and the gradients of the losses by them."""
    values = evaluate_batch(program, x.reshape(len(x), *program.shapes[program.input]))
    output = values[program.output]
    at_output = seeds(output.reshape(len(x), *output_shape)).reshape(output.shape)
    return values, cotangents(program, pulls(program, values), {program.output: at_output})


def parameter_gradients(
    network: Network, x: FloatArray, seeds: Seeds
) -> Mapping[str, ParameterGradient]:
    """Return the gradients by each parameter that the output depends on."""
    program = network.program
    values, found = passed(program, x, network.output_shape, seeds)
    shown: dict[str, list[tuple[View, OperandGradient]]] = {}
    for step in program.steps:
        views = network.views[step.output]
        if views and step.output in found:
            gradients = operand_gradients(step, values[step.inputs[0]], found[step.output])
            for name, gradient in gradients:
                if name in views:
                    shown.setdefault(views[name].parameter, []).append((views[name], gradient))
    return {name: ParameterGradient(tuple(parts)) for name, parts in shown.items()}


def stack_size(network: Network) -> int:
    """Return how many examples to take at once, so that their numbers fit in memory."""
    numbers = numbers_held(network.program)
    numbers += sum(view.size for views in network.views.values() for view in views.values())
    return max(1, min(_NUMBERS // max(numbers, 1), _MOST))


def numbers_held(program: p.Program) -> int:
    """Return roughly how many numbers one example needs: values, slopes, cotangents of steps."""
    return 3 * sum(map(program.size, program.shapes))
