"""The derivation: from a program, premises and proved witnesses to every bound of a certificate.

    input → facts forward → loss → cotangents backward → gradients per tensor

The input contains nothing that is only claimed; the output is upper bounds, inf where none is
derived.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, final

import numpy as np

from lipcert.core.arithmetic import add_up, multiply_up, sqrt_up
from lipcert.core.certificate import ChainWitness
from lipcert.core.interval import Interval, exact
from lipcert.core.ledger import Premises
from lipcert.core.losses.base import loss_cotangent, read_loss
from lipcert.core.lower.errors import Unsupported
from lipcert.core.norm_evidence import Evidence
from lipcert.core.program import Program, Shape
from lipcert.core.reader.records import shown
from lipcert.core.refinements import Centres, Chains, Listed, Proposals, Runs, Witnessed, Zeros
from lipcert.core.rules.facts import Cotangent, Fact, box_norm
from lipcert.core.rules.passes import backward, forward, gradients, input_lipschitz
from lipcert.core.rules.weights import Constrained, Point, Weights

_ROUNDING: Final = 2.0**-40


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
    A plain number of a step is read from the file: no other weights are admitted.
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
    weights, known = weights_of(evidence), input_facts(program, premises)
    makers = {step.output: step for step in program.steps}
    centres = Centres(program, Zeros(program, weights), evidence, proposals, known)
    refined = Witnessed(program, weights, Runs.of(program, evidence), centres, makers)
    return forward(program, known, weights, refined), refined


def input_facts(program: Program, premises: Premises) -> dict[str, Fact]:
    """What A-INPUT says of one example: of the input, and of each of several that it holds.

    Nothing is known besides of numbers that choose rows of a table: others beside them may not.
    Proof of the whole: its box is theirs side by side, and ‖x‖² the sum of their squares.
    """
    shape = program.shapes[program.input]
    if input_faults(program, premises):
        raise Unsupported("the assumptions on the inputs do not fit the inputs of the model")
    if not program.parts:
        box = _box(shape, premises.input_box)
        norm = math.inf if premises.input_norm is None else premises.input_norm
        return {program.input: _fact(shape, norm, box)}
    found, squares = {}, 0.0
    for part in premises.input_parts:
        norm = math.inf if part.norm is None else part.norm
        found[part.name] = _fact(part.shape, norm, _box(part.shape, part.box))
        own = found[part.name].norm
        squares = add_up(squares, multiply_up(own, own))
    boxes = [found[part.name].box.broadcast(part.shape) for part in program.parts]
    low, high = (
        np.concatenate([end.reshape(1, -1) for end in ends], axis=1)
        for ends in ([box.lo for box in boxes], [box.hi for box in boxes])
    )
    norm = math.inf if squares == math.inf else sqrt_up(squares)
    norm = norm if premises.input_norm is None else min(norm, premises.input_norm)
    return {program.input: _fact(shape, norm, Interval(low, high)), **found}


def input_faults(program: Program, premises: Premises) -> bool:
    """Whether premises describe other inputs than the program has."""
    stated = [(part.name, part.shape) for part in premises.input_parts]
    has_box = premises.input_box is not None
    return stated != [(part.name, part.shape) for part in program.parts] or (
        has_box and bool(stated)
    )


def _fact(shape: Shape, norm: float, box: Interval | None) -> Fact:
    """What is assumed of an input; Unsupported where the box lies outside of the ball."""
    if box is not None:
        nearest = np.clip(0.0, box.lo, box.hi)
        if box_norm(exact(nearest), shape) * (1.0 - _ROUNDING) > norm:
            raise Unsupported("no input has both the norm and the entries that are assumed")
    return Fact.of(shape, norm, box)


def _box(shape: Shape, ends: tuple[float, float] | None) -> Interval | None:
    if ends is None:
        return None
    low, high = (np.full((1,) * len(shape), end) for end in ends)
    return Interval(low, high)


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
