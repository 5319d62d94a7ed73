"""Passes over a program: facts forward, cotangents backward, gradient bounds of initializers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lipcert.core.arithmetic import add_up
from lipcert.core.budget import spend
from lipcert.core.program import CotangentClip, Program, Step
from lipcert.core.rules.base import Rule
from lipcert.core.rules.facts import Cotangent, Fact
from lipcert.core.rules.table import rule_class
from lipcert.core.rules.weights import Weights


class Refinement:
    """What verified witnesses state besides the rules; this one states nothing.

    Every method may look at everything that its pass has found before.
    """

    def fact(self, value: str, found: Fact, facts: Mapping[str, Fact]) -> Fact:
        """What is known of a value, given what its step found."""
        del value, facts
        return found

    def edge_cotangent(self, value: str, reader: str, cotangents: Mapping[str, Cotangent]) -> float:
        """≥ the norm of what the value receives from the step that computes `reader`.

        Asked only where that step reads the value once.
        """
        del value, reader, cotangents
        return math.inf

    def total_cotangent(self, value: str, cotangents: Mapping[str, Cotangent]) -> float:
        """≥ the norm of the whole gradient at a value, from all its readers together."""
        del value, cotangents
        return math.inf


_NOTHING = Refinement()


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


def forward(
    program: Program, known: Mapping[str, Fact], weights: Weights, refined: Refinement = _NOTHING
) -> dict[str, Fact]:
    """Facts of every value, for all inputs that what is known of the input admits.

    known: of the input, and perhaps of values that steps take from it.
    """
    facts = {program.input: known[program.input]}
    for step in program.steps:
        found = step_fact(program, step, facts, weights)
        if step.output in known:
            found = found.meet(known[step.output], step.shape)
        facts[step.output] = refined.fact(step.output, found, facts)
    return facts


def backward(
    program: Program,
    facts: Mapping[str, Fact],
    weights: Weights,
    at_output: Cotangent,
    refined: Refinement = _NOTHING,
) -> dict[str, Cotangent]:
    """Cotangents of every value.

    Proof: the chain rule. A value's cotangent is the sum, over the steps that read it, of the
    transposed Jacobian times the cotangent of the step's output; the rules bound all generalised
    Jacobians. A value that nothing reads has cotangent 0.
    """
    cotangents = {program.output: at_output}
    for step in reversed(program.steps):
        received = _capped(step.output, cotangents, refined)
        cotangents[step.output] = received
        reads, rule = Counter(step.inputs), rule_at(program, step, facts, weights)
        for index, name in enumerate(step.inputs):
            spend()
            share = rule.pulled(index, received)
            if reads[name] == 1:
                share = _at_most(share, refined.edge_cotangent(name, step.output, cotangents))
            cotangents[name] = _sum(cotangents[name], share) if name in cotangents else share
    cotangents[program.input] = _capped(program.input, cotangents, refined)
    return cotangents


def gradients(
    program: Program,
    facts: Mapping[str, Fact],
    cotangents: Mapping[str, Cotangent],
    weights: Weights,
) -> dict[str, float]:
    """≥ ‖∂loss/∂initializer‖ of one example, for every initializer that a step uses.

    Proof: the gradient is the sum of what reaches the initializer through each use.
    """
    found: dict[str, float] = {}
    computed_by = {step.output: step for step in program.steps}
    for step in program.steps:
        spend()
        before, behind = computed_by.get(step.inputs[0]), None
        if before is not None and len(before.inputs) == 1:
            behind = rule_at(program, before, facts, weights)
        rule = rule_at(program, step, facts, weights, behind)
        for name, share in rule.gradients(cotangents[step.output]):
            found[name] = add_up(found.get(name, 0.0), share)
    return found


def input_lipschitz(
    program: Program,
    facts: Mapping[str, Fact],
    weights: Weights,
    refined: Refinement = _NOTHING,
) -> float:
    """≥ the Lipschitz constant of the output in the input: a unit cotangent, pulled back.

    A clip of cotangents does not change the function, a clip of values does.
    """
    function = without_cotangent_clips(program)
    return backward(function, facts, weights, Cotangent(1.0), refined)[program.input].norm


def without_cotangent_clips(program: Program) -> Program:
    """The program without clips of cotangents, which do not change its values."""
    return replace(
        program,
        steps=tuple(
            replace(step, op=replace(step.op, radius=math.inf))
            if isinstance(step.op, CotangentClip)
            else step
            for step in program.steps
        ),
    )


def _capped(value: str, cotangents: Mapping[str, Cotangent], refined: Refinement) -> Cotangent:
    if value not in cotangents:
        return Cotangent(0.0)
    return _at_most(cotangents[value], refined.total_cotangent(value, cotangents))


def _at_most(cotangent: Cotangent, norm: float) -> Cotangent:
    return replace(cotangent, norm=min(cotangent.norm, norm))


def _sum(first: Cotangent, second: Cotangent) -> Cotangent:
    return Cotangent(add_up(first.norm, second.norm))
