"""Twin run: a private run done twice, on data sets that differ in one example.

    def train(data):                     # any loop: make_private, or Opacus and attach_opacus
        ...
        return model

    report = lipcert.audit.twin(train, (x, y))

Input: a function that trains on the data that it is given, and the data. Output: a `TwinReport`.
The second run has the batches of the first, without the example that it lacks, and at every step
the noised gradient of the first one takes the place of its own. Both then walk through the same
weights, and must do the same: whatever else depends on the example (learning rates, what sums are
divided by, the number of steps, weights changed between steps, what is returned) is released
without noise. The clean sums, which noise hides, may differ by the stated sensitivity, and in steps
without the example not at all, up to rounding.

A pass does not prove that a run is private: it compares one pair of data sets. A difference proves
that something is published that no ε covers, provided that the function is deterministic but for
torch, numpy and `random`, whose generators both runs begin alike.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import Dataset, Subset

from lipcert.audit.trace.records import IndexArray
from lipcert.errors import UsageError
from lipcert.privacy.noise import Neighbouring

_ROUNDING: Final = 1e-5
"""of the larger clean sum, what the order of additions may change"""
_SLACK: Final = 1e-3
Data: TypeAlias = "Sequence[Any] | Dataset[Any]"
Sensitivities: TypeAlias = Mapping[tuple[str, ...], float]
"""by how much one more example may move tensors together, by their names"""


@final
@dataclass(frozen=True, slots=True)
class Difference:
    """What differed between the runs. step: of the optimizers, from 0; None: at the end."""

    what: str
    step: int | None = None

    def __str__(self) -> str:
        where = "the end" if self.step is None else f"step {self.step}"
        return f"{where}: {self.what}"


@final
@dataclass(frozen=True, slots=True)
class TwinReport:
    """How two runs compare.

    difference: what differed first; None for nothing but what noise hides. steps, releases: of the
    first run. with_example: releases whose batch had the example, None where batches were not seen.
    largest: the largest difference of clean sums over the stated sensitivity. seconds: of each run.
    """

    difference: Difference | None
    steps: int
    releases: int
    with_example: int | None
    largest: float
    seconds: tuple[float, float]

    @property
    def passed(self) -> bool:
        """Whether nothing differed but what noise hides."""
        return self.difference is None

    def __str__(self) -> str:
        found = f"Violation: the runs differ first at {self.difference}."
        if self.difference is None:
            found = (
                "Pass: both runs did the same, and their clean sums differ by at most "
                f"{self.largest:.4g} times the stated sensitivity."
            )
        seen = "" if self.with_example is None else f", {self.with_example} with the example"
        first, second = self.seconds
        counts = f"{self.steps} steps, {self.releases} releases{seen}"
        return f"{found}\n{counts}; {first:.1f} s and {second:.1f} s"


@final
@dataclass(frozen=True, slots=True)
class _Step:
    """What a step of an optimizer shows."""

    optimizer: str
    options: tuple[tuple[tuple[str, str], ...], ...]
    before: str
    gradients: str
    after: str


@final
@dataclass(slots=True, eq=False)
class Tape:
    """What one run does, and for the second one what the first did.

    folder: where tensors of the first run are kept. changed: the number of the example that
    differs. is_absent: whether the second run lacks it. first: what the first run did, for the
    second one.
    """

    folder: Path
    changed: int
    is_absent: bool
    first: Tape | None = None
    batches: list[IndexArray] = field(default_factory=list)
    releases: list[int] = field(default_factory=list)
    """how many batches had been drawn at each"""
    steps: list[_Step] = field(default_factory=list)
    largest: float = 0.0
    difference: Difference | None = None
    excess: Difference | None = None
    _before: list[str] = field(default_factory=list)
    _seen: int = 0

    def drawn(self, index: IndexArray) -> IndexArray:
        """The batch that the run is to have in place of the one that it drew."""
        if self.first is not None and len(self.batches) < len(self.first.batches):
            index = self.first.batches[len(self.batches)]
            index = index[index != self.changed] if self.is_absent else index
        self.batches.append(index)
        return index

    def released(
        self, clean: Mapping[str, Tensor], noised: Mapping[str, Tensor], moved: Sensitivities
    ) -> None:
        """See what is noised, and replace what was noised by what the first run released."""
        number = len(self.releases)
        self.releases.append(len(self.batches))
        path = self.folder / f"{number}.pt"
        if self.first is None:
            torch.save((dict(clean), {name: g.clone() for name, g in noised.items()}), path)
            return
        if number >= len(self.first.releases):
            self._differ("a release that the first run does not make")
            return
        before, injected = torch.load(path, weights_only=True)
        if {n: g.shape for n, g in injected.items()} != {n: g.shape for n, g in noised.items()}:
            self._differ("tensors that are released have other names or shapes")
            return
        self._compare(self.first.has_example(number), before, clean, moved)
        for name, gradient in noised.items():
            gradient.copy_(injected[name])

    def stepping(self, optimizer: Optimizer, *unused: object) -> None:
        """Before a step; of an optimizer within another, too."""
        del unused
        self._before.append(_digest(_parameters(optimizer)))

    def stepped(self, optimizer: Optimizer, *unused: object) -> None:
        """See what a step has changed."""
        del unused
        parameters = _parameters(optimizer)
        step = _Step(
            type(optimizer).__name__,
            tuple(_options(group) for group in optimizer.param_groups),
            self._before.pop(),
            _digest([p.grad for p in parameters if p.grad is not None]),
            _digest(parameters),
        )
        number = len(self.steps)
        if self._seen == len(self.releases):
            self._differ(f"{step.optimizer} makes a step that no release of a noised gradient made")
        self._seen = len(self.releases)
        if self.first is not None and number >= len(self.first.steps):
            self._differ("a step that the first run does not make")
        elif self.first is not None:
            what = next(_differing(self.first.steps[number], step), None)
            if what is not None:
                self._differ(what)
        self.steps.append(step)

    def ends(self, first: Tape, before: object, returned: object) -> None:
        """Both runs are through; compare what they left. before, returned: what they returned."""
        for what, ours, theirs in (
            ("steps", len(self.steps), len(first.steps)),
            ("releases", len(self.releases), len(first.releases)),
        ):
            if ours < theirs:
                self._differ(f"the second run makes {ours} {what}, the first {theirs}")
        where = _unequal(before, returned, "what is returned")
        if where is not None and self.difference is None:
            self.difference = Difference(f"{where} differs")

    def _compare(
        self,
        has: bool | None,
        before: Mapping[str, Tensor],
        clean: Mapping[str, Tensor],
        moved: Sensitivities,
    ) -> None:
        """Clean sums of the runs; those of a batch without the example are the same sum."""
        for names, of_one in moved.items():
            sensitivity = of_one if self.is_absent else 2.0 * of_one
            pairs = [(before[n].double(), clean[n].double()) for n in names if n in clean]
            apart = math.sqrt(sum(float((a - b).square().sum()) for a, b in pairs))
            size = math.sqrt(sum(float(a.square().sum()) for a, _ in pairs))
            allowed = sensitivity * (1.0 + _SLACK) if has is not False else 0.0
            if sensitivity > 0.0:
                self.largest = max(self.largest, apart / sensitivity)
            if not apart <= allowed + _ROUNDING * (size + sensitivity) and self.excess is None:
                what = "all" if len(names) > 1 else names[0]
                why = f"the sensitivity is {sensitivity:.4g}"
                if has is False:
                    why = "the example is not in the batch"
                self.excess = Difference(
                    f"the clean gradient of {what} differs by {apart:.4g}, and {why}",
                    len(self.steps),
                )

    @property
    def is_one_by_one(self) -> bool:
        """Whether every release has one batch, which was drawn just before it."""
        return self.releases == list(range(1, len(self.releases) + 1))

    def has_example(self, release: int) -> bool | None:
        """Whether the batch of a release has the example; None where that is not known."""
        return self.changed in self.batches[release] if self.is_one_by_one else None

    def _differ(self, what: str) -> None:
        if self.difference is None:
            self.difference = Difference(what, len(self.steps))


_CURRENT: list[Tape] = []


def current() -> Tape | None:
    """The tape of the twin run that is under way in this process."""
    return _CURRENT[-1] if _CURRENT else None


def twin(
    function: Callable[[Any], Any],
    data: Data,
    *,
    neighbours: Neighbouring | str = Neighbouring.ADD_OR_REMOVE_ONE,
    example: int = -1,
    other: int = 0,
    seed: int = 0,
) -> TwinReport:
    """Run `function` on the data, and again without one example, or with another one in its place.

    Args: function: called with data of the kind that is given; returns what is published: the
        model, numbers, or a mapping or sequence of such. Its releases are those of `make_private`
        (with no folder, or one of its own in each call), or of an optimizer of Opacus that is
        recorded by `attach_opacus`. data: arrays or tensors of equal length, (x, y), or a data set
        with __len__ and __getitem__. neighbours: add-remove leaves the example out; replace-one
        puts the example `other` in its place. example: its number in the data; it comes last in the
        first run, so that others keep their places. seed: of torch, numpy and `random`.
    Raises: UsageError where there is no release to compare, or no such example.
    """
    relation = Neighbouring(neighbours)
    size = _size(data)
    number = range(size)[example] if -size <= example < size else -1
    if number < 0 or relation is Neighbouring.ZERO_OUT or size < 2:
        raise UsageError(
            f"twin: example {example} of {size} under {relation.value}: give the number of an "
            "example, and neighbours add-remove or replace-one"
        )
    rest = [place for place in range(size) if place != number]
    last = [] if relation is Neighbouring.ADD_OR_REMOVE_ONE else [rest[range(size - 1)[other]]]
    with tempfile.TemporaryDirectory() as folder:
        tape = Tape(Path(folder), size - 1, is_absent=not last)
        returned, began = _run(function, _chosen(data, [*rest, number]), tape, seed)
        if not tape.releases:
            raise UsageError(
                "twin: no noised gradient was seen; train with make_private, or record an "
                "optimizer of Opacus with attach_opacus"
            )
        again = Tape(Path(folder), size - 1, is_absent=not last, first=tape)
        published, repeated = _run(function, _chosen(data, [*rest, *last]), again, seed)
        again.ends(tape, returned, published)
    return TwinReport(
        difference=min(
            filter(None, (again.excess, tape.difference, again.difference)),
            key=lambda item: math.inf if item.step is None else item.step,
            default=None,
        ),
        steps=len(tape.steps),
        releases=len(tape.releases),
        with_example=sum(map(bool, map(tape.has_example, range(len(tape.releases)))))
        if tape.is_one_by_one
        else None,
        largest=again.largest,
        seconds=(began, repeated),
    )


def _run(
    function: Callable[[Any], Any], data: object, tape: Tape, seed: int
) -> tuple[object, float]:
    """What the function returns, and how many seconds it took."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    start = time.perf_counter()
    with _watching(tape):
        returned = function(data)
    return returned, time.perf_counter() - start


