"""Norms of linear steps, and of runs of affine steps: proposed in float64, proved by the core.

Input: a program and a scope. Output: claims that the core has proved, and the names of those that
it could not prove. A proposal that is not proved is raised a little, and a little more, before
another method or nothing takes its place.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final, final

from lipcert.core.certificate import ScopeClaim
from lipcert.core.coverage import tensors_read
from lipcert.core.lines.norms import StepNorm, matrix_holds, norm_holds
from lipcert.core.lines.runs import RunNorm
from lipcert.core.lines.stacks import StackNorm, stacked
from lipcert.core.norms import ENGINES
from lipcert.core.norms.claim import NormWitness
from lipcert.core.norms.convolution import Kernel
from lipcert.core.norms.raised_kernels import kernel_of
from lipcert.core.program import (
    Add,
    AveragePool,
    BatchNorm,
    Conv,
    Dense,
    Move,
    Operand,
    Program,
    Scale,
    Shift,
    Step,
)
from lipcert.process.threads import worker_pool
from lipcert.search.evidence import Evidence, NormClaim
from lipcert.search.proposals import proposals
from lipcert.settings.values import TierName

Observer = Callable[[str], None]
Propose = Callable[[Kernel, TierName], tuple[NormClaim, ...]]

ROOMS: Final = (4e-8, 1e-6, 1e-4, 1e-2)
"""what is added to a proposal, relatively: arithmetic of finite precision proves nothing to the
last bit, and a peak may have been missed"""
_BEFORE: Final = (BatchNorm, Scale, Shift, Move)
_BEHIND: Final = (BatchNorm, Scale, Shift, AveragePool)
_EXACT: Final = (Shift, Dense, Conv)
"""steps that leave a run the norm of its linear step"""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Norms:
    """Proved claims: of steps, by the value that they compute, of runs, and of stacks.

    unproved: the outputs of linear steps for which no claim could be proved.
    """

    steps: Mapping[str, NormClaim]
    runs: tuple[RunNorm, ...]
    unproved: tuple[str, ...]
    stacks: tuple[StackNorm, ...] = ()

    def evidence(self, scope: ScopeClaim, tier: TierName = "fast") -> Evidence:
        """The evidence that a prover may use, with as much work as the tier allows."""
        bounds = {value: claim.bound for value, claim in self.steps.items()}
        lines = (StepNorm(value=value, **asdict(claim)) for value, claim in self.steps.items())
        steps = tuple(lines)
        return Evidence(scope, bounds, self.runs, steps=steps, stacks=self.stacks, tier=tier)


def find_norms(
    program: Program,
    scope: ScopeClaim,
    tier: TierName,
    observe: Observer,
    propose: Propose = proposals,
) -> Norms:
    """Norms of all linear steps whose weights the scope leaves as they are, and of their runs.

    observe: is called with the output of every step or run that is done. propose: searches, or
    remembers.
    """
    candidates = tuple(_candidates(program, Evidence(scope).free))
    steps: dict[str, NormClaim] = {}
    runs: list[RunNorm] = []
    unproved: list[str] = []
    with worker_pool() as pool:

        def proved(row: tuple[Step, ...]) -> NormClaim | None:
            return proved_claim(row, program, tier, propose)

        def stack(row: tuple[Step, ...]) -> StackNorm | None:
            return proved_stack(row, program, tier, propose)

        for row, claim in zip(candidates, pool.map(proved, candidates), strict=True):
            output = row[-1].output
            observe(output)
            if len(row) > 1:
                if claim is not None:
                    values = tuple(step.output for step in row)
                    runs.append(RunNorm(values=values, **asdict(claim)))
            elif claim is None:
                unproved.append(output)
            else:
                steps[output] = claim
        stacks = [line for line in pool.map(stack, _stacks(program, Evidence(scope).free)) if line]
    return Norms(steps, tuple(runs), tuple(unproved), tuple(stacks))


def proved_claim(
    row: tuple[Step, ...], program: Program, tier: TierName, propose: Propose
) -> NormClaim | None:
    """The smallest claim for steps in a row, of tensors of the file, that the core proves; None
    where it proves none."""
    kernel = kernel_of(row, program.shapes)
    if kernel is None:
        return None
    attempts = [
        replace(claim, bound=claim.bound * (1.0 + room))
        for claim in propose(kernel, tier)
        for room in ROOMS
    ]
    for claim in sorted(attempts, key=lambda attempt: attempt.bound):
        witness = NormWitness(claim.method, claim.twists, claim.counts)
        if math.isfinite(claim.bound) and _holds(row, kernel, program, claim.bound, witness):
            return claim
    return None


def _holds(
    row: tuple[Step, ...], kernel: Kernel, program: Program, bound: float, witness: NormWitness
) -> bool:
    """Whether the norm of steps in a row is proved; the kernel of a run is at hand."""
    check = ENGINES["float"].norms
    if len(row) == 1:
        return norm_holds(row, program.shapes, bound, witness, check)
    try:
        return kernel.norm_at_most(bound, witness, check)
    except ValueError:
        return False


def proved_stack(
    row: tuple[Step, ...], program: Program, tier: TierName, propose: Propose
) -> StackNorm | None:
    """The smallest norm of matrices that read one value which is proved; None where none is."""
    rows, before = stacked(row), program.shapes[row[0].inputs[0]]
    if rows is None:
        return None
    op = Dense(Operand(rows.lo, rows.hi), None)
    kernel = Kernel.of(op, before, (*before[:-1], len(rows.lo)))
    for claim in propose(kernel, tier):
        for room in ROOMS:
            bound = claim.bound * (1.0 + room)
            if math.isfinite(bound) and matrix_holds(rows, bound, ENGINES["float"].norms):
                return StackNorm(values=tuple(step.output for step in row), bound=bound)
    return None


def _stacks(program: Program, free: frozenset[str]) -> Iterator[tuple[Step, ...]]:
    """All matrices that read one value, where there are several."""
    rows: dict[str, list[Step]] = {}
    for step in program.steps:
        if isinstance(step.op, Dense) and not free & tensors_read([step]):
            rows.setdefault(step.inputs[0], []).append(step)
    yield from (tuple(row) for row in rows.values() if len(row) > 1)


def proved_bound(kernel: Kernel, tier: TierName) -> float:
    """The smallest bound of the norm of a kernel that the core proves; inf where it proves none."""
    attempts = [
        (claim.bound * (1.0 + room), NormWitness(claim.method, claim.twists, claim.counts))
        for claim in proposals(kernel, tier)
        for room in ROOMS
    ]
    for bound, witness in sorted(attempts, key=lambda attempt: attempt[0]):
        if math.isfinite(bound) and kernel.norm_at_most(bound, witness, ENGINES["float"].norms):
            return bound
    return math.inf


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
        for row in dict.fromkeys((tuple(after), tuple(whole))):
            usable = len(row) > 1 and not free & tensors_read(row)
            if usable and not all(isinstance(each.op, _EXACT) for each in row):
                yield row
