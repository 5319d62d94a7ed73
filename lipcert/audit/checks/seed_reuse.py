"""Seed reuse (LC315): whether two releases, or two parts of one, share their noise.

Statement: no two steps or ranks draw noise from one state of the generator, and all entries of all
recorded noises are independent. Compared: digests of generator states, exactly; and correlations,
which also find scaled or negated copies. In all releases whose noise is recorded, these are between

    all steps  the noises on one tensor in every two releases, as sketches (below)
    in time    the sketches of one tensor, one after another, and the same shifted by any number of
               entries: noise that depends on that of earlier steps
    linked     the sketches of every two tensors, and the halves of each, at the first 256 steps:
               whether steps that are alike in one are alike in the other (below): noise that
               follows from that on other entries, in one way at all steps

and in the first 24 of them between

    itself     each noise and itself, shifted by any number of entries
    steps      the noises on one tensor in two releases, neighbours first, at every shift
    tensors    the noises on every two tensors of one release, their first 2048 entries, at
               every shift
    elsewhere  the same for tensors of two consecutive releases
    values     of all four: whether they have magnitudes in common (below)
    together   the noises on every two tensors, and on each and itself, those of all releases at
               once, in units of their deviations, at every shift: the shortest first

Each noise contributes its first 2²⁰ entries there; each of the five stops when it has compared 2²³.
At most 2²³ entries are held for that, 2²² of one release; of other noises the first 2048.

Each noise z is also compared by its magnitudes: y with P(|Z| ≤ |z|) = P(Y ≤ y) has independent
entries N(0, 1), too, if z has. This finds noises that share magnitudes or sizes and not signs. From
1000 entries on; where the mean of y is off by more than 6 deviations, as for a misstated deviation
or another shape, which `noise` reports, it is taken away.

Threshold: the probability of the cosine at every shift is exact (below). A comparison takes the
union bound of its shifts, and rejects below one `SHARE` divided by the number of comparisons, which
follows from shapes alone, so that together they raise a false alarm with at most that probability.
A copy of m entries is found where M are compared, if m is more than about 10·√M, or nearly all of a
short noise. Equal states have no innocent explanation except a step that was repeated from one
checkpoint, with the same batch and weights: the same release made twice.

Correlation of noises: how improbable it is that two of them, or two parts of one, are as similar.

Noises are given with what rounding may have added to them; the result is the shift at which they
are most similar, their cosine there, and a bound of its probability.

The statistic: two noises a, b of p and q entries: at each shift, a segment of a meets one of b, of
m entries each; of several releases together, the segments of all of them are one of m entries. If b
is Gaussian of any size and independent of a, the direction of its segment is uniform, and (1 + c)/2
has the distribution Beta((m − 1)/2, (m − 1)/2) exactly. One noise a with itself, k entries further
on: let i run over those places for which ⌊i/k⌋ is even. Then i + k is in a block for which it is
odd, so that the segments a[i] and a[i + k] share no entry and are independent; the same holds for
the other half of the places, and each of the two halves is a test like that of two noises.

A fast Fourier transform examines all shifts, in rounded arithmetic. It only chooses; the
probability is computed from the segments themselves. What rounding to the stored type may have
added to the noise counts in favour of the run: for n = d − e, |e| ≤ moved entry by entry, |⟨n, n'⟩|
≥ |⟨d, d'⟩| − |d|·e' − e·|d'| − e·e' and ‖n‖ ≤ ‖d‖ + ‖e‖.

Sketches: the noises on one tensor at all recorded steps, made short enough to compare every two. A
sketch of independent noises N(0, s²) consists of independent N(0, s²), exactly: it has k ≤ p
entries, each a signed sum of a disjoint part of the p entries, over the root of their number. So
time grows with p and not with p times the steps, and statements about noises hold for sketches. Two
noises with a common share have on average the same cosine in the sketch. Every two sketches:
(1 + cosine)/2 is Beta((k − 1)/2, (k − 1)/2), exactly, if the direction of one of them is uniform
and independent of the other. What rounding may have moved, e entry by entry, is propagated, and
counts in favour of the run: |⟨a, b⟩| is less by at most ‖a‖‖f‖ + ‖e‖‖b‖ + ‖e‖‖f‖.

Linked noises: x_t and y_t, of k entries, in units of their deviations, at T steps. Given the x_t,
Q = Σ_{s≠t} ⟨x_s, x_t⟩⟨y_s, y_t⟩ is a quadratic form of k independent vectors N(0, 1) of T entries,
so that E exp(λQ) = Π(1 − 2λμ)^(−k/2) over the eigenvalues μ of the matrix ⟨x_s, x_t⟩, 0 on its
diagonal; Chernoff's bound takes this. If y_t = R·x_t, the mean of Q is T(T − 1)·‖R‖_F². Rounding,
of y by F in all, moves Q by at most (2‖y‖‖F‖ + ‖F‖²)·max|μ|.

Repeated values: whether one noise has the magnitudes of another, in any order. Entries of two
noises are independent N(0, 1) in units of their deviations. Then |z| has a density of at most 0.8.
Compared: the magnitudes a_k of K ≤ 2^12 entries of the first noise, with those of the first 2^16
entries of the second one. An entry of magnitude at most 8 hits if it is within w of an a_k. This
finds permuted, mirrored and transposed noises, noises that differ only in signs, and those from a
table of few values.

Threshold: rounding moves an entry by e ≤ 4u|c|/s + 16u in the second noise, which follows from its
clean gradient c, known before it was drawn; w is at least the sum of this and the error of the
first. An entry that hits is within 2w of an a_k before rounding, which has at most the probability
0.8·4w·K. Generators of float32 may draw magnitudes of 22 bits, each with at most 2^-22: w is at
least 2^-20, so that 4w·K bounds the probability of these, too (`log_hits`).

A noise is also compared with itself: K entries of its first half with the entries after them. This
finds noise of few bits, which does not hide the last bits of a gradient that has more of them.
Noise of few bits beside a gradient of as few is not counted, which only means fewer hits.

Weak generators: whether noise follows from noise before it, in the first 24 releases.

    signs      of the first 2^12 entries on each tensor, in the first release: of their 2^N
               sequences at most 4^L follow from a linear recurrence of length L over two elements
               (Massey, 1969). Finds generators that shift and add bits
    sequels    pairs (a, b) of entries side by side or of two steps, and length and angle of each,
               which are independent, as are the uniform numbers u = P(B < b): in the order of a,
               those of two pairs (disjoint ones) are within t with the probability 2t − t², each
               independently. Finds generators, also before the method of Box and Muller, whose next
               number is a function of the last, if its slope is at most about the number of pairs

Rounding by e turns a sign with at most the probability 0.8·e, moves u by at most 0.4·e, and an
angle by at most √2·e/(2πr) turns, in the mean over the length r less than 0.3·e. The rank of b
among all n, over n, replaces u, for noise of whatever size: rounding moves it by twice as much, as
it moves the others, too, and it is off by √(ln(2/p)/2n) + 1/n, or more with at most the probability
p = 10^-20 (Dvoretzky, Kiefer and Wolfowitz; Massart, 1990). So t plus 2e, for the largest e, and
twice this replaces t.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations, combinations_with_replacement, islice, pairwise, product
from typing import Final, Self

import numpy as np
import numpy.typing as npt
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import betainc, ndtr, ndtri

from lipcert.audit.checks.axes import folded
from lipcert.audit.checks.chance import SHARE, ChanceTest, log_chernoff, log_hits, stated
from lipcert.audit.checks.noise import LARGEST, AddedNoise, added_noises, reach_of
from lipcert.audit.checks.run_check import Finding, run_check
from lipcert.audit.recorded import RecordedRun
from lipcert.audit.records import Check
from lipcert.audit.trace.records import Noise
from lipcert.core.program import FloatArray

SHORTEST: Final = 8
"""Fewest entries of a segment; shorter noises are only compared unshifted."""
_LOOKED_AT: Final = 4
_ALMOST: Final = 1.0 - 2.0**-30
_SHORTEST_SKETCH: Final = 16
_LONGEST_SKETCH: Final = 1 << 12
_BUDGET: Final = 1 << 22
_ROWS: Final = 256


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Noise, or its beginning, and a bound of what rounding added to it, entry by entry.

    Of several releases, one in each row.
    """

    noise: FloatArray
    moved: FloatArray

    def __len__(self) -> int:
        return int(self.noise.shape[-1])

    def __getitem__(self, places: slice | npt.NDArray[np.int64]) -> Piece:
        return Piece(self.noise[..., places].copy(), self.moved[..., places].copy())


