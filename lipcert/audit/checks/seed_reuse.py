"""Seed reuse (LC315): whether two releases, or two parts of one, share their noise.

Statement: no two steps or ranks draw noise from one state of the generator, and all entries of all
recorded noises are independent. Compared: digests of generator states, exactly; and, for the first
24 releases whose noise is recorded, which finds copies that are scaled or negated too:

    itself     each noise with itself, further on by any number of entries
    steps      the noises on one tensor in two releases, neighbours first, at every shift
    tensors    the noises on every two tensors of one release, their first 2048 entries, at
               every shift
    elsewhere  the same for tensors of two releases that follow one another
    all steps  the noises on one tensor in every two releases, unshifted

A noise counts with its first 2²⁰ entries; each of the first four ends where it has compared 2²³.

Threshold: for every shift the probability of the cosine is that of the statistic below, exactly. A
comparison rejects below one `SHARE` divided by the number of all shifts of all comparisons, which
follows from shapes alone, so that together they raise a false alarm with at most that. What is
found is a copy of m entries where M are compared, if m is more than about 10·√M, or nearly all of a
short one. Equal states have no innocent explanation but a step that was done twice from one
checkpoint, with the same batch and weights: a release repeated word by word.

The statistic: two noises a, b of p and q entries: at each shift, a segment of a meets one of b, of
m entries each. If b is Gaussian of whatever size and independent of a, the direction of its segment
is uniform, and (1 + c)/2 has the distribution Beta((m − 1)/2, (m − 1)/2) exactly. One noise a with
itself, k entries further on: let i run over those places for which ⌊i/k⌋ is even. Then i + k is in
a block for which it is odd, so that the segments a[i] and a[i + k] share no entry and are
independent; the same holds for the other half of the places, and each of the two halves is a test
like that of two noises.

All shifts are looked at by a fast Fourier transform, in rounded arithmetic. It only chooses; the
probability is that of the segments themselves. What rounding to the stored type may have added to
the noise counts in favour of the run: for n = d − e, |e| ≤ moved entry by entry, |⟨n, n'⟩| ≥ |⟨d,
d'⟩| − |d|·e' − e·|d'| − e·e' and ‖n‖ ≤ ‖d‖ + ‖e‖.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, islice, pairwise
from typing import Final, final

import numpy as np
import numpy.typing as npt
from scipy.fft import irfft, next_fast_len, rfft
from scipy.stats import beta

from lipcert.audit.checks.chance import SHARE
from lipcert.audit.checks.noise import AddedNoise, added_noises
from lipcert.audit.checks.subject import Checked, RecordedRun
from lipcert.audit.records import Check, CheckReport
from lipcert.upper import FloatArray

SHORTEST: Final = 8
"""entries of a segment; shorter ones are compared unshifted only"""
_LOOKED_AT: Final = 4
_ALMOST: Final = 1.0 - 2.0**-30
_NAME: Final = "seed-reuse"
_CHECK: Final = Check(
    "LC315",
    _NAME,
    "seed the generator of the noise once for the whole run, differently in every rank, and draw "
    "each entry of each tensor anew from it",
)
_MOST_RELEASES: Final = 24
_WHOLE: Final = 1 << 20
_WINDOW: Final = 1 << 11
_ENTRIES: Final = 1 << 23


@final
@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Noise, or its beginning, and a bound of what rounding added to it, entry by entry."""

    noise: FloatArray
    moved: FloatArray

    def __len__(self) -> int:
        return len(self.noise)

    def __getitem__(self, places: slice | npt.NDArray[np.int64]) -> Piece:
        return Piece(self.noise[places], self.moved[places])


@final
@dataclass(frozen=True, slots=True)
class Likeness:
    """chance: bound of the probability of this cosine, or a larger one, at this one shift."""

    shift: int
    cosine: float
    chance: float


def shifts(first: int, second: int) -> int:
    """How many tests `likeness` makes of noises of these sizes."""
    return max(first + second - 1, 0)


