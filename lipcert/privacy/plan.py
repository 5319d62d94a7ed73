"""Plan: how a training run draws its batches, how long it is, and the δ of its statement.

A plan knows the number of releases, and of those in which one example takes part. Invariant: every
instance has a combination of sampling and neighbouring relation for which a proof is known; any
other one is a `UsageError` that says what to change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Final

from lipcert.core.arithmetic import round_up
from lipcert.errors import UsageError
from lipcert.privacy.noise import Neighbouring
from lipcert.settings.settings import kinds_of
from lipcert.settings.values import asks_of_run, check_positive, convert, missing

_SIMPLE: Final = 2**26
_LARGEST: Final = 2**53  # every integer up to here is a float64


class Sampling(Enum):
    """How the examples of a step are drawn; steps are independent unless drawn `by_epoch`."""

    POISSON = "poisson"
    """Every example independently with probability B/N; B is the expected batch size."""
    BALLS_IN_BINS = "balls-in-bins"
    """Every epoch puts each example into one of its ⌈N/B⌉ batches, uniformly and independently."""
    WITHOUT_REPLACEMENT = "without-replacement"
    """A uniform subset of exactly B examples, drawn anew for every step."""
    SHUFFLE = "shuffle"
    """Every epoch splits the data into disjoint batches, in a random or a fixed order."""
    FULL_BATCH = "full-batch"
    """All examples in every step."""

    @property
    def by_epoch(self) -> bool:
        """Whether the batches of an epoch are disjoint, and an example is in one of them."""
        return self in {Sampling.BALLS_IN_BINS, Sampling.SHUFFLE}

    @property
    def one_by_one(self) -> bool:
        """Whether examples are drawn independently of one another, so that batch sizes vary."""
        return self in {Sampling.POISSON, Sampling.BALLS_IN_BINS}

    @property
    def amplifies(self) -> bool:
        """Whether privacy is amplified, provided that the batches stay secret."""
        return self not in {Sampling.SHUFFLE, Sampling.FULL_BATCH}


class SizeSource(Enum):
    """Where N comes from, and with it the sampling rate, the divisor and the number of steps."""

    DECLARED = "declared"
    """A public constant, the same for neighbouring data sets."""
    DATA = "data"
    """The length of the private data set."""


_REFUSED: Final[Mapping[tuple[Sampling, Neighbouring], str]] = MappingProxyType(
    {
        (Sampling.WITHOUT_REPLACEMENT, Neighbouring.ADD_OR_REMOVE_ONE): (
            "without-replacement sampling has a sound account for data sets of one size only; "
            "use neighbours replace-one"
        ),
        (Sampling.WITHOUT_REPLACEMENT, Neighbouring.ZERO_OUT): (
            "without-replacement sampling has no sound account for zero-out; "
            "use neighbours replace-one"
        ),
        (Sampling.BALLS_IN_BINS, Neighbouring.REPLACE_ONE): (
            "balls in bins have a proof for one example more, less or left out; use neighbours "
            "add-remove or zero-out"
        ),
        (Sampling.SHUFFLE, Neighbouring.ADD_OR_REMOVE_ONE): (
            "removing one example moves all later ones into other batches of the epoch, so every "
            "batch may change; use neighbours replace-one, or zero-out if an absent example "
            "leaves its place empty, or draw balls-in-bins, at a fraction of the ε"
        ),
    }
)


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """A run that releases noised gradients of `batch_size` examples out of `dataset_size`.

    batch_size: also the public constant that a mean divides by; may be left out for full batches.
    Exactly one of steps and epochs is given; a partial step or epoch counts as a whole one.
    delta: the δ of the (ε, δ) statement. dataset_size_from: the origin of dataset_size.
    rate: the probability with which an example is drawn, if it is not B/N (loaders that draw at
    1 over their length, for example); for Poisson samples only. trials: the number of such runs,
    each of which costs no more than the one described, at any δ; `releases` and `participations`
    count one run.
    """

    dataset_size: int
    sampling: Sampling
    delta: float
    batch_size: int | None = None
    steps: int | None = None
    epochs: float | None = None
    neighbours: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE
    dataset_size_from: SizeSource = SizeSource.DECLARED
    rate: float | None = None
    trials: int = 1

    def __post_init__(self) -> None:
        convert(self, kinds_of(TrainingPlan))
        _count("dataset-size", self.dataset_size)
        _count("trials", self.trials)
        if not 0.0 < self.delta < 1.0:
            raise UsageError(f"delta: {self.delta!r} is not between 0 and 1; give 1e-5, say")
        reason = _REFUSED.get((self.sampling, self.neighbours))
        if reason:
            raise UsageError(f"neighbours: {reason}")
        self._check_batch()
        self._check_rate()
        self._check_length()

    @classmethod
    def described(cls, given: Mapping[str, Any]) -> TrainingPlan:
        """Return the plan in values named like settings; other names are ignored.

        Raises:
            UsageError: which lists what is missing.
        """
        asks = asks_of_run(given)
        if asks:
            raise missing(asks)
        same = ("dataset_size", "delta", "batch_size", "steps", "epochs")
        numbers: dict[str, Any] = {name: given.get(name) for name in same}
        return cls(
            **numbers,
            sampling=Sampling(given["sampling"]),
            neighbours=Neighbouring(given.get("neighbours") or Neighbouring.ADD_OR_REMOVE_ONE),
            dataset_size_from=SizeSource(given.get("dataset_size_from") or SizeSource.DECLARED),
            rate=given.get("sampling_rate"),
            trials=given.get("trials") or 1,
        )

    @property
    def batch(self) -> int:
        """B: the batch size; the number of all examples if none was given."""
        return self.dataset_size if self.batch_size is None else self.batch_size

    @property
    def sampling_rate(self) -> float:
        """q, as stated or B/N, rounded up; never above 1."""
        return min(1.0, round_up(self._share))

    @property
    def size_tells(self) -> bool:
        """Whether neighbouring data sets have different N, and so different rates for everyone."""
        moves = self.neighbours is Neighbouring.ADD_OR_REMOVE_ONE
        return moves and self.dataset_size_from is SizeSource.DATA

    @property
    def releases(self) -> int:
        """T: the number of noised gradients that are released."""
        if self.steps is not None:
            return self.steps
        per_epoch = 1 / self._share
        if self.sampling.by_epoch:
            per_epoch = Fraction(self.batches_per_epoch)
        return math.ceil(self._epochs * per_epoch)

    @property
    def batches_per_epoch(self) -> int:
        """⌈N/B⌉; the last batch of a shuffled epoch is short if B does not divide N."""
        return -(-self.dataset_size // self.batch)

    @property
    def participations(self) -> int:
        """Upper bound of the number of releases that the batches of one example enter.

        Proof (by epoch): the batches of an epoch are disjoint, so one example is in at most one.
        T steps of a shuffle begin at most ⌈T/⌊N/B⌋⌉ epochs, whether or not a smaller last batch is
        dropped; balls in bins have ⌈N/B⌉ batches an epoch, none dropped. Under the other samplings
        an example may be in every batch.
        """
        if not self.sampling.by_epoch:
            return self.releases
        if self.steps is None:
            return math.ceil(self._epochs)
        shuffled = self.sampling is Sampling.SHUFFLE
        least = self.dataset_size // self.batch if shuffled else self.batches_per_epoch
        return math.ceil(Fraction(self.steps, least))

    def with_steps(self, steps: int) -> TrainingPlan:
        """Return the same run with another number of steps."""
        return replace(self, steps=steps, epochs=None)

    @property
    def _share(self) -> Fraction:
        """q exactly. A stated one is the simplest fraction with this float64, such as 1/45."""
        if self.rate is None:
            return Fraction(self.batch, self.dataset_size)
        simple = Fraction(self.rate).limit_denominator(_SIMPLE)
        return simple if float(simple) == self.rate else Fraction(self.rate)

    @property
    def _epochs(self) -> Fraction:
        return Fraction(self.epochs or 0)

    def _check_batch(self) -> None:
        if self.batch_size is None:
            if self.sampling is not Sampling.FULL_BATCH:
                raise UsageError(f"batch-size: {self.sampling.value} sampling needs one; give B")
            return
        _count("batch-size", self.batch_size)
        if self.batch_size > self.dataset_size:
            raise UsageError(
                f"batch-size: {self.batch_size} of {self.dataset_size} examples is a sampling "
                "rate above 1; give B ≤ N"
            )
        if self.sampling is Sampling.FULL_BATCH and self.batch_size != self.dataset_size:
            raise UsageError(
                f"batch-size: a full batch holds all {self.dataset_size} examples, not "
                f"{self.batch_size}; leave it out or choose another sampling"
            )

    def _check_rate(self) -> None:
        if self.rate is None:
            return
        if self.sampling is not Sampling.POISSON:
            raise UsageError(
                f"sampling-rate: {self.sampling.value} sampling has only the rate B/N; leave it out"
            )
        if not 2.0**-53 <= self.rate <= 1.0:
            raise UsageError(
                f"sampling-rate: {self.rate!r} is not a probability; give for example 1/45"
            )

    def _check_length(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise UsageError("steps: give exactly one of steps and epochs")
        if self.steps is not None:
            _count("steps", self.steps)
        if self.epochs is not None:
            check_positive("epochs", self.epochs)
            _count("epochs", self.releases)


def _count(key: str, value: int) -> None:
    if not 1 <= value <= _LARGEST:
        raise UsageError(f"{key}: {value!r} is not a whole number from 1 to 2^53")