@dataclass(frozen=True, slots=True)
class Correlation:
    """The rarest of some tests: a shift, the cosine there, and its probability.

    chance: bound of the probability of this cosine, or a larger one, at this one shift.
    """

    shift: int
    cosine: float
    chance: float
    tests: int = 1

    def told(self, what: str, where: str = "") -> ChanceTest:
        """Make one test of all of them.

        what: the noises, as named in a sentence.
        """
        chance = math.log(self.chance) if self.chance > 0.0 else -math.inf
        text = f"{what} have the correlation {self.cosine:.6g}"
        return replace(stated(chance, text, (self.cosine, 0.0), self.tests), where=where)


def unshifted(first: Piece, second: Piece, shift: int = 0) -> Correlation:
    """Return the correlation of two independent segments of one size m ≥ 2."""
    a, b, e, f = map(np.ravel, (first.noise, second.noise, first.moved, second.moved))
    product = float(a @ b)
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    slack = float(np.abs(a) @ f + e @ np.abs(b) + e @ f)
    longest = (np.linalg.norm(a) + np.linalg.norm(e)) * (np.linalg.norm(b) + np.linalg.norm(f))
    if not 0.0 < lengths < math.inf:
        return Correlation(shift, 0.0, 1.0)
    likely = (abs(product) - slack) / float(longest)
    return Correlation(shift, product / lengths, _chance(likely, len(a)))


