"""Twin run: repeat a private run on data that differ in one example.

    def train(data):                     # any loop: make_private, or Opacus and attach_opacus
        ...
        return model

    report = lipcert.audit.twin(train, (x, y))

Given a function that trains on the data that it receives, and the data, `twin` returns a
`TwinReport`. The run is done once on the data as they are, and again for each of a few examples,
without it or with another one in its place; and once on data that are far from these, in which one
example replaces most others. These runs get the batches of the first run, and where their example
takes part, the noised gradient of the first run replaces their own (see `tape`). So all runs pass
through the same weights, and must do the same: whatever else depends on the example (learning
rates, what sums are divided by, the number of steps, weights changed between steps, what is
returned) is released without noise. The clean sums, which noise hides, may differ by the stated
sensitivity, and not at all in steps without the example.

A pass does not prove that a run is private: it compares a few pairs of data sets. A difference is
reported as a violation only if two runs on the same data do not differ: so it proves that something
is published that no ε covers.
"""

import dataclasses
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from lipcert.audit.records import Check, CheckReport, Verdict
from lipcert.audit.tape import Changed, Difference, Ended, Tape, digest_of, watching
from lipcert.data.opening import function_named, is_elsewhere, open_source
from lipcert.data.source import Columns, joined
from lipcert.errors import LipCertError, NoVerdictError, UsageError
from lipcert.privacy.noise import Neighbouring
from lipcert.settings.values import check_positive, whole

_TWIN: Final = Check(
    "LC322", "twin-run", "compute what differs from public constants, or leave it out"
)
_DETERMINISTIC: Final = (
    "make the function do the same on every call: nothing but torch, numpy and `random` may "
    "be random, and torch.use_deterministic_algorithms(True) keeps kernels from rounding anew"
)
_SAME: Final = Changed(None, is_absent=False)
DEFAULT_COUNT: Final = 2
"""Number of examples that are compared if none is named."""
Data: TypeAlias = "Sequence[Any] | Dataset[Any]"
Observe: TypeAlias = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Compared:
    """A run without an example of the data, or with another one in its place.

    number: of the example; why: it was chosen. is_far: it replaces most others of the data.
    with_example: the number of releases whose batch has the example, None if batches were not seen.
    largest: the largest difference of clean sums over the stated sensitivity. seconds: of the run.
    """

    number: int
    why: str
    is_far: bool
    with_example: int | None
    largest: float
    seconds: float


@dataclass(frozen=True, slots=True)
class TwinReport:
    """The comparison of a run with runs on neighbouring data.

    difference: the first difference; None if nothing differed except what noise hides. is_random:
    two runs on the same data differ, too, so that nothing follows from it. relation: how the data
    sets differ. seed: of torch, numpy and `random`, and of the choice of examples. compared: the
    runs compared; the last one has the difference. steps, releases, seconds: of the first run.
    """

    difference: Difference | None
    is_random: bool
    relation: Neighbouring
    seed: int
    examples: int
    compared: tuple[Compared, ...]
    steps: int
    releases: int
    seconds: float

    @property
    def verdict(self) -> Verdict:
        """A pass, a violation, or inconclusive for a function that does not do the same twice."""
        if self.difference is None:
            return Verdict.PASS
        return Verdict.INCONCLUSIVE if self.is_random else Verdict.VIOLATION

    @property
    def passed(self) -> bool:
        """Whether nothing differed except what noise hides."""
        return self.difference is None

    @property
    def largest(self) -> float:
        """The largest difference of clean sums over the stated sensitivity."""
        return max(item.largest for item in self.compared)

    @property
    def answer(self) -> str:
        """The verdict, and the evidence for it."""
        return f"{self.verdict.value.capitalize()}: {self._found}."

    @property
    def check(self) -> CheckReport:
        """This report as a check of an audit."""
        if self.difference is None:
            return _TWIN.passed(self._found)
        step = self.difference.step
        where = "" if step is None else f"step {step}"
        return _TWIN.failed(self._found, where, verdict=self.verdict, remedy=_DETERMINISTIC
                            if self.is_random else "")  # fmt: skip

    @property
    def _found(self) -> str:
        if self.is_random:
            return f"two runs on the same data differ, too, at {self.difference}"
        is_absent = self.relation is Neighbouring.ADD_OR_REMOVE_ONE
        if self.difference is None:
            pairs = "without" if is_absent else "with another example in the place of"
            far = sum(item.is_far for item in self.compared)
            return (
                f"the run does the same {pairs} any one of {len(self.compared) - far} examples"
                f"{', and on other data' * far}; clean sums differ by at most {self.largest:.4g} "
                "times the stated sensitivity"
            )
        last = self.compared[-1]
        done = "is left out" if is_absent else "is replaced"
        done = "replaces most others" if last.is_far else done
        return (
            f"if example {last.number} ({last.why}) {done}, the runs differ first at "
            f"{self.difference}"
        )

    def __str__(self) -> str:
        named = ", ".join(f"{item.number} ({item.why})" for item in self.compared)
        counts = f"{self.steps} steps, {self.releases} releases; examples {named}; seed {self.seed}"
        return f"{self.answer}\n{counts}"


