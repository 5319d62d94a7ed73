"""Case: one record per op; it drives the generic soundness tests of `tests/ops/test_sound.py`.

Every module `tests/ops/cases_<family>.py` defines `CASES: list[Case]`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from lipcert.ops.base import Op


@dataclass(frozen=True)
class Case:
    """An op with an independent torch reference.

    inputs: per-example shapes of the data inputs.
    reference(inputs, operands): the same function written with torch alone, on float64 tensors
        inputs[i] of shape [examples, *inputs[i]] and operands {slot: tensor}; differentiable in
        both, so that the tests can attack Jacobians by autograd.
    box: range of every input entry (None: only the norm ball `radius` is known).
    radius: 2-norm bound of each input.
    attained: names of bounds that the attack must reach within 1 %
        ("output", "input:0", "param:weight", ...), where the rule claims to be attained.
    """

    name: str
    op: Op
    inputs: tuple[tuple[int, ...], ...]
    reference: Callable[[list[Tensor], dict[str, Tensor]], Tensor]
    box: tuple[float, float] | None = None
    radius: float = 2.0
    attained: frozenset[str] = field(default_factory=frozenset)
