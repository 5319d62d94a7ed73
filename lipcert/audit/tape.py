"""Tape: a record of everything that a training run does and that may depend on an example.

The tape is called where batches are drawn, inputs enter the network, gradients are noised and
optimizers step. For each release and step it stores digests of what was done. For two runs, it
finds the first thing that differs, in causal order: account, loader, weights, inputs, outputs,
clean sums, noise, options of the optimizer, the gradient as it is applied, the update.

The second run gets the batches of the first, begins each step with the same state of the global
generators, and draws the same noise. So releases without the example are the same, bit for bit, and
digests suffice for them. For a release that has the example, or may have it, the clean and the
noised sum are kept: the second run continues with the noised sum of the first.
"""

from __future__ import annotations

import hashlib
import math
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from lipcert.audit.trace.records import IndexArray
from lipcert.privacy.noise import Neighbouring

_ROUNDING: Final = 1e-5
"""Share of the larger clean sum by which the order of additions may change it."""
_SLACK: Final = 1e-3
_NUMBERS: Final = (bool, int, float)
Sensitivities: TypeAlias = Mapping[tuple[str, ...], float]
"""By how much one more example may move tensors together, by their names."""
Description: TypeAlias = "tuple[tuple[str, object], ...]"
"""Names, each with a number or a word that describes it."""


class Ended(BaseException):
    """Ends a run of which nothing more must be seen; not an Exception, so that loops do not catch
    it."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference between the runs.

    step: of the optimizers, from 0; None: at the end. is_of_sums: clean sums differ, and only their
    digests are known. own: the kind of draw of the run itself that differs, which may be random:
    see `Tape.draws`.
    """

    what: str
    step: int | None = None
    is_of_sums: bool = False
    own: str = ""

    def __str__(self) -> str:
        where = "the end" if self.step is None else f"step {self.step}"
        return f"{where}: {self.what}"


@dataclass(frozen=True, slots=True)
class Changed:
    """The example that differs between the runs.

    number: its index in the data; None if the data are the same. is_absent: the second run lacks
    it, without another one in its place. is_far: any other example may be replaced, too.
    """

    number: int | None
    is_absent: bool
    is_far: bool = False


@dataclass(slots=True)
class _Seen:
    """What was seen since the release before.

    index: the examples of the batch; None if they are not known. rows: digests of the inputs of the
    network. outputs: digests of the outputs of its passes.
    """

    index: set[int] | None = field(default_factory=set)
    rows: list[bytes] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Release:
    """The record of one release.

    kept: the file that holds the noised sum, and the clean one if that may differ.
    """

    account: Description
    weights: str
    seen: _Seen
    clean: str
    std: Description
    noised: str
    kept: Path | None


@dataclass(frozen=True, slots=True)
class _Step:
    """The record of one step of an optimizer.

    divisor: of the noised gradient before it was applied; None if no release made it, or no number
    describes what was done to it.
    """

    optimizer: str
    is_released: bool
    options: tuple[Description, ...]
    before: str
    divisor: float | None
    gradients: str
    after: str


