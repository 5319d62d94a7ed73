"""Case: an op, inputs of it, and the same function written with torch alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from lipcert.ops.base import Op


@dataclass(frozen=True)
class Case:
    """An op with an independent torch reference.

    inputs: per-example shapes of the data inputs.
    reference(inputs, operands): the same function written with torch alone, on float64 tensors
        inputs[i] of shape [examples, *inputs[i]] and operands {slot: tensor}.
    box: range of every input entry (None: any).
    """

    name: str
    op: Op
    inputs: tuple[tuple[int, ...], ...]
    reference: Callable[[list[Tensor], dict[str, Tensor]], Tensor]
    box: tuple[float, float] | None = None
