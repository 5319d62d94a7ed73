"""Loader: the batches of a private run, one for each release, from the user's own DataLoader.

A `Sampler` draws which examples take part in each release, as the accounting assumes: it takes a
`TrainingPlan`, a seed and the rank of this process, and returns one `Drawn` for each release.
Invariant: over all ranks together the draws are exactly those of the plan. Probabilities are ratios
of integers, never rounded, and follow from the N of the plan, a public constant, never from the
number of examples. No state of a generator ever leaves the process: its reader would know the
coming batches, and amplification by sampling assumes that they are secret. `BallsInBinsSampler` is
a `batch_sampler` for any DataLoader, also outside of `make_private`.

A `PrivateLoader` keeps everything of a DataLoader except its choice of examples. It yields the
result of collate_fn once for each release, until the budget is spent; an empty batch has the same
form with no examples. Invariant: every batch that is drawn is released exactly once and in order.
Dropping a batch because of its content, or using one twice, would be a different mechanism from the
one that is accounted for.

Batches are cut along the axis of examples: the first axis of all tensors and arrays in any nesting
of tuples, lists and mappings, which must all have equally many examples; anything else is refused,
because its axis of examples is unknown.
"""

import copy
import operator
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sized
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from torch import Tensor
from torch.utils import data
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
)

from lipcert.audit import tape
from lipcert.audit.trace.records import IndexArray
from lipcert.errors import UsageError
from lipcert.privacy.plan import Sampling, TrainingPlan
from lipcert.process.progress import ProgressReport
from lipcert.training.ledger import Ledger
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


_CONSTANTS: Final = (str, bytes, bool, int, float, type(None))
_PLAIN: Final = (SequentialSampler, RandomSampler, DistributedSampler)
"""Samplers that choose among all examples, so that another sampler may replace them."""
_APART: Final = 2**40
"""More examples than any dataset has."""


def examples_in(batch: Any) -> int:
    """Return how many examples a structure holds; raise UsageError if its tensors disagree."""
    sizes = {_length(leaf) for leaf in _tensors(batch)}
    if len(sizes) != 1:
        found = "no tensor" if not sizes else f"first axes of sizes {sorted(sizes)}"
        raise UsageError(
            f"batch: {found}, so that the number of examples is unknown; let collate_fn put the "
            "examples along the first axis of every tensor"
        )
    return sizes.pop()


def split(batch: Any, size: int) -> Iterator[Any]:
    """Cut the structure into slices of at most `size` examples; an empty one gives one empty
    slice."""
    if size < 1:
        raise UsageError(f"batch: slices of {size} examples; give 1 or more")
    total = examples_in(batch)
    for start in range(0, max(total, 1), size):
        yield _sliced(batch, total, slice(start, start + size))


def empty_batch(dataset: Any, collate: Callable[[list[Any]], Any]) -> Any:
    """Return what `collate` would give for no examples; it is never called on an empty list.

    The form is learnt from example 0 alone and from two copies of it. If the two, cut to no
    examples, differ, the rest depends on the examples, and a UsageError says so.
    """
    bare = []
    for count in (1, 2):
        batch = collate([dataset[0] for _ in range(count)])
        if examples_in(batch) != count:
            raise _unknown(f"{count} examples come out of collate_fn as {examples_in(batch)}")
        bare.append(_sliced(batch, count, slice(0)))
    if not _alike(*bare):
        raise _unknown("collate_fn returns, besides one row for each example, what depends on them")
    return bare[0]


def _tensors(value: Any) -> Iterator[Tensor | np.ndarray[Any, Any]]:
    if isinstance(value, Tensor | np.ndarray):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)
    elif not isinstance(value, _CONSTANTS):
        raise _unknown(f"a {type(value).__name__} cannot be cut")


def _length(leaf: Tensor | np.ndarray[Any, Any]) -> int:
    if leaf.ndim == 0:
        raise _unknown("a single number stands for all examples together")
    return len(leaf)


def _sliced(value: Any, total: int, part: slice) -> Any:
    """Return this part of a structure of `total` examples; lists of plain values of that length are
    cut, too."""
    if isinstance(value, Tensor):
        return value[part] if part.stop else value.new_empty((0, *value.shape[1:]))
    if isinstance(value, np.ndarray):
        return value[part] if part.stop else np.empty((0, *value.shape[1:]), value.dtype)
    if isinstance(value, Mapping):
        return _mapped(value, {key: _sliced(item, total, part) for key, item in value.items()})
    if isinstance(value, tuple | list):
        if value and len(value) == total and all(isinstance(item, _CONSTANTS) for item in value):
            return value[part]
        return _sequence(value, [_sliced(item, total, part) for item in value])
    return value