@dataclass(slots=True, eq=False)
class Tape:
    """The record of one run, which compares a second run with the first one as it goes on.

    folder: where tensors of the first run are kept. size: of the data of the first run. seed: of
    the global generators. marked: indices of the examples that differ in other runs; they come last
    in each batch, so that random numbers drawn for other examples stay the same. Their releases are
    kept; all releases are kept with keeps_clean, or with keeps_noised for a run on data that are
    far from these. until: the step after which nothing more must be seen. observe: called with the
    number of steps so far. first, changed: for a second run, the tape of the first one, and the
    example that differs. random: kinds of draws that differ between two runs on the same data.
    loaders: the number of examples of each source of batches, and the numbers of its sampler.
    is_released: whether the step in progress has a release already.
    """

    folder: Path
    size: int
    seed: int
    marked: tuple[int, ...] = ()
    keeps_clean: bool = False
    keeps_noised: bool = False
    until: int | None = None
    observe: Callable[[int], None] = lambda _steps: None
    first: Tape | None = None
    changed: Changed = Changed(None, is_absent=False)
    batches: list[IndexArray] = field(default_factory=list)
    loaders: list[tuple[int, Description]] = field(default_factory=list)
    releases: list[_Release] = field(default_factory=list)
    steps: list[_Step] = field(default_factory=list)
    relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE
    largest: float = 0.0
    with_example: int | None = 0
    is_released: bool = False
    difference: Difference | None = None
    random: set[str] = field(default_factory=set)
    _own: dict[str, list[object]] = field(default_factory=dict)
    _seen: _Seen = field(default_factory=_Seen)
    _entries: tuple[tuple[Tensor, int, float], ...] = ()
    _secrets: int = 0
    _before: list[str] = field(default_factory=list)

    def place(self) -> Path:
        """Return a new folder, in place of one that a run would write to."""
        return Path(tempfile.mkdtemp(dir=self.folder)) / "run"

    def secret(self) -> int:
        """Return a number for the noise and the batches of a run, the same in every repetition of
        it."""
        self._secrets += 1
        return self._number(f"secret {self._secrets}", 32)

    def _number(self, words: str, size: int) -> int:
        """Return a number of this many bytes that follows from the seed and from these words."""
        words = f"{self.seed} {words}"
        return int.from_bytes(hashlib.blake2b(words.encode(), digest_size=size).digest(), "big")

    def seed_all(self, generator: object = None) -> None:
        """Seed the generator, or by default the global ones, alike in both runs."""
        counts = len(self.steps), len(self.releases), len(self.batches)
        number = self._number(f"{counts} {generator is None}", 4)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(number)
            return
        torch.manual_seed(number)
        np.random.seed(number)
        random.seed(number)

    def draws(self, kind: str, own: object) -> None:
        """Note what a run draws by itself, which a second run must draw, too; None: not known.

        A right run may draw something else each time; `twin` finds that out.
        """
        values = self._own.setdefault(kind, [])
        before = () if self.first is None else self.first._own.get(kind, ())[len(values) :]
        values.append(own)
        for value in before[:1]:
            if kind not in self.random and None not in {value, own} and value != own:
                self.differ(f"{kind} by what the data hold", own=kind)

    def seeded(self, seed: object) -> None:
        """Note the seed of the generator of the noise."""
        self.draws("the noise: its generator is seeded", repr(seed))

    def loads(self, examples: int, sampler: object = None) -> None:
        """Note that batches are about to be drawn from this many examples."""
        number, numbers = len(self.loaders), _described(sampler, examples)
        self.loaders.append((examples, numbers))
        if self.first is None or number >= len(self.first.loaders):
            return
        before, known = self.first.loaders[number]
        wanted = before - self.changed.is_absent
        if examples != wanted:
            self.differ(
                f"batches are drawn from {examples} examples, and from {before} in the first run, "
                f"where {wanted} were expected: examples are copied, left out or chosen by the "
                "content of the data"
            )
        self._compare_words("how batches are drawn", known, numbers)

    def _place(self) -> int | None:
        """Return the index of the differing example among those that batches are drawn from."""
        first = self if self.first is None else self.first
        is_whole = bool(first.loaders) and first.loaders[-1][0] == self.size
        return self.changed.number if is_whole else None

    def alike(self, draws: Iterable[Any]) -> Iterator[Any]:
        """Yield what a sampler draws, each from the same state of the global generators."""
        self.seed_all()
        for own in draws:
            yield own
            self.seed_all()

    def drawn(self, index: IndexArray) -> IndexArray:
        """Return the batch that the run must use in place of the one that it drew."""
        number, is_known = len(self.batches), bool(self.loaders) and not self.changed.is_absent
        self.draws("batches are drawn", index.tobytes() if is_known else None)
        if self.first is None:
            index = np.concatenate([index[~np.isin(index, self.marked)],
                                    index[np.isin(index, self.marked)]])  # fmt: skip
        elif number < len(self.first.batches):
            index = self.first.batches[number]
            place = self._place()
            if self.changed.is_absent and place is not None:
                index = index[index != place]
                index = index - (index > place)
        self.batches.append(index)
        self.seed_all()
        return index

    def takes(self, index: Iterable[int] | None) -> None:
        """Note the examples of the coming forward pass; None if they are not known."""
        if index is None or self._seen.index is None:
            self._seen.index = None
        else:
            self._seen.index.update(map(int, index))

    def enters(self, inputs: Iterable[Tensor]) -> None:
        """Note the inputs with which a forward pass in training begins."""
        parts = [_bytes(x.flatten(1) if x.dim() > 1 else x[:, None]) for x in inputs if x.dim()]
        self._seen.rows += [
            hashlib.blake2b(b"".join(row.tobytes() for row in rows), digest_size=8).digest()
            for rows in zip(*parts, strict=False)
        ]

    def passes(self, output: Tensor) -> None:
        """Note the output with which a forward pass in training ends."""
        if not output.is_cuda:
            self._seen.outputs.append(digest_of([output]))

    def released(
        self,
        clean: Mapping[str, Tensor],
        noised: Mapping[str, Tensor],
        moved: Sensitivities,
        *,
        weights: Iterable[Tensor],
        std: Mapping[str, float],
        account: Mapping[str, object],
        is_alike: bool = True,
    ) -> None:
        """Note what is noised; if the example takes part, replace it by the noised sum of the first
        run.

        account: what ε is computed from. is_alike: whether the noise is drawn alike in both runs;
        if not, the sum is always replaced.
        """
        number, seen, self._seen = len(self.releases), self._seen, _Seen()
        if not self.batches:
            seen.index = None
        release = _Release(
            tuple(account.items()), digest_of(weights), seen,
            digest_of(clean.values()), tuple(std.items()), digest_of(noised.values()),
            self._kept(number, seen.index if is_alike else None, clean, noised),
        )  # fmt: skip
        self.releases.append(release)
        if self.first is not None:
            if number >= len(self.first.releases):
                self.differ("a release that the first run does not make")
            else:
                self._compare(self.first.releases[number], release, clean, noised, moved)
        self.is_released = True
        self._entries = tuple(_largest_entry(gradient) for gradient in noised.values())

    def _kept(
        self,
        number: int,
        index: set[int] | None,
        clean: Mapping[str, Tensor],
        noised: Mapping[str, Tensor],
    ) -> Path | None:
        if self.first is not None:
            return None
        may_differ = (
            self.keeps_clean
            or index is None
            or not self.loaders
            or self.loaders[-1][0] != self.size
            or not index.isdisjoint(self.marked)
            or _rounds_anew(clean)
        )
        if not may_differ and not self.keeps_noised:
            return None
        path = self.folder / f"{number}.pt"
        parts = (clean if may_differ else {}, noised)
        torch.save([{n: g.detach().clone() for n, g in part.items()} for part in parts], path)
        return path

    def _compare(
        self,
        first: _Release,
        second: _Release,
        clean: Mapping[str, Tensor],
        noised: Mapping[str, Tensor],
        moved: Sensitivities,
    ) -> None:
        has = self._has_example(first)
        if self.with_example is not None and not self.changed.is_far:
            self.with_example = None if has is None else self.with_example + has
        self._compare_words("what ε is computed from", first.account, second.account)
        if first.weights != second.weights:
            self.differ(_OTHER_WEIGHTS if self.steps else _OTHER_START)
        (seen, own), moving = (first.seen, second.seen), self._compare_rows(first, second, has)
        if has is False and seen.rows == own.rows and seen.outputs != own.outputs:
            self.differ(
                "the network has another output at the same weights and inputs: something within "
                "it depends on the example"
            )
        before, injected = {}, {}
        if first.kept is not None:
            before, injected = torch.load(first.kept, map_location="cpu", weights_only=True)
        if not before and not self.changed.is_far:
            if first.clean != second.clean:
                self.differ(_OTHER_SUM.format("the batch", ""), is_of_sums=True)
            if first.noised != second.noised:
                self.differ(f"the noise: {next(_unlike(first.std, second.std), _OTHER_NOISE)}")
            return
        if {n: g.shape for n, g in injected.items()} != {n: g.shape for n, g in noised.items()}:
            self.differ("tensors that are released have other names or shapes")
        if not self.changed.is_far and first.clean != second.clean:  # NaN is equal to NaN
            self._compare_sums(has, moving, before, clean, moved)
        self._compare_words("the deviation of the noise", first.std, second.std)
        if has is False and first.clean == second.clean and first.noised != second.noised:
            self.differ(f"the noise: {_OTHER_NOISE}")
        for name, gradient in noised.items():
            gradient.copy_(injected[name])

    def _compare_words(self, what: str, first: Description, second: Description) -> None:
        for text in _unlike(first, second):
            self.differ(f"{what}: {text}")

    def _has_example(self, release: _Release) -> bool | None:
        """Return whether a release of the first run has the example; None if that is not known."""
        if self.changed.number is None:
            return False
        if self.changed.is_far:
            return None
        place = self._place()
        index = release.seen.index
        return None if index is None or place is None else place in index

    def _compare_rows(self, first: _Release, second: _Release, has: bool | None) -> int:
        """Return how many examples differ.

        Examples that differ in other runs come last in the batch, and may draw other random
        numbers.
        """
        if self.changed.is_far:
            return 1
        fewer, more = Counter(first.seen.rows), Counter(second.seen.rows)
        gone, come = (fewer - more).total(), (more - fewer).total()
        marked = self.first.marked if self.first is not None else ()
        allowed = 0 if has is False else 1
        if has and first.seen.index is not None:
            allowed = sum(number in first.seen.index for number in marked)
        if gone > allowed or come > (allowed - 1 if self.changed.is_absent and has else allowed):
            rest = "of other examples " if has is not False else ""
            self.differ(
                f"the inputs {rest}differ ({gone} of {fewer.total()} in this batch): they are "
                "normalised, augmented, split or ordered by the content of the data"
            )
        return max(gone, 1)

    def _compare_sums(
        self,
        has: bool | None,
        moving: int,
        before: Mapping[str, Tensor],
        clean: Mapping[str, Tensor],
        moved: Sensitivities,
    ) -> None:
        """Compare the clean sums of the runs; those of a batch without the example must be equal.

        moving: the number of examples that differ.
        """
        for names, of_one in moved.items():
            sensitivity = of_one * (2.0 * moving - self.changed.is_absent)
            pairs = [(before[n].double(), clean[n].double().cpu()) for n in names if n in clean]
            apart = math.sqrt(sum(float((a - b).square().sum()) for a, b in pairs))
            size = math.sqrt(sum(float(a.square().sum()) for a, _ in pairs))
            allowed = sensitivity * (1.0 + _SLACK) if has is not False else 0.0
            if sensitivity > 0.0 and has is not False:
                self.largest = max(self.largest, apart / sensitivity)
            if not apart <= allowed + _ROUNDING * (size + sensitivity):
                what = "all tensors" if len(names) > 1 else names[0]
                if has is False:
                    self.differ(_OTHER_SUM.format(what, f" by {apart:.4g}"))
                self.differ(
                    f"the clean gradient of {what} differs by {apart:.4g}, and the sensitivity is "
                    f"{sensitivity:.4g}"
                )

    def stepping(self, optimizer: Optimizer, *unused: object) -> None:
        """Note the weights before a step; also of an optimizer inside another one."""
        del unused
        self._before.append("" if self.is_released else digest_of(_parameters(optimizer)))

    def stepped(self, optimizer: Optimizer, *unused: object) -> None:
        """Note what a step has changed."""
        del unused
        parameters = _parameters(optimizer)
        step = _Step(
            type(optimizer).__name__,
            self.is_released,
            tuple(_options(group) for group in optimizer.param_groups),
            self._before.pop(),
            _divisor(self._entries) if self.is_released else None,
            digest_of(p.grad for p in parameters if p.grad is not None),
            digest_of(parameters),
        )
        number = len(self.steps)
        if self.first is not None:
            if number >= len(self.first.steps):
                self.differ(f"a further step: the first run makes {number}")
            for what in _differing(self.first.steps[number], step):
                self.differ(what)
        self.steps.append(step)
        self.observe(len(self.steps))
        self.is_released, self._entries = False, ()
        if self.until is not None and number >= self.until:
            raise Ended
        if step.is_released:
            self.seed_all()

    def ends(self) -> None:
        """Compare how much the two runs did, after the second one."""
        if self.first is None:
            return
        for what in ("steps", "releases"):
            ours, theirs = (len(getattr(tape, what)) for tape in (self, self.first))
            if ours < theirs and self.difference is None:
                self.difference = Difference(
                    f"the second run ends after {ours} {what}, the first makes {theirs}", ours
                )

    def differ(self, what: str, *, is_of_sums: bool = False, own: str = "") -> None:
        """Note that something differs, and end the run.

        Raises:
            Ended: always.
        """
        if self.difference is None:
            self.difference = Difference(what, len(self.steps), is_of_sums, own)
        raise Ended


