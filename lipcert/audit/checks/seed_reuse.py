"""Seed reuse (LC315): whether two releases, or two parts of one, share their noise.

Statement: no two steps or ranks draw noise from one state of the generator, and all entries of all
recorded noises are independent. Compared: digests of generator states, exactly; and, which finds
copies that are scaled or negated too, in all releases whose noise is recorded

    all steps  the noises on one tensor in every two releases, as sketches (see `correlation`)
    in time    the sketches of one tensor, one after another, with themselves, further on by any
               number of entries: noise that depends on that of the steps before

and in the first 24 of them

    itself     each noise with itself, further on by any number of entries
    steps      the noises on one tensor in two releases, neighbours first, at every shift
    tensors    the noises on every two tensors of one release, their first 2048 entries, at
               every shift
    elsewhere  the same for tensors of two releases that follow one another

A noise counts with its first 2²⁰ entries there; each of the four ends where it has compared 2²³.

Threshold: the probability of the cosine at every shift is that of `correlation`, exactly. A
comparison rejects below one `SHARE` divided by the number of all shifts of all comparisons, which
follows from shapes alone, so that together they raise a false alarm with at most that. What is
found is a copy of m entries where M are compared, if m is more than about 10·√M, or nearly all of a
short one. Equal states have no innocent explanation but a step that was done twice from one
checkpoint, with the same batch and weights: a release repeated word by word.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, islice, pairwise
from typing import Final, final

import numpy as np

from lipcert.audit.checks.chance import SHARE, ChanceTest, too_rare
from lipcert.audit.checks.correlation import (
    Correlation,
    Piece,
    Sketches,
    best_correlation,
    own_correlation,
    own_shifts,
    shifts,
)
from lipcert.audit.checks.noise import AddedNoise, added_noises
from lipcert.audit.checks.recorded_run import Finding, RecordedRun, run_check
from lipcert.audit.records import Check, CheckReport

_CHECK: Final = Check(
    "LC315",
    "seed-reuse",
    "seed the generator of the noise once for the whole run, differently in every rank, and draw "
    "each entry of each tensor anew from it",
)
_MOST_RELEASES: Final = 24
_WHOLE: Final = 1 << 20
_WINDOW: Final = 1 << 11
_ENTRIES: Final = 1 << 23


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Drawn:
    """Noise on one tensor in one release."""

    step: str
    tensor: str
    piece: Piece


_Release = Mapping[str, _Drawn]
_Pair = tuple[_Drawn, _Drawn]


@final
@dataclass(frozen=True, slots=True)
class _Compared:
    """The least likely of some tests. pairs: of noises that were compared."""

    tests: int
    pairs: int
    worst: ChanceTest

    @classmethod
    def of(cls, tests: int, like: Correlation, what: str, where: str, pairs: int = 1) -> _Compared:
        """what: the noises, as a sentence names them."""
        message = (
            f"{what} have the correlation {like.cosine:.6g}, which has at most the probability "
            f"{like.chance:.1e} by chance"
        )
        log_chance = math.log(like.chance) if like.chance > 0.0 else -math.inf
        return cls(tests, pairs, ChanceTest(log_chance, message, where, (like.cosine, 0.0)))


@run_check(_CHECK)
def seed_reuse(run: RecordedRun) -> Iterator[Finding]:
    """A report of equal states, one of the least likely noises, or a pass."""
    stated = [step for step in run.steps if step.noise is not None and step.noise.generator]
    releases, sketches = _recorded(run)
    compared = [*_shifted(releases), *_every_two(sketches), *_in_time(sketches)]
    tests = sum(item.tests for item in compared)
    if len(stated) < 2 and not tests:
        yield "no two steps record the state of the generator or their noise"
        return
    yield from _equal_states(run)
    worst = too_rare((item.worst for item in compared), SHARE / max(tests, 1))
    if worst is not None:
        yield worst.failed(_CHECK)
    pairs = sum(item.pairs for item in compared)
    yield _CHECK.passed(
        f"the noise of {len(stated)} steps was drawn from different states of the generator, and "
        f"in {pairs} comparisons of recorded noises, in {tests} tests, none are correlated"
        f"{_power(sketches, tests)}"
    )


def _power(sketches: Iterable[Sketches], tests: int) -> str:
    """What of two steps would have been seen."""
    seen = sorted((item.noticed(SHARE / tests), item.tensor) for item in sketches if item.pairs)
    if not seen:
        return ""
    cosine, tensor = seen[0]
    text = f". Noises of any two steps with a cosine of {cosine:.2g} would have been seen"
    return text + (f" ({tensor}; {seen[-1][0]:.2g} on {seen[-1][1]})" if len(seen) > 1 else "")


def _equal_states(run: RecordedRun) -> Iterator[CheckReport]:
    first: dict[str, str] = {}
    for step in run.steps:
        state = None if step.noise is None else step.noise.generator
        if state is None:
            continue
        if state in first:
            yield _CHECK.failed(
                f"the noise of {run.name(step)} is drawn from the state of the generator from "
                f"which that of {first[state]} was drawn",
                run.name(step),
            )
            return
        first[state] = run.name(step)


def _recorded(run: RecordedRun) -> tuple[list[_Release], list[Sketches]]:
    """The first releases that record noise, and sketches of the noise of all of them.

    `noise` reports entries that are not finite.
    """
    found: dict[tuple[int, int], dict[str, _Drawn]] = {}
    sketches: dict[str, Sketches] = {}
    detailed = sum(step.gradients.noised is not None for step in run.steps)
    count = detailed * len(run.trace.manifest.parameters)
    for item in added_noises(run):
        at = (item.number, item.rank)
        if item.noise.size < 2 or not np.all(np.isfinite(item.noise)) or not np.any(item.noise):
            continue
        tensor = sketches.get(item.tensor) or Sketches.of(item.tensor, item.noise.size, count)
        sketches[item.tensor] = tensor
        tensor.take(item.step, Piece(item.noise, item.moved), item.std)
        if at in found or len(found) < _MOST_RELEASES:
            found.setdefault(at, {})[item.tensor] = _drawn(item)
    return [found[at] for at in sorted(found)], list(sketches.values())


def _drawn(item: AddedNoise) -> _Drawn:
    piece = Piece(item.noise[:_WHOLE], item.moved[:_WHOLE])
    return _Drawn(item.step, item.tensor, piece)


def _shifted(releases: list[_Release]) -> Iterator[_Compared]:
    """Noises at every shift, as many of each of the four kinds as the page says."""
    itself = ((item, item) for release in releases for item in release.values())
    within = (pair for release in releases for pair in combinations(release.values(), 2))
    elsewhere = (
        (one, other)
        for first, second in pairwise(releases)
        for one in first.values()
        for other in second.values()
        if one.tensor != other.tensor
    )
    for one, _ in _affordable(itself, _WHOLE):
        like, name = own_correlation(one.piece), f"the noise on {one.tensor!r} at {one.step}"
        what = f"{name} and itself, {like.shift} entries further on,"
        yield _Compared.of(own_shifts(len(one.piece)), like, what, one.step)
    for pairs, most in ((_same_tensor(releases), _WHOLE), (within, _WINDOW), (elsewhere, _WINDOW)):
        for one, other in _affordable(pairs, most):
            first, second = one.piece[:most], other.piece[:most]
            like = best_correlation(first, second)
            on = "" if one.tensor == other.tensor else f"on {other.tensor!r} "
            shifted = f", shifted by {like.shift} entries," if like.shift else ""
            what = (
                f"the noise on {one.tensor!r} at {one.step} and that {on}at {other.step}{shifted}"
            )
            yield _Compared.of(shifts(len(first), len(second)), like, what, other.step)


def _every_two(sketches: Iterable[Sketches]) -> Iterator[_Compared]:
    """The noises on one tensor at all steps."""
    for item in sketches:
        found = item.most_alike()
        if found is not None:
            like, first, second = found
            what = f"the noise on {item.tensor!r} at {first} and that at {second}"
            yield _Compared.of(item.pairs, like, what, second, item.pairs)


def _in_time(sketches: Iterable[Sketches]) -> Iterator[_Compared]:
    """The noise on one tensor with what it was at other steps."""
    for item in sketches:
        piece = item.in_time()
        if piece is None:
            continue
        like = own_correlation(piece)
        steps, entries = divmod(like.shift, item.size)
        later = f"{like.shift} entries further on" if entries else f"{steps} recorded steps later"
        what = f"the noise on {item.tensor!r} and that {later}, all together,"
        yield _Compared.of(own_shifts(len(piece)), like, what, "", 0)


def _same_tensor(releases: list[_Release]) -> Iterator[_Pair]:
    """Every two releases, neighbours first."""
    for distance in range(1, len(releases)):
        for first, second in zip(releases, islice(releases, distance, None), strict=False):
            for name in first.keys() & second.keys():
                if len(first[name].piece) == len(second[name].piece):
                    yield first[name], second[name]


def _affordable(pairs: Iterable[_Pair], most: int) -> Iterator[_Pair]:
    """As many as compare `_ENTRIES`, at most so many of each noise."""
    entries = 0
    for first, second in pairs:
        entries += min(len(first.piece), most) + min(len(second.piece), most)
        if entries > _ENTRIES:
            return
        yield first, second
