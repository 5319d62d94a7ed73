"""The rule of a step in its place in a program, and what it finds of the output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lipcert.core.budget import spend
from lipcert.core.certificate import ScopeClaim
from lipcert.core.program import Program, Shape, Step
from lipcert.core.rules.base import Rule
from lipcert.core.rules.facts import Fact
from lipcert.core.rules.table import rule_class
from lipcert.core.rules.weights import Weights


def rule_at(
    shapes: Mapping[str, Shape],
    step: Step,
    facts: Mapping[str, Fact],
    weights: Weights,
    behind: Rule[Any] | None = None,
) -> Rule[Any]:
    """The rule of a step of a program, in its surroundings. shapes, facts: of what it reads."""
    return rule_class(type(step.op))(
        op=step.op,
        inputs=tuple(facts[name] for name in step.inputs),
        shapes=tuple(shapes[name] for name in step.inputs),
        shape=step.shape,
        weights=weights,
        output=step.output,
        behind=behind,
    )


def step_fact(program: Program, step: Step, facts: Mapping[str, Fact], weights: Weights) -> Fact:
    """What the rule of one step finds about its output."""
    spend()
    return rule_at(program.shapes, step, facts, weights).fact()


def weights_in(scope: ScopeClaim, norms: Mapping[str, float]) -> Weights:
    """All weights in a scope. norms: of linear steps whose weights it leaves as they are."""
    if scope.kind == "point":
        return Weights(norms)
    from lipcert.core.rules.constrained import Constrained  # noqa: PLC0415  for constraints only

    constraints = {item.tensor: (item.kind, item.radius) for item in scope.constraints}
    return Constrained(norms, constraints, frozenset(scope.trained))
