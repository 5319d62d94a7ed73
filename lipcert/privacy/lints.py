"""Lints: known mistakes of private training, found in what the user declared.

What enters: a plan and a declaration. What leaves: diagnostics LC401 to LC406 and LC409. An
error means that a claimed ε is too small or void; a warning, that the statement is weak; an info,
that noise is wasted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lipcert.diagnostics import Diagnostic, Level
from lipcert.privacy.declaration import Composition, Declaration
from lipcert.privacy.noise import Reduction
from lipcert.privacy.plan import TrainingPlan

POINT_ONLY: Final = Diagnostic(
    "LC408",
    Level.WARNING,
    "",
    "the sensitivity holds at the weights of the file, which the first step leaves",
    "compute it again before every step, or declare the constraints that training enforces",
)
"""for a run whose bounds were taken at the weights of one file"""


def lints(plan: TrainingPlan, declaration: Declaration) -> tuple[Diagnostic, ...]:
    """Every mistake that can be seen, in the order of the codes."""
    return (
        *_divisor(plan, declaration),
        *_sampling(plan, declaration),
        *_composition(declaration),
        *_relation(plan, declaration),
        *_delta(plan),
        *_reduction(plan, declaration),
        *_size(plan),
    )


def _divisor(plan: TrainingPlan, declaration: Declaration) -> Iterator[Diagnostic]:
    if not declaration.divisor_tells(plan):
        return
    yield Diagnostic(
        "LC401",
        Level.ERROR,
        "",
        "the mean divides by the size of the batch at hand, so the scale of the noise tells that "
        "size",
        f"divide by the constant {plan.batch}",
    )


def _sampling(plan: TrainingPlan, declaration: Declaration) -> Iterator[Diagnostic]:
    claimed = declaration.claimed_sampling
    if claimed is None or claimed is plan.sampling:
        return
    yield Diagnostic(
        "LC402",
        Level.ERROR,
        "",
        f"batches are drawn by {plan.sampling.value}, but accounted as {claimed.value}",
        f"draw {claimed.value} batches, or state the ε of {plan.sampling.value}",
    )


def _composition(declaration: Declaration) -> Iterator[Diagnostic]:
    if declaration.groups == 1 or declaration.composition is Composition.JOINT:
        return
    count = declaration.groups
    how = (
        f"{count} groups with noise σΔ_k are counted as one release of multiplier σ"
        if declaration.composition is Composition.ONCE
        else f"{count} groups of one sample are counted as {count} steps with samples of their own"
    )
    yield Diagnostic(
        "LC403",
        Level.ERROR,
        "",
        how,
        f"count one release of multiplier σ/√{count} per step, or add √{count} times the noise",
    )


def _relation(plan: TrainingPlan, declaration: Declaration) -> Iterator[Diagnostic]:
    factor = declaration.relation_factor(plan)
    if factor == 1.0 or declaration.sensitivity_for is None:
        return
    used, relation = declaration.sensitivity_for.value, plan.neighbours.value
    yield Diagnostic(
        "LC404",
        Level.ERROR if factor < 1.0 else Level.INFO,
        "",
        f"the noise is set by the sensitivity for {used}, the statement is about {relation}: the "
        f"multiplier is {factor:g} times the stated one",
        f"compute the sensitivity for {relation}",
    )


def _delta(plan: TrainingPlan) -> Iterator[Diagnostic]:
    if plan.delta * plan.dataset_size >= 1.0:
        yield Diagnostic(
            "LC405",
            Level.WARNING,
            "",
            f"δ = {plan.delta:g} is not below 1/N = {1.0 / plan.dataset_size:g}",
            "choose a smaller δ",
        )


def _reduction(plan: TrainingPlan, declaration: Declaration) -> Iterator[Diagnostic]:
    used, noised = declaration.sensitivity_of, declaration.noise_on
    if used is noised:
        return
    too_small = noised is Reduction.SUM
    yield Diagnostic(
        "LC406",
        Level.ERROR if too_small else Level.INFO,
        "",
        f"the noise is on the {noised.value} and its size is that for the {used.value}: "
        f"{plan.batch} times too {'small' if too_small else 'large'}",
        f"use the sensitivity of the {noised.value}",
    )


def _size(plan: TrainingPlan) -> Iterator[Diagnostic]:
    if plan.size_tells:
        yield Diagnostic(
            "LC409",
            Level.ERROR,
            "",
            "N was counted in the private data set, and under add-remove a neighbour has another: "
            "with it the rate, the divisor and the number of steps change for all examples, which "
            "no ε here covers",
            "declare N as a public constant (make_private(dataset_size=…)), or state neighbours "
            "zero-out, for which this ε holds",
        )
