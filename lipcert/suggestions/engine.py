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
from lipcert.errors import LipCertError, UsageError
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
from lipcert.suggestions.probe import with_probes
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
_COMBINATIONS: Final = "further combinations of changes"
_EARLY: Final = 0.45
"""the part of the time in which changes are tried by themselves, before they are combined"""
_SPARE: Final = 0.1
"""the part of the time that is kept for an analysis that may take as long as the longest so far"""
_PROBES: Final = 0.5
"""the part of the time that is for runs, where they are wanted"""
_LAST: Final = 2
"""mechanisms that are tried last"""
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
    probe: bool = False,
    propose: Propose = proposals,
) -> Suggestions:
    """What would make a private run of the network learn, ranked by noise over signal.

    examples: at which gradients are measured, which costs privacy that no ε covers where they are
    private; None: random admissible ones. budget: seconds, after which nothing further is tried.
    probe: make short runs on the examples with the best of what was found, in half of the time.
    observe: is told what is being analysed. Raises what `bounded` raises for the settings, and
    UsageError for a probe without examples of classes.
    """
    require_arguments("suggest", model, settings)
    plan_of(settings)
    started, remembered = time.monotonic(), Remembered(propose)
    base = bounded(model, settings, None, remembered)
    left = budget - (time.monotonic() - started)
    return suggestions_of(
        base,
        settings,
        examples,
        left,
        observe,
        path=model.path,
        probe=probe,
        propose=remembered,
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
    probe: bool = False,
    propose: Propose = proposals,
) -> Suggestions:
    """The same for a network that was bounded under these settings. path: of its file, if any."""
    started = time.monotonic()
    if probe and examples is None:
        raise UsageError("probe: a run needs examples with their labels; give --data FILE")
    for_runs = _PROBES * budget if probe else 0.0
    structure = Structure(base.unclipped)
    families = mechanisms.families(settings, _is_biased(structure))
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
        started=started,
        end=started + budget - for_runs,
        observe=observe,
    )
    found = session.suggestions(path)
    if given is None or examples is None:
        return found
    about_data = told(examples, session.analyst.analysed(()).observed, settings)
    found = replace(found, diagnostics=about_data)
    if probe:
        found = with_probes(
            found,
            session.analyst,
            given,
            home=session.home,
            seconds=for_runs,
            observe=observe,
        )
        found = replace(found, seconds=time.monotonic() - started)
    return found


