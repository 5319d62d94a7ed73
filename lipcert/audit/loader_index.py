"""Which examples a forward pass has, known from the sampler of the loader that they come from.

Input: a DataLoader that draws batches of indices. Output: the indices of each pass of training, in
the order of the data set. Invariant: the loader gives the batches that it would have given; its
sampler draws no more and no fewer, and stays an instance of its class.

Loaders run ahead of training, and may split what was drawn over several passes: batches are queued
as they are drawn, and passes take as many examples as they have. Where a step does not have what
was drawn for it, its examples are not recorded, with a warning; the next epoch begins anew.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator
from typing import Any, final

from torch.utils.data import DataLoader, IterableDataset

from lipcert.audit import tape
from lipcert.audit.pending_step import index_of
from lipcert.audit.trace.records import IndexArray
from lipcert.errors import UsageError


@final
class Drawn:
    """The batches that a loader has drawn and training has not had yet."""

    def __init__(self, sampler: Any, examples: int) -> None:
        self._examples = examples
        self._queue: deque[IndexArray] = deque()
        self._lost = self._is_split = False
        self._sampler, self._kind = sampler, type(sampler)
        sampler.__class__ = self._watched()

    @classmethod
    def of(cls, loader: DataLoader[Any]) -> Drawn:
        """The index of this loader; the same again where it is watched already.

        UsageError where `knows` is False. The sampler changes its class for a subclass, because
        loaders keep theirs, and others ask for its class.
        """
        if not cls.knows(loader):
            raise UsageError(
                f"recorder: this {type(loader).__name__} draws no batches of indices; describe "
                "them with recorder.batch(index=…)"
            )
        sampler: Any = loader.batch_sampler
        known = getattr(sampler, "_lipcert_drawn", None)
        dataset: Any = loader.dataset
        return known if isinstance(known, cls) else cls(sampler, len(dataset))

    @staticmethod
    def knows(loader: object) -> bool:
        """Whether there are indices to be seen."""
        is_map = isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)
        return is_map and getattr(loader, "batch_sampler", None) is not None

    def take(self, size: int) -> IndexArray | None:
        """The indices of a pass of this size; None where they are not known."""
        if self._lost:
            return None
        head = self._queue.popleft() if self._queue else None
        if head is None or size > len(head) or (not size and len(head)):
            self._lose(f"{size} examples, and the loader drew {0 if head is None else len(head)}")
            return None
        self._is_split = size < len(head)
        if self._is_split:
            self._queue.appendleft(head[size:])
        return head[:size]

    def ends(self) -> bool:
        """Whether a step may end here: with the last part of a batch."""
        if self._is_split and not self._lost:
            self._lose(f"{len(self._queue[0])} examples fewer than the loader drew")
        return not self._lost

    def _lose(self, what: str) -> None:
        self._lost = True
        warnings.warn(
            f"recorder: a step has {what}: until the next epoch it is not recorded which examples "
            "it has; train on every batch that is drawn, also on empty ones, or describe them with "
            "recorder.batch(index=…)",
            stacklevel=3,
        )

    def remove(self) -> None:
        """Stop watching the sampler of the loader."""
        self._sampler.__class__ = self._kind

    def _watched(self) -> type:
        kind, drawn = self._kind, self

        def observed(sampler: Any) -> Iterator[Any]:
            drawn._queue.clear()  # what was drawn and not trained on is forgotten
            drawn._lost = drawn._is_split = False
            twin = tape.current()
            if twin is not None:
                twin.loads(drawn._examples, sampler)
            for own in kind.__iter__(sampler):
                index = own if twin is None else twin.drawn(index_of(own)).tolist()
                drawn._queue.append(index_of(index))
                yield index

        return type(kind.__name__, (kind,), {"__iter__": observed, "_lipcert_drawn": drawn})
