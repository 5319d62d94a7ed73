"""The derivation: from a program, premises and proved witnesses to every bound of a certificate.

    input → facts forward → loss → cotangents backward → gradients per tensor

What enters: nothing that is only claimed. What leaves: upper bounds, inf where none is derived.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np

from lipcert.checker.arithmetic import add_up, multiply_up
from lipcert.checker.graph.program import Add, Program, Step
from lipcert.checker.interval import Interval, exact
from lipcert.checker.ledger import Premises
from lipcert.checker.losses import loss_cotangent
from lipcert.checker.rules.facts import Cotangent, Fact
from lipcert.checker.rules.passes import (
    Refinement,
    backward,
    forward,
    gradients,
    input_lipschitz,
    step_fact,
)
from lipcert.checker.rules.weights import Constrained, Point, Weights
from lipcert.checker.witnesses import Evidence

__all__ = ["Derived", "derive", "input_fact"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Derived:
    """Bounds by value and by initializer; lipschitz: of the output in the input.

    unused: a sentence for each witness that proves nothing.
    """

    facts: Mapping[str, Fact]
    cotangents: Mapping[str, Cotangent]
    gradients: Mapping[str, float]
    lipschitz: float
    unused: tuple[str, ...] = ()


def derive(program: Program, premises: Premises, evidence: Evidence) -> Derived:
    """All bounds of a network with one loss."""
    weights = _weights(evidence)
    refined = _Runs(program, weights, evidence)
    facts = forward(program, input_fact(program, premises), weights, refined)
    at_output = _loss(program, premises, facts[program.output])
    cotangents = backward(program, facts, weights, at_output, refined)
    return Derived(
        facts=facts,
        cotangents=cotangents,
        gradients=gradients(program, facts, cotangents, weights),
        lipschitz=input_lipschitz(program, facts, weights, refined),
    )


def input_fact(program: Program, premises: Premises) -> Fact:
    """What A-INPUT says of one example."""
    shape, box = program.shapes[program.input], None
    if premises.input_box is not None:
        low, high = (np.full((1,) * len(shape), end) for end in premises.input_box)
        box = Interval(low, high)
    if premises.input_norm is None:
        return Fact.of(shape, box=box)
    return Fact.of(shape, premises.input_norm, box)


def _weights(evidence: Evidence) -> Weights:
    """What the scope says of every operand."""
    if evidence.scope.kind == "point":
        return Point(evidence.norms)
    constraints = {item.tensor: (item.kind, item.radius) for item in evidence.scope.constraints}
    return Constrained(constraints, evidence.trained, evidence.norms)


def _loss(program: Program, premises: Premises, logits: Fact) -> Cotangent:
    """The gradient of the loss at the output, clipped where training clips it.

    Proof: a clipped member of a hull that holds 0 is a shorter multiple of it, hence a member.
    """
    parameters = {name: _parameter(value) for name, value in premises.loss_parameters}
    found = loss_cotangent(premises.loss, parameters, logits, program.shapes[program.output])
    if premises.loss_clip is None:
        return found
    return Cotangent(min(found.norm, premises.loss_clip), found.hull)


def _parameter(value: float | str) -> Fraction | bool | str:
    if isinstance(value, float):
        return Fraction(value)
    return {"true": True, "false": False}.get(value, value)


@final
class _Runs(Refinement):
    """What proved norms of runs of affine steps say besides the rules of each.

    Proof: a run is x ↦ Ax + c with ‖A‖ ≤ norm, and c is its value at 0. A cotangent that enters
    at its end reaches its input as Aᵀ times it, if nothing else reads what lies between; with a
    sum in the run, everything that the input receives comes that way.
    """

    def __init__(self, program: Program, weights: Weights, evidence: Evidence) -> None:
        steps = {step.output: step for step in program.steps}
        readers = Counter(name for step in program.steps for name in step.inputs)
        readers[program.output] += 1
        self._program, self._weights = program, weights
        self._ends: dict[str, tuple[tuple[Step, ...], float]] = {}
        self._shares: dict[tuple[str, str], tuple[str, float]] = {}
        self._sums: dict[str, tuple[str, float]] = {}
        for run in evidence.runs:
            found = tuple(steps[value] for value in run.values)
            start, bound = found[0].inputs[0], run.norm.bound
            self._ends[run.values[-1]] = (found, bound)
            if any(readers[value] != 1 for value in run.values[:-1]):
                continue
            if not any(isinstance(step.op, Add) for step in found):
                self._shares[start, run.values[0]] = (run.values[-1], bound)
            elif readers[start] == 2:  # the first step and the sum
                self._sums[start] = (run.values[-1], bound)

    def fact(self, value: str, found: Fact, facts: Mapping[str, Fact]) -> Fact:
        """‖Ax + c‖ ≤ norm·‖x‖ + ‖c‖."""
        if value not in self._ends:
            return found
        steps, bound = self._ends[value]
        start = steps[0].inputs[0]
        at_zero = {start: _zero(self._program.shapes[start])}
        for step in steps:
            at_zero[step.output] = step_fact(self._program, step, at_zero, self._weights)
        norm = add_up(multiply_up(bound, facts[start].norm), at_zero[value].norm)
        return found.meet(Fact.of(self._program.shapes[value], norm), self._program.shapes[value])

    def share(self, value: str, reader: str, cotangents: Mapping[str, Cotangent]) -> float:
        """norm times the cotangent at the end."""
        return _pulled(self._shares.get((value, reader)), cotangents)

    def whole(self, value: str, cotangents: Mapping[str, Cotangent]) -> float:
        """norm times the cotangent of the sum."""
        return _pulled(self._sums.get(value), cotangents)


def _pulled(end: tuple[str, float] | None, cotangents: Mapping[str, Cotangent]) -> float:
    if end is None or end[0] not in cotangents:
        return float("inf")
    return multiply_up(end[1], cotangents[end[0]].norm)


def _zero(shape: tuple[int, ...]) -> Fact:
    return Fact.of(shape, 0.0, exact(np.zeros((1,) * len(shape))))
