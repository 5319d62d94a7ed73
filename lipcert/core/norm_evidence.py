"""Witnesses: claimed norms of linear steps and runs, proved before anything is derived from them.

Input: a certificate and the program of the model. Output: `Evidence`, which contains only proved
norms, and multipliers, which prove nothing by themselves; and the faults that were found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, final

from lipcert.core.budget import spend
from lipcert.core.certificate import (
    Certificate,
    ChainWitness,
    NormClaim,
    RunWitness,
    ScopeClaim,
)
from lipcert.core.coverage import tensors_read
from lipcert.core.norms.claim import FloatMatrix
from lipcert.core.norms.definite import Definite, definite_exact, definite_float
from lipcert.core.norms.float_engine import norm_at_most_float
from lipcert.core.norms.steps import NormWitness, step_norm_at_most
from lipcert.core.program import Conv, Dense, Program, Step
from lipcert.core.reader.records import shown


@final
@dataclass(frozen=True, slots=True)
class Engine:
    """An arithmetic for proofs about matrices. norms: of ‖W‖₂ ≤ c; definite: of λ_min(M) ≥ c."""

    norms: Callable[[FloatMatrix, float], bool]
    definite: Definite


def _norm_at_most_exact(matrix: FloatMatrix, claim: float) -> bool:
    """`norm_at_most_exact`, loaded for the engine that asks it."""
    from lipcert.core.norms.integer_engine import norm_at_most_exact  # noqa: PLC0415

    return norm_at_most_exact(matrix, claim)


ENGINES: Final[Mapping[str, Engine]] = MappingProxyType(
    {
        "float": Engine(norm_at_most_float, definite_float),
        "exact": Engine(_norm_at_most_exact, definite_exact),
    }
)
"""Two ways to the same proofs; a check uses one of them."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """What a derivation may use besides program and premises.

    norms: of the linear part of a step, by the value it computes. runs: norms of steps in a row.
    """

    scope: ScopeClaim
    norms: Mapping[str, float]
    runs: tuple[RunWitness, ...]
    chains: tuple[ChainWitness, ...]
    engine: Engine

    @property
    def trained(self) -> frozenset[str]:
        """The tensors that training may change."""
        return frozenset(self.scope.trained)

    @property
    def free(self) -> frozenset[str]:
        """The tensors whose numbers are not those of the file."""
        return self.trained if self.scope.kind == "constraint-set" else frozenset()


@final
@dataclass(frozen=True, slots=True, eq=False)
class Proved:
    """The outcome: evidence, and a sentence for each claim that could not be proved."""

    evidence: Evidence
    faults: tuple[str, ...]


def prove(certificate: Certificate, program: Program, engine: Engine) -> Proved:
    """Every claimed norm, by this engine.

    Hypotheses: norms are claimed of linear steps whose weight the scope leaves as it is.
    """
    scope, steps = certificate.scope, {step.output: step for step in program.steps}
    evidence = Evidence(scope, {}, (), certificate.chains, engine)
    faults: list[str] = []
    claims = [claim for node in certificate.nodes for claim in node.claims]
    norms: dict[str, float] = {}
    for claim in claims:
        if claim.operator_norm is None:
            continue
        if is_proved((steps[claim.value],), claim.operator_norm, program, evidence):
            norms[claim.value] = claim.operator_norm.bound
        else:
            faults.append(_unproved("operator norm", claim.value, claim.operator_norm))
    for run in certificate.runs:
        found = tuple(steps[value] for value in run.values if value in steps)
        whole = len(found) == len(run.values) > 1
        if not (whole and is_proved(found, run.norm, program, evidence)):
            faults.append(_unproved("norm of the run", run.values[-1:], run.norm))
    return Proved(replace(evidence, norms=norms, runs=certificate.runs), tuple(faults))


def is_proved(
    steps: tuple[Step, ...], claim: NormClaim, program: Program, evidence: Evidence
) -> bool:
    """Whether the norm of steps in a row is proved; what does not fit proves nothing."""
    if evidence.free & tensors_read(steps):
        return False
    spend()
    witness = NormWitness(claim.method, claim.twists, claim.counts)
    first, engine = steps[0], evidence.engine.norms
    try:
        if len(steps) > 1:
            from lipcert.core.norms.fused import fused_norm_at_most  # noqa: PLC0415  runs only

            return fused_norm_at_most(steps, program.shapes, claim.bound, witness, engine)
        if not isinstance(first.op, Dense | Conv):
            return False
        before = program.shapes[first.inputs[0]]
        return step_norm_at_most(first.op, before, first.shape, claim.bound, witness, engine)
    except ValueError:
        return False


def _unproved(what: str, where: object, claim: NormClaim) -> str:
    return (
        f"the {what} of {shown(str(where))} could not be proved to be at most {claim.bound!r} "
        f"(method {shown(claim.method)})"
    )
