"""Sampling: draw which examples take part in each release, as the accounting assumes.

A `Sampler` takes a `TrainingPlan`, a seed and the rank of this process, and returns one `Drawn` for
each release. Invariant: over all ranks together the draws are exactly those of the plan.
Probabilities are ratios of integers, never rounded, and follow from the N of the plan, a public
constant, never from the number of examples. No state of a generator ever leaves the process: its
reader would know the coming batches, and amplification by sampling assumes that they are secret.

`BallsInBinsSampler` is a `batch_sampler` for any DataLoader, also outside of `make_private`.
"""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from torch.utils import data

from lipcert.audit import tape
from lipcert.audit.trace.records import IndexArray
from lipcert.errors import UsageError
from lipcert.privacy.plan import Sampling, TrainingPlan
from lipcert.training.world import OneProcess

_BITS: Final = 256


def checked_seed(seed: int) -> int:
    """Return a given seed; raise UsageError unless it is a whole number ≥ 0."""
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise UsageError("seed: give a whole number, 0 or more")
    return seed


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """This rank's part of the batch of one release.

    step: counted from 0 over the run.
    """

    step: int
    index: IndexArray


class Sampler(OneProcess):
    """Draws the batches of a plan, one after the other, from release number `first` on.

    With R ranks, each rank draws from its part of the data, or takes its part of a common draw:

    Poisson: rank r draws only from its own examples r, r + R, …. Every example is drawn by one
    rank, independently of all others, with probability B/N: this is Poisson sampling of the whole,
    whatever the ranks know of one another.

    Balls in bins: likewise, rank r puts its own examples into the bins of an epoch.

    Without replacement, shuffle: all ranks make the same draw from one shared seed, and rank r
    takes its places r, r + R, …. They must therefore be given the same seed. Of N places, those
    without an example stay empty: such a batch has fewer examples, and the others keep their rate.

    seed: determines the batches; None: a secret of this process. examples: how many there are; by
    default N.

    A resumed run draws anew: the seed is mixed with `first`, so that even a given seed does not
    repeat earlier batches. An interrupted epoch of disjoint batches cannot be continued, because it
    is unknown which example was in which batch; `Ledger` counts the rest of it as spent, and here
    `first` must be the beginning of an epoch, or an example might take part twice in what counts as
    one epoch.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        seed: int | None = None,
        *,
        rank: int = 0,
        ranks: int = 1,
        first: int = 0,
        examples: int | None = None,
    ) -> None:
        super().__init__()
        present = plan.dataset_size if examples is None else examples
        _check_present(plan, present)
        if not 0 <= rank < ranks:
            raise UsageError(f"sampling: rank {rank} of {ranks} ranks")
        if ranks > plan.batch:
            raise UsageError(
                f"sampling: a batch of {plan.batch} examples leaves some of {ranks} ranks without "
                "work; use fewer, or a larger batch"
            )
        alone = plan.sampling.one_by_one or plan.sampling is Sampling.FULL_BATCH
        if ranks > 1 and seed is None and not alone:
            raise UsageError(
                f"sampling: {plan.sampling.value} batches are drawn by all ranks alike; give all "
                "of them the secret of one as their seed"
            )
        if first < 0 or (plan.sampling.by_epoch and first % plan.batches_per_epoch):
            raise UsageError(
                f"sampling: release {first} does not begin an epoch of "
                f"{plan.batches_per_epoch} batches; count the rest of the last one as spent"
            )
        self.plan, self.rank, self.ranks = plan, rank, ranks
        self._step = first
        own = (first, rank) if alone else (first,)
        entropy = secrets.randbits(_BITS) if seed is None else checked_seed(seed)
        self._generator = np.random.Generator(
            np.random.Philox(np.random.SeedSequence(entropy, spawn_key=own))
        )
        self._present = present
        self._part = np.arange(rank, present, ranks, dtype=np.int64)
        self._order = np.arange(plan.dataset_size, dtype=np.int64)
        self._bins = np.zeros(len(self._part), dtype=np.int64)
        twin = tape.current()
        if twin is not None:
            twin.loads(present)

    @property
    def examples(self) -> int:
        """The number of examples that are present."""
        return self._present

    @property
    def step(self) -> int:
        """The number of the release that is drawn next."""
        return self._step

    def draw(self) -> Drawn:
        """Return the next batch; it may be empty."""
        self.require_here()
        index = self._drawn()
        twin = tape.current()
        index = index if twin is None else twin.drawn(index)
        index.setflags(write=False)
        step = self._step
        self._step += 1
        return Drawn(step, index)

    def _drawn(self) -> IndexArray:
        match self.plan.sampling:
            case Sampling.POISSON:
                return self._poisson()
            case Sampling.BALLS_IN_BINS:
                return self._next_bin()
            case Sampling.WITHOUT_REPLACEMENT:
                return self._shared(
                    self._generator.choice(self._order, self.plan.batch, replace=False)
                )
            case Sampling.SHUFFLE:
                return self._shared(self._next_of_epoch())
            case Sampling.FULL_BATCH:
                return self._part.copy()

    def _poisson(self) -> IndexArray:
        """Draw every example of this rank's part independently, with probability exactly B/N.

        Proof: `integers` draws uniformly from the N numbers 0 … N−1 (Lemire's method with
        rejection, no rounding), and B of them are below B.
        """
        count = self.plan.dataset_size
        drawn = self._generator.integers(0, count, size=len(self._part))
        return self._part[drawn < self.plan.batch]

    def _next_bin(self) -> IndexArray:
        """Return the examples of this rank's part in the next bin; `integers` draws bins uniformly,
        unrounded."""
        place = self._step % self.plan.batches_per_epoch
        if place == 0:
            bins = self.plan.batches_per_epoch
            self._bins = self._generator.integers(0, bins, size=len(self._part))
        drawn: IndexArray = self._part[self._bins == place]
        return drawn

    def _next_of_epoch(self) -> IndexArray:
        place = self._step % self.plan.batches_per_epoch
        if place == 0:
            self._order = self._generator.permutation(self.plan.dataset_size)
        return self._order[place * self.plan.batch : (place + 1) * self.plan.batch]

    def _shared(self, index: IndexArray) -> IndexArray:
        """Return this rank's share of a draw that all ranks make, without examples that are
        absent."""
        own = index[self.rank :: self.ranks]
        return own[own < self._present].copy()


def _check_present(plan: TrainingPlan, present: int) -> None:
    """Raise UsageError if some examples would never be drawn."""
    if present < 1:
        raise UsageError("sampling: there are no examples")
    by_place = plan.sampling in {Sampling.WITHOUT_REPLACEMENT, Sampling.SHUFFLE}
    if by_place and present > plan.dataset_size:
        raise UsageError(
            f"sampling: {plan.sampling.value} batches are drawn from N = {plan.dataset_size} "
            f"places, and there are {present} examples; declare a dataset_size that holds them all"
        )


class BallsInBinsSampler(data.Sampler[list[int]], OneProcess):
    """A batch sampler that puts each example into one of ⌈N/B⌉ batches per epoch, uniformly and
    independently.

        loader = DataLoader(data, batch_sampler=BallsInBinsSampler(len(data), batch_size=128))

    Batches have about B examples, and may be empty. The ε is that of `sampling="balls-in-bins"`
    (`lipcert privacy`), provided that every batch is one release and batches stay secret. An epoch
    that a loop leaves early counts as a whole one: count `--epochs`, not `--steps`.

    Args:
        examples: N, the number of examples.
        batch_size: B; sums of gradients are divided by this constant, never by the size of the
            current batch.
        seed: makes batches reproducible, and therefore not private.

    Raises:
        UsageError: if there is no example, or no batch of that size.
    """

    def __init__(self, examples: int, batch_size: int, seed: int | None = None) -> None:
        OneProcess.__init__(self)
        if not 1 <= batch_size <= examples:
            raise UsageError(f"batch-size: {batch_size} is not between 1 and {examples} examples")
        self.examples, self.bins = examples, -(-examples // batch_size)
        self._generator = np.random.Generator(
            np.random.Philox(secrets.randbits(_BITS) if seed is None else seed)
        )

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return self.bins

    def __iter__(self) -> Iterator[list[int]]:
        """Return the batches of one epoch."""
        self.require_here()
        bins = self._generator.integers(0, self.bins, size=self.examples)
        return iter([np.flatnonzero(bins == number).tolist() for number in range(self.bins)])
