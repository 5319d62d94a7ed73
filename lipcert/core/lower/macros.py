"""Recombine layers that exporters write as several nodes.

Every rule is an identity of real functions, for the numbers in the file: a gate with the float32
number next to 1/√2 is a GELU between two scalings by numbers next to 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Final, cast

from lipcert.core.lower.call import Sink
from lipcert.core.lower.values import Data
from lipcert.core.program import Activation, Step
from lipcert.core.registry import member

if TYPE_CHECKING:
    from lipcert.core.lower.rewriter import Rule

_RULES: Final[Mapping[str, tuple[str, ...]]] = {
    "Add": ("norm_macros.centre",),
    "Concat": ("concat_macros.concat_of_moves", "concat_macros.max_min"),
    "Divide": ("mask_macros.masked_mean", "norm_macros.divide_by_norm"),
    "MatMul": ("step_macros.attention",),
    "Move": ("step_macros.move_of_move",),
    "Multiply": ("gates.gate", "norm_macros.divide_by_norm"),
    "Scale": ("gates.scale_of_scale",),
    "Shift": ("step_macros.bias",),
    "log": ("step_macros.log_of_softmax",),
    "sqrt": ("norm_macros.length",),
}
"""The rules by the kind of the last step, or its function, in the order of trial."""
_BEHIND: Final[Mapping[str, Set[str]]] = {
    "Add": {"ReduceSum"},
    "Move": {"Move"},
    "Scale": {"Scale"},
    "Shift": {"Conv", "Dense"},
    "log": {"Softmax"},
}
"""The kinds that must stand right before a step of this kind for a rule to apply."""


def rewritten(
    raw: tuple[Step, ...], starts: Sequence[Data], output: str, sink: Sink
) -> tuple[Step, ...]:
    """Return the steps, with layers recombined where exporters spelt them out."""
    makers = {step.output: step for step in raw}
    if not any(_names(step, makers) for step in raw):
        return raw
    from lipcert.core.lower.rewriter import Rewriter  # noqa: PLC0415  for such steps only

    rewriter = Rewriter({start.name: start.shape for start in starts}, raw, sink)
    return rewriter.run(raw, _rules, output)


def _kind(step: Step) -> str:
    return step.op.name if isinstance(step.op, Activation) else type(step.op).__name__


def _names(step: Step, makers: Mapping[str, Step]) -> tuple[str, ...]:
    """Return the names of the rules that may combine a step with those before it."""
    kind, before = _kind(step), {_kind(makers[name]) for name in step.inputs if name in makers}
    if kind in _BEHIND and before.isdisjoint(_BEHIND[kind]):
        return ()
    return _RULES.get(kind, ())


def _rules(step: Step, makers: Mapping[str, Step]) -> list[Rule]:
    """Return these rules, which are loaded only when there is such a step."""
    return [cast("Rule", member("lower", name)) for name in _names(step, makers)]