def twin(
    function: Callable[[Any], Any],
    data: Data,
    *,
    neighbours: Neighbouring | str | None = None,
    examples: Sequence[int] | None = None,
    count: int = DEFAULT_COUNT,
    far: bool = True,
    seed: int = 0,
    observe: Observe = lambda _what, _done, _total: None,
) -> TwinReport:
    """Run `function` on the data, and again without one example, or with another one in its place.

    Args:
        function: called with data of the same kind as `data`; returns what is published: the model,
            numbers, or a mapping or sequence of these. Its releases are those of `make_private`, of
            an optimizer of Opacus that `attach_opacus` records, or what a recorder receives by
            `gradients(clean=…)` and `gradients(noised=…)`. A folder that it gives to `make_private`
            or to a recorder is replaced by a temporary one.
        data: arrays or tensors of equal length, (x, y), or a data set with __len__ and __getitem__;
            only these two methods of a data set are passed on.
        neighbours: add-remove leaves the example out; replace-one and zero-out put another example
            in its place. None: the relation of the run, or replace-one if no loader shows its
            batches.
        examples: their indices in the data. None: as many as `count` says: for arrays the largest
            example and one of the rarest label, then random ones.
        far: also run it on data in which the first of them replaces all others but one of each
            label. This shows decisions that are made only now and then, such as early stopping:
            what they publish differs in some step from example to example on the way from these
            data to those. Every noised gradient is kept in a temporary folder for this run.
        seed: of torch, numpy and `random`, and of the choice of examples.

    Raises:
        UsageError: if there is no release to compare, or no such example.
    """
    size = _size(data)
    chosen = _chosen(data, size, examples, whole("count", count), seed)
    runs = 1 + len(chosen) + far
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        tape = Tape(place, size, seed, marked=tuple(chosen), keeps_noised=far,
                    observe=partial(_report, observe, 0, runs))  # fmt: skip
        given = _neighbour(data, _SAME, size, seed)
        returned, seconds = _run(function, given, tape)
        if not tape.releases:
            raise UsageError(
                "twin: no noised gradient was seen; train with make_private, record an optimizer "
                "of Opacus with attach_opacus, or show gradients to a Recorder"
            )
        relation = tape.relation if neighbours is None else Neighbouring(neighbours)
        compared: list[Compared] = []
        difference, is_random = None, False
        is_absent = relation is Neighbouring.ADD_OR_REMOVE_ONE
        others = [Changed(number, is_absent=is_absent) for number in chosen]
        others += [Changed(next(iter(chosen)), is_absent=False, is_far=True)] * far
        while others:
            changed = others[0]
            again = Tape(
                place, size, seed, first=tape, changed=changed, random=tape.random,
                observe=partial(_report, observe, 1 + len(compared), runs),
            )  # fmt: skip
            published, took = _run(function, _neighbour(data, changed, size, seed), again)
            difference, is_random = _difference(again, returned, published), False
            if difference is not None:
                difference, is_random, again = _again(function, data, tape, again, difference)
                if is_random and difference.own:
                    tape.random.add(difference.own)
                    continue
            others.pop(0)
            number, has = changed.number or 0, None if changed.is_far else again.with_example
            seen = has, again.largest, took
            compared.append(Compared(number, chosen[number], changed.is_far, *seen))
            if difference is not None:
                break
    return TwinReport(
        difference, is_random, relation, seed, size, tuple(compared),
        len(tape.steps), len(tape.releases), seconds,
    )  # fmt: skip


