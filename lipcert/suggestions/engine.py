"""Engine: what-ifs of one network, analysed, ranked and combined.

What enters: a network that was bounded, settings, examples or none, and how much time there is.
What leaves: `Suggestions`. The data flow: baseline → mechanisms → changes by themselves → recipes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, final

import numpy as np

from lipcert.analysis.bounded import Bounded, Progress, bounded
from lipcert.analysis.observing import told
from lipcert.analysis.pipeline import require_arguments
from lipcert.analysis.planned import plan_of
from lipcert.errors import LipCertError
from lipcert.importer.model import ImportedModel
from lipcert.search.norms import Propose
from lipcert.search.proposals import proposals
from lipcert.settings import Settings
from lipcert.signal.examples import Examples, random_examples
from lipcert.signal.gradients import work
from lipcert.suggestions import mechanisms
from lipcert.suggestions.analyst import Analysed, Analyst, Remembered, changed
from lipcert.suggestions.changes import Subject, changes_of
from lipcert.suggestions.layer_radii import layer_radii
from lipcert.suggestions.records import (
    Change,
    Outcome,
    Recipe,
    Skipped,
    Suggestion,
    Suggestions,
)
from lipcert.suggestions.remarks import remarks_of, stops_of
from lipcert.suggestions.structure import Structure
from lipcert.threads import one_thread

BUDGET: Final = 120.0
"""seconds"""
_GAIN: Final = 0.01
_WORTH: Final = 0.10
"""by what part noise over signal has to fall, and by one that changes what the network computes"""
_CLEAR: Final = 1.5
"""by what factor a recipe that changes the network has to be better than any that keeps it"""
_PASSES: Final = 3
_MOST: Final = 32
_LEAST: Final = 2
_WORK: Final = 2e8
"""floating-point operations of one measurement"""
_DATA: Final = 8
"""times as many where examples are given: their mean says more"""
_ORDER: Final = (
    *("norm", "biases", "residual", "attention", "activation", "pool", "loss clip", "temperature"),
    *("input", "weights", "affine", "allocation"),
)
_KEEPING: Final = frozenset({"affine", "allocation", "loss clip"})
"""topics beyond which mechanisms that bound any network need nothing"""


@one_thread()
def suggest(
    model: ImportedModel,
    settings: Settings,
    examples: Examples | None = None,
    budget: float = BUDGET,
    observe: Progress | None = None,
    *,
    propose: Propose = proposals,
) -> Suggestions:
    """What would make a private run of the network learn, ranked by noise over signal.

    examples: at which gradients are measured, which costs privacy that no ε covers where they are
    private; None: random admissible ones. budget: seconds, after which nothing further is tried.
    observe: is told what is being analysed. Raises what `bounded` raises for the settings.
    """
    require_arguments("suggest", model, settings)
    plan_of(settings)
    started, remembered = time.monotonic(), Remembered(propose)
    base = bounded(model, settings, None, remembered)
    left = budget - (time.monotonic() - started)
    return suggestions_of(
        base, settings, examples, left, observe, path=model.path, propose=remembered
    )


@one_thread()
def suggestions_of(
    base: Bounded,
    settings: Settings,
    examples: Examples | None = None,
    budget: float = BUDGET,
    observe: Progress | None = None,
    *,
    path: str = "",
    propose: Propose = proposals,
) -> Suggestions:
    """The same for a network that was bounded under these settings. path: of its file, if any."""
    started = time.monotonic()
    structure = Structure(base.unclipped)
    families = tuple(mechanisms.families(settings, _is_biased(structure)))
    given = examples
    if examples is None:
        examples = _drawn(base, settings, propose)
    else:
        examples = _some(examples, int(_DATA * _WORK / work(base.program)))
    session = _Session(
        analyst=Analyst(base, settings, examples, propose),
        structure=structure,
        families=families,
        home=families[:1] if settings.mechanism == "none" else (),
        deadline=started + budget,
        observe=observe,
    )
    found = session.suggestions(path, started)
    if given is None or examples is None:
        return found
    about_data = told(examples, session.analyst.analysed(()).observed, settings)
    return replace(found, diagnostics=about_data)


@final
@dataclass(frozen=True, eq=False)
class _Session:
    """home: the mechanism that other changes are tried under: none, where one is stated."""

    analyst: Analyst
    structure: Structure
    families: tuple[Change, ...]
    home: tuple[Change, ...]
    deadline: float
    observe: Progress | None
    skipped: list[Skipped] = field(default_factory=list)
    untried: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    expected: list[int] = field(default_factory=lambda: [1])

    @property
    def base(self) -> Bounded:
        """The network as it is."""
        return self.analyst.base

    def suggestions(self, path: str, started: float) -> Suggestions:
        """Everything that was found in time."""
        analyst, settings = self.analyst, self.analyst.settings
        baseline = analyst.analysed(())
        rival = self.tried((self.families[-2],))
        families = [*self.families, *self._measured(rival)]
        changes = list(changes_of(self._subject(baseline)))
        self.expected[0] = 3 * (len(families) + len(changes))
        alone = [self._alone(family, ()) for family in families]
        singles = [self._alone(change, self.home) for change in changes if change.in_recipe]
        found = [item for item in (*alone, *singles) if item is not None]
        others = [self._alone(change, self.home) for change in changes if not change.in_recipe]
        others += [self._head_elsewhere(changes)] if settings.mechanism != "none" else []
        recipes = list(self._recipes(families, changes))
        best = _best(recipes, [item.outcome.score for item in found])
        ranked = tuple(sorted(found, key=_rank))
        apart = tuple(sorted((item for item in others if item is not None), key=_rank))
        source = analyst.examples
        return Suggestions(
            model=path,
            sha256=self.base.reading.model.sha256,
            parameters=sum(p.size for g in self.base.groups for p in g.parameters),
            source="" if source is None else source.source,
            is_private=source is not None and source.is_private,
            examples=0 if source is None else len(source),
            is_run=plan_of(settings) is not None,
            baseline_mechanism=settings.mechanism,
            baseline=baseline.outcome,
            clipping=None if rival is None else rival.outcome,
            recipe=best,
            recipes=tuple(sorted(recipes, key=lambda recipe: recipe.outcome.score)),
            suggestions=ranked,
            others=apart,
            stops=tuple(stops_of(self.structure.graph)),
            remarks=tuple(remarks_of(self.structure, ranked, apart, recipes)),
            skipped=tuple(self.skipped),
            untried=tuple(dict.fromkeys(self.untried)),
            seconds=time.monotonic() - started,
        )

    def tried(self, changes: tuple[Change, ...]) -> Analysed | None:
        """The network with these changes; None where that is refused or there is no time left."""
        name = changes[-1].change if changes else "as given"
        if time.monotonic() > self.deadline:
            self.untried.append(name)
            return None
        self.done.append(name)
        if self.observe is not None:
            self.observe(name, len(self.done), max(self.expected[0], len(self.done)))
        try:
            return self.analyst.analysed(changes)
        except LipCertError as error:
            skipped = Skipped(name, str(error))
            if skipped not in self.skipped:
                self.skipped.append(skipped)
            return None

    def _subject(self, baseline: Analysed) -> Subject:
        at_input = baseline.found.at_input
        return Subject(
            self.structure,
            self.analyst.settings,
            self.base.loss,
            at_input,
            self.analyst.examples,
        )

    def _measured(self, rival: Analysed | None) -> Iterator[Change]:
        """Mechanisms whose radii follow from what was met."""
        observed = None if rival is None else rival.observed
        if observed is not None and observed.grad_norm_median > 0.0:
            median = float(f"{observed.grad_norm_median:.2g}")
            yield mechanisms.gradient_clipping(median, what=", the median norm")
            tenth = float(f"{0.1 * median:.2g}")
            yield mechanisms.gradient_clipping(tenth, what=", a tenth of the median norm")
        if self.analyst.examples is not None and time.monotonic() < self.deadline:
            radii = layer_radii(self.analyst)
            yield from mechanisms.backprop_clippings(radii)

    def _alone(self, change: Change, under: tuple[Change, ...]) -> Suggestion | None:
        """A change by itself, under a mechanism."""
        settings = self.analyst.settings
        found = self.tried((*under, change))
        if found is None or (change.is_setting and found.settings == settings):
            return None
        changes = changed(settings, found.settings)
        return Suggestion(change, found.settings.mechanism, changes, found.outcome)

    def _head_elsewhere(self, changes: Sequence[Change]) -> Suggestion | None:
        """The last layer alone, where its bound is that of the network behind it."""
        head = next((change for change in changes if change.topic == "head"), None)
        if head is None or self.analyst.settings.mechanism in mechanisms.HELD:
            return None
        return self._alone(head, self.families[:1])

    def _recipes(self, families: list[Change], changes: list[Change]) -> Iterator[Recipe]:
        """The best that was found under each mechanism, that of the settings first."""
        usable = [change for change in changes if change.in_recipe]
        keeping = [change for change in usable if change.topic in _KEEPING]
        own = self.analyst.settings.mechanism
        holds = own == "none" or own in mechanisms.HELD
        home = self._greedy(self.home, usable if holds else keeping)
        yield home
        clipless = home if holds else None
        rest = sorted(
            (family for family in families if (family,) != self.home),
            key=lambda family: self._score((family,)),
        )
        kinds: set[object] = set()
        for family in rest:
            kind = family.settings["mechanism"]
            if kind in kinds or math.isinf(self._score((family,))):
                continue
            kinds.add(kind)
            if kind not in mechanisms.HELD:
                yield self._greedy((family,), keeping)
            elif clipless is None:
                clipless = self._greedy((family,), usable)
                yield clipless
            else:
                same = tuple(change for change in clipless.changes if change.topic != "mechanism")
                if self.tried((family, *same)) is not None:
                    yield self._recipe((family, *same))

    def _score(self, changes: tuple[Change, ...]) -> float:
        """Without trying anything new."""
        known = self.analyst.known(changes)
        return math.inf if known is None else known.outcome.score

    def _greedy(self, start: tuple[Change, ...], changes: Iterable[Change]) -> Recipe:
        """Topic by topic, the change that helps most, as long as one does."""
        topics: dict[str, list[Change]] = {}
        for change in changes:
            topics.setdefault(change.topic, []).append(change)
        alone = {
            topic: min(self._score((*start, change)) for change in topics[topic])
            for topic in topics
        }
        order = sorted(topics, key=lambda topic: (alone[topic], _place(topic)))
        chosen: dict[str, Change] = {}
        best = self.analyst.analysed(start).outcome.score
        for _ in range(_PASSES):
            before = best
            for topic in order:
                for change in topics[topic]:
                    if chosen.get(topic) is change:
                        continue
                    trial = {**chosen, topic: change}
                    found = self.tried(self._combined(start, trial))
                    needed = _GAIN if change.keeps_function else _WORTH
                    limit = best * (1.0 - (needed if topic not in chosen else _GAIN))
                    if found is not None and _is_less(found.outcome.score, limit, best):
                        chosen, best = trial, found.outcome.score
            if not best < before:
                break
        return self._recipe(self._combined(start, chosen))

    def _combined(self, start: tuple[Change, ...], chosen: dict[str, Change]) -> tuple[Change, ...]:
        return (*start, *(chosen[topic] for topic in sorted(chosen, key=_place)))

    def _recipe(self, changes: tuple[Change, ...]) -> Recipe:
        """With what each change adds to those before it."""
        analyst, settings = self.analyst, self.analyst.settings
        ends = range(len(changes) + 1) if not changes else range(1, len(changes) + 1)
        last = analyst.analysed(changes)
        parts = [self._in_time(changes[:end]) for end in ends]
        return Recipe(
            last.settings.mechanism,
            changes,
            (*parts[:-1], last.outcome),
            last.outcome,
            last.settings,
            changed(settings, last.settings),
        )

    def _in_time(self, changes: tuple[Change, ...]) -> Outcome | None:
        """Of changes that may have been tried; None where there is no time for it."""
        found = self.analyst.known(changes)
        if found is None and time.monotonic() < self.deadline:
            found = self.analyst.analysed(changes)
        return None if found is None else found.outcome


def _best(recipes: Sequence[Recipe], alone: Sequence[float]) -> Recipe:
    """The recipe with the least noise over signal.

    One that changes what the network computes has to be clearly better than those that do not: what
    it can learn is not known. alone: scores of single changes, none of which is better.
    """
    kept = [recipe for recipe in recipes if recipe.keeps_function]
    least = min(recipes, key=lambda recipe: recipe.outcome.score)
    if not kept:
        return least
    best = min(kept, key=lambda recipe: recipe.outcome.score)
    is_clear = least.outcome.score * _CLEAR < best.outcome.score
    is_beaten = any(score < best.outcome.score for score in alone)
    return least if is_clear or is_beaten else best


def _is_less(score: float, limit: float, best: float) -> bool:
    return score < limit if math.isfinite(best) else score < best


def _place(topic: str) -> int:
    return _ORDER.index(topic) if topic in _ORDER else len(_ORDER)


def _rank(item: Suggestion) -> tuple[float, bool]:
    return item.outcome.score, not item.change.keeps_function


def _is_biased(structure: Structure) -> bool:
    """Whether anything that is trained is a bias."""
    return any(use.slot == "bias" for use in structure.graph.trained_uses())


def _drawn(base: Bounded, settings: Settings, propose: Propose) -> Examples | None:
    """Random admissible examples, as many as can be measured again and again."""
    count = int(min(max(_WORK / work(base.program), _LEAST), _MOST))
    graph = base.unclipped
    at_input = base.at_input
    if not math.isfinite(at_input.norm):
        held = mechanisms.held("clipless", settings, biased=True)
        at_input = Analyst(base, settings, None, propose).analysed((held,)).found.at_input
    return random_examples(graph.input_shape, at_input, base.loss, graph.output_shape, count)


def _some(examples: Examples, count: int) -> Examples:
    """So many of the examples, at equal distances: a file may be sorted by its labels."""
    count = max(count, _MOST)
    if len(examples) <= count:
        return examples
    rows = np.linspace(0, len(examples) - 1, count).astype(int)
    return replace(examples, x=examples.x[rows], y=examples.y[rows])
