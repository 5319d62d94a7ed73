"""Gradients of single examples by the trained parameters of a network, up to rounding.

Input: a `Network`, a stack of examples, and the gradients of their losses at the output. Output:
for each parameter a `ParameterGradient`, which gives norms of single examples and weighted sums
over them. Exact for parameters that several steps show, whole or in part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lipcert.core import program as p
from lipcert.core.program import FloatArray, Shape
from lipcert.gradient_stats.network import Network, View
from lipcert.graph.evaluate import evaluate_batch
from lipcert.search.operand_gradients import OperandGradient, operand_gradients
from lipcert.search.pullbacks import cotangents, pulls, squares

_NUMBERS: Final = 1 << 23
"""held at once, for all examples of a stack"""
_MOST: Final = 256

Seeds = Callable[[FloatArray], FloatArray]
"""from outputs [examples, *shape] to the gradients of the losses by them"""


@final
@dataclass(frozen=True, slots=True, eq=False)
class ParameterGradient:
    """The gradients of several examples by one parameter, from all operands that show it."""

    shown: tuple[tuple[View, OperandGradient], ...]

    def squares(self) -> FloatArray:
        """‖·‖² of each example."""
        if len(self.shown) == 1 and self.shown[0][0].is_whole:
            view, gradient = self.shown[0]
            return np.asarray(view.scale**2 * gradient.squares())
        parts = [view.back(gradient.each()) for view, gradient in self.shown]
        return squares(np.sum(parts, axis=0))

    def total(self, weights: FloatArray) -> FloatArray:
        """Σ weight·gradient over the examples: [entries of the parameter]."""
        parts = [view.back(gradient.total(weights)[np.newaxis])[0] for view, gradient in self.shown]
        return np.asarray(np.sum(parts, axis=0))


Values = Mapping[str, FloatArray]
"""of the steps of a program, [examples, *shape], by their outputs"""


def passed(
    program: p.Program, x: FloatArray, output_shape: Shape, seeds: Seeds
) -> tuple[Values, Values]:
    """The values of all steps at a stack of examples, and the gradients of the losses by them."""
    values = evaluate_batch(program, x.reshape(len(x), *program.shapes[program.input]))
    output = values[program.output]
    at_output = seeds(output.reshape(len(x), *output_shape)).reshape(output.shape)
    return values, cotangents(program, pulls(program, values), {program.output: at_output})


def parameter_gradients(
    network: Network, x: FloatArray, seeds: Seeds
) -> Mapping[str, ParameterGradient]:
    """By parameter, of those that the output depends on."""
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
    """How many examples are to be taken at once, for what their numbers need of memory."""
    numbers = numbers_held(network.program)
    numbers += sum(view.size for views in network.views.values() for view in views.values())
    return max(1, min(_NUMBERS // max(numbers, 1), _MOST))


def numbers_held(program: p.Program) -> int:
    """At once, roughly, for one example: values, slopes and cotangents of all steps."""
    return 3 * sum(map(program.size, program.shapes))
