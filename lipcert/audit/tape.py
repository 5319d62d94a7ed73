"""Tape: what a training run does that may depend on an example, seen from within.

Input: calls from the places where batches are drawn, inputs enter the network, gradients are noised
and optimizers step. Output: for each release and step, what it did, as digests; of two runs, the
first thing that differs, in the order of its causes: account, loader, weights, inputs, outputs,
clean sums, noise, options of the optimizer, the gradient as it is applied, the update.

The second of two runs has the batches of the first and begins each step with the same state of the
global generators, and its noise is drawn alike. So releases without the example are the same, bit
for bit, and of them digests suffice. Of a release that has the example, or may have it, the clean
and the noised sum are kept: the second run goes on with the noised sum of the first.
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
"""of the larger clean sum, what the order of additions may change"""
_SLACK: Final = 1e-3
_NUMBERS: Final = (bool, int, float)
Sensitivities: TypeAlias = Mapping[tuple[str, ...], float]
"""by how much one more example may move tensors together, by their names"""
Said: TypeAlias = "tuple[tuple[str, object], ...]"
"""numbers and words by what they are of"""


class Ended(BaseException):
    """Ends a run of which no more need be seen; no Exception, so that loops let it pass."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What differed between the runs. step: of the optimizers, from 0; None: at the end.

    is_of_sums: clean sums differ where they are only known by their digests.
    """

    what: str
    step: int | None = None
    is_of_sums: bool = False

    def __str__(self) -> str:
        where = "the end" if self.step is None else f"step {self.step}"
        return f"{where}: {self.what}"


@dataclass(frozen=True, slots=True)
class Changed:
    """The example that differs. number: in the data, None where the data are the same. is_absent:
    whether the second run lacks it, and has none in its place. is_far: in place of any example
    there may be another one."""

    number: int | None
    is_absent: bool
    is_far: bool = False


@dataclass(frozen=True, slots=True)
class _Loader:
    """What draws batches. sampler: its numbers, and digests of what it holds for each example."""

    examples: int
    sampler: Said
    weights: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class _Release:
    """What is seen of a release. index: of its examples, None where that is not known. rows: of
    the inputs of the network; outputs: of its passes. kept: the noised sum, with the clean one
    where that may differ."""

    account: Said
    weights: str
    index: frozenset[int] | None
    rows: tuple[bytes, ...] | None
    outputs: tuple[str, ...]
    clean: str
    std: Said
    noised: str
    kept: Path | None


@dataclass(frozen=True, slots=True)
class _Step:
    """What a step of an optimizer shows. divisor: of the noised gradient before it was applied;
    None where no release made it, or no number describes what was done to it."""

    optimizer: str
    is_released: bool
    options: tuple[Said, ...]
    before: str
    divisor: float | None
    gradients: str
    after: str


@dataclass(slots=True, eq=False)
class Tape:
    """What one run does, and for the second one what the first did.

    folder: where tensors of the first run are kept. size: of the data of the first run. seed: of
    the global generators. marked: numbers of the examples that differ in other runs; they come last
    in each batch, so that what is drawn at random for others stays the same. Their releases are
    kept; all are where keeps_clean, or keeps_noised for a run on data that are far from these.
    until: the step after which nothing more need be seen. observe: gets the number of steps so far.
    first, changed: of a second run.
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
    loaders: list[_Loader] = field(default_factory=list)
    releases: list[_Release] = field(default_factory=list)
    steps: list[_Step] = field(default_factory=list)
    relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE
    largest: float = 0.0
    with_example: int | None = 0
    difference: Difference | None = None
    _index: set[int] | None = field(default_factory=set)
    _rows: list[bytes] | None = field(default_factory=list)
    _outputs: list[str] = field(default_factory=list)
    _entries: tuple[tuple[Tensor, int, float], ...] = ()
    _released: bool = False
    _secrets: int = 0
    _before: list[str] = field(default_factory=list)

    def place(self) -> Path:
        """A new folder, in place of one that a run would write to."""
        return Path(tempfile.mkdtemp(dir=self.folder)) / "run"

    def secret(self) -> int:
        """A number for the noise and the batches of a run, the same whenever that is done."""
        self._secrets += 1
        return self._number(f"secret {self._secrets}", 32)

    def _number(self, words: str, size: int) -> int:
        """Of so many bytes, which follows from the seed and from these words."""
        words = f"{self.seed} {words}"
        return int.from_bytes(hashlib.blake2b(words.encode(), digest_size=size).digest(), "big")

    def seed_all(self, generator: object = None) -> None:
        """The generator, or by default the global ones, begin a step alike in both runs."""
        counts = len(self.steps), len(self.releases), len(self.batches)
        number = self._number(f"{counts} {generator is None}", 4)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(number)
            return
        torch.manual_seed(number)
        np.random.seed(number)
        random.seed(number)

    def loads(self, examples: int, sampler: object = None) -> None:
        """Batches are about to be drawn from so many examples."""
        loader = _Loader(examples, *_described(sampler, examples))
        number = len(self.loaders)
        self.loaders.append(loader)
        if self.first is None or number >= len(self.first.loaders):
            return
        before = self.first.loaders[number]
        wanted = before.examples - self.changed.is_absent
        if examples != wanted:
            self.differ(
                f"batches are drawn from {examples} examples, and from {before.examples} in the "
                f"first run, where {wanted} were expected: examples are copied, left out or "
                "chosen by what the data hold"
            )
        what = next(_unlike(before.sampler, loader.sampler), None)
        if not self.changed.is_far:
            what = what or next(self._weighted(before.weights, loader.weights), None)
        if what is not None:
            self.differ(f"how batches are drawn: {what}")

    def _weighted(self, first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> Iterator[str]:
        number = self._place()
        for name in first.keys() & second.keys():
            rest = [w for w in range(len(first[name])) if w != number]
            same = [w for w in range(len(second[name])) if w != number or self.changed.is_absent]
            if len(rest) != len(same) or not torch.equal(first[name][rest], second[name][same]):
                yield f"{name} of the sampler differ at examples that both data sets have"

    def _place(self) -> int | None:
        """Of the example that differs, among those that batches are drawn from."""
        first = self if self.first is None else self.first
        is_whole = bool(first.loaders) and first.loaders[-1].examples == self.size
        return self.changed.number if is_whole else None

    def drawn(self, index: IndexArray) -> IndexArray:
        """The batch that the run is to have in place of the one that it drew."""
        number = len(self.batches)
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
        """The coming forward pass has these examples; None: that is not known."""
        if index is None or self._index is None:
            self._index = None
        else:
            self._index.update(map(int, index))

    def enters(self, inputs: Iterable[Tensor]) -> None:
        """A forward pass in training begins with these inputs."""
        if self._rows is not None:
            parts = [_bytes(x.flatten(1) if x.dim() > 1 else x[:, None]) for x in inputs if x.dim()]
            self._rows += [
                hashlib.blake2b(b"".join(row.tobytes() for row in rows), digest_size=8).digest()
                for rows in zip(*parts, strict=False)
            ]

    def passes(self, output: Tensor) -> None:
        """A forward pass in training ends with this output."""
        if not output.is_cuda:
            self._outputs.append(digest_of([output]))

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
        """See what is noised, and where the example takes part put the noised sum of the first run
        in its place. account: what ε is computed from. is_alike: whether the noise is drawn alike
        in both runs; if not, the sum is put there always."""
        number, (index, rows, outputs) = len(self.releases), self._taken()
        release = _Release(
            tuple(account.items()), digest_of(weights), index, rows, outputs,
            digest_of(clean.values()), tuple(std.items()), digest_of(noised.values()),
            self._kept(number, index if is_alike else None, clean, noised),
        )  # fmt: skip
        self.releases.append(release)
        if self.first is not None:
            if number >= len(self.first.releases):
                self.differ("a release that the first run does not make")
            else:
                self._compare(self.first.releases[number], release, clean, noised, moved)
        self._released = True
        self._entries = tuple(_largest_entry(gradient) for gradient in noised.values())

    @property
    def is_released(self) -> bool:
        """Whether the step that is under way has a release already."""
        return self._released

    def _taken(self) -> tuple[frozenset[int] | None, tuple[bytes, ...] | None, tuple[str, ...]]:
        index = None if self._index is None else frozenset(self._index)
        if not self.batches:
            index = None
        rows = None if self._rows is None else tuple(self._rows)
        outputs = tuple(self._outputs)
        self._index, self._rows, self._outputs = set(), [], []
        return index, rows, outputs

    def _kept(
        self,
        number: int,
        index: frozenset[int] | None,
        clean: Mapping[str, Tensor],
        noised: Mapping[str, Tensor],
    ) -> Path | None:
        if self.first is not None:
            return None
        may_differ = (
            self.keeps_clean
            or index is None
            or not self.loaders
            or self.loaders[-1].examples != self.size
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
        what = next(_unlike(first.account, second.account), None)
        if what is not None:
            self.differ(f"what ε is computed from: {what}")
        if first.weights != second.weights:
            self.differ(_OTHER_WEIGHTS if self.steps else _OTHER_START)
        moving = self._compare_rows(first, second, has)
        if has is False and first.rows == second.rows and first.outputs != second.outputs:
            self.differ(
                "the network has another output at the same weights and inputs: something within "
                "it depends on the example"
            )
        before, injected = {}, {}
        if first.kept is not None:
            before, injected = torch.load(first.kept, map_location="cpu", weights_only=True)
        if not before and not self.changed.is_far:
            self._compare_digests(first, second)
            return
        if {n: g.shape for n, g in injected.items()} != {n: g.shape for n, g in noised.items()}:
            self.differ("tensors that are released have other names or shapes")
        if not self.changed.is_far and first.clean != second.clean:  # NaN is equal to NaN
            self._compare_sums(has, moving, before, clean, moved)
        what = next(_unlike(first.std, second.std), None)
        if what is not None:
            self.differ(f"the deviation of the noise: {what}")
        if has is False and first.clean == second.clean and first.noised != second.noised:
            self.differ(f"the noise: {_OTHER_NOISE}")
        for name, gradient in noised.items():
            gradient.copy_(injected[name])

    def _has_example(self, release: _Release) -> bool | None:
        """Whether a release of the first run has the example; None where that is not known."""
        if self.changed.number is None:
            return False
        if self.changed.is_far:
            return None
        place = self._place()
        return None if release.index is None or place is None else place in release.index

    def _compare_rows(self, first: _Release, second: _Release, has: bool | None) -> int:
        """How many examples differ. Those that differ in other runs draw otherwise, behind this."""
        if first.rows is None or second.rows is None or self.changed.is_far:
            return 1
        fewer, more = Counter(first.rows), Counter(second.rows)
        gone, come = (fewer - more).total(), (more - fewer).total()
        marked = self.first.marked if self.first is not None else ()
        allowed = 0 if has is False else 1
        if has and first.index is not None:
            allowed = sum(number in first.index for number in marked)
        if gone > allowed or come > (allowed - 1 if self.changed.is_absent and has else allowed):
            rest = "of other examples " if has is not False else ""
            self.differ(
                f"the inputs {rest}differ ({gone} of {len(first.rows)} in this batch): they are "
                "normalised, augmented, split or put in order by what the data hold"
            )
        return max(gone, 1)

    def _compare_digests(self, first: _Release, second: _Release) -> None:
        if first.clean != second.clean:
            self.differ(_OTHER_SUM.format("the batch", ""), is_of_sums=True)
        if first.noised != second.noised:
            self.differ(f"the noise: {next(_unlike(first.std, second.std), _OTHER_NOISE)}")

    def _compare_sums(
        self,
        has: bool | None,
        moving: int,
        before: Mapping[str, Tensor],
        clean: Mapping[str, Tensor],
        moved: Sensitivities,
    ) -> None:
        """Clean sums of the runs; those of a batch without the example are the same sum. moving: so
        many examples differ."""
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
        """Before a step; of an optimizer within another, too."""
        del unused
        self._before.append("" if self._released else digest_of(_parameters(optimizer)))

    def stepped(self, optimizer: Optimizer, *unused: object) -> None:
        """See what a step has changed."""
        del unused
        parameters = _parameters(optimizer)
        step = _Step(
            type(optimizer).__name__,
            self._released,
            tuple(_options(group) for group in optimizer.param_groups),
            self._before.pop(),
            _divisor(self._entries) if self._released else None,
            digest_of(p.grad for p in parameters if p.grad is not None),
            digest_of(parameters),
        )
        number = len(self.steps)
        if self.first is not None:
            if number >= len(self.first.steps):
                self.differ(f"a further step: the first run makes {number}")
            else:
                what = next(_differing(self.first.steps[number], step), None)
                if what is not None:
                    self.differ(what)
        self.steps.append(step)
        self.observe(len(self.steps))
        self._released, self._entries = False, ()
        if self.until is not None and number >= self.until:
            raise Ended
        if step.is_released:
            self.seed_all()

    def ends(self) -> None:
        """The second run is through; compare how much it did."""
        if self.first is None:
            return
        for what, ours, theirs in (
            ("steps", len(self.steps), len(self.first.steps)),
            ("releases", len(self.releases), len(self.first.releases)),
        ):
            if ours < theirs and self.difference is None:
                self.difference = Difference(
                    f"the second run ends after {ours} {what}, the first makes {theirs}", ours
                )

    def differ(self, what: str, *, is_of_sums: bool = False) -> None:
        """Something differs; the run need not go on.

        Raises: Ended.
        """
        if self.difference is None:
            self.difference = Difference(what, len(self.steps), is_of_sums)
        raise Ended


_OTHER_START: Final = "the run begins with other weights"
_OTHER_WEIGHTS: Final = "weights changed between this step and the one before"
_OTHER_NOISE: Final = "it is not drawn from the same generator"
_OTHER_SUM: Final = (
    "the clean gradient of {} differs{}, although the example is not in it, and weights and inputs "
    "are the same: a weight of the loss, a label or something else within the step depends on the "
    "example"
)
_OPTIONS: Final = {"lr": "the learning rate"}
_CURRENT: list[Tape] = []


def current() -> Tape | None:
    """The tape of the twin run that is under way in this process."""
    return _CURRENT[-1] if _CURRENT else None


@contextmanager
def watching(tape: Tape) -> Iterator[None]:
    """Within it, what is trained in this process is seen by this tape."""
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


def _options(group: Mapping[str, Any]) -> Said:
    return tuple((name, repr(value)) for name, value in group.items() if name != "params")


def _bytes(tensor: Tensor) -> Any:
    """The bits of a tensor as an array, which is not copied where it lies in memory already."""
    flat = tensor.detach().cpu().contiguous()
    return flat.view(torch.uint8).numpy() if flat.numel() else np.empty((len(flat), 0), np.uint8)


def _rounds_anew(tensors: Mapping[str, Tensor]) -> bool:
    """Whether kernels may add up in another order each time."""
    return any(item.is_cuda for item in tensors.values())


def digest_of(tensors: Iterable[Tensor]) -> str:
    """Of shapes, types and bits of tensors."""
    seen = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        seen.update(repr((tuple(tensor.shape), tensor.dtype)).encode())
        seen.update(_bytes(tensor.reshape(-1)))
    return seen.hexdigest()


def _largest_entry(gradient: Tensor) -> tuple[Tensor, int, float]:
    """A tensor, the place of its largest entry, and that entry."""
    flat = gradient.detach().reshape(-1)
    if not len(flat):
        return gradient, 0, 0.0
    place = int(flat.abs().argmax())
    return gradient, place, float(flat[place])


def _divisor(entries: Sequence[tuple[Tensor, int, float]]) -> float | None:
    """What all entries were divided by since they were seen, to six digits."""
    found = set()
    for gradient, place, entry in entries:
        now = float(gradient.detach().reshape(-1)[place]) if gradient.numel() else 0.0
        if entry and now and math.isfinite(entry / now):
            found.add(float(f"{entry / now:.5g}"))
    return found.pop() if len(found) == 1 else None


def _described(sampler: object, examples: int) -> tuple[Said, Mapping[str, Tensor]]:
    """Numbers that say how a sampler draws, but for the number of examples; and what it holds for
    each of them."""
    numbers: list[tuple[str, object]] = []
    weights: dict[str, Tensor] = {}
    while sampler is not None:
        kind = type(sampler).__name__
        for name, value in vars(sampler).items() if hasattr(sampler, "__dict__") else ():
            if isinstance(value, _NUMBERS) and value != examples:
                numbers.append((f"{name} of {kind}", value))
            elif isinstance(value, Tensor) and value.dim() == 1 and len(value) == examples:
                weights[name] = value.clone()
        sampler = getattr(sampler, "sampler", None)
    return tuple(numbers), weights


def _unlike(first: Said, second: Said) -> Iterator[str]:
    """What is said in one way of the first run, and in another of the second."""
    before = dict(first)
    for name, value in second:
        if name in before and repr(before[name]) != repr(value):
            yield f"{name} is {_shown(value)}, and was {_shown(before[name])} in the first run"


def _shown(value: object) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _differing(first: _Step, second: _Step) -> Iterator[str]:
    """What a step shows that it did not show in the first run, in the order of its causes."""
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
            yield f"{_OPTIONS.get(name, name)} of the optimizer is {rest}"
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
