"""Layers that exporters write as several nodes, recombined.

Every rule is an identity of real functions, for the numbers in the file: a gate with the float32
number next to 1/√2 is a GELU between two scalings by numbers next to 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Final, cast

from lipcert.core.lower.call import Sink
from lipcert.core.lower.operators import loaded
from lipcert.core.lower.values import Data
from lipcert.core.program import Activation, Step

if TYPE_CHECKING:
    from lipcert.core.lower.rewriter import Rule

_RULES: Final[Mapping[str, tuple[str, ...]]] = {
    "Add": ("norm_macros.centre",),
    "Concat": ("move_macros.concat_of_moves", "move_macros.max_min"),
    "Divide": ("mask_macros.masked_mean", "norm_macros.normalize", "norm_macros.divide_by_norm"),
    "MatMul": ("attention_macros.attention",),
    "Move": ("move_macros.move_of_move",),
    "Multiply": ("gates.gate", "norm_macros.normalize"),
    "Scale": ("linear_macros.scale_of_scale",),
    "Shift": ("linear_macros.bias",),
    "sqrt": ("norm_macros.length",),
}
"""by the kind of the last step, or its function: what is tried first stands first"""
_BEHIND: Final[Mapping[str, Set[str]]] = {
    "Move": {"Move"},
    "Scale": {"Scale"},
    "Shift": {"Conv", "Dense"},
}
"""steps that are put together with such a step right before them, if with any"""


def rewritten(
    raw: tuple[Step, ...], starts: Sequence[Data], output: str, sink: Sink
) -> tuple[Step, ...]:
    """The steps with layers in place of their spellings."""
    before = {step.output: _kind(step) for step in raw}
    found = ((_kind(step), {before.get(name, "") for name in step.inputs}) for step in raw)
    if not any(own in _RULES and kinds & _BEHIND.get(own, kinds) for own, kinds in found):
        return raw
    from lipcert.core.lower.rewriter import Rewriter  # noqa: PLC0415  for such steps only

    rewriter = Rewriter({start.name: start.shape for start in starts}, raw, sink)
    return rewriter.run(raw, _rules, output)


def _kind(step: Step) -> str:
    return step.op.name if isinstance(step.op, Activation) else type(step.op).__name__


def _rules(step: Step) -> list[Rule]:
    """What may put a step together with those before it, loaded when there is such a step."""
    return [cast("Rule", loaded(name)) for name in _RULES.get(_kind(step), ())]