_OTHER_START: Final = "the run begins with other weights"
_OTHER_WEIGHTS: Final = "weights changed between this step and the one before"
_OTHER_NOISE: Final = "it is not drawn from the same generator"
_OTHER_SUM: Final = (
    "the clean gradient of {} differs{}, although the example is not in it, and weights and inputs "
    "are the same: a weight of the loss, a label or something else within the step depends on the "
    "example"
)
_CURRENT: list[Tape] = []


def current() -> Tape | None:
    """Return the tape of the twin run in progress in this process."""
    return _CURRENT[-1] if _CURRENT else None


@contextmanager
def watching(tape: Tape) -> Iterator[None]:
    """Record on this tape what is trained in this process inside the block."""
    hooks = (
        register_optimizer_step_pre_hook(tape.stepping),
        register_optimizer_step_post_hook(tape.stepped),
    )
    _CURRENT.append(tape)
    try:
        yield
    finally:
        _CURRENT.pop()
        for hook in hooks:
            hook.remove()


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [item for group in optimizer.param_groups for item in group["params"]]


def _options(group: Mapping[str, Any]) -> Description:
    return tuple((name, repr(value)) for name, value in group.items() if name != "params")


def _bytes(tensor: Tensor) -> Any:
    """Return the bits of a tensor as an array, without a copy if it lies in main memory already."""
    flat = tensor.detach().cpu().contiguous()
    return flat.view(torch.uint8).numpy() if flat.numel() else np.empty((len(flat), 0), np.uint8)