def _mapped(like: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    if isinstance(like, MutableMapping):  # one of another class may take other arguments
        clone = copy.copy(like)
        clone.update(items)
        return clone
    return type(like)(items)  # type: ignore[call-arg]


def _sequence(like: tuple[Any, ...] | list[Any], items: list[Any]) -> Any:
    if isinstance(like, tuple) and hasattr(like, "_fields"):
        return type(like)(*items)
    return type(like)(items)


def _alike(first: Any, second: Any) -> bool:
    """Whether two structures without examples are the same."""
    if type(first) is not type(second):
        return False
    if isinstance(first, Tensor | np.ndarray):
        return bool(first.dtype == second.dtype and first.shape == second.shape)
    if isinstance(first, Mapping):
        return first.keys() == second.keys() and all(_alike(first[k], second[k]) for k in first)
    if isinstance(first, tuple | list):
        return len(first) == len(second) and all(map(_alike, first, second))
    return bool(first == second)


def _unknown(reason: str) -> UsageError:
    return UsageError(
        f"batch: {reason}; a batch that happens to be empty must have the form of the others, so "
        "collate_fn has to give tensors (in tuples, lists, mappings) with one row for each example"
    )


class PrivateLoader:
    """Iterates over Poisson (or otherwise drawn) batches while releases are left.

    on_batch: called with the index of every batch before the batch is yielded. progress: shown
    while batches are requested. Iterating again continues where the last iteration stopped; if a
    batch was yielded and not released, it comes first. Worker processes load ahead; their seeds for
    data augmentation are not managed here.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        sampler: Sampler,
        budget: Ledger,
        on_batch: Callable[[IndexArray], None] | None = None,
        progress: ProgressReport | None = None,
    ) -> None:
        require_drawable(loader)
        count = len(loader.dataset)  # type: ignore[arg-type]
        if count != sampler.examples:
            raise UsageError(
                f"loader: the dataset has {count} examples, and its sampler draws from "
                f"{sampler.examples}"
            )
        if sampler.step != budget.releases:
            raise UsageError(
                f"loader: the sampler begins with release {sampler.step}, and {budget.releases} "
                "have been spent; give it first=ledger.releases"
            )
        self.dataset = loader.dataset
        self._sampler, self._budget, self._on_batch = sampler, budget, on_batch
        self._progress = ProgressReport(wanted=False) if progress is None else progress
        fills = len(loader.dataset) >= sampler.plan.dataset_size  # type: ignore[arg-type]
        always = fills and sampler.ranks == 1 and not sampler.plan.sampling.one_by_one
        self._empty = empty_batch(loader.dataset, loader.collate_fn) if not always else None
        self._drawn: deque[Drawn] = deque()  # and not yet loaded, in order
        self._loader = _with_batches(loader, _Indices(sampler, self._drawn))
        self._loading: Iterator[Any] | None = None
        self._loaded: deque[tuple[Drawn, Any]] = deque()  # and not yet released, in order
        self._index: IndexArray | None = None

    @property
    def index(self) -> IndexArray | None:
        """The indices of the examples in the last batch; None before the first."""
        return self._index

    def __len__(self) -> int:
        """Return how many batches are still to come."""
        return max(0, self._budget.left)

    def __iter__(self) -> Iterator[Any]:
        """Yield one batch for each release that is left."""
        with self._progress:
            yield from self._batches()

    def _batches(self) -> Iterator[Any]:
        self._drop_released()
        while self._budget.left > 0:
            self._sampler.require_here()
            made = self._budget.releases
            self._progress.observe("private releases", made, made + self._budget.left)
            if not self._loaded:
                self._load()
            drawn, batch = self._loaded[0]
            self._index = drawn.index
            if self._on_batch is not None:
                self._on_batch(drawn.index)
            yield batch
            if not self._drop_released():
                raise UsageError(
                    f"loader: batch {drawn.step} was not released before the next was requested; "
                    "call optimizer.step() once for every batch, empty ones too, and evaluate on "
                    "a loader of your own"
                )
        self._loading = None  # lets the worker processes end

    def _drop_released(self) -> bool:
        """Return whether the last batch has been released; if so, forget it."""
        made = self._budget.releases - self._loaded[0][0].step if self._loaded else 0
        if made > 1:
            raise UsageError(
                f"loader: {made} releases were made from one batch, and one was accounted for; "
                "call optimizer.step() once for every batch of this loader"
            )
        if made == 1:
            self._loaded.popleft()
        return made == 1

    def _load(self) -> None:
        """Load the next batch that is not empty, and queue the empty ones before it.

        After a failure, draws that were not loaded are loaded next, not drawn again.
        """
        loading = iter(self._loader) if self._loading is None else self._loading
        self._loading = None
        batch = next(loading)
        while not (drawn := self._drawn.popleft()).index.size:
            self._loaded.append((drawn, self._empty))
        self._loaded.append((drawn, batch))
        self._loading = loading


class _Indices:
    """Endless indices of batches for torch's loader; empty batches are left out.

    drawn: all batches that were drawn and not yet loaded, in order, including empty ones.
    """

    def __init__(self, sampler: Sampler, drawn: deque[Drawn]) -> None:
        self._sampler, self._drawn = sampler, drawn

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the indices of batches drawn earlier and not loaded, then draw new ones."""
        for drawn in tuple(self._drawn):
            if drawn.index.size:
                yield drawn.index.tolist()
        while True:
            drawn = self._sampler.draw()
            self._drawn.append(drawn)
            if drawn.index.size:
                yield drawn.index.tolist()


def require_drawable(loader: DataLoader[Any]) -> None:
    """Raise UsageError if another choice of examples would change what the loader means."""
    if isinstance(loader.dataset, IterableDataset) or not isinstance(loader.dataset, Sized):
        raise UsageError(
            f"loader: examples of the {type(loader.dataset).__name__} cannot be drawn by their "
            "index, as private sampling must; give a data set with __getitem__ and __len__ (a list "
            "of examples has both)"
        )
    if loader.batch_size is None:
        raise UsageError(
            "loader: a batch_sampler of its own, or batch_size=None, makes batches that differ "
            "from those accounted for; give batch_size, and leave the sampling to make_private"
        )
    if type(loader.batch_sampler) is not BatchSampler or type(loader.sampler) not in _PLAIN:
        raise UsageError(
            f"loader: its sampler {type(loader.sampler).__name__} would be replaced, and may have "
            "weighted or left out examples; put the choice into the dataset (torch's Subset), and "
            "leave the sampling to make_private"
        )
    _refuse_repeated(loader.dataset)


def _refuse_repeated(dataset: Any) -> None:
    """Raise UsageError if a Subset or a ConcatDataset, however nested, holds an example twice."""
    if not isinstance(dataset, Subset | ConcatDataset):
        return
    try:
        places = _places(dataset, {})
    except (TypeError, ValueError, IndexError) as error:
        raise UsageError(
            f"loader: the examples of the {type(dataset).__name__} cannot be identified ({error}); "
            "let its indices be whole numbers, and the dataset below it have __len__"
        ) from error
    if len(np.unique(places)) < len(places):
        raise UsageError(
            f"loader: the {type(dataset).__name__} holds some examples more than once, so one of "
            "them can change more than a single example may; let it hold each once"
        )


def _places(dataset: Any, starts: dict[int, int]) -> IndexArray:
    """Return a number for every example; two are equal if and only if they are one place of one
    dataset.

    starts: the number of place 0 of each dataset, by identity; all datasets stay alive meanwhile.
    """
    if isinstance(dataset, Subset):
        chosen = [operator.index(item) for item in dataset.indices]
        return _places(dataset.dataset, starts)[np.array(chosen, dtype=np.int64)]
    if isinstance(dataset, ConcatDataset):
        return np.concatenate([_places(part, starts) for part in dataset.datasets])
    start = starts.setdefault(id(dataset), len(starts) * _APART)
    return np.arange(start, start + len(dataset), dtype=np.int64)


def _with_batches(loader: DataLoader[Any], indices: _Indices) -> DataLoader[Any]:
    """Return the user's loader over the same dataset with these batches, in order."""
    return DataLoader(
        loader.dataset,
        batch_sampler=indices,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
    )