def self_shifts(size: int) -> int:
    """How many tests `self_likeness` makes of a noise of this size."""
    return 2 * max(size - 1, 0)


def unshifted(first: Piece, second: Piece, shift: int = 0) -> Likeness:
    """Of two independent segments of one size m ≥ 2."""
    a, b, e, f = first.noise, second.noise, first.moved, second.moved
    product = float(a @ b)
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    slack = float(np.abs(a) @ f + e @ np.abs(b) + e @ f)
    longest = (np.linalg.norm(a) + np.linalg.norm(e)) * (np.linalg.norm(b) + np.linalg.norm(f))
    if not 0.0 < lengths < math.inf:
        return Likeness(shift, 0.0, 1.0)
    likely = min(1.0, max(abs(product) - slack, 0.0) / float(longest))
    half = (len(a) - 1) / 2.0
    chance = min(1.0, 2.0 * float(beta.cdf((1.0 - likely) / 2.0, half, half)))
    return Likeness(shift, product / lengths, chance)


def likeness(first: Piece, second: Piece) -> Likeness:
    """At the best of all shifts: first[i] meets second[i + shift], at `SHORTEST` places or more."""
    a, b = first.noise, second.noise
    if min(len(a), len(b)) < SHORTEST:
        return Likeness(0, 0.0, 1.0)
    size = next_fast_len(len(a) + len(b) - 1, real=True)
    products = irfft(np.conj(rfft(a, size)) * rfft(b, size), size)
    shift = np.arange(SHORTEST - len(a), len(b) - SHORTEST + 1)
    start, stop = np.maximum(0, -shift), np.minimum(len(a), len(b) - shift)
    squares = _between(a, start, stop) * _between(b, start + shift, stop + shift)
    best = int(_most_alike(products[shift % size], squares, stop - start)[-1])
    k, i, j = int(shift[best]), int(start[best]), int(stop[best])
    return unshifted(first[i:j], second[i + k : j + k], k)


