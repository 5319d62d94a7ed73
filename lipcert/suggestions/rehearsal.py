"""Rehearsal: short private runs of recipes and of gradient clipping, from the same start, in numpy.

Each recipe is scored on examples that were kept out of the run, by accuracy; by the area under the
ROC curve if one class is far more frequent than others; by R² if outputs are compared with targets.
Invariant: each step moves along what the mechanism releases, with the noise of the settings, and
weights stay within their constraints. Nothing is certified, and the runs are not private: their
results reveal information about the examples.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from lipcert.analysis.bounded import Bounded, Progress
from lipcert.analysis.observing import held
from lipcert.analysis.release import plan_of
from lipcert.core.losses.tokens import Scores, scores_of
from lipcert.core.program import FloatArray
from lipcert.errors import LipCertError, NoVerdictError, UsageError
from lipcert.gradient_stats.examples import Examples
from lipcert.gradient_stats.labels import checked_labels
from lipcert.gradient_stats.measure import Network, released_mean, stack_size
from lipcert.graph.evaluate import evaluate_batch
from lipcert.graph.ir import Graph, graph_at, parameters_of
from lipcert.losses import DISTANCES, targets_of
from lipcert.privacy.noise import Reduction
from lipcert.settings.settings import Settings
from lipcert.suggestions.analyst import Analyst, learning_rate, release_of
from lipcert.suggestions.records import Change, Rehearsal, Rehearsed

SECONDS: Final = 30.0
"""Seconds that all rehearsals may take together."""
_MARKS: Final = (20, 50, 100, 200)
"""Steps after which networks are scored; fewer steps say nothing."""
_BATCH: Final = 64
"""The batch size if none is planned."""
_LARGEST_BATCH: Final = 128
_KEPT_OUT: Final = 5
"""One of this many examples is kept out."""
_LEAST: Final = 20
_MOST_KEPT_OUT: Final = 500
_MOST_TRAINED: Final = 10_000
_NUMBERS: Final = 1 << 25
"""Most numbers in the inputs of the examples that are trained on."""
ACCURACY: Final = "accuracy"
R_SQUARED: Final = "R²"
ROC_AREA: Final = "ROC AUC"
_RARE: Final = 0.8
"""If the most frequent class has a larger share, runs that know no other one are equally right."""
_WORST: Final = -1.0
"""The least R² of one example, so that a single outlier does not decide."""
_ERRORS: Final = 2.0
CLEAR: Final = 0.02
"""A recipe counts as better than clipping if its lead exceeds this many standard errors and this
share of the examples."""
_DECAY: Final = (0.9, 0.999)
_SMALL: Final = 1e-8
"""The ε of Adam."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What is rehearsed. mechanism, title: its name; changes: made together; pace: of its rate."""

    mechanism: str
    title: str
    changes: tuple[Change, ...]
    pace: float = 1.0


def rehearsed(
    parts: Sequence[Part],
    analyst: Analyst,
    trials: Trials,
    seconds: float = SECONDS,
    observe: Progress | None = None,
) -> Rehearsal:
    """Run all parts for a short time, step by step; the first is the baseline.

    seconds: for all of them together. A part that cannot be run gets a reason.
    """
    end = time.process_time() + seconds
    runs: dict[Part, Run] = {}
    whys: dict[Part, str] = {}
    for part in parts:
        try:
            run = Run.of(analyst, part.changes, trials)
            runs[part] = replace(run, rate=part.pace * run.rate)
        except LipCertError as error:
            whys[part] = str(error)
    most = min((run.steps for run in runs.values()), default=0)
    seen: dict[int, Mapping[Part, FloatArray]] = {}
    going = {part: run.trained(run.rate) for part, run in runs.items()}
    for step in range(1, most + 1):
        if time.process_time() > end:
            break
        graphs = {part: next(run) for part, run in going.items()}
        if observe is not None:
            observe("rehearsal", step, most)
        if step in _MARKS or step == most:
            seen[step] = {key: trials.right(graph) for key, graph in graphs.items()}
    if not seen:
        late = f"{min(_MARKS[0], most)} steps of all take longer than the {seconds:.0f} s there are"
        whys |= dict.fromkeys(runs, late)
    found: list[Rehearsed] = []
    first: FloatArray | None = None
    for place, part in enumerate(parts):
        item = Rehearsed(part.mechanism, part.title, None, (), None, None, False)
        if part in whys:
            found.append(replace(item, why=whys[part]))
            continue
        last = seen[max(seen)]
        curve = tuple((step, float(np.mean(of[part]))) for step, of in seen.items())
        rate, right = runs[part].rate, last[part]
        item = replace(item, rate=rate, curve=curve, accuracy=curve[-1][1])
        if not place:
            first = right
        elif first is not None:
            margin, spread = float(np.mean(right - first)), float(np.std(right - first))
            doubt = max(_ERRORS * spread / math.sqrt(len(right)), CLEAR)
            item = replace(item, margin=margin, better=margin > doubt)
        found.append(item)
    return Rehearsal(
        steps=max(seen, default=0),
        batch=next((run.batch for run in runs.values()), 0),
        kept_out=len(trials.kept_out),
        measure=trials.measure,
        majority=trials.majority,
        before=float(np.mean(trials.right(analyst.base.unclipped))),
        runs=tuple(found),
    )