def _report(observe: Observe, done: int, runs: int, step: int) -> None:
    observe(f"run {done + 1}, step {step}", done, runs)


def twin_of(
    where: str,
    data: str,
    columns: Columns,
    **words: Any,
) -> TwinReport:
    """Run `twin` for a function and data that are named on the command line.

    What the function prints goes to standard error.

    Args:
        where: `file.py:function` or `package.module:function`.
        data: as audits read them; the function gets a data set as it is, and otherwise tensors (x,
            y).
        words: arguments of `twin`.

    Raises:
        NoVerdictError: for names that do not exist, and for what the function raises.
    """
    function, examples = function_named(where), data_named(data, columns)

    def called(given: Any) -> Any:
        with redirect_stdout(sys.stderr):
            return function(given)

    try:
        return twin(called, examples, **words)
    except LipCertError:
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise NoVerdictError(
            f"audit: {where} failed at {Path(place.filename).name}:{place.lineno}: "
            f"{type(error).__name__}: {' '.join(str(error).split())}"
        ) from error


def data_named(where: str, columns: Columns) -> Data:
    """Return the examples that a word of the command line names, as a training loop takes them."""
    found: Any = where
    if is_elsewhere(where):
        with redirect_stdout(sys.stderr):
            found = function_named(where)()
        if isinstance(found, DataLoader):
            found = found.dataset
        if isinstance(found, Dataset) and not isinstance(found, IterableDataset):
            return found
        if isinstance(found, tuple) and all(isinstance(p, Tensor | np.ndarray) for p in found):
            return found
    x, y = joined(list(open_source(found, columns, where).blocks()))
    return torch.from_numpy(x), torch.from_numpy(y)


def _again(
    function: Callable[[Any], Any], data: Data, before: Tape, found: Tape, difference: Difference
) -> tuple[Difference, bool, Tape]:
    """Repeat the runs up to the step in question, with all sums of the first run kept.

    Returns:
        what differs, whether the function does not do the same twice on the same data, and the tape
        that shows it.
    """
    with tempfile.TemporaryDirectory() as folder:
        place, size, seed = Path(folder), found.size, found.seed
        first = Tape(
            place, size, seed, before.marked, keeps_clean=difference.is_of_sums,
            keeps_noised=found.changed.is_far, until=difference.step,
        )  # fmt: skip
        returned, _ = _run(function, _neighbour(data, _SAME, size, seed), first)
        results = []
        for changed in (_SAME, found.changed):
            tape = Tape(
                place, size, seed, until=difference.step, first=first, changed=changed,
                random=before.random,
            )  # fmt: skip
            published, _ = _run(function, _neighbour(data, changed, size, seed), tape)
            results.append((_difference(tape, returned, published), tape))
    (control, _), (shown, tape) = results
    if control is not None:
        return control, True, found
    if shown is None:  # no more than rounding, in a function that rounds otherwise each time
        return difference, True, found
    return shown, False, tape


def _run(function: Callable[[Any], Any], data: object, tape: Tape) -> tuple[object, float]:
    """Return what the function returns, and how many seconds it took.

    If a second run raises where the first did not, that is a difference.
    """
    tape.seed_all()
    start, returned = time.perf_counter(), None
    try:
        with watching(tape):
            returned = function(data)
        tape.ends()
    except Ended:
        pass
    except Exception as error:
        if tape.first is None:
            raise
        what = f"the function raises {type(error).__name__}: {' '.join(str(error).split())}"
        tape.difference = tape.difference or Difference(what, len(tape.steps))
    return returned, time.perf_counter() - start


def _difference(tape: Tape, before: object, returned: object) -> Difference | None:
    """Return what a second run has shown, or else how its result differs."""
    if tape.difference is not None:
        return tape.difference
    pairs = zip(*(_shown(value, "what is returned") for value in (before, returned)), strict=False)
    return next((Difference(f"{name} differs") for (name, a), (_, b) in pairs if a != b), None)