def self_likeness(piece: Piece) -> Likeness:
    """The same for one noise with itself, further on by at least one entry."""
    a = piece.noise
    if len(a) < 2 * SHORTEST:
        return Likeness(0, 0.0, 1.0)
    size = next_fast_len(2 * len(a), real=True)
    spectrum = rfft(a, size)
    products = irfft(spectrum.real**2 + spectrum.imag**2, size)
    shift = np.arange(1, len(a) - SHORTEST + 1)
    nothing = np.zeros_like(shift)
    squares = _between(a, nothing, len(a) - shift) * _between(a, shift, nothing + len(a))
    found = [Likeness(0, 0.0, 1.0)]
    for best in _most_alike(products[shift], squares, len(a) - shift):
        k = int(shift[best])
        places = np.arange(len(a) - k)
        for half in (0, 1):
            chosen = places[(places // k) % 2 == half]
            if len(chosen) >= SHORTEST:
                found.append(unshifted(piece[chosen], piece[chosen + k], k))
    return min(found, key=lambda item: item.chance)


def _between(
    a: FloatArray, start: npt.NDArray[np.int64], stop: npt.NDArray[np.int64]
) -> FloatArray:
    """Σ a² over each of these ranges."""
    sums = np.concatenate([[0.0], np.cumsum(np.square(a))])
    found: FloatArray = sums[stop] - sums[start]
    return found


def _most_alike(
    products: FloatArray, squares: FloatArray, counts: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The few best places, the best one last, by the exponent of the probability."""
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.nan_to_num(np.square(products) / squares, nan=0.0, posinf=0.0)
    score = -(counts - 1) * np.log1p(-np.minimum(share, _ALMOST))
    few = min(_LOOKED_AT, len(score))
    chosen = np.argpartition(score, -few)[-few:]
    return np.asarray(chosen[np.argsort(score[chosen])], dtype=np.int64)


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
@dataclass(frozen=True, slots=True, eq=False)
class _Comparisons:
    """Comparisons of one kind. shifted: at every shift, by as much of the noise as that is."""

    pairs: tuple[_Pair, ...]
    shifted: bool
    windows: bool = False

    @property
    def tests(self) -> int:
        """How many probabilities are looked at."""
        return sum(self._tests(*pair) for pair in self.pairs)

    def worst(self) -> tuple[Likeness, _Pair] | None:
        """The pair that is the least likely."""
        found = [(self._likeness(*pair), pair) for pair in self.pairs]
        return min(found, key=lambda item: item[0].chance, default=None)

    def _tests(self, first: _Drawn, second: _Drawn) -> int:
        if not self.shifted:
            return 1
        if first is second:
            return self_shifts(len(first.piece))
        one, other = self._pieces(first, second)
        return shifts(len(one), len(other))

    def _likeness(self, first: _Drawn, second: _Drawn) -> Likeness:
        one, other = self._pieces(first, second)
        if not self.shifted:
            return unshifted(one, other)
        return self_likeness(one) if first is second else likeness(one, other)

    def _pieces(self, first: _Drawn, second: _Drawn) -> tuple[Piece, Piece]:
        if self.windows:
            return first.beginning, second.beginning
        return first.piece, second.piece


def seed_reuse(run: RecordedRun) -> Checked:
    """A report of equal states, one of the least likely noises, or a pass."""
    stated = [step for step in run.steps if step.noise is not None and step.noise.generator]
    comparisons = _comparisons(list(_releases(run)))
    tests = sum(item.tests for item in comparisons)
    if len(stated) < 2 and not tests:
        text = f"{_NAME}: no two steps record the state of the generator or their noise"
        return Checked(not_done=(text,) if run.steps else ())
    faults = [*_equal_states(run), *_correlated(comparisons, tests)]
    if not faults:
        pairs = sum(len(item.pairs) for item in comparisons)
        message = (
            f"the noise of {len(stated)} steps was drawn from different states of the generator, "
            f"and in {pairs} comparisons of recorded noises, at {tests} shifts, none are correlated"
        )
        faults = [_CHECK.passed(message)]
    return Checked(tuple(faults))


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


def _releases(run: RecordedRun) -> Iterator[_Release]:
    """The first releases that record noise; what is no number is for `noise` to say."""
    found: dict[tuple[int, int], dict[str, _Drawn]] = {}
    for item in added_noises(run):
        at = (item.number, item.rank)
        if at not in found and len(found) == _MOST_RELEASES:
            continue
        release = found.setdefault(at, {})
        if item.noise.size > 1 and np.all(np.isfinite(item.noise)) and np.any(item.noise):
            release[item.tensor] = _drawn(item)
    for at in sorted(found):
        yield found[at]


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
    every = tuple(_same_tensor(releases))
    return (
        _Comparisons(tuple(_affordable(itself, _WHOLE)), shifted=True),
        _Comparisons(tuple(_affordable(every, _WHOLE)), shifted=True),
        _Comparisons(tuple(_affordable(within, _WINDOW)), shifted=True, windows=True),
        _Comparisons(tuple(_affordable(elsewhere, _WINDOW)), shifted=True, windows=True),
        _Comparisons(every, shifted=False),
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


def _correlated(comparisons: Iterable[_Comparisons], tests: int) -> Iterator[CheckReport]:
    """A report of the comparison that is the least likely, if it is too unlikely."""
    worst = [found for item in comparisons if (found := item.worst()) is not None]
    if not worst:
        return
    like, (first, second) = min(worst, key=lambda item: item[0].chance)
    if like.chance >= SHARE / tests:
        return
    one = f"the noise on {first.tensor!r} at {first.step}"
    if first is second:
        what = f"{one} and itself, {like.shift} entries further on,"
    else:
        on = "" if first.tensor == second.tensor else f"on {second.tensor!r} "
        what = f"{one} and that {on}at {second.step}"
        what += f", shifted by {like.shift} entries," if like.shift else ""
    yield _CHECK.failed(
        f"{what} have the correlation {like.cosine:.6g}, which chance gives with at most "
        f"{like.chance:.1e}",
        second.step,
        (like.cosine, 0.0),
    )