_Score = Callable[[FloatArray, npt.NDArray[Any]], FloatArray]
"""From outputs [examples, entries] and labels to scores of examples, whose mean is the measure."""


@dataclass(frozen=True, slots=True, eq=False)
class Trials:
    """Examples for rehearsals: those that are trained on, and those that are kept out.

    y: as `checked_labels` gives them. measure: the name of the score of all examples kept out,
    accuracy, ROC AUC or R². majority: the score of the most frequent class, or of the mean of the
    targets.
    """

    trained: Examples
    kept_out: Examples
    measure: str
    majority: float
    score: _Score

    @classmethod
    def of(cls, found: Bounded, examples: Examples) -> Self:
        """Return the split; UsageError if outputs have no score, or examples are too few."""
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
        """Return the score of each example kept out; the worst one if an output is not finite."""
        network, data = Network.of(graph), self.kept_out
        shape, rows = network.program.shapes[network.program.input], stack_size(network)
        found: FloatArray = np.zeros(len(data))
        y, ranked = data.y.reshape(len(data), -1), []
        for start in range(0, len(data), rows):
            part = slice(start, start + rows)
            x = np.asarray(data.x[part], np.float64)
            values = evaluate_batch(network.program, x.reshape(len(x), *shape))
            outputs = values[network.program.output].reshape(len(x), -1)
            if self.measure == ROC_AREA:
                ranked.append(outputs)
                continue
            score = self.score(outputs, y[part])
            worst = 0.0 if self.measure == ACCURACY else _WORST
            found[part] = np.where(np.isfinite(outputs).all(axis=1), score, worst)
        all_of = np.concatenate(ranked) if ranked else np.array([np.nan])
        return self.score(all_of, y) if np.isfinite(all_of).all() else found


def _scored(found: Bounded, y: npt.NDArray[Any]) -> tuple[str, float, _Score]:
    """Return the measure, the best score without inputs, and the score function."""
    scores, targets = scores_of(found.loss, found.graph.output_shape), targets_of(found.loss)
    y = y.reshape(len(y), -1)
    if found.loss.of_classes and scores is not None and scores.classes > 1:
        known = y[y >= 0]
        most = np.bincount(known).max(initial=0) / max(len(known), 1)
        if most > _RARE and scores.tokens == 1 and len(known) == len(y):
            return ROC_AREA, 0.5, _areas_of_classes
        return ACCURACY, float(most), partial(_right_classes, scores)
    if targets is not None and math.isfinite(targets.low):
        middle = 0.5 * (targets.low + targets.high)
        share = np.mean(y > middle, axis=0)
        most = np.mean(np.maximum(share, 1.0 - share))
        if most > _RARE:
            return ROC_AREA, 0.5, lambda z, y: _areas(z, y > middle)
        return ACCURACY, float(most), lambda z, y: np.mean((z > 0.0) == (y > middle), axis=1)
    if isinstance(found.loss, DISTANCES):  # which R² measures
        spread = max(float(np.mean(np.sum((y - np.mean(y, axis=0)) ** 2, axis=1))), _SMALL)
        return (
            R_SQUARED,
            0.0,
            lambda z, y: np.maximum(1.0 - np.sum((z - y) ** 2, axis=1) / spread, _WORST),
        )
    raise UsageError(f"the loss {found.loss.kind!r} has no accuracy, and no R²")