@final
@dataclass(eq=False)
class _Session:
    """home: the mechanism that other changes are tried under: none, where one is stated. end: of
    the time that there is; deadline: of what is being tried."""

    analyst: Analyst
    structure: Structure
    families: tuple[Change, ...]
    home: tuple[Change, ...]
    started: float
    end: float
    observe: Progress | None
    skipped: list[Skipped] = field(default_factory=list)
    untried: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    expected: int = 1
    slowest: float = 0.0
    deadline: float = field(init=False)

    def __post_init__(self) -> None:
        self.deadline = self.end

    @property
    def base(self) -> Bounded:
        """The network as it is."""
        return self.analyst.base

    def suggestions(self, path: str) -> Suggestions:
        """Everything that was found in time."""
        analyst, settings = self.analyst, self.analyst.settings
        baseline = analyst.analysed(())
        rival = self.tried((self.families[mechanisms.RIVAL],))
        families = [*self.families[:-_LAST], *self._measured(rival)]
        late = self.families[-_LAST:]
        changes = list(changes_of(self._subject(baseline)))
        self.expected = 3 * (len(families) + len(changes))
        found = list(self._alone(families, ()))
        self.deadline = self.started + _EARLY * (self.end - self.started)
        usable = [change for change in changes if change.in_recipe]
        found += self._alone(usable, self.home)
        others = [*self._alone([c for c in changes if not c.in_recipe], self.home)]
        self.deadline = self.end
        recipes = list(self._recipes([*families, *late], changes)) or [self._recipe(())]
        tried = {item.change for item in (*found, *others)}
        rest = [change for change in changes if change not in tried]
        for item in (*self._alone(late, ()), *self._alone(rest, self.home)):
            (found if item.change.in_recipe else others).append(item)
        others += self._head_elsewhere(changes)
        recipes.sort(key=lambda recipe: recipe.outcome.score)
        best = _best(recipes, [item.outcome.score for item in found])
        ranked = tuple(sorted(found, key=_rank))
        apart = tuple(sorted(others, key=_rank))
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
            recipes=tuple(recipes),
            suggestions=ranked,
            others=apart,
            stops=tuple(stops_of(self.structure.graph)),
            remarks=tuple(remarks_of(self.structure, ranked, apart, recipes)),
            skipped=tuple(self.skipped),
            untried=tuple(dict.fromkeys(x for x in self.untried if x not in self.done)),
            seconds=time.monotonic() - self.started,
        )

    def tried(self, changes: tuple[Change, ...], what: str = "") -> Analysed | None:
        """The network with these changes; None where that is refused or there is no time left.

        what: the name under which it is missed, where that is not that of the last change.
        """
        known = self.analyst.known(changes)
        if known is not None:
            return known
        name, now = changes[-1].change, time.monotonic()
        if now + min(self.slowest, _SPARE * (self.end - self.started)) > self.deadline:
            self.untried.append(what or name)
            return None
        self.done.append(name)
        if self.observe is not None:
            self.observe(name, len(self.done), max(self.expected, len(self.done)))
        try:
            return self.analyst.analysed(changes)
        except LipCertError as error:
            skipped = Skipped(name, str(error))
            if skipped not in self.skipped:
                self.skipped.append(skipped)
            return None
        finally:
            self.slowest = max(self.slowest, time.monotonic() - now)

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

    def _alone(self, changes: Iterable[Change], under: tuple[Change, ...]) -> Iterator[Suggestion]:
        """Changes by themselves, under a mechanism; not those that the settings have already."""
        settings = self.analyst.settings
        for change in changes:
            found = self.tried((*under, change))
            if found is None or (change.is_setting and found.settings == settings):
                continue
            fields = changed(settings, found.settings)
            yield Suggestion(change, found.settings.mechanism, fields, found.outcome)

    def _head_elsewhere(self, changes: Sequence[Change]) -> Iterator[Suggestion]:
        """The last layer alone, where its bound is that of the network behind it."""
        own = self.analyst.settings.mechanism
        if own != "none" and own not in mechanisms.HELD:
            heads = [change for change in changes if change.topic == "head"]
            yield from self._alone(heads, self.families[:1])

    def _recipes(self, families: list[Change], changes: list[Change]) -> Iterator[Recipe]:
        """The best that was found under each mechanism; first of those that need little time."""
        usable = [change for change in changes if change.in_recipe]
        keeping = [change for change in usable if change.topic in _KEEPING]
        own = self.analyst.settings.mechanism
        holds = own == "none" or own in mechanisms.HELD
        if not holds:
            yield self._greedy((), keeping)
        kinds: set[object] = set(mechanisms.HELD)
        for family in sorted(families, key=lambda family: self._score((family,))):
            kind = family.settings["mechanism"]
            if kind not in kinds and math.isfinite(self._score((family,))):
                kinds.add(kind)
                yield self._greedy((family,), keeping)
        start = self.home if holds else (families[0],)
        if self.tried(start, families[0].change) is None:
            return
        held = self._greedy(start, usable)
        yield held
        made = [change for change in held.changes if change.topic != mechanisms.TOPIC]
        for family in families:
            kind = family.settings["mechanism"]
            is_other = kind in mechanisms.HELD and kind != held.mechanism
            if is_other and self.tried((family, *made)) is not None:
                yield self._recipe((family, *made))

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
                    found = self.tried(self._combined(start, trial), _COMBINATIONS)
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
