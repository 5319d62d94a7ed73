"""Probe: short runs of a network with the changes and the noise of suggestions, in numpy.

What enters: suggestions, what was analysed of them, and examples with labels of classes. What
leaves: how often the network is right, after a run, about examples that were kept out of it.
Invariant: each step moves along what the mechanism releases, with the noise of the settings;
nothing is certified, and the runs are not private: what they say tells of the examples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Self, final

import numpy as np

from lipcert.analysis.bounded import Bounded, Progress
from lipcert.analysis.observing import held
from lipcert.analysis.planned import plan_of
from lipcert.analysis.release import Release
from lipcert.core.losses.base import Scores, scores_of
from lipcert.errors import NoVerdictError, UsageError
from lipcert.evaluate import evaluate_batch
from lipcert.ir import Graph
from lipcert.privacy.noise import Reduction
from lipcert.settings import Settings
from lipcert.signal.examples import Examples
from lipcert.signal.gradients import stack_size, work
from lipcert.signal.labels import checked_labels
from lipcert.signal.measure import released_mean
from lipcert.signal.network import Network
from lipcert.suggestions.analyst import Analyst, prepared
from lipcert.suggestions.mechanisms import TOPIC
from lipcert.suggestions.records import (
    Change,
    Probed,
    Recipe,
    Skipped,
    Suggestion,
    Suggestions,
)
from lipcert.upper import FloatArray
from lipcert.viewed import graph_at, parameters_of

_FEWEST: Final = 20
"""steps, below which a run says nothing"""
_STEPS: Final = 200
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
_SUGGESTIONS: Final = 4
"""of which runs are made, besides recipes"""
_LENGTHS: Final = (0.3, 1.5, 6.0)
"""of all steps together, if the noise were all there is, over the norm of the weights"""
_HOLDING: Final = 8.0
"""times the work of one example: about what holding weights within constraints takes"""
_SPEED: Final = 1e9
"""floating-point operations in a second"""
_TINY: Final = float(np.finfo(np.float64).tiny)


def with_probes(
    found: Suggestions,
    analyst: Analyst,
    examples: Examples,
    *,
    home: tuple[Change, ...],
    seconds: float,
    observe: Progress | None = None,
) -> Suggestions:
    """The same with accuracies of short runs, of every recipe and of the first suggestions.

    home: the changes under which those of no mechanism were analysed. seconds: about the time that
    all runs together may take. UsageError where labels are no classes, or examples too few.
    """
    trials = Trials.of(analyst.base, examples)
    runs: list[tuple[Recipe | Suggestion, str, tuple[Change, ...]]] = [
        (item, f"the recipe of {item.mechanism}", item.changes) for item in found.recipes
    ]
    for single in found.suggestions[:_SUGGESTIONS]:
        under = () if single.change.topic == TOPIC else home
        runs.append((single, single.change.change, (*under, single.change)))
    accuracies: dict[int, float] = {}
    skipped = list(found.skipped)
    for number, (item, name, changes) in enumerate(runs):
        if observe is not None:
            observe(f"probe: {name}", number, len(runs))
        own = analyst.analysed(changes)
        try:
            accuracies[id(item)] = accuracy_after(
                own.found,
                own.settings,
                analyst.released(own),
                trials.prepared(changes),
                seconds / len(runs),
            )
        except NoVerdictError as error:
            skipped.append(Skipped(f"probe of {name}", f"skipped: {error}"))
    recipes = {
        id(item): replace(item, accuracy_probe=accuracies.get(id(item))) for item in found.recipes
    }
    return replace(
        found,
        recipe=recipes[id(found.recipe)],
        recipes=tuple(recipes.values()),
        suggestions=tuple(
            replace(item, accuracy_probe=accuracies.get(id(item))) for item in found.suggestions
        ),
        skipped=tuple(skipped),
        probed=Probed(len(trials.kept_out), trials.majority, trials.right(analyst.base.unclipped)),
    )


@final
@dataclass(frozen=True, slots=True, eq=False)
class Trials:
    """Examples of probes: those that are trained on, and those that are kept out.

    y: as `checked_labels` gives them. majority: how often the most frequent class is right. scores:
    where those of the classes are; of several tokens, each with a label counts.
    """

    trained: Examples
    kept_out: Examples
    majority: float
    scores: Scores

    @classmethod
    def of(cls, found: Bounded, examples: Examples) -> Self:
        """UsageError where the labels are no classes, or the examples too few."""
        scores = scores_of(found.loss, found.graph.output_shape)
        if not found.loss.of_classes or scores is None or scores.classes < 2:
            raise UsageError("probe: accuracy is counted for losses over several classes")
        if len(examples) < _LEAST:
            raise UsageError(f"probe: {len(examples)} examples are too few; give {_LEAST} or more")
        y = checked_labels(found.loss, examples.y, found.graph.output_shape)
        order = np.random.default_rng(0).permutation(len(y))
        out = min(len(y) // _KEPT_OUT, _MOST_KEPT_OUT)
        numbers = max(math.prod(examples.x.shape[1:]), 1)
        ends = out + min(max(_NUMBERS // numbers, _LEAST), _MOST_TRAINED)
        known = y[order[:out]]
        known = known[known >= 0]
        most = np.bincount(known).max(initial=0) / max(len(known), 1)
        kept_out, trained = (
            replace(examples, x=examples.x[rows], y=y[rows])
            for rows in (order[:out], order[out:ends])
        )
        return cls(trained, kept_out, float(most), scores)

    def prepared(self, changes: tuple[Change, ...]) -> Trials:
        """With inputs as the changes prepare them."""
        ends = [prepared(item, changes) or item for item in (self.trained, self.kept_out)]
        return replace(self, trained=ends[0], kept_out=ends[1])

    @np.errstate(all="ignore")
    def right(self, graph: Graph) -> float:
        """The share of the labels kept out whose class has the largest score."""
        network, data = Network.of(graph), self.kept_out
        shape, rows = network.program.shapes[network.program.input], stack_size(network)
        right = 0
        for start in range(0, len(data), rows):
            x = np.asarray(data.x[start : start + rows], np.float64)
            values = evaluate_batch(network.program, x.reshape(len(x), *shape))
            logits = values[network.program.output].reshape(len(x), -1)
            best = np.argmax(self.scores.apart(logits), axis=1)
            right += int(np.sum(best == data.y[start : start + rows].reshape(-1)))
        return right / max(int(np.sum(data.y >= 0)), 1)


def accuracy_after(
    found: Bounded, settings: Settings, released: Release, trials: Trials, seconds: float
) -> float:
    """The share of the examples kept out about which the network is right after a short run.

    The run has the planned batch, at most 128 examples of it, the planned steps, at most 200, the
    noise of `released` and the weights within their constraints; the best of three rates counts.
    Raises NoVerdictError where fewer than 20 steps, or all of a shorter run, would take longer than
    about so many seconds, or there is no noise that makes the run private.
    """
    run = Run.of(found, settings, released, trials, seconds)
    return max(trials.right(run.trained(length)) for length in _LENGTHS)


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
    def of(
        cls, found: Bounded, settings: Settings, released: Release, trials: Trials, seconds: float
    ) -> Self:
        """With as many steps as are planned and fit into the time."""
        plan = plan_of(settings)
        planned = settings.batch_size if plan is None else plan.batch
        divisor = 1.0 if settings.reduction == Reduction.MEAN.value else planned or _BATCH
        stds: dict[str, float] = {}
        for group in found.groups:
            noise = released.noise(group.name)
            if noise is None or not noise.noise_std.is_finite:
                raise NoVerdictError("no noise makes the run private")
            stds |= {item.name: noise.noise_std.value / divisor for item in group.parameters}
        batch = min(planned or _BATCH, _LARGEST_BATCH, len(trials.trained))
        wanted = min(_STEPS if plan is None else plan.releases, _STEPS)
        of_one = work(found.program)
        of_step = (batch + _HOLDING) * of_one
        left = seconds * _SPEED / len(_LENGTHS) - len(trials.kept_out) * of_one
        steps = min(wanted, int(left / of_step))
        if steps < min(wanted, _FEWEST):
            needed = of_step * min(wanted, _FEWEST) + len(trials.kept_out) * of_one
            raise NoVerdictError(
                f"{min(wanted, _FEWEST)} steps would take about "
                f"{len(_LENGTHS) * needed / _SPEED:.0f} s, and there are {max(seconds, 0):.0f} s"
            )
        return cls(found, settings, trials, stds, batch, steps)

    @np.errstate(all="ignore")
    def trained(self, length: float) -> Graph:
        """The network after the run. length: how far noise alone would lead, over the norm of the
        weights; the rate follows from it."""
        random = np.random.default_rng(0)
        graph, rate = held(self.found.graph, self.settings), 0.0
        for _ in range(self.steps):
            weights, mean = parameters_of(graph), self._mean(graph, random)
            if not rate:
                rate = length * self._size(weights) / (math.sqrt(self.steps) * self._longest(mean))
            moved = {
                name: weights[name]
                - rate * (mean[name] + std * random.standard_normal(mean[name].shape))
                for name, std in self.stds.items()
            }
            graph = held(graph_at(graph, moved), self.settings)
        return graph

    def _mean(self, graph: Graph, random: np.random.Generator) -> Mapping[str, FloatArray]:
        """Of what is released of a batch, before any noise."""
        data = self.trials.trained
        rows = np.sort(random.choice(len(data), self.batch, replace=False))
        found = released_mean(
            graph,
            {group.name: [item.name for item in group.parameters] for group in self.found.groups},
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

    def _size(self, weights: Mapping[str, FloatArray]) -> float:
        return math.hypot(*(float(np.linalg.norm(weights[name])) for name in self.stds))

    def _longest(self, mean: Mapping[str, FloatArray]) -> float:
        """About the length of a mean gradient with its noise."""
        noise = (std * math.sqrt(mean[name].size) for name, std in self.stds.items())
        return max(math.hypot(self._size(mean), *noise), _TINY)
