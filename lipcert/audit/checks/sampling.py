"""What batches show about their sampler (LC311): sizes and members, compared with the stated
sampling.

Compared exactly: sizes of batches that are not Poisson, members within a batch, the data set, and
epochs. Compared by chance: the sizes of Poisson batches, and members of Poisson batches and of
those drawn without replacement (see `draws`). An epoch may be in any order, including a fixed one:
no test by chance applies to it. After an interruption a new epoch may begin, which counts among
those that were accounted for.

Threshold: each of these tests by chance has an equal part of one `SHARE`, whether it can be done or
not, so that all of them together raise a false alarm with at most that probability (see `chance`).
"""

import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lipcert.audit.checks.chance import SHARE, ChanceTest, too_rare
from lipcert.audit.checks.draws import (
    Epochs,
    Members,
    bin_member_tests,
    bin_size_tests,
    member_tests,
    repeated_or_missing,
    score_test,
    size_tests,
)
from lipcert.audit.checks.gradients import Gradients, Pass
from lipcert.audit.checks.run_check import Finding, Scale
from lipcert.audit.recorded import INPUT, LABELS, RecordedRun
from lipcert.audit.records import Check, CheckReport, Verdict
from lipcert.audit.trace.records import Resume
from lipcert.core.program import FloatArray
from lipcert.errors import NoVerdictError
from lipcert.gradient_stats.examples import Examples
from lipcert.gradient_stats.labels import checked_labels
from lipcert.privacy.plan import Sampling
from lipcert.search.pullbacks import work

OF_EACH: Final = SHARE / 15.0
"""The share of each test: four are of sizes, eleven of members. Those of scores, and of numbers
that follow private ones (`released`), have as much each of the share of ε."""
_CHECK: Final = Check(
    "LC311",
    "schedule",
    "draw batches as they were accounted for, or account for the way they were drawn",
)
_READ: Final = 1 << 28
"""numbers that are read for the labels beside them; a quarter as many are held at once"""
_WORK: Final = 4e9
"""floating-point operations that norms of gradients may cost: a few seconds"""
_BLOCK: Final = 1 << 12
_OF_A_CLASS: Final = 8
"""examples, in the mean"""
_Array = npt.NDArray[Any]
_Index = npt.NDArray[np.int64]