@contextmanager
def _watching(tape: Tape) -> Iterator[None]:
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


def _size(data: Data) -> int:
    return len(data[0]) if isinstance(data, tuple | list) else len(data)  # type: ignore[arg-type]


def _chosen(data: Data, index: list[int]) -> object:
    """The data of these numbers, in this order, of the same kind."""
    if isinstance(data, tuple | list):
        return type(data)(
            part[index]
            if isinstance(part, Tensor | np.ndarray)
            else type(part)(part[place] for place in index)
            for part in data
        )
    return Subset(data, index)  # type: ignore[arg-type]


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [item for group in optimizer.param_groups for item in group["params"]]


def _options(group: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((name, repr(value)) for name, value in group.items() if name != "params")


def _digest(tensors: Sequence[Tensor]) -> str:
    seen = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        seen.update(repr((tuple(tensor.shape), tensor.dtype)).encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        seen.update(flat.view(torch.uint8).numpy().tobytes())
    return seen.hexdigest()


def _differing(first: _Step, second: _Step) -> Iterator[str]:
    """What a step shows that it did not show in the first run, in the order of its causes."""
    if first.optimizer != second.optimizer:
        yield f"{second.optimizer} makes the step, and in the first run {first.optimizer}"
        return
    if first.before != second.before:
        yield "weights changed between this step and the one before"
    for before, after in zip(first.options, second.options, strict=False):
        for (name, old), (_, new) in zip(before, after, strict=False):
            if old != new:
                yield f"{name} of the optimizer is {new}, and was {old} in the first run"
    if first.gradients != second.gradients:
        yield "the noised gradient is scaled or changed otherwise before it is applied"
    elif first.after != second.after:
        yield "the update differs, from the same weights and gradients"


def _unequal(first: object, second: object, name: str) -> str | None:
    """Where two returned values differ; None: nowhere, as far as they can be compared."""
    if isinstance(first, nn.Module) and isinstance(second, nn.Module):
        return _unequal(first.state_dict(), second.state_dict(), name)
    if isinstance(first, Tensor | np.ndarray) and isinstance(second, Tensor | np.ndarray):
        digests = {_digest([torch.as_tensor(value)]) for value in (first, second)}
        return name if len(digests) > 1 else None
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        if list(first) != list(second):
            return f"{name} (its names)"
        parts = ((first[key], second[key], f"{name}[{key!r}]") for key in first)
        return next((found for part in parts if (found := _unequal(*part))), None)
    if isinstance(first, tuple | list) and isinstance(second, tuple | list):
        if len(first) != len(second):
            return f"{name} (its length)"
        each = enumerate(zip(first, second, strict=True))
        return next(
            (found for k, (a, b) in each if (found := _unequal(a, b, f"{name}[{k}]"))), None
        )
    if dataclasses.is_dataclass(first) and type(first) is type(second):
        names = [item.name for item in dataclasses.fields(first)]
        one, other = ({key: getattr(value, key) for key in names} for value in (first, second))
        return _unequal(one, other, name)
    plain = str, bytes, int, float, complex, type(None)
    if isinstance(first, plain) and isinstance(second, plain):
        return None if repr(first) == repr(second) else name
    return None if type(first) is type(second) else f"{name} (its kind)"
