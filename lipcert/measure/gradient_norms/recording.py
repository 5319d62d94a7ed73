"""Recording: the squares of one batch, gathered while it runs forward and backward.

Input: values as they are computed, and cotangents as they arrive. Output: squares by name.
Invariant: a value is kept only until the cotangent of its node has been combined with it.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from lipcert.measure.gradient_norms.choice import Chooser
from lipcert.measure.gradient_norms.layout import dense
from lipcert.measure.gradient_norms.operand import Pair
from lipcert.measure.gradient_norms.plan import (
    Contribution,
    NodePlan,
    Plan,
    arranged,
    shared_squares,
)
from lipcert.measure.gradient_norms.squares import Squares, sum_of_squares


@final
class Recording:
    """One batch under way. doubts: collects marks of examples that are known too loosely."""

    def __init__(
        self,
        plan: Plan,
        chooser: Chooser,
        examples: int,
        device: torch.device,
        doubts: list[Tensor] | None = None,
    ) -> None:
        self.values: dict[str, Squares] = {}
        self.cotangents: dict[str, Squares] = {}
        self.parameters: dict[str, Squares] = {}
        self._zeros = Squares.zeros(examples, device)
        self._waiting: dict[str, list[Contribution]] = {}
        self._plan = plan
        self._chooser = chooser
        self.doubts = doubts

    def value(self, name: str, tensor: Tensor) -> Squares:
        """The squares of a value, computed once."""
        if name not in self.values:
            self.values[name] = sum_of_squares(wide_enough(tensor))
        return self.values[name]

    def cotangent(self, name: str, tensor: Tensor) -> Squares:
        """The squares of a cotangent, computed once."""
        if name not in self.cotangents:
            self.cotangents[name] = sum_of_squares(wide_enough(tensor))
        return self.cotangents[name]

    def parameters_of(self, plan: NodePlan, value: Tensor | None, cotangent: Tensor) -> None:
        """Counts the gradients of a node's operands."""
        value, cotangent = arranged(plan.node, value, cotangent)
        pair = self._pair(plan, value, dense(cotangent))
        for item in plan.operands:
            name, scale = item.use.parameter, item.use.operand.scale
            if item.scatter is None:
                squares = self._chooser.squares(item.gradient, pair, self.doubts)
                self._add(name, squares.times(scale * scale))
            else:
                self._wait(name, Contribution(item.gradient, item.scatter, pair))

    def finish(self) -> None:
        """Settles parameters some or all uses of which received no cotangent at all."""
        for parameter in list(self._waiting):
            self._settle(parameter)
        for parameter in self._plan.parameters:
            self.parameters.setdefault(parameter, self._zeros)

    def _pair(self, plan: NodePlan, value: Tensor | None, cotangent: Tensor) -> Pair:
        names = (plan.node.inputs[0], plan.node.output)
        b, b_squares = wide_enough(cotangent), self.cotangent(names[1], cotangent)
        if value is None:
            return Pair(b, b, b_squares, b_squares)
        if plan.rounds_value and cotangent.dtype.itemsize < value.dtype.itemsize:
            read = wide_enough(value.to(cotangent.dtype))
            return Pair(read, b, sum_of_squares(read), b_squares)
        a = wide_enough(value)
        if a.dtype is not b.dtype:
            return Pair.of(a.double(), b.double())
        return Pair(a, b, self.value(names[0], value), b_squares)

    def _add(self, parameter: str, squares: Squares) -> None:
        before = self.parameters.get(parameter)
        self.parameters[parameter] = squares if before is None else before.plus(squares)

    def _wait(self, parameter: str, contribution: Contribution) -> None:
        waiting = self._waiting.setdefault(parameter, [])
        waiting.append(contribution)
        if len(waiting) == len(self._plan.parameters[parameter].uses):
            self._settle(parameter)

    def _settle(self, parameter: str) -> None:
        found = self._waiting.pop(parameter)
        size = self._plan.parameters[parameter].size
        self._add(parameter, shared_squares(found, size, self._chooser.memory_limit))


def wide_enough(tensor: Tensor) -> Tensor:
    """In float32 or float64; 16-bit formats embed exactly."""
    return tensor.float() if tensor.dtype.itemsize < 4 else tensor