def _areas_of_classes(outputs: FloatArray, labels: npt.NDArray[Any]) -> FloatArray:
    """Return `_areas` of each class that occurs against all others, by its odds."""
    known = np.unique(labels)
    odds = [outputs[:, k] - logsumexp(np.delete(outputs, k, axis=1), axis=1) for k in known]
    return _areas(np.stack(odds, axis=1), labels == known)


def _areas(z: FloatArray, is_in: npt.NDArray[np.bool_]) -> FloatArray:
    """Return scores of examples; their mean is the mean area of columns under the ROC curve.

    That is the chance that a number inside is larger than one outside. The standard error of the
    mean is DeLong's (Biometrics, 1988): each side counts by its own number of examples.
    """
    found: list[FloatArray] = []
    for column, inside in zip(z.T, is_in.T, strict=True):
        own, others = column[inside, None], column[~inside]
        if own.size and others.size:
            above = (own > others) + 0.5 * (own == others)
            area = above.mean()
            score = np.full(len(z), area)
            score[inside] += (above.mean(axis=1) - area) * len(z) / len(own)
            score[~inside] += (above.mean(axis=0) - area) * len(z) / len(others)
            found.append(score)
    return np.mean(found, axis=0) if found else np.full(len(z), 0.5)


def _right_classes(scores: Scores, outputs: FloatArray, labels: npt.NDArray[Any]) -> FloatArray:
    """Return the share of the labels of each example whose class has the largest score."""
    best = np.argmax(scores.apart(outputs), axis=1).reshape(labels.shape)
    right = np.sum((best == labels) & (labels >= 0), axis=1)
    share: FloatArray = right / np.maximum(np.sum(labels >= 0, axis=1), 1)
    return share


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A planned run. stds: of the noise on the mean gradient of a batch, by parameter.

    rate: of Adam, as in recipes for this many steps.
    """

    found: Bounded
    settings: Settings
    trials: Trials
    stds: Mapping[str, float]
    batch: int
    steps: int
    rate: float

    @classmethod
    def of(cls, analyst: Analyst, changes: tuple[Change, ...], trials: Trials) -> Self:
        """Return the run with the planned number of steps, at most 200.

        The batch is the planned one, at most 128 examples of it, with the noise of the release.

        Raises:
            NoVerdictError: if no noise makes the run private.
        """
        own = analyst.analysed(changes)
        plan = plan_of(own.settings)
        planned = own.settings.batch_size if plan is None else plan.batch
        divisor = 1.0 if own.settings.reduction == Reduction.MEAN.value else planned or _BATCH
        stds: dict[str, float] = {}
        for group in release_of(own.found, own.settings).groups:
            if not math.isfinite(group.noise_std):
                raise NoVerdictError("no noise makes the run private")
            stds |= dict.fromkeys(group.parameters, group.noise_std / divisor)
        batch = min(planned or _BATCH, _LARGEST_BATCH, len(trials.trained))
        steps = _MARKS[-1] if plan is None else min(plan.releases, _MARKS[-1])
        rate = learning_rate(own.found.unclipped, own.settings, steps)
        return cls(own.found, own.settings, trials, stds, batch, steps, rate)

    @np.errstate(all="ignore")
    def trained(self, rate: float) -> Iterator[Graph]:
        """Yield the network after every step of a run with Adam.

        Batches and noise are the same for all runs with this batch size.
        """
        random = np.random.default_rng(0)
        graph = held(self.found.graph, self.settings)
        first: dict[str, Any] = dict.fromkeys(self.stds, 0.0)
        second: dict[str, Any] = dict.fromkeys(self.stds, 0.0)
        for step in count(1):
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
        """Return the mean of what is released of a batch, before noise."""
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
