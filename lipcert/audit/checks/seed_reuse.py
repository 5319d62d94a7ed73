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

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, islice, pairwise
from typing import Final, final

import numpy as np

from lipcert.audit.checks.chance import SHARE
from lipcert.audit.checks.correlation import (
    Likeness,
    Piece,
    Sketches,
    likeness,
    self_likeness,
    self_shifts,
    shifts,
)
from lipcert.audit.checks.noise import AddedNoise, added_noises
from lipcert.audit.checks.subject import Finding, RecordedRun, run_check
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

    @property
    def beginning(self) -> Piece:
        """As much of it as is compared with other tensors."""
        return self.piece[:_WINDOW]


_Release = Mapping[str, _Drawn]
_Pair = tuple[_Drawn, _Drawn]


@final
@dataclass(frozen=True, slots=True)
class _Found:
    """The least likely of some comparisons: of what, and where."""

    like: Likeness
    what: str
    where: str


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Comparisons:
    """Comparisons of one kind, at every shift. windows: of the beginnings of noises only."""

    pairs: tuple[_Pair, ...]
    windows: bool = False

    @property
    def tests(self) -> int:
        """How many probabilities are looked at."""
        return sum(self._tests(*pair) for pair in self.pairs)

    def worst(self) -> _Found | None:
        """The pair that is the least likely."""
        found = [(self._likeness(*pair), pair) for pair in self.pairs]
        if not found:
            return None
        like, (first, second) = min(found, key=lambda item: item[0].chance)
        one = f"the noise on {first.tensor!r} at {first.step}"
        if first is second:
            return _Found(like, f"{one} and itself, {like.shift} entries further on,", first.step)
        on = "" if first.tensor == second.tensor else f"on {second.tensor!r} "
        shifted = f", shifted by {like.shift} entries," if like.shift else ""
        return _Found(like, f"{one} and that {on}at {second.step}{shifted}", second.step)

    def _tests(self, first: _Drawn, second: _Drawn) -> int:
        if first is second:
            return self_shifts(len(first.piece))
        one, other = self._pieces(first, second)
        return shifts(len(one), len(other))

    def _likeness(self, first: _Drawn, second: _Drawn) -> Likeness:
        one, other = self._pieces(first, second)
        return self_likeness(one) if first is second else likeness(one, other)

    def _pieces(self, first: _Drawn, second: _Drawn) -> tuple[Piece, Piece]:
        if self.windows:
            return first.beginning, second.beginning
        return first.piece, second.piece


@run_check(_CHECK)
def seed_reuse(run: RecordedRun) -> Iterator[Finding]:
    """A report of equal states, one of the least likely noises, or a pass."""
    stated = [step for step in run.steps if step.noise is not None and step.noise.generator]
    releases, sketches = _recorded(run)
    comparisons = _comparisons(releases)
    in_time = [(item, item.in_time()) for item in sketches]
    tests = sum(item.tests for item in comparisons) + sum(item.pairs for item in sketches)
    tests += sum(self_shifts(len(piece)) for _, piece in in_time if piece is not None)
    if len(stated) < 2 and not tests:
        yield "no two steps record the state of the generator or their noise"
        return
    found = [item.worst() for item in comparisons]
    found += [_most_alike(item) for item in sketches]
    found += [_repeated(item, piece) for item, piece in in_time if piece is not None]
    yield from _equal_states(run)
    yield from _correlated([item for item in found if item], tests)
    pairs = sum(len(item.pairs) for item in comparisons) + sum(item.pairs for item in sketches)
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


def _most_alike(sketches: Sketches) -> _Found | None:
    found = sketches.most_alike()
    if found is None:
        return None
    like, first, second = found
    return _Found(like, f"the noise on {sketches.tensor!r} at {first} and that at {second}", second)


def _repeated(sketches: Sketches, piece: Piece) -> _Found:
    """Of one tensor in time."""
    like = self_likeness(piece)
    steps, entries = divmod(like.shift, sketches.size)
    later = f"{steps} recorded steps later" if not entries else f"{like.shift} entries further on"
    return _Found(like, f"the noise on {sketches.tensor!r} and that {later}, all together,", "")


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

    What is no number is for `noise` to say.
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


def _comparisons(releases: list[_Release]) -> tuple[_Comparisons, ...]:
    """All kinds, as many of each as the page says."""
    itself = ((item, item) for release in releases for item in release.values())
    within = (pair for release in releases for pair in combinations(release.values(), 2))
    elsewhere = (
        (one, other)
        for first, second in pairwise(releases)
        for one in first.values()
        for other in second.values()
        if one.tensor != other.tensor
    )
    return (
        _Comparisons(tuple(_affordable(itself, _WHOLE))),
        _Comparisons(tuple(_affordable(_same_tensor(releases), _WHOLE))),
        _Comparisons(tuple(_affordable(within, _WINDOW)), windows=True),
        _Comparisons(tuple(_affordable(elsewhere, _WINDOW)), windows=True),
    )


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


def _correlated(found: list[_Found], tests: int) -> Iterator[CheckReport]:
    """A report of the comparison that is the least likely, if it is too unlikely."""
    worst = min(found, key=lambda item: item.like.chance, default=None)
    if worst is None or worst.like.chance >= SHARE / tests:
        return
    like = worst.like
    yield _CHECK.failed(
        f"{worst.what} have the correlation {like.cosine:.6g}, which chance gives with at most "
        f"{like.chance:.1e}",
        worst.where,
        (like.cosine, 0.0),
    )
