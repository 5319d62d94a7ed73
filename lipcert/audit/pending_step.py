"""The step of a recording in progress, and the examples of its forward passes.

A `Flight` collects what hooks see of forward passes and losses, and what the training loop states
about them, and returns the batches of the step. Invariant: what was stated and what was seen agree,
or a UsageError says how they differ.

A `Drawn` watches a DataLoader that draws batches of indices, and returns the indices of each
training pass, in the order of the data set. Invariant: the loader yields the batches that it would
have yielded; its sampler draws no more and no fewer, and stays an instance of its class.

Loaders run ahead of training, and may split a drawn batch over several passes: batches are queued
as they are drawn, and passes take as many examples as they have. If a step does not have what was
drawn for it, its examples are not recorded, with a warning; the next epoch begins anew.
"""

from __future__ import annotations

import warnings
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from lipcert.audit import observation, tape
from lipcert.audit.observation import reduction_of
from lipcert.audit.trace.blobs import StoredTensor
from lipcert.audit.trace.records import Batch, IndexArray, Reduction, word_of
from lipcert.errors import UsageError
from lipcert.privacy.plan import Sampling
from lipcert.settings.values import check_positive, number

_LONGEST_INDEX: Final = 1 << 20


@dataclass(slots=True)
class _Pass:
    """A forward pass so far: what was stated about it, what was seen, and its output."""

    batch: Batch
    described: bool
    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    drawn: bool = False
    output: weakref.ref[Tensor] | None = None
    loss: Tensor | None = None


@dataclass(slots=True)
class Flight:
    """The step in progress.

    detailed: whether its tensors are recorded; stores: whether its examples are, too; begun:
    whether what is observed once per step was. known: members of the step besides its batches.
    """

    detailed: bool
    stores: bool
    begun: bool = False
    known: dict[str, Any] = field(default_factory=dict)
    passes: list[_Pass] = field(default_factory=list)

    def enter(
        self, inputs: Mapping[str, Tensor], stated: Batch | None, source: Tensor | None
    ) -> None:
        """Begin a forward pass.

        stated, source: what the loop stated about it before.
        """
        batch = stated or Batch()
        if "input" in inputs and inputs["input"].dim():
            batch = _of_size(batch, len(inputs["input"]))
        seen = _Pass(batch, described=stated is not None)
        if self.detailed:
            known = dict(inputs)
            if source is not None and not self.stores and "input" in inputs:
                seen.drawn = not torch.equal(source, inputs["input"])
                known["input"] = source
            seen.tensors = {name: observation.copied(item) for name, item in known.items()}
        self.passes.append(seen)

    def leave(self, output: Tensor) -> None:
        """Note the output of the forward pass."""
        self.passes[-1].output = weakref.ref(output)

    def see_loss(self, reduction: object, arguments: tuple[object, ...], result: object) -> None:
        """Attach a loss to the forward pass whose output it takes, or else to the last one without
        a loss."""
        tensors = [item for item in arguments if isinstance(item, Tensor)]
        if not (isinstance(result, Tensor) and result.requires_grad and tensors):
            return
        seen = self._pass_of(tensors[0])
        if seen is None:
            return
        seen.loss = result.detach()
        if seen.batch.reduction is None:
            seen.batch = replace(seen.batch, reduction=reduction_of(reduction, result))
        if self.detailed and len(tensors) > 1:
            labels = observation.by_example(tensors[1], seen.batch.examples)
            seen.tensors["labels"] = observation.copied(labels)

    def describe(self, stated: Batch) -> None:
        """Add a description without a forward pass after it: of the last pass, or of an empty
        batch."""
        if self.passes and not self.passes[-1].described:
            last = self.passes[-1]
            last.described = True
            batch = replace(stated, reduction=stated.reduction or last.batch.reduction)
            size = last.batch.examples
            last.batch = batch if size is None else _of_size(batch, size)
            return
        if stated.examples:
            raise UsageError(
                f"recorder: {stated.examples} examples were described, and no forward pass in "
                "training mode followed: call batch() once for each pass"
            )
        self.passes.append(_Pass(stated, described=True))

    def forget_members(self) -> None:
        """Forget which examples the step has, because the record turned out to be unreliable."""
        for seen in self.passes:
            seen.batch = replace(seen.batch, index=None)

    def batches(self) -> Iterator[tuple[Batch, Mapping[str, StoredTensor], bool]]:
        """Yield for every pass its batch with its loss, the tensors to store or name, and whether
        its inputs were moved into the domain afterwards."""
        if not self.passes:
            warnings.warn(
                "recorder: a step of the optimizer had no forward pass that was seen: call the "
                "recorded module itself, in training mode, not a part of it; an empty batch is "
                "described by recorder.batch(index=[])",
                stacklevel=2,
            )
        for seen in self.passes:
            loss = None if seen.loss is None else float(seen.loss.mean(dtype=torch.float64))
            yield replace(seen.batch, loss=loss), seen.tensors, seen.drawn

    def _pass_of(self, logits: Tensor) -> _Pass | None:
        open_passes = [seen for seen in self.passes if seen.loss is None]
        for seen in open_passes:
            if seen.output is not None and seen.output() is logits:
                return seen
        return open_passes[-1] if open_passes else None


