"""Layers that exporters write as several nodes, recombined.

Every rule is an identity of real functions, for the numbers in the file: a gate with the float32
number next to 1/√2 is a GELU between two scalings by numbers next to 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, cast

from lipcert.core.arithmetic import multiply_up
from lipcert.core.lower.call import Sink
from lipcert.core.lower.operators import loaded
from lipcert.core.lower.rewriter import (
    Rewriter,
    Rule,
    as_interval,
    as_operand,
    product,
)
from lipcert.core.lower.values import Data
from lipcert.core.program import Activation, Conv, Dense, Operand, Scale, Shift, Step, then


def rewritten(
    raw: tuple[Step, ...], starts: Sequence[Data], output: str, sink: Sink
) -> tuple[Step, ...]:
    """The steps with layers in place of their spellings."""
    rewriter = Rewriter({start.name: start.shape for start in starts}, raw, sink)
    return rewriter.run(raw, _rules, output)


def _rules(step: Step) -> list[Rule]:
    """What may put a step together with those before it, loaded when there is such a step."""
    kind = step.op.name if isinstance(step.op, Activation) else type(step.op).__name__
    return [cast(Rule, loaded(name)) for name in _RULES.get(kind, ())]


def bias(rewriter: Rewriter, step: Step) -> list[Step] | None:
    """A shift per output of a matrix, or per channel of a convolution, is its bias."""
    if not isinstance(step.op, Shift) or rewriter.readers.get(step.inputs[0]) != 1:
        return None
    name = step.inputs[0]
    found: tuple[Dense | Conv, Step] | None = rewriter.made(name, Dense)
    found = found or rewriter.made(name, Conv)
    if found is None or found[0].bias is not None:
        return None
    axis = 1 if isinstance(found[0], Conv) else -1
    offset = step.op.offset
    if not offset.lo.size == step.shape[axis] == offset.shape[axis]:
        return None
    low = offset.lo.reshape(-1)
    high = low if offset.is_exact else offset.hi.reshape(-1)
    op = replace(found[0], bias=Operand(low, high, offset.sources, offset.acts))
    return [replace(step, op=op, inputs=found[1].inputs)]


def scale_of_scale(rewriter: Rewriter, step: Step) -> list[Step] | None:
    """A number that a rule here introduced, and another one, are one number."""
    inner = rewriter.made(step.inputs[0], Scale) if isinstance(step.op, Scale) else None
    if inner is None or not isinstance(step.op, Scale) or inner[0].factor.sources:
        return None
    factor = step.op.factor
    if factor.lo.size != 1 or inner[0].factor.lo.size != 1:
        return None
    both = product(as_interval(factor), as_interval(inner[0].factor))
    size = float(as_interval(inner[0].factor).magnitude())
    sources = {name: multiply_up(gain, size) for name, gain in factor.sources.items()}
    acts = then(factor.acts, lambda entries: entries * inner[0].factor.lo.item())
    op = Scale(replace(as_operand(both, len(step.shape)), sources=sources, acts=acts))
    return [replace(step, op=op, inputs=inner[1].inputs)]


_RULES: Final[Mapping[str, tuple[str, ...]]] = {
    "Add": ("norm_macros.centre",),
    "Concat": ("move_macros.concat_of_moves", "move_macros.max_min"),
    "Divide": ("mask_macros.masked_mean", "norm_macros.normalize", "norm_macros.divide_by_norm"),
    "MatMul": ("attention_macros.attention",),
    "Move": ("move_macros.move_of_move",),
    "Multiply": ("gates.gate", "norm_macros.normalize"),
    "Scale": ("macros.scale_of_scale",),
    "Shift": ("macros.bias",),
    "sqrt": ("norm_macros.length",),
}
"""by the kind of the last step, or its function: what is tried first stands first"""
