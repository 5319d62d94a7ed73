"""Rehearsal: short private runs of recipes beside gradient clipping, from the same start, in numpy.

Of each recipe: the curve, and how right the network is about examples that were kept out of the
run, by accuracy, or R² where outputs are compared with targets. Invariant: each step moves along
what the mechanism releases, with the noise of the settings, and weights stay within their
constraints; nothing is certified, and the runs are not private: what they say reveals the examples.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Self, final

import numpy as np
import numpy.typing as npt

from lipcert.analysis.bounded import Bounded, Progress
from lipcert.analysis.observing import held
from lipcert.analysis.release import Release, plan_of
from lipcert.core.losses.tokens import Scores, scores_of
from lipcert.errors import LipCertError, NoVerdictError, UsageError
from lipcert.gradient_stats.examples import Examples
from lipcert.gradient_stats.labels import checked_labels
from lipcert.gradient_stats.measure import released_mean
from lipcert.gradient_stats.network import Network, stack_size
from lipcert.graph.evaluate import evaluate_batch
from lipcert.graph.ir import Graph
from lipcert.graph.viewed import graph_at, parameters_of
from lipcert.privacy.noise import Reduction
from lipcert.settings.settings import Settings
from lipcert.suggestions.analyst import Analyst
from lipcert.suggestions.records import Change, Rehearsal, Rehearsed
from lipcert.upper import FloatArray

SECONDS: Final = 30.0
"""that all rehearsals may take together"""
_STEPS: Final = (200, 100, 50, 20)
"""of which as many are made as there is time for: fewer say nothing"""
_TIMED: Final = 3
"""steps that tell how long one takes"""
_BATCH: Final = 64
"""where no batch is planned"""
_LARGEST_BATCH: Final = 128
_KEPT_OUT: Final = 5
"""one of so many examples"""
_LEAST: Final = 20
_MOST_KEPT_OUT: Final = 500
_MOST_TRAINED: Final = 10_000
_NUMBERS: Final = 1 << 25
"""in the inputs of the examples that are trained on"""
_RATES: Final = (0.003, 0.01, 0.03)
"""of Adam: the best in a first run is taken in a second, with other batches and other noise"""
ACCURACY: Final = "accuracy"
R_SQUARED: Final = "R²"
_WORST: Final = -1.0
"""the least R² of one example: one that is far off does not decide"""
_POINTS: Final = 8
"""of a curve"""
_ERRORS: Final = 2.0
CLEAR: Final = 0.02
"""by how many standard errors, and by what share of the examples, a recipe has to be right more
often than clipping to count as better"""
_DECAY: Final = (0.9, 0.999)
_SMALL: Final = 1e-8
"""Adam's"""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What is rehearsed. mechanism, title: what it is called; changes: made together."""

    mechanism: str
    title: str
    changes: tuple[Change, ...]


def rehearsed(
    parts: Sequence[Part],
    analyst: Analyst,
    trials: Trials,
    seconds: float = SECONDS,
    observe: Progress | None = None,
) -> Rehearsal:
    """Short runs of all parts, with equally many steps; the first is the baseline.

    seconds: that all of them may take together. What cannot be run in time, or has no noise, says
    so.
    """
    end = time.process_time() + seconds
    planned = _in_time([_planned(part, analyst, trials) for part in parts], seconds)
    runs = [item for item in planned if isinstance(item, Run)]
    steps = min((run.steps for run in runs), default=0)
    shown = _Shown(observe, len(runs) * (len(_RATES) + 1) * steps)
    first: FloatArray | None = None
    found: list[Rehearsed] = []
    for place, (part, run) in enumerate(zip(parts, planned, strict=True)):
        try:
            if isinstance(run, str):
                raise NoVerdictError(run)
            result = run.result(_watched(part.title, end, shown))
        except LipCertError as error:
            missed = Rehearsed(part.mechanism, part.title, None, (), None, None, False, str(error))
            found.append(missed)
            continue
        rate, curve, right = result
        margin, better = None, False
        if not place:
            first = right
        elif first is not None:
            margin, deviation = _difference(right, first)
            better = margin > max(_ERRORS * deviation, CLEAR)
        found.append(
            Rehearsed(part.mechanism, part.title, rate, curve, curve[-1][1], margin, better)
        )
    return Rehearsal(
        steps=steps,
        batch=runs[0].batch if runs else 0,
        kept_out=len(trials.kept_out),
        measure=trials.measure,
        majority=trials.majority,
        before=float(np.mean(trials.right(analyst.base.unclipped))),
        runs=tuple(found),
    )


