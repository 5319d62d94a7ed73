"""The rule of a step in its place in a program, and what a value receives from all its readers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lipcert.core.arithmetic import add_up, multiply_up, sqrt_up
from lipcert.core.budget import spend
from lipcert.core.certificate import ScopeClaim
from lipcert.core.program import Move, Program, Step
from lipcert.core.rules.base import Rule
from lipcert.core.rules.facts import Cotangent, Fact
from lipcert.core.rules.table import rule_class
from lipcert.core.rules.weights import Weights


def rule_at(
    program: Program,
    step: Step,
    facts: Mapping[str, Fact],
    weights: Weights,
    behind: Rule[Any] | None = None,
) -> Rule[Any]:
    """The rule of a step of a program, in its surroundings."""
    return rule_class(type(step.op))(
        op=step.op,
        inputs=tuple(facts[name] for name in step.inputs),
        shapes=tuple(program.shapes[name] for name in step.inputs),
        shape=step.shape,
        weights=weights,
        output=step.output,
        behind=behind,
    )


def step_fact(program: Program, step: Step, facts: Mapping[str, Fact], weights: Weights) -> Fact:
    """What the rule of one step finds about its output."""
    spend()
    return rule_at(program, step, facts, weights).fact()


def received(  # noqa: PLR0917  tables of one pass
    program: Program,
    value: str,
    readers: Sequence[Step],
    facts: Mapping[str, Fact],
    weights: Weights,
    cotangents: Mapping[str, Cotangent],
    edges: Mapping[tuple[str, str], float],
) -> Cotangent:
    """The cotangent of a value, from those of what its readers compute.

    readers: all steps that read it. edges: norms of what it receives through one of them, where a
    line proves one; used where that step reads the value once.
    Proof: the chain rule. A value's cotangent is the sum, over the steps that read it, of the
    transposed Jacobian times the cotangent of the step's output; the rules bound all generalised
    Jacobians. What comes from entries that no other `Move` reads is 0 at all others, so that these
    shares are perpendicular. A value that nothing reads has cotangent 0.
    """
    found: Cotangent | None = None
    apart = _reads_apart(readers, math.prod(program.shapes[value]))
    square = 0.0
    for step in readers:
        rule = rule_at(program, step, facts, weights)
        places = [index for index, name in enumerate(step.inputs) if name == value]
        for index in places:
            spend()
            share = rule.pulled(index, cotangents[step.output])
            if len(places) == 1:
                known = edges.get((value, step.output), math.inf)
                share = replace(share, norm=min(share.norm, known))
            if apart and isinstance(step.op, Move):
                square = add_up(square, multiply_up(share.norm, share.norm))
                share = Cotangent(0.0)
            found = share if found is None else found.plus(share)
    if found is None:
        return Cotangent(0.0)
    return found.plus(Cotangent(sqrt_up(square))) if apart else found


def _reads_apart(readers: Sequence[Step], size: int) -> bool:
    """Whether several of these steps are moves, and no two of them read the same entry."""
    moves = [step.op for step in readers if isinstance(step.op, Move)]
    if len(moves) < 2:
        return False
    read = [np.bincount(op.sources[op.sources >= 0], minlength=size) > 0 for op in moves]
    return bool(np.sum(read, axis=0).max(initial=0) <= 1)


def weights_in(scope: ScopeClaim, norms: Mapping[str, float]) -> Weights:
    """All weights in a scope. norms: of linear steps whose weights it leaves as they are."""
    if scope.kind == "point":
        return Weights(norms)
    from lipcert.core.rules.constrained import Constrained  # noqa: PLC0415  for constraints only

    constraints = {item.tensor: (item.kind, item.radius) for item in scope.constraints}
    return Constrained(norms, constraints, frozenset(scope.trained))
