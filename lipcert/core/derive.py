"""The derivation: from a program, premises and proved witnesses to every bound of a certificate.

    input → facts forward → loss → cotangents backward → gradients per tensor

What enters: nothing that is only claimed. What leaves: upper bounds, inf where none is derived.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from lipcert.core.certificate import ChainWitness
from lipcert.core.interval import Interval
from lipcert.core.ledger import Premises
from lipcert.core.losses.base import loss_cotangent, read_loss
from lipcert.core.lower.errors import Unsupported
from lipcert.core.program import Program
from lipcert.core.reader.records import shown
from lipcert.core.refinements import Centres, Chains, Listed, Proposals, Runs, Witnessed, Zeros
from lipcert.core.rules.facts import Cotangent, Fact
from lipcert.core.rules.passes import backward, forward, gradients, input_lipschitz
from lipcert.core.rules.weights import Constrained, Point, Weights
from lipcert.core.witnesses import Evidence


@final
@dataclass(frozen=True, slots=True, eq=False)
class Derived:
    """Bounds by value and by initializer; lipschitz: of the output in the input.

    chains: those that prove something.
    """

    facts: Mapping[str, Fact]
    cotangents: Mapping[str, Cotangent]
    gradients: Mapping[str, float]
    lipschitz: float
    chains: tuple[ChainWitness, ...] = ()


def derive(
    program: Program,
    premises: Premises,
    evidence: Evidence,
    proposals: Proposals | None = None,
) -> Derived:
    """All bounds of a network with one loss.

    proposals: what is asked for chains, in place of those of the evidence.
    What enters a step as a plain number is read from the file: no other weights are admitted.
    """
    weights = weights_of(evidence)
    proposals = Listed(evidence.chains) if proposals is None else proposals
    facts, refined = derive_facts(program, premises, evidence, proposals)
    downward = proposals.of_cotangents(facts)
    refined = replace(refined, chains=Chains.of(program, facts, evidence, downward))
    at_output = _loss(program, premises, facts)
    cotangents = backward(program, facts, weights, at_output, refined)
    return Derived(
        facts=facts,
        cotangents=cotangents,
        gradients={
            **gradients(program, facts, cotangents, weights),
            **dict.fromkeys(program.untracked, math.inf),
        },
        lipschitz=input_lipschitz(program, facts, weights, refined),
        chains=(*refined.centred.used, *refined.chains.used),
    )


def derive_facts(
    program: Program, premises: Premises, evidence: Evidence, proposals: Proposals
) -> tuple[dict[str, Fact], Witnessed]:
    """The facts of every value, and what refined them."""
    moving = program.untracked & evidence.free
    if moving:
        raise Unsupported(f"the trained tensor {shown(min(moving))} enters as a plain number")
    weights, at_input = weights_of(evidence), input_fact(program, premises)
    makers = {step.output: step for step in program.steps}
    centres = Centres(program, Zeros(program, weights), evidence, proposals)
    refined = Witnessed(program, weights, Runs.of(program, evidence), centres, makers)
    return forward(program, at_input, weights, refined), refined


def input_fact(program: Program, premises: Premises) -> Fact:
    """What A-INPUT says of one example.

    Nothing is known besides of numbers that choose rows of a table: others beside them may not.
    """
    shape, box = program.shapes[program.input], None
    if premises.input_box is not None:
        low, high = (np.full((1,) * len(shape), end) for end in premises.input_box)
        box = Interval(low, high)
    if premises.input_norm is None:
        return Fact.of(shape, box=box)
    return Fact.of(shape, premises.input_norm, box)


def weights_of(evidence: Evidence) -> Weights:
    """What the scope of the evidence says of every operand."""
    if evidence.scope.kind == "point":
        return Point(evidence.norms)
    constraints = {item.tensor: (item.kind, item.radius) for item in evidence.scope.constraints}
    return Constrained(constraints, evidence.trained, evidence.norms)


def _loss(program: Program, premises: Premises, facts: Mapping[str, Fact]) -> Cotangent:
    """The gradient of the loss at the output, clipped where training clips it."""
    if premises.loss_parts or program.heads:
        from lipcert.core.losses.joint import joint_cotangent, joint_loss  # noqa: PLC0415  for such

        found = joint_cotangent(joint_loss(premises.loss_parts, program.heads), program, facts)
    else:
        loss = read_loss(premises.loss, dict(premises.loss_parameters))
        found = loss_cotangent(loss, facts[program.output], program.shapes[program.output])
    return found if premises.loss_clip is None else found.clipped(premises.loss_clip)
