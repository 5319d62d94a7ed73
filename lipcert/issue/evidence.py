"""Evidence for a certificate: norms of steps and runs.

What enters: the checker's program of a model, premises and a scope. What leaves: everything that
the checker's derivation can use, found by the engine's searches. None of it is trusted here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, final

from lipcert.core.certificate import NormClaim, RunWitness, ScopeClaim
from lipcert.core.coverage import tensors_read
from lipcert.core.norms.fused import fused_kernel
from lipcert.core.norms.steps import Kernel
from lipcert.core.program import (
    Add,
    AveragePool,
    BatchNorm,
    Conv,
    Dense,
    Move,
    Program,
    Scale,
    Shift,
    Step,
)
from lipcert.core.witnesses import ENGINES, Evidence, is_proved
from lipcert.issue.norms import norm_claim
from lipcert.norms.operator_norm import Tier
from lipcert.threads import worker_pool

Observer = Callable[[str], None]
_BEHIND: Final = (BatchNorm, Scale, Shift, AveragePool)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Evidence, and for each norm in it how it is claimed."""

    evidence: Evidence
    norms: Mapping[str, NormClaim]


def find_evidence(
    program: Program, scope: ScopeClaim, tier: Tier, observe: Observer, *, proved_only: bool
) -> Found:
    """Norms of all linear steps whose weights the scope leaves as they are, and of their runs.

    proved_only: what the checker cannot prove is left out, and its rules do without; that takes as
    long as a check.
    """
    bare = Evidence(scope, {}, (), (), ENGINES["float"])
    candidates = list(_candidates(program, bare.free))
    with worker_pool() as pool:

        def claimed(steps: tuple[Step, ...]) -> NormClaim | None:
            kernel = _kernel(steps, program)
            claim = None if kernel is None else norm_claim(kernel, tier)
            if claim is None or not proved_only:
                return claim
            return claim if is_proved(steps, claim, program, bare) else None

        claims = []
        for steps, claim in zip(candidates, pool.map(claimed, candidates), strict=True):
            observe(steps[-1].output)
            claims.append(claim)
    norms: dict[str, NormClaim] = {}
    runs: list[RunWitness] = []
    for steps, claim in zip(candidates, claims, strict=True):
        if claim is None:
            continue
        if len(steps) == 1:
            norms[steps[0].output] = claim
        else:
            runs.append(RunWitness(tuple(step.output for step in steps), claim))
    bounds = {value: claim.bound for value, claim in norms.items()}
    return Found(replace(bare, norms=bounds, runs=tuple(runs)), norms)


def _kernel(steps: tuple[Step, ...], program: Program) -> Kernel | None:
    first = steps[0]
    if len(steps) > 1:
        return fused_kernel(steps, program.shapes)
    if not isinstance(first.op, Dense | Conv):
        return None
    return Kernel.of(first.op, program.shapes[first.inputs[0]], first.shape)


def _candidates(program: Program, free: frozenset[str]) -> Iterator[tuple[Step, ...]]:
    """Each linear step, and the runs of affine steps around it: from it on, and whole."""
    readers: dict[str, list[Step]] = {}
    for step in program.steps:
        for name in step.inputs:
            readers.setdefault(name, []).append(step)
    makers = {step.output: step for step in program.steps}
    uses = Counter({name: len(steps) for name, steps in readers.items()})
    uses[program.output] += 1

    def only_reader(value: str) -> Step | None:
        return readers[value][0] if uses[value] == 1 and value in readers else None

    for step in program.steps:
        if not isinstance(step.op, Dense | Conv) or free & tensors_read([step]):
            continue
        yield (step,)
        after = [step]
        while True:
            following = only_reader(after[-1].output)
            if following is None or not isinstance(following.op, _BEHIND):
                break
            after.append(following)
        before: list[Step] = []
        maker = makers.get(step.inputs[0])
        while maker is not None and uses[maker.output] == 1 and isinstance(maker.op, _BEFORE):
            before.insert(0, maker)
            maker = makers.get(maker.inputs[0])
        whole = [*before, *after]
        end = only_reader(whole[-1].output)
        if end is not None and isinstance(end.op, Add) and whole[0].inputs[0] in end.inputs:
            whole.append(end)
        for run in {tuple(after), tuple(whole)}:
            usable = len(run) > 1 and not free & tensors_read(run)
            if usable and any(not isinstance(each.op, Shift | Dense | Conv) for each in run):
                yield run


_BEFORE: Final = (BatchNorm, Scale, Shift, Move)