def _size(data: Data) -> int:
    size = len(data[0]) if isinstance(data, tuple | list) else len(data)  # type: ignore[arg-type]
    if size < 2:
        raise UsageError(f"twin: {size} examples; give two or more")
    return size


def _chosen(
    data: Data, size: int, examples: Sequence[int] | None, count: int, seed: int
) -> Mapping[int, str]:
    """Return indices of examples, and why each was chosen."""
    check_positive("count", count)
    for number in examples or ():
        if not -size <= number < size:
            raise UsageError(f"twin: there is no example {number} among {size}")
    if examples is not None:
        return {range(size)[number]: "as given" for number in examples}
    found = {} if not isinstance(data, tuple | list) else _unusual(data)
    drawn = np.random.default_rng(seed).permutation(size)
    found |= {int(number): "at random" for number in drawn if int(number) not in found}
    return dict(list(found.items())[:count])


def _unusual(data: Sequence[Any]) -> dict[int, str]:
    """Return the example with the largest norm, and one of the rarest label."""
    x = data[0]
    found: dict[int, str] = {}
    if isinstance(x, Tensor | np.ndarray):
        norms = torch.as_tensor(x).reshape(len(x), -1).double().square().sum(1)
        found[int(norms.nan_to_num(torch.inf).argmax())] = "the largest"
    labels = _labels(data)
    if labels:
        counts = Counter(labels)
        rarest = min(counts, key=lambda label: counts[label])
        found.setdefault(labels.index(rarest), "the rarest label")
    return found


def _labels(data: Data) -> list[Any]:
    """Return the label of each example if they are class labels; otherwise nothing."""
    y = data[-1] if isinstance(data, tuple | list) else None
    labels = y.tolist() if isinstance(y, Tensor | np.ndarray) and y.ndim == 1 else []
    return labels if 2 * len(set(labels)) <= len(labels) else []


def _neighbour(data: Data, changed: Changed, size: int, seed: int) -> object:
    """Return the data without the example, or with another one in its place, of the same kind as
    before."""
    index = list(range(size))
    if changed.number is None:
        pass
    elif changed.is_far:
        labels = _labels(data)
        kept = {labels.index(label) for label in set(labels)}
        index = [place if place in kept else changed.number for place in index]
    elif changed.is_absent:
        del index[changed.number]
    else:
        others = index[: changed.number] + index[changed.number + 1 :]
        index[changed.number] = random.Random(seed).choice(others)
    if isinstance(data, tuple | list):
        return type(data)(_some(part, index) for part in data)
    if isinstance(data, TensorDataset):
        return TensorDataset(*(part[index] for part in data.tensors))
    return _Some(data, index)


def _some(part: Any, index: list[int]) -> Any:
    if isinstance(part, Tensor | np.ndarray):
        return part[index]
    return type(part)(part[place] for place in index)


class _Some(Dataset[Any]):
    """Examples of a data set; not a Subset, whose examples must all be different."""

    def __init__(self, whole: Any, index: Sequence[int]) -> None:
        self._whole, self._index = whole, index

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, place: int) -> Any:
        return self._whole[self._index[place]]


def _shown(value: object, name: str) -> Iterator[tuple[str, str]]:
    """Yield each part of a returned value with what can be compared of it, a whole before its
    parts."""
    value = _parts(value)
    if isinstance(value, Tensor | np.ndarray):
        yield name, digest_of([torch.as_tensor(value)])
    elif isinstance(value, Mapping):
        yield name, f"{len(value)} parts: {list(value)}"
        for key, part in value.items():
            yield from _shown(part, f"{name}[{key!r}]")
    else:
        plain = isinstance(value, str | bytes | int | float | complex | np.generic | None)
        yield name, repr(value) if plain else str(type(value))


def _parts(value: object) -> object:
    """Return what a value consists of, as far as it can be compared."""
    if isinstance(value, nn.Module):
        return value.state_dict()
    if dataclasses.is_dataclass(value):
        return {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    if isinstance(value, SimpleNamespace):
        return vars(value)
    if isinstance(value, set | frozenset):
        value = sorted(map(repr, value))
    if isinstance(value, np.ndarray) and value.dtype.kind not in "biufc":
        value = value.tolist()
    return dict(enumerate(value)) if isinstance(value, tuple | list) else value
