"""Released (LC314, LC311): whether the optimizer applied exactly the one gradient that was noised.

Statement: all ranks of a step hold the same noised gradient: if each adds noise of its own, every
rank makes a release, and together they hide less than one. At every step that records both, the
applied gradient of every tensor is the noised one times one positive number, the same for all
tensors of the step (such as a division by the batch size). The optimizer trains no other tensor: a
further one with a clean gradient is a violation. The number is computed from public numbers,
neither from the current batch nor from its gradient; so are learning rates, deviations of the noise
and options of the optimizer.
Compared: noised gradients of ranks, bit for bit; the applied gradients a with c·n, n the noised
ones, c = ⟨a, n⟩/⟨n, n⟩ over all tensors; c from step to step; and c and the other numbers with a
private x of the step or of the one before (the number of examples, the norm of the clean gradient,
the loss), and with 1/x, √x, 1/√x, x² and ln x: whether they lie on one line.

Threshold: multiplying n by a number and storing the result is off by at most three roundings of
every entry, and c by no more than that; so ‖a − c·n‖ ≤ 8·u·‖a‖ for each tensor, u the unit of the
type of a. A c that is smaller only where it makes ‖a‖ the same, up to 2^-10, clips the noised
gradient, and is harmless. Any other c that changes, or is 0, is inconclusive, since the record does
not show what determines it. Numbers that follow a private one are a violation: T points lie on one
line, up to 2^-18 of their range, with at most the probability p^(T−2) by chance, p = 2^-10 for
different real x; for numbers of examples, if these are random, it is that of the likeliest, at most
0.43 over their deviation (Herzog, 1947). These comparisons share one `OF_EACH`. Other false alarms:
none, unless the run changes gradients after the noise in another way (a clip of entries, a mean
over steps), which is harmless: so a difference is a violation only if a is αn + βc, c the clean
gradient, for numbers α and β ≠ 0, up to rounding. What is computed from n alone is that only by
coincidence, if entries of c have more than three magnitudes (signs have one, a single entry two).
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lipcert.audit.checks.chance import ChanceTest, too_rare
from lipcert.audit.checks.run_check import FEW, Finding, exact, norm_of, run_check, stored_roundoff
from lipcert.audit.checks.sampling import OF_EACH, stated_sampling
from lipcert.audit.recorded import RecordedRun
from lipcert.audit.records import Check, CheckReport, Verdict
from lipcert.audit.trace.blobs import Blob
from lipcert.audit.trace.records import Step
from lipcert.core.program import FloatArray
from lipcert.privacy.plan import Sampling

_CHECK: Final = Check(
    "LC314", "release", "let the optimizer take the noised gradient, and record what it takes"
)
_DIVISOR: Final = Check("LC311", "schedule", "divide by a public constant, the expected batch size")
_PRIVATE: Final = "the size of the batch", "its loss", "the norm of the clean gradient"
"""What `_private` yields, in its order."""
_LIKELY: Final = (np.positive, np.reciprocal)
_OF_X: Final = (*_LIKELY, np.sqrt, lambda x: x**-0.5, np.square, np.log)
"""Functions of x; each of `_LIKELY` has 2/5 of the share of a comparison, others a 20th."""
_MODE: Final = 0.43
"""Largest probability of one size of a random batch, times the deviation of the sizes."""
_COINCIDENCE: Final = -10.0 * math.log(2.0)
"""ln of the probability p that a further point lies on a line by chance."""
_ROUNDINGS: Final = 8.0
_MAGNITUDES: Final = 3
_AS_ONE: Final = 2.0**-18
_CLIPPED: Final = 2.0**-10
_Tensors = Mapping[str, npt.NDArray[Any]]
_Multiple = tuple[float, float] | None
"""c and ‖n‖; None: not known"""
_Pairs = Mapping[str, tuple[FloatArray, FloatArray]]
"""Applied and noised gradients."""


@run_check(_CHECK, most=FEW)
def released(run: RecordedRun) -> Iterator[Finding]:
    """Report every step that applied something else than what was noised, or a pass."""
    compared, multiples, faults = 0, list[_Multiple](), list[CheckReport]()
    for step in run.steps:
        clean, noised, applied = step.gradients.tensors()
        pairs = {n: (exact(applied[n]), exact(noised[n])) for n in sorted({*noised} & {*applied})}
        length = _length([n for _, n in pairs.values()])
        multiples.append((_factor(pairs), length) if 0.0 < length < math.inf else None)
        if noised and applied:
            compared += 1
            faults += _never_noised(run, step, clean, noised, applied)
            faults += _faults(run, step, clean, applied, pairs)
    yield from _several(run)
    yield from _multiples(run, multiples)
    yield from _following(run, multiples)
    yield from faults
    if compared:
        yield _CHECK.passed(
            f"the optimizer applied the noised gradients at {compared} recorded steps"
        )
    else:
        yield run.unshown(_CHECK, "no step records the noised gradient and what was applied")


def _several(run: RecordedRun) -> Iterator[CheckReport]:
    """Report steps at which two ranks hold different noised gradients."""
    first: dict[int, tuple[str, Blob]] = {}
    for step in run.steps:
        noised = step.gradients.noised
        if noised is None:
            continue
        name, known = first.setdefault(step.number, (run.name(step), noised))
        if known != noised:
            yield _CHECK.failed(
                f"{name} and {run.name(step)} hold different noised gradients: every rank makes a "
                "release of its own, but only one was accounted for",
                run.name(step),
                remedy="draw the noise in one rank, and apply what it noised in all of them",
            )


def _multiples(run: RecordedRun, multiples: list[_Multiple]) -> Iterator[CheckReport]:
    """Report the factor of the noised gradient, if it changes between steps."""
    pairs = zip(run.steps, multiples, strict=True)
    found = [(*item, run.name(step)) for step, item in pairs if item]
    if len(found) < 2 or _are_one([factor for factor, *_ in found]):
        return
    (least, _, first), (most, _, last) = min(found), max(found)
    if not _is_clip([item[:2] for item in found], most):
        yield _DIVISOR.failed(
            f"after the noise gradients are multiplied by {least:.6g} at {first} and by {most:.6g} "
            f"at {last}, and the trace does not say why",
            first,
            (least, most),
            verdict=Verdict.INCONCLUSIVE,
            remedy="apply the noised gradient times one public constant, at every step, and put "
            "schedules into the learning rate",
        )


def _is_clip(found: list[tuple[float, float]], largest: float) -> bool:
    """Whether c is smaller exactly where c‖n‖ would exceed one radius otherwise."""
    lengths = [factor * length for factor, length in found]
    clipped = [not _are_one([factor, largest]) for factor, _ in found]
    radii = [length for length, is_cut in zip(lengths, clipped, strict=True) if is_cut]
    return _are_one(radii, _CLIPPED) and max(lengths) <= min(radii) * (1.0 + _CLIPPED)


def _private(run: RecordedRun, step: Step, size: int) -> Iterator[float]:
    """Yield private numbers of a step, in the order of their descriptions; 0: not known."""
    losses = [batch.loss for batch in step.batches if batch.loss is not None]
    clean = {} if step.gradients.clean is None else step.gradients.clean.tensors()
    yield size
    yield losses[0] if len(losses) == len(run.trace.ranks) == 1 else 0.0
    yield _length([exact(item) for item in clean.values()])


def _public(step: Step, multiple: _Multiple) -> Iterator[tuple[str, float]]:
    """Yield numbers of a step that must not depend on its examples, by their descriptions."""
    if multiple:
        yield "the factor of the gradient after the noise", multiple[0]
    for place, rate in enumerate(step.learning_rates):
        yield f"the learning rate (group {place})", rate
    for group, std in ({} if step.noise is None else step.noise.std).items():
        yield f"the deviation of the noise on {group}", std
    for place, part in enumerate(() if step.optimizer is None else step.optimizer.groups):
        for name, numbers in part.options.items():
            if name != "lr" and len(numbers) == 1:
                yield f"{name} of the optimizer (group {place})", numbers[0]


def _following(run: RecordedRun, multiples: list[_Multiple]) -> Iterator[CheckReport]:
    """Report the public number that follows a private one least likely by chance."""
    sizes = Counter[int]()
    for step in run.steps:
        sizes[step.number] += step.examples
    pairs = zip(run.steps, multiples, strict=True)
    steps = {pair[0].number: pair for pair in pairs if pair[0].rank == run.steps[0].rank}
    public: dict[str, dict[int, float]] = {}
    for number, pair in steps.items():
        for what, value in _public(*pair):
            public.setdefault(what, {})[number] = value
    changing = [item for item in public.items() if not _are_one([*item[1].values()])]
    if not changing:
        return
    private = {n: list(_private(run, step, sizes[n])) for n, (step, _) in steps.items()}
    mean, dataset = sizes.total() / len(sizes), run.settings.dataset_size or 1
    deviation = math.sqrt(max(mean * (1.0 - mean / dataset), _MODE**2))
    varies = stated_sampling(run) in {Sampling.POISSON, Sampling.BALLS_IN_BINS}
    log_size = math.log(_MODE / deviation) if varies else 0.0
    tests: list[ChanceTest] = []
    for (what, by_step), lag, of in product(changing, (0, 1), range(len(_PRIVATE))):
        numbers = [n for n in by_step if n - lag in private and 0 < private[n - lag][of] < math.inf]
        y, x = np.array([(by_step[n], private[n - lag][of]) for n in numbers] or [(0, 1)]).T
        count = len(np.unique(np.float32(x))) if of else len(x)
        chance = (count - 2) * (_COINCIDENCE if of else log_size)
        parts = [2.5 if f in _LIKELY else 20.0 for f in _OF_X if _is_affine(f(x), y)]
        text = f"{what} changes as {_PRIVATE[of]} does{', one step later' * lag}, and so tells it"
        tests.append(ChanceTest(chance + math.log(min(parts)) if parts else 0.0, text))
    found = too_rare(tests, OF_EACH / max(len(tests), 1))
    if found is not None:
        yield found.failed(_DIVISOR)


def _is_affine(x: FloatArray, y: FloatArray) -> bool:
    """Whether y = a + bx at all places, up to a small share of how far y varies."""
    if len(x) < 3 or not (np.ptp(x) > 0.0 and np.ptp(y) > 0.0):
        return False
    x, y = (x - x.mean()) / np.ptp(x), (y - y.mean()) / np.ptp(y)
    return float(np.max(np.abs(y - (x @ y) / (x @ x) * x))) <= _AS_ONE


def _length(tensors: list[FloatArray]) -> float:
    return math.hypot(*map(norm_of, tensors))


def _are_one(numbers: list[float], share: float = _AS_ONE) -> bool:
    """Whether the numbers are equal up to a share of the largest."""
    return not numbers or max(numbers) - min(numbers) <= share * max(map(abs, numbers))


def _faults(
    run: RecordedRun, step: Step, clean: _Tensors, applied: _Tensors, pairs: _Pairs
) -> Iterator[CheckReport]:
    unit = max((stored_roundoff(step, applied[name]) for name in pairs), default=0.0)
    factor = _factor(pairs)
    for name, (a, n) in pairs.items():
        off, length = norm_of(a - factor * n), norm_of(a)
        if off <= _ROUNDINGS * unit * length:
            continue
        plain = name in clean and _shows(exact(clean[name]), a, n, _ROUNDINGS * unit)
        what = "the gradient, or a share of it, without its noise"
        what = what if plain else "a gradient other than the noised one"
        yield _CHECK.failed(
            f"{run.name(step)}, {name}: the optimizer applied {what}",
            f"{run.name(step)}, {name}",
            (off, _ROUNDINGS * unit * length),
            verdict=Verdict.VIOLATION if plain else Verdict.INCONCLUSIVE,
        )


def _never_noised(
    run: RecordedRun, step: Step, clean: _Tensors, noised: _Tensors, applied: _Tensors
) -> Iterator[CheckReport]:
    """Report what the optimizer applies besides what was noised."""
    trained = step.trained or applied.keys()
    for name in sorted(trained & applied.keys() - noised.keys()):
        if not np.any(applied[name]):
            continue
        is_known = name in clean
        how = "without noise" if is_known else "and the record does not show that it was noised"
        yield _CHECK.failed(
            f"{run.name(step)}, {name}: the optimizer applied a gradient, {how}",
            f"{run.name(step)}, {name}",
            verdict=Verdict.VIOLATION if is_known else Verdict.INCONCLUSIVE,
            remedy="noise every tensor that the optimizer trains, and show it to the recorder",
        )


def _shows(clean: FloatArray, applied: FloatArray, noised: FloatArray, share: float) -> bool:
    """Whether what was applied is αn + βc, β ≠ 0, up to this share of both parts."""
    if len(np.unique(np.abs(clean))) <= _MAGNITUDES:
        return False
    parts = np.stack([noised.ravel(), clean.ravel()], axis=1)
    factors = np.linalg.lstsq(parts, applied.ravel())[0]
    own, other = np.abs(factors) * np.linalg.norm(parts, axis=0)
    rest = norm_of(applied.ravel() - parts @ factors)
    return bool(rest <= share * (own + other) < other)


def _factor(pairs: _Pairs) -> float:
    """Return c."""
    square = sum(float(np.vdot(n, n)) for _, n in pairs.values())
    product = sum(float(np.vdot(a, n)) for a, n in pairs.values())
    return product / square if square else 1.0
