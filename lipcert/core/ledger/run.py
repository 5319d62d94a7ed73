"""A-SAMPLING: the run for which ε is stated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lipcert.core.certificate import CertificateFormatError, read
from lipcert.core.ledger import SAMPLING

_SCHEMES: Final = frozenset(
    {"poisson", "without-replacement", "shuffle", "balls-in-bins", "full-batch"}
)
_BY_EPOCH: Final = frozenset({"shuffle", "balls-in-bins"})
_SIZES: Final = frozenset({"declared", "data"})


@dataclass(frozen=True, slots=True)
class Run:
    """The training run for which ε is stated.

    participations: the largest number of steps whose batches contain one example; it is less than
        `steps` only if an example is in one batch of every epoch.
    size: where N comes from; None if an earlier certificate does not say.
    """

    scheme: str
    dataset_size: int
    batch_size: int
    steps: int
    participations: int
    size: str | None = None

    @classmethod
    def read(cls, data: Mapping[str, object]) -> Run:
        """Read the run from the data of A-SAMPLING; refuse one that is impossible."""
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
        """Whether an example is in one batch of every epoch, so that epochs are counted."""
        return self.scheme in _BY_EPOCH

    def is_possible(self) -> bool:
        """Whether an example can indeed be in no more batches than `participations`.

        Proof: an epoch of disjoint batches has at most ⌈N/B⌉ of them, so that T steps begin at
        least T/⌈N/B⌉ epochs, and an example is in one batch of each complete epoch.
        """
        return self.steps <= self.participations * -(-self.dataset_size // self.batch_size)