def _chance(likely: float, entries: int) -> float:
    """Return the probability of such a cosine, or a larger one of either sign, by chance."""
    half, cosine = (entries - 1) / 2.0, min(1.0, max(likely, 0.0))
    return min(1.0, 2.0 * float(betainc(half, half, (1.0 - cosine) / 2.0)))


def best_correlation(first: Piece, second: Piece) -> Correlation:
    """Return the correlation at the best of all shifts that leave at least `SHORTEST` places.

    At a shift, first[i] meets second[i + shift]. One noise meets itself shifted by at least one
    entry, its two halves apart.
    """
    a, b, itself = len(first), len(second), first is second
    tests, found = 2 * (a - 1) if itself else a + b - 1, [Correlation(0, 0.0, 1.0)]
    if min(a, b) < SHORTEST * (1 + itself):
        return found[0]
    shift = np.arange(1 if itself else SHORTEST - a, b - SHORTEST + 1)
    start, stop = np.maximum(0, -shift), np.minimum(a, b - shift)
    for best in _most_alike(first, second, shift, start, stop)[0 if itself else -1 :]:
        k, places = int(shift[best]), np.arange(start[best], stop[best])
        parts = [(places // k) % 2 == half for half in (0, 1)] if itself else [slice(None)]
        for chosen in (places[part] for part in parts):
            if len(chosen) >= SHORTEST:
                found.append(unshifted(first[chosen], second[chosen + k], k))
    return replace(min(found, key=lambda item: item.chance), tests=tests)


def _between(
    a: FloatArray, start: npt.NDArray[np.int64], stop: npt.NDArray[np.int64]
) -> FloatArray:
    """Return Σ a² over each of these ranges, of all rows."""
    sums = np.concatenate([[0.0], np.cumsum(np.square(np.atleast_2d(a)).sum(axis=0))])
    found: FloatArray = sums[stop] - sums[start]
    return found


def _most_alike(
    first: Piece,
    second: Piece,
    shift: npt.NDArray[np.int64],
    start: npt.NDArray[np.int64],
    stop: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """Return the places of the few best of these shifts, the best one last.

    They are ranked by the exponent of the probability. start, stop: of the places of the first
    noise that meet one of the second.
    """
    a, b = np.atleast_2d(first.noise), np.atleast_2d(second.noise)
    size = next_fast_len(len(first) + len(second) - 1, real=True)
    products = irfft((np.conj(rfft(a, size)) * rfft(b, size)).sum(axis=0), size)[shift % size]
    squares = _between(a, start, stop) * _between(b, start + shift, stop + shift)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.nan_to_num(np.square(products) / squares, nan=0.0, posinf=0.0)
    score = -(len(a) * (stop - start) - 1) * np.log1p(-np.minimum(share, _ALMOST))
    few = min(_LOOKED_AT, len(score))
    chosen = np.argpartition(score, -few)[-few:]
    return np.asarray(chosen[np.argsort(score[chosen])], dtype=np.int64)


@dataclass(slots=True, eq=False)
class Sketches:
    """Sketches of the noises on one tensor.

    places: the names of the steps. size: entries of a sketch. are_known: whether the deviation of
    each noise is stated.
    """

    name: str
    size: int
    _signs: FloatArray = field(repr=False)
    places: list[str] = field(default_factory=list)
    are_known: bool = True
    _rows: list[FloatArray] = field(default_factory=list, repr=False)
    _moved: list[FloatArray] = field(default_factory=list, repr=False)

    @classmethod
    def of(cls, name: str, entries: int, count: int) -> Sketches:
        """Return an empty set of sketches.

        entries: of the noise; count: of the sketches of all tensors at all steps.
        """
        size = min(entries, _LONGEST_SKETCH, max(_SHORTEST_SKETCH, _BUDGET // max(count, 1)))
        signs = np.random.default_rng(entries).choice([-1.0, 1.0], entries)
        return cls(name, size, np.ones(entries) if size == entries else signs)

    @property
    def pairs(self) -> int:
        """The number of tests that `most_alike` makes."""
        return len(self.places) * (len(self.places) - 1) // 2

    def take(self, place: str, piece: Piece, *, is_known: bool) -> None:
        """Add the noise of one step; noise with another number of entries is skipped."""
        if len(piece) == len(self._signs):
            self.places.append(place)
            self.are_known &= is_known
            both = folded(np.stack([self._signs * piece.noise, piece.moved]), self.size)
            self._rows.append(both[0])
            self._moved.append(both[1])

    def in_time(self) -> Piece | None:
        """Return all sketches one after another; None if deviations are not known.

        Independent noises make one noise of independent entries.
        """
        if len(self.places) < 2 or not self.are_known:
            return None
        return Piece(np.concatenate(self._rows), np.concatenate(self._moved))

    def tests(self) -> Iterator[ChanceTest]:
        """Compare the noises at every two steps, and each with that of other steps."""
        if self.pairs:
            like, first, second = self.most_alike()
            yield like.told(f"{self.name} at {first} and that at {second}", second)
        piece = self.in_time()
        if piece is not None:
            like = best_correlation(piece, piece)
            steps, entries = divmod(like.shift, self.size)
            later = f"{like.shift} entries further on" if entries else f"{steps} steps later"
            yield like.told(f"{self.name} and that {later}, all together,")

    def most_alike(self) -> tuple[Correlation, str, str]:
        """Return the least probable pair of two or more."""
        rows, moved = np.stack(self._rows), np.stack(self._moved)
        long, slack = np.linalg.norm(rows, axis=1), np.linalg.norm(moved, axis=1)
        best = (-1.0, 0, 0)
        for start in range(0, len(rows), _ROWS):
            stop = start + _ROWS
            a, e = long[start:stop, None], slack[start:stop, None]
            products = np.abs(rows[start:stop] @ rows.T) - (a * slack + e * long + e * slack)
            alike = np.triu(products / ((a + e) * (long + slack)), start + 1)
            place = int(np.argmax(alike))
            i, j = divmod(place, len(rows))
            best = max(best, (float(alike[i, j]), start + i, j))
        likely, i, j = best
        cosine = float(rows[i] @ rows[j] / (long[i] * long[j]))
        like = Correlation(0, cosine, _chance(likely, self.size), self.pairs)
        return like, self.places[i], self.places[j]


_PROBED: Final = 1 << 16
_PROBES: Final = 1 << 12
_LEAST_WIDTH: Final = 2.0**-20


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """A noise, in units of its deviation, for the comparison of its magnitudes.

    probes: some of the first half, in order, each off by at most `error`; probed: they come before
    this place. reach: e of each magnitude, from its clean gradient. counts: which may hit.
    """

    z: FloatArray
    probes: FloatArray
    probed: int
    error: float
    reach: FloatArray
    counts: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, item: AddedNoise, most: int = _PROBED) -> Self | None:
        """Return the values of this many entries; None if its deviation is not stated."""
        if not item.std:
            return None
        parts = (item.noise, item.moved, item.clean)
        z, error, clean = (part[: min(most, _PROBED)] / item.std for part in parts)
        reach = reach_of(z, error, clean)
        fine = (np.abs(z) <= LARGEST) & ~(item.is_coarse & item.is_plain)[: len(z)]
        precise = np.flatnonzero(error <= 2.0 * np.median(error))[: min(_PROBES, (len(z) + 1) // 2)]
        probes = np.sort(np.abs(z[precise]))
        largest = float(np.max(error[precise]))
        return cls(z, probes, int(precise[-1]) + 1, largest, reach, fine)

    def in_other(self, other: Values, what: str, where: str, most: int) -> ChanceTest:
        """Test whether another noise has these magnitudes, or the same noise has them further on.

        what: a description of both.
        """
        some = slice(self.probed if other is self else 0, most)
        probes, b = self.probes, np.abs(other.z[some])
        width = np.maximum(self.error + other.reach[some], _LEAST_WIDTH)
        expected = float(np.sum(np.minimum(1.0, 4.0 * len(probes) * width)))
        near = np.searchsorted(probes, b - width) < np.searchsorted(probes, b + width)
        hits = int(np.count_nonzero(near & other.counts[some]))
        tail = log_hits(hits, max(len(b), 1), expected)
        text = f"{what} have {hits} of {len(b)} magnitudes in common, in whatever order, where at "
        text += f"most {expected:.3g} are expected"
        return replace(stated(tail, text, (float(hits), expected)), where=where, kind="values")


_BITS: Final = 1 << 12
_PAIRS: Final = 1 << 20
_NEAR: Final = 2.0**-5
_FAR: Final = 1e-20


def _predicted(releases: Sequence[_Release]) -> Iterator[ChanceTest]:
    """Test whether noise follows from noise before it, as that of a weak generator does."""
    rows = [{n: item.values for n, item in one.items() if item.values} for one in releases]
    every = [values for one in rows for values in one.values()]
    for name, values in rows[0].items() if rows else ():
        length, bits = _recurrence(values.z[:_BITS]), len(values.z[:_BITS])
        unfair = bits * math.log1p(1.6 * float(np.max(values.reach[:_BITS])))
        text = f"the signs of {name} follow from the {length} before them"
        chance = (2 * length - bits) * math.log(2.0) + unfair
        yield stated(chance, text)
    off = max((float(np.max(values.reach)) for values in every), default=0.0)
    pairs = [values.z[: len(values.z) // 2 * 2].reshape(-1, 2) for values in every]
    steps = [
        np.stack([one[name].z, other[name].z], axis=1)
        for one, other in zip(rows[::2], rows[1::2], strict=False)
        for name in one
        if name in other and len(one[name].z) == len(other[name].z)
    ]
    for parts, what in ((pairs, "entries side by side"), (steps, "entries of two steps")):
        if parts:
            a, b = np.concatenate(parts)[:_PAIRS].T
            yield _follows(a, b, off, what)
            yield _follows(np.hypot(a, b), np.arctan2(b, a), off, f"length and angle of {what}")


def _recurrence(noise: FloatArray) -> int:
    """Return the length of the shortest linear recurrence of the signs (Massey, 1969).

    Polynomials over two elements are the bits of whole numbers.
    """
    found = before = 1
    length = last = past = 0
    for place, bit in enumerate((noise > 0.0).tolist(), 1):
        past = past << 1 | bit
        if (found & past).bit_count() % 2:
            changed = found ^ before << (place - last)
            if 2 * length < place:
                length, before, last = place - length, found, place
            found = changed
    return length


def _follows(first: FloatArray, second: FloatArray, off: float, what: str) -> ChanceTest:
    """Test whether numbers are alike wherever the numbers before them nearly agree."""
    shares = np.argsort(np.argsort(second)) / len(second)
    alike = shares[np.argsort(first)][: len(shares) // 2 * 2].reshape(-1, 2)
    hits, n = int(np.count_nonzero(np.abs(np.diff(alike)) <= _NEAR)), len(shares)
    near = min(1.0, _NEAR + 2.0 * (off + 1.0 / n + math.sqrt(math.log(2.0 / _FAR) / (2.0 * n))))
    expected = len(alike) * near * (2.0 - near)
    chance = np.logaddexp(log_hits(hits, max(len(alike), 1), expected), math.log(_FAR))
    text = f"noise follows from noise before it ({what}): of {len(alike)} pairs that begin alike "
    text += f"{hits} go on alike, where {expected:.4g} are expected"
    return stated(chance, text, (float(hits), expected))


_CHECK: Final = Check(
    "LC315",
    "seed-reuse",
    "seed the generator of the noise once for the whole run, differently in every rank, and draw "
    "each entry of each tensor anew from it",
)
_NOISE: Final = "the noise on"
_SIZES: Final = "the magnitudes of the noise on"
_FEWEST: Final = 1000
_LINKED: Final = 256
_WITHIN: Final = 126.0
"""More than twice the steepest slope, so that all moments exist."""
_AS_STATED: Final = 6.0
_MOST_RELEASES: Final = 24
_WHOLE: Final = 1 << 20
_WINDOW: Final = 1 << 11
_ENTRIES: Final = 1 << 23


@dataclass(frozen=True, slots=True, eq=False)
class _Drawn:
    """Noise on one tensor in one release.

    what: whether it is that noise, or its magnitudes. is_known: whether its deviation is stated.
    """

    step: str
    tensor: str
    what: str
    is_known: bool
    piece: Piece
    values: Values | None = None


_Release = Mapping[str, _Drawn]
_Pair = tuple[_Drawn, _Drawn]


@run_check(_CHECK)
def seed_reuse(run: RecordedRun) -> Iterator[Finding]:
    """Report equal states, the least probable noises, or a pass."""
    noises = [(run.name(s), s.noise) for s in run.steps if s.noise and s.noise.generator]
    releases, sketches = _recorded(run)
    tests = [*_shifted(releases), *(test for item in sketches for test in item.tests())]
    tests += [*_linked(sketches), *_predicted(releases)]
    yield from _states(noises)
    if len(noises) < 2 and not tests:
        yield "no two steps record the state of the generator or their noise"
        return
    share = SHARE / max(len(tests), 1)
    rare = [test for test in tests if test.is_too_rare(share)]
    worst = min(rare, key=lambda test: (test.kind == "values", test.log_chance), default=None)
    if worst is not None:
        yield worst.failed(_CHECK)
    yield _CHECK.passed(
        f"the noise of {len(noises)} steps was drawn from different states of the generator, and "
        f"in {len(tests)} comparisons of recorded noises none are correlated"
    )


def _linked(sketches: list[Sketches]) -> Iterator[ChanceTest]:
    """Test whether the noise on one tensor, or on half of it, follows from that on another."""
    plain = ((item, item.in_time()) for item in sketches if item.name.startswith(_NOISE))
    pieces = [(item, piece) for item, piece in plain if piece is not None]
    for (one, first), (other, second) in islice(combinations_with_replacement(pieces, 2), _LINKED):
        if one.places == other.places:
            parts, step = (first.noise, second.noise, second.moved), 1 + (one is other)
            x, y, off = (part.reshape(len(one.places), -1)[:_LINKED] for part in parts)
            chance = _log_linked(x[:, ::step], y[:, step - 1 :: step], float(np.linalg.norm(off)))
            yield stated(chance, f"{other.name} follows from {one.name}, in one way at all steps")


def _log_linked(x: FloatArray, y: FloatArray, moved: float) -> float:
    """Return ln of a bound of the probability of Q; moved is ‖F‖."""
    form, count = x @ x.T, y.shape[1]
    np.fill_diagonal(form, 0.0)
    sizes = np.linalg.eigvalsh(form)
    slack = (2.0 * float(np.linalg.norm(y)) + moved) * moved * float(np.max(np.abs(sizes)))
    unit = _WITHIN * max(float(sizes[-1]), 1e-300)

    def log_moment(slope: float) -> float:
        return float(-count / 2.0 * np.log1p(-2.0 * slope / unit * sizes).sum())

    return log_chernoff(log_moment, (float(np.vdot(form, y @ y.T)) - slack) / unit, upper=True)


def _states(noises: Sequence[tuple[str, Noise]]) -> Iterator[Finding]:
    """Report the first state that comes twice, and seeds that can be guessed.

    noises: with the steps at which they are stated.
    """
    seeds = {noise.seed: name for name, noise in reversed(noises)}
    if name := seeds.get("below 2^32"):
        yield f"whether the noise is secret: at {name} it has a seed below 2³², which may be known"
    if name := seeds.get("default"):
        why = "was never seeded: torch begins all alike, so that anyone can draw this noise"
        yield _CHECK.failed(f"the generator of the noise of {name} {why}", name)
    first: dict[str | None, str] = {}
    for name, noise in noises:
        if (before := first.setdefault(noise.generator, name)) != name:
            yield _CHECK.failed(
                f"the noise of {name} is drawn from the state of the generator from which that of "
                f"{before} was drawn",
                name,
            )
            return


def _recorded(run: RecordedRun) -> tuple[list[_Release], list[Sketches]]:
    """Return the first releases that record noise, and sketches of the noise of all of them.

    `noise` reports entries that are not finite.
    """
    found: dict[tuple[int, int], dict[str, _Drawn]] = {}
    sketches: dict[str, Sketches] = {}
    held = Counter[tuple[int, int]]()
    detailed = sum(step.gradients.noised is not None for step in run.steps)
    count = 2 * detailed * len(run.trace.manifest.parameters)
    for item in added_noises(run):
        at = (item.number, item.rank)
        if item.noise.size < 2 or not np.all(np.isfinite(item.noise)) or not np.any(item.noise):
            continue
        for what, piece in _both(item):
            name = f"{what} {item.tensor!r}"
            if name not in sketches:
                sketches[name] = Sketches.of(name, len(piece), count)
            is_known = what == _SIZES or bool(item.std)
            sketches[name].take(item.step, piece, is_known=is_known)
            if at in found or len(found) < _MOST_RELEASES:
                size = min(len(piece), _WHOLE)
                is_held = held[at] + size <= _ENTRIES // 2 and held.total() + size <= _ENTRIES
                size = size if is_held else min(size, _WINDOW)
                held[at] += size
                own = Values.of(item, size) if what == _NOISE else None
                drawn = _Drawn(item.step, item.tensor, what, is_known, piece[:size], own)
                found.setdefault(at, {})[name] = drawn
    return [found[at] for at in sorted(found)], list(sketches.values())


def _both(item: AddedNoise) -> Iterator[tuple[str, Piece]]:
    """Yield a noise in units of its deviation, if that is stated, and its magnitudes as a second
    one."""
    z, e = (part / (item.std or 1.0) for part in (item.noise, item.moved))
    yield _NOISE, Piece(z, e)
    if not item.std or len(z) < _FEWEST:
        return
    size = np.abs(z)
    y, low, high = map(_as_rare, (size, np.maximum(size - e, 0.0), size + e))
    if abs(float(np.sum(y))) > _AS_STATED * math.sqrt(len(size)):
        y, low, high = (part - np.mean(y) for part in (y, low, high))
    yield _SIZES, Piece(y, np.maximum(high - y, y - low))


def _as_rare(sizes: FloatArray) -> FloatArray:
    """Return the y for which P(Y > y) = P(|Z| > size)."""
    rare = np.clip(2.0 * ndtr(-sizes), 1e-300, 1.0 - 2.0**-53)
    found: FloatArray = -ndtri(rare)
    return found


def _shifted(releases: list[_Release]) -> Iterator[ChanceTest]:
    """Compare noises at every shift, as many of each of the five kinds as stated above."""
    itself = ((item, item) for release in releases for item in release.values())
    within = (combinations(release.values(), 2) for release in releases)
    elsewhere = (product(one.values(), other.values()) for one, other in pairwise(releases))
    pairs_of = [(pairs, _WHOLE) for pairs in (itself, _same_tensor(releases), _together(releases))]
    pairs_of += [(chain.from_iterable(parts), _WINDOW) for parts in (within, elsewhere)]
    for pairs, most in pairs_of:
        for one, other in _affordable(pairs, most):
            a = one.piece[:most]
            like = best_correlation(a, a if one is other else other.piece[:most])
            on = "" if one.tensor == other.tensor else f"on {other.tensor!r} "
            shifted = f", shifted by {like.shift} entries," if like.shift else ""
            what = f"{one.what} {one.tensor!r} at {one.step} and that {on}at {other.step}"
            yield like.told(f"{what}{shifted}", other.step)
            if one.values is not None and other.values is not None:
                yield one.values.in_other(other.values, what, other.step, most)


def _same_tensor(releases: list[_Release]) -> Iterator[_Pair]:
    """Yield the noises on one tensor in every two releases, neighbours first."""
    for distance in range(1, len(releases)):
        for first, second in zip(releases, releases[distance:], strict=False):
            for name in first:
                if name in second and len(first[name].piece) == len(second[name].piece):
                    yield first[name], second[name]


def _together(releases: list[_Release]) -> Iterator[_Pair]:
    """Yield the noises on every two tensors, and on one, those of all releases at once, shortest
    first."""
    names = releases[0] if releases else ()
    full = (n for n in names if all(n in one and one[n].is_known for one in releases))
    found = [_stacked([one[name] for one in releases]) for name in full]
    return combinations_with_replacement(sorted(found, key=lambda item: len(item.piece)), 2)


def _stacked(row: Sequence[_Drawn]) -> _Drawn:
    """Return several noises on one tensor as one."""
    size = min(len(item.piece) for item in row)
    noise = np.stack([item.piece.noise[:size] for item in row])
    moved = np.stack([item.piece.moved[:size] for item in row])
    return replace(row[0], step=f"{len(row)} steps", piece=Piece(noise, moved), values=None)


def _affordable(pairs: Iterable[_Pair], most: int) -> Iterator[_Pair]:
    """Yield pairs of one kind until `_ENTRIES` are compared, at most this many of each noise."""
    entries = 0
    for first, second in (pair for pair in pairs if pair[0].what == pair[1].what):
        entries += sum(item.piece.noise[..., :most].size for item in (first, second))
        if entries > _ENTRIES:
            return
        yield first, second