def _rounds_anew(tensors: Mapping[str, Tensor]) -> bool:
    """Whether kernels may add up in another order each time."""
    return any(item.is_cuda for item in tensors.values())


def digest_of(tensors: Iterable[Tensor]) -> str:
    """Return a digest of shapes, dtypes and bits of tensors."""
    seen = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        seen.update(repr((tuple(tensor.shape), tensor.dtype)).encode())
        seen.update(_bytes(tensor.reshape(-1)))
    return seen.hexdigest()


def _largest_entry(gradient: Tensor) -> tuple[Tensor, int, float]:
    """Return a tensor, the place of its largest entry, and that entry."""
    flat = gradient.detach().reshape(-1)
    if not len(flat):
        return gradient, 0, 0.0
    place = int(flat.abs().argmax())
    return gradient, place, float(flat[place])


def _divisor(entries: Sequence[tuple[Tensor, int, float]]) -> float | None:
    """Return the number by which all entries were divided since they were seen, to six digits."""
    found = set()
    for gradient, place, entry in entries:
        now = float(gradient.detach().reshape(-1)[place]) if gradient.numel() else 0.0
        if entry and now and math.isfinite(entry / now):
            found.add(float(f"{entry / now:.5g}"))
    return found.pop() if len(found) == 1 else None


