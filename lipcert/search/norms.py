"""Norms of linear steps, and of runs of affine steps: proposed in float64, proved by the core.

`find_norms` takes a program and a scope and returns lines that the core has proved. A proposal, by
one of several methods, is an estimate of a true upper bound, without a margin. If it is not proved,
it is raised a little, and a little more, before another method or nothing replaces it.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import starmap
from operator import itemgetter
from typing import Final, NamedTuple

import numpy as np

from lipcert.core.certificate import ScopeClaim
from lipcert.core.coverage import tensors_read
from lipcert.core.kinds import BatchNorm
from lipcert.core.line import NotProved
from lipcert.core.lines.norms import StepNorm, matrix_holds, norm_holds
from lipcert.core.lines.runs import RunNorm
from lipcert.core.lines.stacks import StackNorm, stacked
from lipcert.core.norms import ENGINES
from lipcert.core.norms.claim import NormWitness
from lipcert.core.norms.convolution import Convolution, Kernel, kernel_of
from lipcert.core.norms.explicit import Strip, strips_of
from lipcert.core.norms.lines import axes_of, phases_of
from lipcert.core.norms.residual import PANEL
from lipcert.core.program import Dense, Move, Operand, Program, Step
from lipcert.core.token_kinds import Add, Scale, Shift
from lipcert.core.window_kinds import AveragePool, Conv
from lipcert.process.threads import worker_pool
from lipcert.search.eigenvalues import Array, spectral_norm, strips_norm
from lipcert.search.evidence import NormLines, Observer
from lipcert.search.torus import torus_norm
from lipcert.settings.values import TierName

ROOMS: Final = (4e-8, 1e-6, 1e-4, 1e-2)
"""Relative margins added to a proposal: arithmetic of finite precision proves nothing to the last
bit, and a peak may have been missed."""
_CHECK: Final = ENGINES["float"].norms
_BEFORE: Final = (BatchNorm, Scale, Shift, Move)
_BEHIND: Final = (BatchNorm, Scale, Shift, AveragePool)
_EXACT: Final = (Shift, Dense, Conv)
"""Steps after which a run still has the norm of its linear step."""


class Claim(NamedTuple):
    """The claim ‖linear part of a step‖₂ ≤ bound, and how it is proved."""

    bound: float
    witness: NormWitness


@dataclass(frozen=True, slots=True)
class _Effort:
    """Floating-point operations that a proof may cost: of a matrix, and of an explicit map.

    worth: by which share an explicit norm must be below that of a torus, if it is expensive.
    """

    matrix: float
    explicit: float
    torus: bool
    worth: float = 0.0


_EFFORTS: Final[Mapping[TierName, _Effort]] = {
    "quick": _Effort(matrix=3e10, explicit=0.0, torus=False),
    "fast": _Effort(matrix=3e12, explicit=3e10, torus=True, worth=1e-3),
    "tight": _Effort(matrix=1e13, explicit=1e12, torus=True),
}
_CHEAP: Final = 2e9
"""Operations up to which the proof of an explicit map is always made."""


def proposals(kernel: Kernel, tier: TierName) -> tuple[Claim, ...]:
    """Return claims for every map by a kernel in its interval, the smallest first."""
    lo, hi, middle = kernel.entries.lo, kernel.entries.hi, kernel.entries.middle()
    frame = replace(kernel.frame, kernel=middle)
    error = 0.0
    if middle is not lo:
        radius = np.maximum(hi - middle, middle - lo)
        error = math.sqrt(frame.overlap()) * float(np.linalg.norm(radius.ravel()))
    effort = _EFFORTS[tier]
    found = _of_matrix(frame, effort) if kernel.is_matrix else _of_windows(frame, effort)
    raised = [Claim(bound + error, how) for bound, how in found if math.isfinite(bound + error)]
    return tuple(sorted(raised, key=itemgetter(0)))


def _of_matrix(frame: Convolution, effort: _Effort) -> Iterator[Claim]:
    """Yield one norm, exact if that is affordable."""
    yield Claim(_norm(frame.kernel[:, :, 0], effort), NormWitness("dense"))


def _of_windows(frame: Convolution, effort: _Effort) -> Iterator[Claim]:
    """Yield a claim by every method that can improve on those before it."""
    overlap = frame.overlap()
    rows = np.split(frame.kernel.reshape(len(frame.kernel), -1), frame.groups)
    largest = max(_norm(each, effort) for each in rows)
    yield Claim(math.sqrt(overlap) * largest, NormWitness("windows"))
    if overlap == 1 and _has_full_window(frame):
        return  # exact
    axes = axes_of(frame)
    if all(axis.taps and axis.is_plain for axis in axes):
        with np.errstate(over="ignore"):
            totals = np.abs(phases_of(frame, axes)).sum(axis=0)
        largest = max(_norm(total, effort) for total in totals)
        yield Claim(largest, NormWitness("absolute"))
    norm, cost = math.inf, math.inf
    if effort.explicit and frame.is_small:
        blocks = list(strips_of(frame))
        cost = sum(starmap(_strips_cost, blocks))
        norm = max(starmap(strips_norm, blocks)) if cost <= effort.explicit else math.inf
    found = torus_norm(frame) if effort.torus and cost > _CHEAP else None
    if found is not None and found.norm <= norm * (1.0 + effort.worth):
        yield Claim(found.norm, NormWitness("torus", found.twists, found.counts))
    elif math.isfinite(norm):
        yield Claim(norm, NormWitness("explicit"))


def _norm(matrix: Array, effort: _Effort) -> float:
    """Return ‖W‖₂, or ‖W‖_F if that would take too long."""
    small, large = sorted(matrix.shape)
    if _cost(small, large) <= effort.matrix:
        return spectral_norm(matrix)
    largest = float(np.abs(matrix).max()) or 1.0
    return float(np.linalg.norm((matrix / largest).ravel())) * largest


def _cost(small: int, large: int) -> float:
    """Return the operations of a Gram matrix, a factor, and its product with itself."""
    return 2.0 * small**2 * (large + small)


def _strips_cost(strips: Sequence[Strip], columns: int) -> float:
    """Return the operations of the factor of a banded Gram matrix."""
    band = max((strip.rows.shape[1] for strip in strips), default=0)
    return 2.0 * columns * min(columns, band + PANEL) ** 2


def _has_full_window(frame: Convolution) -> bool:
    """Whether some output reads an entry through every tap."""
    return all((frame.reads(axis) >= 0).all(axis=1).any() for axis in range(len(frame.size)))


def find_norms(
    program: Program,
    scope: ScopeClaim,
    tier: TierName,
    observe: Observer | None = None,
    serves: Callable[[tuple[Step, ...]], bool] = lambda _: True,
) -> NormLines:
    """Return norms of all linear steps whose weights the scope leaves unchanged, and of runs.

    serves: whether the norm of a step, a run, or matrices that read one value is wanted.
    """
    free = frozenset(scope.trained if scope.kind == "constraint-set" else ())
    candidates = tuple(filter(serves, _candidates(program, free)))
    steps: list[StepNorm] = []
    runs: list[RunNorm] = []
    with worker_pool() as pool:
        claims = pool.map(partial(proved_claim, program=program, tier=tier), candidates)
        for done, (row, claim) in enumerate(zip(candidates, claims, strict=True), 1):
            if observe is not None:
                observe(row[-1].output, done, len(candidates))
            said = {} if claim is None else {"bound": claim.bound, **asdict(claim.witness)}
            if said and len(row) > 1:
                runs.append(RunNorm(values=tuple(step.output for step in row), **said))
            elif said:
                steps.append(StepNorm(value=row[-1].output, **said))
        beside = filter(serves, _stacks(program, free))
        stacks = pool.map(partial(proved_stack, program=program, tier=tier), beside)
    return (*steps, *runs, *filter(None, stacks))


def proved_claim(row: tuple[Step, ...], program: Program, tier: TierName) -> Claim | None:
    """Return the smallest claim that the core proves for consecutive steps with fixed tensors.

    The result is None if it proves none.
    """
    try:
        kernel = kernel_of(row, program.shapes)
    except NotProved:
        return None

    def holds(bound: float, how: NormWitness) -> bool:
        if len(row) > 1:  # the kernel of a run is known already
            return _kernel_holds(kernel, bound, how)
        return norm_holds(row, program.shapes, bound, how, _CHECK)

    return _first(proposals(kernel, tier), holds)


def proved_stack(row: tuple[Step, ...], program: Program, tier: TierName) -> StackNorm | None:
    """Return the smallest proved norm of matrices that read one value; None if none is."""
    rows, before = stacked(row), program.shapes[row[0].inputs[0]]
    op = Dense(Operand(rows.lo, rows.hi), None)
    kernel = Kernel.of(op, before, (*before[:-1], len(rows.lo)))
    found = _first(proposals(kernel, tier), lambda bound, _: matrix_holds(rows, bound, _CHECK))
    values = tuple(step.output for step in row)
    return None if found is None else StackNorm(values=values, bound=found.bound)


def proved_bound(kernel: Kernel, tier: TierName) -> float:
    """Return the smallest bound of a kernel's norm that the core proves; inf if it proves none."""
    found = _first(proposals(kernel, tier), partial(_kernel_holds, kernel))
    return math.inf if found is None else found.bound


