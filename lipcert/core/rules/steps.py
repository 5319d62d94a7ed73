"""Apply the rule of a step in its place in a program.

The rule of each kind of step is in the file of its family, which is loaded on first use. So a check
depends only on the rules of the steps in its program.
"""

from collections.abc import Mapping
from typing import Any

from lipcert.core.budget import spend
from lipcert.core.certificate import ScopeClaim
from lipcert.core.lower.errors import Unsupported
from lipcert.core.program import Op, Program, Shape, Step
from lipcert.core.rules import STEPS
from lipcert.core.rules.base import Rule, Weights
from lipcert.core.rules.facts import Fact


def rule_class(kind: type[Op]) -> type[Rule[Any]]:
    """Return the rule of a kind of step; raise Unsupported if there is none."""
    if kind.__name__ not in STEPS:
        raise Unsupported(f"there is no rule for {kind.__name__}")
    found: type[Rule[Any]] = STEPS[kind.__name__]
    return found


def rule_at(
    shapes: Mapping[str, Shape],
    step: Step,
    facts: Mapping[str, Fact],
    weights: Weights,
    behind: Rule[Any] | None = None,
) -> Rule[Any]:
    """Return the rule of a step of a program. shapes, facts: of the inputs of the step."""
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
    """Return the fact that the rule of a step proves of its output."""
    spend()
    return rule_at(program.shapes, step, facts, weights).fact()


def weights_in(scope: ScopeClaim, norms: Mapping[str, float]) -> Weights:
    """Return bounds of all weights in a scope. norms: of linear steps that training leaves as
    they are."""
    if scope.kind == "point":
        return Weights(norms)
    from lipcert.core.rules.constrained import Constrained  # noqa: PLC0415  for constraints only

    constraints = {item.tensor: (item.kind, item.radius) for item in scope.constraints}
    return Constrained(norms, constraints, frozenset(scope.trained))
