"""A `batch_sampler` for any DataLoader, also outside of `make_private`: balls in bins."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import final

import numpy as np
from torch.utils.data import Sampler

from lipcert.errors import UsageError
from lipcert.process.one_process import OneProcess


@final
class BallsInBinsSampler(Sampler[list[int]], OneProcess):
    """Every epoch puts each example into one of ⌈N/B⌉ batches, uniformly and independently.

        loader = DataLoader(data, batch_sampler=BallsInBinsSampler(len(data), batch_size=128))

    Batches have about B examples, and may be empty. Its ε is that of `sampling="balls-in-bins"`
    (`lipcert privacy`), provided that every batch is one release and batches stay secret. An epoch
    that a loop leaves early counts as a whole one: count `--epochs`, not `--steps`.

    Args: examples: N. batch_size: B; sums of gradients are divided by this constant, never by the
        size of the batch at hand. seed: makes batches reproducible, and so not private.
    Raises: UsageError where there is no example, or no batch of that size.
    """

    def __init__(self, examples: int, batch_size: int, seed: int | None = None) -> None:
        OneProcess.__init__(self)
        if not 1 <= batch_size <= examples:
            raise UsageError(f"batch-size: {batch_size} is not between 1 and {examples} examples")
        self.examples, self.bins = examples, -(-examples // batch_size)
        self._generator = np.random.Generator(
            np.random.Philox(secrets.randbits(256) if seed is None else seed)
        )

    def __len__(self) -> int:
        """How many batches an epoch has."""
        return self.bins

    def __iter__(self) -> Iterator[list[int]]:
        """The batches of one epoch."""
        self.require_here()
        bins = self._generator.integers(0, self.bins, size=self.examples)
        return iter([np.flatnonzero(bins == number).tolist() for number in range(self.bins)])