def _in_time(planned: Sequence[Run | str], seconds: float) -> Sequence[Run | str]:
    """The same runs with as many steps as there is time for, each with as many; where few steps of
    all take too long, of the first two, or none."""
    runs = [item for item in planned if isinstance(item, Run)]
    if not runs or seconds <= 0.0:
        return [item if isinstance(item, str) else _late(0.0) for item in planned]
    wanted = min(run.steps for run in runs)
    costs = [run.seconds_of_step() for run in runs]
    for count in dict.fromkeys((len(runs), min(2, len(runs)))):
        cost = sum(costs[:count])
        for most in _STEPS:
            if cost * min(most, wanted) <= seconds or cost == 0.0:
                kept = {id(run) for run in runs[:count]}
                return [
                    replace(item, steps=min(most, wanted))
                    if id(item) in kept and isinstance(item, Run)
                    else (item if isinstance(item, str) else _late(seconds))
                    for item in planned
                ]
    needed = sum(costs[:2]) * min(_STEPS[-1], wanted)
    return [item if isinstance(item, str) else _late(seconds, needed) for item in planned]


def _planned(part: Part, analyst: Analyst, trials: Trials) -> Run | str:
    """A run, or why there is none."""
    own = analyst.analysed(part.changes)
    released = analyst.released(own)
    try:
        return Run.of(own.found, own.settings, released, trials)
    except LipCertError as error:
        return str(error)


_Curve = tuple[tuple[int, float], ...]


def _watched(title: str, end: float, shown: _Shown) -> Callable[[], None]:
    """Called at every step: reports it, and raises NoVerdictError once time is up."""

    def watch() -> None:
        shown.step(title)
        if time.process_time() > end:
            raise NoVerdictError("the time for rehearsals ended before its run")

    return watch


@final
class _Shown:
    """Steps of all runs, as progress."""

    def __init__(self, observe: Progress | None, total: int) -> None:
        self._observe, self._total, self._done = observe, total, 0

    def step(self, title: str) -> None:
        """Count one more step of a run."""
        self._done += 1
        if self._observe is not None:
            self._observe(f"rehearsal: {title}", self._done, max(self._total, self._done))


def _late(seconds: float, needed: float | None = None) -> str:
    """Why there is no run."""
    took = "" if needed is None else f", and {_STEPS[-1]} steps would take about {needed:.0f} s"
    return f"there are {seconds:.0f} s for rehearsals{took}"


def _difference(right: FloatArray, first: FloatArray) -> tuple[float, float]:
    """By how much more often one network is right than another about the same examples, and the
    standard error of that."""
    more = right - first
    return float(np.mean(more)), float(np.std(more)) / math.sqrt(len(more))