def _first(proposed: Iterable[Claim], holds: Callable[[float, NormWitness], bool]) -> Claim | None:
    """Return the smallest claim that holds, trying each with more and more room."""
    attempts = [Claim(bound * (1.0 + room), how) for bound, how in proposed for room in ROOMS]
    attempts.sort(key=itemgetter(0))
    return next((claim for claim in attempts if math.isfinite(claim.bound) and holds(*claim)), None)


def _kernel_holds(kernel: Kernel, bound: float, how: NormWitness) -> bool:
    """Whether a norm is proved for a kernel; one beyond the limits of a proof is not."""
    try:
        return kernel.norm_at_most(bound, how, _CHECK)
    except NotProved:
        return False


def _stacks(program: Program, free: frozenset[str]) -> Iterator[tuple[Step, ...]]:
    """Yield all matrices that read one value, if there are several."""
    rows: dict[str, list[Step]] = {}
    for step in program.steps:
        if isinstance(step.op, Dense) and not free & tensors_read([step]):
            rows.setdefault(step.inputs[0], []).append(step)
    yield from (tuple(row) for row in rows.values() if len(row) > 1)


def _candidates(program: Program, free: frozenset[str]) -> Iterator[tuple[Step, ...]]:
    """Yield each linear step, and the runs of affine steps around it: from it on, and whole."""
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
