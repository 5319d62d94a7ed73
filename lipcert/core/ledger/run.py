"""A-SAMPLING and A-STEPWISE: the training run that ε is stated for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lipcert.core.certificate import CertificateFormatError, read
from lipcert.core.codec import Bound
from lipcert.core.ledger import SAMPLING, STEPWISE

_SCHEMES: Final = frozenset(
    {"poisson", "without-replacement", "shuffle", "balls-in-bins", "full-batch"}
)
_BY_EPOCH: Final = frozenset({"shuffle", "balls-in-bins"})
_SIZES: Final = frozenset({"declared", "data"})


@dataclass(frozen=True, slots=True)
class Run:
    """The training run that ε is stated for.

    participations: the largest number of steps whose batches hold one example (of an epoch's
        disjoint batches).
    size: where N comes from; None where an earlier certificate does not say.
    """

    scheme: str
    dataset_size: int
    batch_size: int
    steps: int
    participations: int
    size: str | None = None

    @classmethod
    def read(cls, data: Mapping[str, object]) -> Run:
        """From the data of A-SAMPLING."""
        run = read(cls, data, SAMPLING)
        fits = 1 <= run.batch_size <= run.dataset_size and 1 <= run.participations <= run.steps
        whole = run.is_by_epoch or run.participations == run.steps
        full = run.scheme != "full-batch" or run.batch_size == run.dataset_size
        said = run.size is None or run.size in _SIZES
        if run.scheme not in _SCHEMES or not (
            said and fits and whole and full and run.is_possible()
        ):
            raise CertificateFormatError(f"{SAMPLING} describes no run")
        return run

    @property
    def is_by_epoch(self) -> bool:
        """Whether an example is in one batch of every epoch, so that epochs are what counts."""
        return self.scheme in _BY_EPOCH

    def is_possible(self) -> bool:
        """Whether some example may indeed be in no more batches than is said.

        Proof: an epoch of disjoint batches has at most ⌈N/B⌉ of them, so that T steps begin at
        least T/⌈N/B⌉ epochs, and an example is in one batch of each that is complete.
        """
        return self.steps <= self.participations * -(-self.dataset_size // self.batch_size)


@dataclass(frozen=True, slots=True)
class _Stepwise:
    noise_multiplier: Bound


def read_run(known: Mapping[str, Mapping[str, object]]) -> tuple[Run | None, float | None]:
    """The run, and the multiplier of the noise of every step, from the data of assumptions."""
    run = Run.read(known[SAMPLING]) if SAMPLING in known else None
    noise = read(_Stepwise, known[STEPWISE], STEPWISE) if STEPWISE in known else None
    return run, None if noise is None else noise.noise_multiplier