_Score = Callable[[FloatArray, npt.NDArray[Any]], FloatArray]
"""from outputs [examples, entries] and labels to how right each example is, 1 at most"""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Trials:
    """Examples of rehearsals: those that are trained on, and those that are kept out.

    y: as `checked_labels` gives them. measure: what a score of all examples kept out is, accuracy
    or R². majority: that of the most frequent class, or of the mean of the targets.
    """

    trained: Examples
    kept_out: Examples
    measure: str
    majority: float
    score: _Score

    @classmethod
    def of(cls, found: Bounded, examples: Examples) -> Self:
        """UsageError for a loss whose outputs have no score, and for too few examples."""
        if len(examples) < _LEAST:
            raise UsageError(f"{len(examples)} examples are too few; give {_LEAST} or more")
        y = checked_labels(found.loss, examples.y, found.graph.output_shape)
        order = np.random.default_rng(0).permutation(len(y))
        out = min(len(y) // _KEPT_OUT, _MOST_KEPT_OUT)
        numbers = max(math.prod(examples.x.shape[1:]), 1)
        ends = out + min(max(_NUMBERS // numbers, _LEAST), _MOST_TRAINED)
        kept_out, trained = (
            replace(examples, x=examples.x[rows], y=y[rows])
            for rows in (order[:out], order[out:ends])
        )
        return cls(trained, kept_out, *_scored(found, kept_out.y))

    @np.errstate(all="ignore")
    def right(self, graph: Graph) -> FloatArray:
        """The score of each example kept out, that of the worst where an output is not finite."""
        network, data = Network.of(graph), self.kept_out
        shape, rows = network.program.shapes[network.program.input], stack_size(network)
        found: FloatArray = np.zeros(len(data))
        for start in range(0, len(data), rows):
            part = slice(start, start + rows)
            x = np.asarray(data.x[part], np.float64)
            values = evaluate_batch(network.program, x.reshape(len(x), *shape))
            outputs = values[network.program.output].reshape(len(x), -1)
            score = self.score(outputs, data.y[part].reshape(len(x), -1))
            worst = 0.0 if self.measure == ACCURACY else _WORST
            found[part] = np.where(np.isfinite(outputs).all(axis=1), score, worst)
        return found


def _scored(found: Bounded, y: npt.NDArray[Any]) -> tuple[str, float, _Score]:
    """The measure, the score of what knows the labels y and no input, and that of an output."""
    scores, targets = scores_of(found.loss, found.graph.output_shape), found.loss.targets
    y = y.reshape(len(y), -1)
    if found.loss.of_classes and scores is not None and scores.classes > 1:
        known = y[y >= 0]
        most = np.bincount(known).max(initial=0) / max(len(known), 1)
        return ACCURACY, float(most), partial(_right_classes, scores)
    if targets is not None and math.isfinite(targets.low):
        middle = 0.5 * (targets.low + targets.high)
        share = np.mean(y > middle, axis=0)
        most = np.mean(np.maximum(share, 1.0 - share))
        return ACCURACY, float(most), lambda z, y: np.mean((z > 0.0) == (y > middle), axis=1)
    if found.loss.of_distances:  # which R² measures
        spread = max(float(np.mean(np.sum((y - np.mean(y, axis=0)) ** 2, axis=1))), _SMALL)
        return (
            R_SQUARED,
            0.0,
            lambda z, y: np.maximum(1.0 - np.sum((z - y) ** 2, axis=1) / spread, _WORST),
        )
    raise UsageError(f"the loss {found.loss.kind!r} has no accuracy, and no R²")


def _right_classes(scores: Scores, outputs: FloatArray, labels: npt.NDArray[Any]) -> FloatArray:
    """The share of the labels of each example whose class has the largest score."""
    best = np.argmax(scores.apart(outputs), axis=1).reshape(labels.shape)
    right = np.sum((best == labels) & (labels >= 0), axis=1)
    share: FloatArray = right / np.maximum(np.sum(labels >= 0, axis=1), 1)
    return share


@final
@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A run that is planned. stds: of the noise on the mean gradient of a batch, by parameter."""

    found: Bounded
    settings: Settings
    trials: Trials
    stds: Mapping[str, float]
    batch: int
    steps: int

    @classmethod
    def of(cls, found: Bounded, settings: Settings, released: Release, trials: Trials) -> Self:
        """With as many steps as are planned, at most 200.

        The batch is the planned one, at most 128 examples of it; the noise is that of `released`.
        Raises NoVerdictError where there is no noise that makes the run private.
        """
        plan = plan_of(settings)
        planned = settings.batch_size if plan is None else plan.batch
        divisor = 1.0 if settings.reduction == Reduction.MEAN.value else planned or _BATCH
        stds: dict[str, float] = {}
        for group in released.groups:
            if not group.noise_std.is_finite:
                raise NoVerdictError("no noise makes the run private")
            stds |= dict.fromkeys(group.parameters, group.noise_std.value / divisor)
        batch = min(planned or _BATCH, _LARGEST_BATCH, len(trials.trained))
        steps = _STEPS[0] if plan is None else min(plan.releases, _STEPS[0])
        return cls(found, settings, trials, stds, batch, steps)

    def seconds_of_step(self) -> float:
        """Processor time of one step of each rate and of the run itself, with looking at it."""
        few = replace(self, steps=min(_TIMED, self.steps))
        *_, last = few.trained(_RATES[0], 0)
        begun = time.process_time()
        *_, last = few.trained(_RATES[0], 0)
        between = time.process_time()
        self.trials.right(last)
        looking = (time.process_time() - between) * (len(_RATES) + _POINTS)
        step = (between - begun) / few.steps
        return (len(_RATES) + 1) * step + looking / self.steps

    def result(self, watch: Callable[[], None] = lambda: None) -> tuple[float, _Curve, FloatArray]:
        """The rate that a first run chooses, the curve of a second one, and which of the examples
        kept out the network is right about at its end. watch: is called at every step."""
        best, rate = -math.inf, _RATES[0]
        for candidate in _RATES:
            *_, last = self.trained(candidate, 0, watch)
            accuracy = float(np.mean(self.trials.right(last)))
            if accuracy > best:
                best, rate = accuracy, candidate
        every, curve = max(self.steps // _POINTS, 1), []
        right = self.trials.right(held(self.found.graph, self.settings))
        curve.append((0, float(np.mean(right))))
        for step, graph in enumerate(self.trained(rate, 1, watch), 1):
            if step % every == 0 or step == self.steps:
                right = self.trials.right(graph)
                curve.append((step, float(np.mean(right))))
        return rate, tuple(curve), right

    @np.errstate(all="ignore")
    def trained(
        self, rate: float, seed: int, watch: Callable[[], None] = lambda: None
    ) -> Iterator[Graph]:
        """The network after every step of a run with Adam."""
        random = np.random.default_rng(seed)
        graph = held(self.found.graph, self.settings)
        first: dict[str, Any] = dict.fromkeys(self.stds, 0.0)
        second: dict[str, Any] = dict.fromkeys(self.stds, 0.0)
        for step in range(1, self.steps + 1):
            watch()
            weights, mean = parameters_of(graph), self._mean(graph, random)
            moved: dict[str, FloatArray] = {}
            for name, std in self.stds.items():
                released = mean[name] + std * random.standard_normal(mean[name].shape)
                first[name] = _DECAY[0] * first[name] + (1.0 - _DECAY[0]) * released
                second[name] = _DECAY[1] * second[name] + (1.0 - _DECAY[1]) * released**2
                mean_of = first[name] / (1.0 - _DECAY[0] ** step)
                root = np.sqrt(second[name] / (1.0 - _DECAY[1] ** step))
                moved[name] = weights[name] - rate * mean_of / (root + _SMALL)
            graph = held(graph_at(graph, moved), self.settings)
            yield graph

    def _mean(self, graph: Graph, random: np.random.Generator) -> Mapping[str, FloatArray]:
        """Of what is released of a batch, before any noise."""
        data = self.trials.trained
        rows = np.sort(random.choice(len(data), self.batch, replace=False))
        found = released_mean(
            graph,
            {group.name: group.parameters for group in self.found.groups},
            self.found.loss,
            replace(data, x=data.x[rows], y=data.y[rows]),
            loss_clip=self.found.loss_clip,
            clip=self.found.premises.clip,
        )
        shapes = {name: item.shape for name, item in graph.parameters.items()}
        return {
            name: np.broadcast_to(part, math.prod(shapes[name])).reshape(shapes[name])
            for name, part in found.items()
        }