def _described(sampler: object, examples: int) -> Description:
    """Return the numbers that determine how a sampler draws, except the number of examples."""
    numbers: list[tuple[str, object]] = []
    while sampler is not None:
        kind = type(sampler).__name__
        for name, value in vars(sampler).items() if hasattr(sampler, "__dict__") else ():
            if isinstance(value, _NUMBERS) and value != examples:
                numbers.append((f"{name} of {kind}", value))
        sampler = getattr(sampler, "sampler", None)
    return tuple(numbers)


def _unlike(first: Description, second: Description) -> Iterator[str]:
    """Yield what is described in one way for the first run, and in another for the second."""
    before = dict(first)
    for name, value in second:
        if name in before and repr(before[name]) != repr(value):
            yield f"{name} is {_shown(value)}, and was {_shown(before[name])} in the first run"


def _shown(value: object) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _differing(first: _Step, second: _Step) -> Iterator[str]:
    """Yield what a step shows that it did not show in the first run, in causal order."""
    if first.optimizer != second.optimizer:
        yield f"{second.optimizer} makes the step, and in the first run {first.optimizer}"
        return
    if first.is_released != second.is_released:
        yield f"{second.optimizer} makes a step without a release, and the first run does not"
    if first.before != second.before:
        yield _OTHER_WEIGHTS
    for before, after in zip(first.options, second.options, strict=False):
        for what in _unlike(before, after):
            name, _, rest = what.partition(" is ")
            yield f"{'the learning rate' if name == 'lr' else name} of the optimizer is {rest}"
    if first.gradients != second.gradients:
        if not second.is_released:
            yield f"{second.optimizer} makes a step from a gradient without noise, which differs"
        elif first.divisor != second.divisor and None not in {first.divisor, second.divisor}:
            yield (
                f"the normaliser: the noised gradient is divided by {second.divisor:g}, and by "
                f"{first.divisor:g} in the first run"
            )
        yield "the noised gradient is changed before it is applied"
    elif first.after != second.after:
        yield "the update differs, from the same weights and gradients"
