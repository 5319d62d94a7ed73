"""Case: a node, inputs of it, and the same function written with torch alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from lipcert.graph.ir import Node
from tests.ops import Maker


@dataclass(frozen=True)
class Case:
    """A node with an independent torch reference.

    inputs: per-example shapes of the data inputs.
    reference(inputs, operands): the same function written with torch alone, on float64 tensors
        inputs[i] of shape [examples, *inputs[i]] and operands {slot: tensor}.
    box: range of every input entry (None: any).
    """

    name: str
    op: Maker
    inputs: tuple[tuple[int, ...], ...]
    reference: Callable[[list[Tensor], dict[str, Tensor]], Tensor]
    box: tuple[float, float] | None = None

    @property
    def node(self) -> Node:
        return self.op(*self.inputs)