def described(
    index: Iterable[int] | Tensor | None = None,
    sampler: Sampling | str | None = None,
    rate: float | None = None,
    reduction: Reduction | str | None = None,
    divisor: float | None = None,
) -> Batch:
    """Return what a loop states about a batch; raise UsageError if it is invalid."""
    rate = None if rate is None else number("recorder: rate", rate)
    divisor = None if divisor is None else number("recorder: divisor", divisor)
    check_positive("recorder: rate", rate)
    check_positive("recorder: divisor", divisor)
    numbers = None if index is None else index_of(index)
    return Batch(
        examples=None if numbers is None else len(numbers),
        index=numbers,
        sampler=None if sampler is None else word_of(Sampling, "sampler", sampler),
        rate=rate,
        reduction=None if reduction is None else word_of(Reduction, "reduction", reduction),
        divisor=divisor,
    )


def index_of(index: Iterable[int] | Tensor) -> IndexArray:
    """Return the indices of examples in the data; raise UsageError unless they are whole numbers ≥
    0."""
    given = index.detach().cpu().numpy() if isinstance(index, Tensor) else index
    values = given if isinstance(given, np.ndarray) else np.asarray(list(given))
    is_whole = values.dtype.kind in "iu" or not values.size
    if values.ndim != 1 or not is_whole or (values.size and values.min() < 0):
        raise UsageError("recorder: index: give one whole number, at least 0, for each example")
    if values.size > _LONGEST_INDEX:
        raise UsageError(f"recorder: index: more than {_LONGEST_INDEX} examples in one batch")
    return values.astype(np.int64)


def _of_size(batch: Batch, size: int) -> Batch:
    """Return the batch, whose input has this many rows."""
    if batch.examples not in (None, size):
        raise UsageError(
            f"recorder: {batch.examples} examples were described, and the first axis of the "
            f"network's input has {size}"
        )
    return batch if batch.examples == size else replace(batch, examples=size)


class Drawn:
    """The batches that a loader has drawn and that training has not used yet."""

    def __init__(self, sampler: Any, examples: int) -> None:
        self._examples = examples
        self._queue: deque[IndexArray] = deque()
        self._lost = self._is_split = False
        self._sampler, self._kind = sampler, type(sampler)
        sampler.__class__ = self._watched()

    @classmethod
    def of(cls, loader: DataLoader[Any]) -> Drawn:
        """Return the object that watches this loader; the same one if it is watched already.

        The sampler's class is replaced by a subclass, because loaders keep their sampler, and other
        code checks its class.

        Raises:
            UsageError: if `knows` is False.
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
        """Whether the loader draws batches of indices."""
        is_map = isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)
        return is_map and getattr(loader, "batch_sampler", None) is not None

    def take(self, size: int) -> IndexArray | None:
        """Return the indices of a pass of this size; None if they are not known."""
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
            draws = kind.__iter__(sampler)
            for own in draws if twin is None else twin.alike(draws):
                index = own if twin is None else twin.drawn(index_of(own)).tolist()
                drawn._queue.append(index_of(index))
                yield index

        return type(kind.__name__, (kind,), {"__iter__": observed, "_lipcert_drawn": drawn})