def sampled(run: RecordedRun) -> Iterator[Finding]:
    """Yield everything that contradicts the sampling of the account, and passes of what was
    compared."""
    way = stated_sampling(run)
    dataset = run.settings.dataset_size or run.declared.dataset_size
    expected = run.settings.batch_size or run.declared.batch_size
    if way is Sampling.FULL_BATCH and expected is None:
        expected = dataset
    sizes = _sizes(run)
    if way is None or dataset is None or expected is None or sizes is None:
        yield (
            "the sizes of batches cannot be compared with their sampling; it needs the sampling, "
            "the size of the data set and of the batch (declared, or in the settings)"
        )
        return
    present = dataset if run.declared.examples is None else run.declared.examples
    epochs = Epochs(-(-dataset // expected), sorted(resumed_steps(run)))
    rate, epoch = run.settings.sampling_rate or expected / dataset, dataset // expected
    if way is Sampling.BALLS_IN_BINS:
        yield from _reported(bin_size_tests(epochs, present, sizes))
        begun = len({epochs.place(step)[0] for step in sizes})
        yield from _too_many_epochs(begun, _epochs(run, epochs.bins))
    else:
        yield from _size_faults(
            way, present, rate, expected, sizes, epoch=epoch, fills=present >= dataset
        )
    yield _CHECK.passed("batch sizes")
    members = members_of(run)
    if members is None:
        yield "the members of batches are not recorded; use wrap_loader(…)"
        return
    yield from _example_faults(run, present)
    faults = list(_index_faults(present, members))
    yield from faults
    if not faults:
        match way:
            case Sampling.BALLS_IN_BINS:
                found = repeated_or_missing(epochs, present, members)
                if found is not None:
                    yield _CHECK.failed(found[0], f"step {found[1]}")
                else:
                    yield from _reported(bin_member_tests(epochs, present, members))
            case Sampling.SHUFFLE:
                yield from _epoch_faults(epoch, members, resumed_steps(run), _epochs(run, epoch))
            case Sampling.POISSON | Sampling.WITHOUT_REPLACEMENT:
                tags = any(batch.tags for step in run.steps for batch in step.batches)
                labels = None if tags else _labels(run, present)
                tests = member_tests(
                    present, rate, members, way, is_ordered=not tags, labels=labels
                )
                scores = score_test(members, {} if tags else _scores(run, present))
                yield from _reported([*tests, scores])
    yield _CHECK.passed("members of batches")


def _size_faults(
    way: Sampling,
    present: int,
    rate: float,
    expected: int,
    sizes: dict[int, int],
    *,
    epoch: int,
    fills: bool,
) -> Iterator[CheckReport]:
    """Yield the first batch of a wrong size.

    epoch: number of full batches in an epoch, whose last one may be short. fills: there are as many
    examples as were accounted for; otherwise some places are empty.
    """
    if way is Sampling.POISSON:
        yield from _reported(size_tests(present, min(1.0, rate), sizes))
        return
    if way is Sampling.FULL_BATCH:
        expected, fills = present, True
    full = 0  # batches since the last short one
    for number, size in sizes.items():
        is_short_end = way is Sampling.SHUFFLE and size > 0 and full >= epoch
        if size != expected and not (size < expected and (is_short_end or not fills)):
            yield _CHECK.failed(
                f"the batch of step {number} holds {size} examples, but {way.value} sampling with "
                f"{expected} was accounted for",
                f"step {number}",
                (size, expected),
            )
            return
        full = 0 if size != expected else full + 1


def _index_faults(dataset: int, members: Members) -> Iterator[CheckReport]:
    """Report an example that does not exist, or one that is in a batch twice."""
    for number, index in members:
        if len(index) and int(index.max()) >= dataset:
            yield _CHECK.failed(
                f"example {int(index.max())} at step {number} is not among the {dataset} that were "
                "accounted for",
                f"step {number}",
            )
            return
        if len(np.unique(index)) < len(index):
            twice, count = Counter(index.tolist()).most_common(1)[0]
            yield _CHECK.failed(
                f"example {twice} occurs {count} times in the batch of step {number}: it moves "
                "the gradient as much as that many examples",
                f"step {number}",
                (count, 1),
            )
            return


def _example_faults(run: RecordedRun, present: int) -> Iterator[CheckReport]:
    """Report an example that is stored under an index of another one.

    Every index names one example, unless examples are changed at random; then they differ from
    those of other indices. So an index of several examples, one of which has another index, too, is
    wrong, unless both indices are of equal examples: those of the data, if given, count as one.
    """
    found = [(step, batch.index, batch.tensors) for step in run.steps for batch in step.batches]
    held = [(run.name(step), i, blob) for step, i, blob in found if i is not None and blob]
    data = _data_like(run, present, held[0][2].tensors()) if held else []
    first = {digest: place for place, digest in reversed([*enumerate(data)])}
    stored = {place: {digest: "--data"} for digest, place in first.items()}
    places = {digest: {place} for digest, place in first.items()}
    for name, index, blob in held:
        for given, digest in zip(index.tolist(), _digests(blob.tensors()), strict=False):
            place = first[data[given]] if given < len(data) else given
            stored.setdefault(place, {}).setdefault(digest, name)
            places.setdefault(digest, set()).add(place)
    for digest, its in places.items():
        odd = max(its, key=lambda place: len(stored[place]))
        if len(its) > 1 and len(stored[odd]) > 1:
            other = min(its - {odd})
            yield _CHECK.failed(
                f"one example is number {odd} at {stored[odd][digest]} and number {other} at "
                f"{stored[other][digest]}, and number {odd} is another one elsewhere",
                verdict=Verdict.INCONCLUSIVE,
                remedy="state the place in the data of every example; with equal ones, give --data",
            )
            return


def _data_like(run: RecordedRun, present: int, held: Mapping[str, _Array]) -> list[bytes]:
    """Return digests of all examples of the data in the types of stored ones; none if not given."""
    read = _whole(run, present) if {INPUT, LABELS} <= {*held} else None
    if read is None:
        return []
    pairs = (INPUT, read.x), (LABELS, read.y)
    return _digests({name: item.astype(held[name].dtype) for name, item in pairs})


def _whole(run: RecordedRun, present: int) -> Examples | None:
    """Return all examples of the data, if they are given and can be held."""
    data, size = run.data, present * math.prod(run.graph.input_shape)
    if data is None or data.count != present or 4 * size > _READ:
        return None
    try:
        return data.read(0, present)
    except NoVerdictError:
        return None  # one of them is no example


def _digests(tensors: Mapping[str, _Array]) -> list[bytes]:
    """Return a digest of each example; none if its label is not known."""
    own = [tensors[name] for name in sorted(tensors) if name.startswith((INPUT, LABELS))]
    rows = zip(*own, strict=False) if LABELS in tensors else ()
    return [sha256(b"".join(part.tobytes() for part in row)).digest() for row in rows]


def _epoch_faults(
    epoch: int, members: Members, resumed: frozenset[int], most: int | None
) -> Iterator[CheckReport]:
    """Report a run that cannot be cut into epochs of disjoint batches, at least `epoch` = ⌊N/B⌋ in
    each.

    resumed: steps that were the first after an interruption; the order of an epoch is lost then,
    and another one may begin. most: epochs that were accounted for.

    The loop keeps all steps at which the present epoch may have begun, and the least number of
    epochs begun until then, which grows from each to the next: a later one has a later one before
    it.
    """
    begun: deque[tuple[int, int]] = deque()
    last: dict[int, int] = {}
    for place, (number, index) in enumerate(members):
        first, epochs = begun[0] if begun else (place, 0)
        if not begun or number in resumed or place - first >= epoch:
            begun.append((place, epochs + 1))
        again = max(index.tolist(), key=lambda example: last.get(example, -1), default=None)
        while begun and again is not None and begun[0][0] <= last.get(again, -1):
            begun.popleft()
        if not begun:
            yield _CHECK.failed(
                f"example {again} at step {number} was already in one of the {place - first} "
                "batches before it, so that the batches of an epoch are not disjoint",
                f"step {number}",
            )
            return
        last.update(dict.fromkeys(index.tolist(), place))
    yield from _too_many_epochs(begun[0][1] if begun else 0, most)


def _too_many_epochs(begun: int, most: int | None) -> Iterator[CheckReport]:
    """Report more epochs than were accounted for."""
    if most is not None and begun > most:
        yield _CHECK.failed(
            f"{begun} epochs were begun, but {most} were accounted for: an example takes part in "
            "each, even in an unfinished one",
            "",
            (begun, most),
        )


def _reported(tests: Iterable[ChanceTest]) -> Iterator[CheckReport]:
    """Report the rarest test, if it is too rare."""
    found = too_rare(tests, OF_EACH)
    if found is not None:
        yield found.failed(_CHECK)


def stated_sampling(run: RecordedRun) -> Sampling | None:
    """Return the sampling of the account, or else the one that the run declares."""
    if run.settings.sampling is not None:
        return Sampling(run.settings.sampling)
    return run.declared.sampling


def _labels(run: RecordedRun, present: int) -> _Index | None:
    """Return the labels of all examples, if the data are given and have few classes."""
    data = run.data
    size = present * math.prod(run.graph.input_shape)
    if data is None or data.count != present or size > _READ:
        return None
    try:
        parts = [data.read(start, start + _BLOCK).y for start in range(0, present, _BLOCK)]
    except NoVerdictError:
        return None  # one of them is no example
    found = np.concatenate(parts)
    is_of_classes = found.ndim == 1 and found.dtype.kind in "iub"
    return found if is_of_classes and _OF_A_CLASS * len(np.unique(found)) <= present else None


def _scores(run: RecordedRun, present: int) -> Mapping[str, Mapping[int, FloatArray]]:
    """Return norms of all examples and, for some steps, of their gradients, and their losses, at
    the weights before them."""
    read = _whole(run, present)
    if read is None:
        return {}
    engine = run.claims.engine
    known = [step for step in run.steps if step.weights_before and step.rank == 0]
    most = min(len(known), int(_WORK / (work(engine.program) * present)))
    scores: dict[str, dict[int, FloatArray]] = {"gradients": {}, "losses": {}}
    try:
        labels = checked_labels(engine.loss, read.y, run.graph.output_shape)
        for place in np.unique(np.linspace(0, len(known) - 1, most).astype(int)):
            at = Gradients(run.claims, run.weights(run.name(known[place])), run.device)
            whole = Pass(at, read.x, labels, Scale(1.0, 1.0))
            scores["gradients"][known[place].number] = whole.lengths()
            scores["losses"][known[place].number] = whole.losses()
    except NoVerdictError:
        return {}
    norms = np.linalg.norm(read.x.reshape(present, -1).astype(np.float64), axis=1)
    return scores | {"norms": {step.number: norms for step in run.steps}}


def _sizes(run: RecordedRun) -> dict[int, int] | None:
    """Return the number of examples by step, over all micro-batches and ranks; None if some are
    unknown."""
    sizes: Counter[int] = Counter()
    for step in run.steps:
        if not step.batches or any(batch.examples is None for batch in step.batches):
            return None
        sizes[step.number] += step.examples
    return dict(sorted(sizes.items()))


def members_of(run: RecordedRun) -> list[tuple[int, _Index]] | None:
    """Return the members by step, over all micro-batches and ranks; None if some are not recorded.

    The tags of a redacted trace are numbered as they occur: equal ones are equal examples.
    """
    numbers: dict[str, int] = {}
    found: dict[int, list[_Index]] = {}
    for step in run.steps:
        for batch in step.batches:
            index = batch.index
            if index is None and batch.tags:
                places = [numbers.setdefault(tag, len(numbers)) for tag in batch.tags]
                index = np.array(places, dtype=np.int64)
            if index is None and batch.examples:
                return None
            if index is None:
                index = np.array([], dtype=np.int64)
            found.setdefault(step.number, []).append(index)
    return [(number, np.concatenate(parts)) for number, parts in sorted(found.items())]


def resumed_steps(run: RecordedRun) -> frozenset[int]:
    """Return the numbers of the steps before which recording was interrupted, in any rank."""
    trace = run.trace
    return frozenset(
        event.steps
        for rank in trace.ranks
        for event in trace.events(rank)
        if isinstance(event, Resume)
    )


def _epochs(run: RecordedRun, epoch: int) -> int | None:
    """Return how many epochs the account has begun at most; None if it has no number of steps."""
    if run.plan is not None:
        return run.plan.participations
    steps = run.declared.steps if run.settings.steps is None else run.settings.steps
    return None if steps is None else -(-steps // max(1, epoch))
