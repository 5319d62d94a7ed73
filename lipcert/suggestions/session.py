"""Session: `suggest` tries changes to one network one after another, as long as there is time.

    baseline → mechanisms → single changes → recipes → rehearsal → other runs of the recipe

Invariant: the recipe is gradient clipping, unless a rehearsal showed another one to be better; and
it is plain gradient clipping unless a rehearsal, if one was made, showed other clips to be better.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from lipcert.analysis.bounded import Bounded, Progress, bounded
from lipcert.analysis.observing import findings_on_examples
from lipcert.analysis.release import check_complete, check_single, plan_of
from lipcert.core import program as p
from lipcert.core.ledger.mechanism import MECHANISMS
from lipcert.errors import LipCertError, UsageError
from lipcert.gradient_stats.examples import Examples, random_examples
from lipcert.importer.model import ImportedModel
from lipcert.process.threads import one_thread
from lipcert.search.pullbacks import work
from lipcert.settings.settings import Settings
from lipcert.settings.values import globs
from lipcert.settings.written import mechanism_code
from lipcert.suggestions import changes as what_ifs
from lipcert.suggestions.advice import edits_of, remarks_of, stops_of
from lipcert.suggestions.analyst import Analysed, Analyst, changed, learning_rate, place
from lipcert.suggestions.changes import families, held
from lipcert.suggestions.records import (
    TOPIC,
    Change,
    Outcome,
    Recipe,
    Rehearsal,
    Skipped,
    Suggestion,
    Suggestions,
)
from lipcert.suggestions.rehearsal import CLEAR, SECONDS, Part, Trials, rehearsed

_GAIN: Final = 0.03
"""Share by which noise over signal must fall for a change to count."""
_ALIKE: Final = 1.25
"""Ratio of noise over signal between clips below which the difference says nothing."""
_RIVALS: Final = 3
"""Number of recipes that are rehearsed next to gradient clipping."""
_PACES: Final = (0.5, 2.0)
"""Factors of the rate at which plain gradient clipping is rehearsed, too."""
_UNPROVEN: Final = (
    "less noise over signal at the first weights does not say that a network within constraints "
    "learns: such a recipe stands above gradient clipping only after a rehearsal"
)
_COMBINATIONS: Final = "further combinations of changes"
_EARLY: Final = 0.45
"""Share of the time for single changes, before they are combined."""
_LATER: Final = 0.9
"""Share of the time after which nothing more is combined."""
_SPARE: Final = 0.1
"""Share of the time that is kept for an analysis as long as the longest so far."""
_LAST: Final = 2
"""Number of mechanisms that are tried last."""
_AFFINE: Final = "affine"
_RUN: Final = frozenset({"run", "sampling"})
"""Topics of other runs of the same network."""
_KEEPING: Final = frozenset({_AFFINE, "allocation", *_RUN})
"""Topics of changes that help mechanisms which bound any network."""


@dataclass(eq=False)
class Session:
    """One search for suggestions.

    home: the mechanism under which other changes are tried; empty if the settings state one.
    end: when the time is over; deadline: the same for the current stage. trials: examples for
    rehearsals, or why there are none; seconds: for rehearsals; probe: rehearse everything.
    """

    analyst: Analyst
    families: tuple[Change, ...]
    home: tuple[Change, ...]
    started: float
    end: float
    observe: Progress | None
    trials: Trials | str
    seconds: float
    probe: bool = False
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

    @property
    def rival(self) -> Change:
        """Gradient clipping at C = 1, which is tried even without time."""
        return self.families[what_ifs.RIVAL]

    def suggestions(self, path: str) -> Suggestions:
        """Return everything that was found in time."""
        analyst, settings = self.analyst, self.analyst.settings
        baseline = analyst.analysed(())
        rival = self.tried((self.rival,), always=True)
        families = [*self.families[:-_LAST], *self._measured(rival)]
        late = self.families[-_LAST:]
        graph = self.base.unclipped
        changes = list(what_ifs.changes_of(graph, settings, self.base.loss))
        usable = [change for change in changes if change.in_recipe]
        self.expected = 3 * (len(families) + len(changes))
        found = list(self._single(families, ()))
        self.deadline = self._after(_EARLY)
        found += self._single(usable, self.home)
        self.deadline = self._after(_LATER)
        recipes = list(self._recipes([*families, *late], usable)) or [self._recipe(())]
        recipes.sort(key=lambda recipe: recipe.outcome.score)
        (best, *behind), rehearsal, unproven = self._rehearsed(recipes)
        whole = self._recipe(best.changes, between=True)
        rate, accuracy = best.learning_rate, best.accuracy_probe
        best = replace(whole, learning_rate=rate, accuracy_probe=accuracy)
        self.deadline = self.end
        others = list(self._others(changes, best))
        tried = {item.change for item in found}
        rest = [change for change in usable if change not in tried]
        found += [*self._single(late, ()), *self._single(rest, self.home)]
        ranked = tuple(sorted(found, key=_rank))
        apart = tuple(sorted(others, key=_rank))
        source = analyst.examples
        return Suggestions(
            model=path,
            sha256=self.base.reading.model.sha256,
            parameters=sum(group.dimension for group in self.base.groups),
            source="" if source is None else source.source,
            is_private=source is not None and source.is_private,
            examples=0 if source is None else len(source),
            baseline_mechanism=settings.mechanism,
            baseline=baseline.outcome,
            clipping=None if rival is None else rival.outcome,
            recipe=best,
            recipes=(best, *behind),
            suggestions=ranked,
            others=apart,
            stops=tuple(stops_of(graph, best)),
            remarks=tuple(remarks_of(graph, ranked)),
            skipped=tuple(self.skipped),
            untried=tuple(dict.fromkeys(x for x in self.untried if x not in self.done)),
            seconds=time.monotonic() - self.started,
            rehearsal=rehearsal,
            unproven=unproven,
            of_norms=self._of_norms,
            edits=tuple(edits_of(graph, settings)),
        )

    @property
    def _of_norms(self) -> bool:
        """Whether signals are norms of gradients with random labels, instead of means."""
        examples = self.analyst.examples
        return examples is not None and examples.is_drawn

    def _rehearsed(self, recipes: list[Recipe]) -> tuple[list[Recipe], Rehearsal | None, str]:
        """Put gradient clipping first, or a recipe that a rehearsal shows to be better.

        Returns the recipes, the rehearsal, and `Suggestions.unproven`.
        """
        clipping = next(
            (recipe for recipe in recipes if recipe.settings.enforced.clips_gradients), None
        )
        if clipping is None:
            return recipes, None, ""
        others = [recipe for recipe in recipes if recipe is not clipping]
        less = [recipe for recipe in others if recipe.outcome.score < clipping.outcome.score]
        if isinstance(self.trials, str):
            unproven = f"{_UNPROVEN}; {self.trials}" if less else ""
            return [clipping, *others], None, unproven
        plain = self._plain(clipping)
        tried = [plain] if plain is clipping else [plain, clipping]
        tried += others if self.probe else less[:_RIVALS]
        parts = [Part(item.mechanism, _title(item), item.changes) for item in tried]
        rate, paces = plain.learning_rate or 0.0, _PACES if plain.learning_rate else ()
        paced = [replace(plain, learning_rate=float(f"{x * rate:.2g}")) for x in paces]
        title = parts[0].title
        parts += [replace(parts[0], title=f"{title}, {x:g} × the rate", pace=x) for x in paces]
        found = rehearsed(parts, self.analyst, self.trials, self.seconds, self.observe)
        runs = dict(zip(map(id, (*tried, *paced)), found.runs, strict=True))
        margin = runs[id(clipping)].margin
        clipped = plain if margin is not None and margin < CLEAR else clipping
        better = [recipe for recipe in (*tried, *paced) if runs[id(recipe)].better]
        reached = {key: -math.inf if run.accuracy is None else run.accuracy
                   for key, run in runs.items()}  # fmt: skip
        best = max([clipped, *better], key=lambda item: reached[id(item)])
        behind = [item for item in (clipped, *others) if item.mechanism != best.mechanism]
        accuracies = {key: run.accuracy for key, run in runs.items()}
        is_unproven = less and best.mechanism == clipped.mechanism
        return (
            [replace(item, accuracy_probe=accuracies.get(id(item))) for item in (best, *behind)],
            found,
            f"{_UNPROVEN}, and none showed that" if is_unproven else "",
        )

    def _plain(self, clipping: Recipe) -> Recipe:
        """Return gradient clipping at C = 1 in the run of another clipping recipe."""
        of_run = [change for change in clipping.changes if change.topic in _RUN]
        changes = (self.rival, *of_run)
        return clipping if clipping.changes == changes else self._recipe(changes)

    def tried(
        self, changes: tuple[Change, ...], what: str = "", *, always: bool = False
    ) -> Analysed | None:
        """Return the network with these changes; None if that is refused or there is no time left.

        what: its name in the list of untried changes, if that is not the last change.
        """
        known = self.analyst.known(changes)
        if known is not None:
            return known
        name, now = changes[-1].change, time.monotonic()
        late = now + min(self.slowest, _SPARE * (self.end - self.started)) > self.deadline
        if late and not always:
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

    def _after(self, part: float) -> float:
        """Return when this share of the time is over."""
        return self.started + part * (self.end - self.started)

    def _measured(self, rival: Analysed | None) -> Iterator[Change]:
        """Yield mechanisms whose radii follow from measurements."""
        observed = None if rival is None else rival.observed
        if observed is not None and observed.grad_norm_median > 0.0:
            median = float(f"{observed.grad_norm_median:.2g}")
            yield what_ifs.gradient_clipping(median, what=", the median norm")
            tenth = float(f"{0.1 * median:.2g}")
            yield what_ifs.gradient_clipping(tenth, what=", a tenth of the median norm")
        if self.analyst.examples is not None and time.monotonic() < self.deadline:
            yield from what_ifs.backprop_clippings(what_ifs.layer_radii(self.analyst))

    def _single(self, changes: Iterable[Change], under: tuple[Change, ...]) -> Iterator[Suggestion]:
        """Yield single changes under a mechanism, except those that the settings have already."""
        settings = self.analyst.settings
        for change in changes:
            found = self.tried((*under, change))
            if found is None or found.settings == settings:
                continue
            yield self._suggestion(change, found)

    def _suggestion(
        self, change: Change, found: Analysed, *, with_recipe: bool = False
    ) -> Suggestion:
        fields = changed(self.analyst.settings, found.settings)
        mechanism = found.settings.mechanism
        return Suggestion(change, mechanism, fields, found.outcome, with_recipe=with_recipe)

    def _others(self, changes: Sequence[Change], best: Recipe) -> Iterator[Suggestion]:
        """Yield other runs of the best recipe, and training of the last layer alone."""
        for change in changes:
            if change.in_recipe:
                continue
            if change.topic == "head":
                yield from self._single([change], (self.rival,))
                continue
            found = self.tried((*best.changes, change))
            if found is not None:
                yield self._suggestion(change, found, with_recipe=True)

    def _recipes(self, families: list[Change], changes: list[Change]) -> Iterator[Recipe]:
        """Yield the best recipe under each mechanism; first those that need little time."""
        keeping = [change for change in changes if change.topic in _KEEPING]
        own = self.analyst.settings.enforced
        holds = not own.acts or own.holds_weights()
        starts: list[tuple[Change, ...]] = [] if holds else [()]
        kinds: set[object] = set(what_ifs.HELD)
        for family in sorted(families, key=self._preference):
            kind = family.settings["mechanism"]
            if kind not in kinds and math.isfinite(self._preference(family)):
                kinds.add(kind)
                starts.append((family,))
        for start in starts:
            usual = keeping
            if self._of_norms and all(map(what_ifs.clips_gradients, start)):
                usual = [change for change in keeping if change.topic != _AFFINE]
            yield self._greedy(start, usual)
        start = self.home if holds else (families[0],)
        if self.tried(start, families[0].change) is None:
            return
        held = self._greedy(start, changes)
        yield held
        made = [change for change in held.changes if change.topic != TOPIC]
        for family in families:
            kind = family.settings["mechanism"]
            is_other = kind in what_ifs.HELD and kind != held.mechanism
            if is_other and self.tried((family, *made)) is not None:
                yield self._recipe((family, *made))

    def _preference(self, family: Change) -> float:
        """Return the score of a mechanism on its own, inf if no recipe starts from it.

        Gradients at the first weights show little about where to clip: C = 1 is taken if no other
        clip is clearly better. Their norms do not show what is lost if each group is clipped.
        """
        score = self._score((family,))
        if not what_ifs.clips_gradients(family):
            return score
        if self._of_norms and family.settings["clip_scope"] == "group":
            return math.inf
        return score / _ALIKE if family is self.rival else score

    def _score(self, changes: tuple[Change, ...]) -> float:
        """Return the score of changes that were tried, without trying anything new."""
        known = self.analyst.known(changes)
        return math.inf if known is None else known.outcome.score

    def _greedy(self, start: tuple[Change, ...], changes: Iterable[Change]) -> Recipe:
        """Add changes that still help, topic by topic, from the one that helps most on its own."""
        topics: dict[str, list[Change]] = {}
        for change in changes:
            topics.setdefault(change.topic, []).append(change)
        alone = {
            topic: min(self._score((*start, change)) for change in topics[topic])
            for topic in topics
        }
        order = sorted(topics, key=lambda topic: (alone[topic], place(topic)))
        chosen: dict[str, Change] = {}
        best = self.analyst.analysed(start).outcome.score
        for change in (change for topic in order for change in topics[topic]):
            trial = {**chosen, change.topic: change}
            found = self.tried((*start, *trial.values()), _COMBINATIONS)
            if found is not None and _is_less(found.outcome.score, best * (1.0 - _GAIN), best):
                chosen, best = trial, found.outcome.score
        return self._recipe((*start, *chosen.values()))

    def _recipe(self, changes: tuple[Change, ...], *, between: bool = False) -> Recipe:
        """Return a recipe with the effect of each change. between: analyse unknown steps, too."""
        analyst, settings = self.analyst, self.analyst.settings
        ends = range(len(changes) + 1) if not changes else range(1, len(changes) + 1)
        last = analyst.analysed(changes)
        plan = plan_of(last.settings)
        parts = [self._step(changes[:end], between=between) for end in ends]
        graph = self.base.unclipped
        trained = [name for name, item in graph.parameters.items() if item.trainable]
        said = {name: getattr(last.settings, name) for name in Settings.__dataclass_fields__}
        frozen = globs([x for x in trained if not last.settings.is_trained(x)], trained)
        code = mechanism_code(
            said | {"loss": settings.loss if settings.heads else self.base.loss.kind},
            freeze=frozen,
            orthogonalize=self._orthogonalize(last.settings),
        )
        return Recipe(
            last.settings.mechanism,
            changes,
            (*parts[:-1], last.outcome),
            last.outcome,
            last.settings,
            changed(settings, last.settings),
            code,
            self._orthogonalize(last.settings),
            None if plan is None else learning_rate(graph, last.settings, plan.releases),
            freeze=frozen,
        )

    def _orthogonalize(self, settings: Settings) -> int:
        """Return Björck iterations of a clipless recipe with its own radius.

        Scaling a weight down shrinks all its singular values: the signal suffers, no bound does.
        """
        kind, uses = settings.enforced, self.base.unclipped.trained_uses()
        own = kind.holds_weights() and kind.fills_scope and not self.analyst.settings.constraint
        is_dense = (isinstance(use.node.op, p.Dense) and use.operand.is_plain for use in uses)
        return int(own and any(is_dense))

    def _step(self, changes: tuple[Change, ...], *, between: bool) -> Outcome | None:
        """Return the outcome of changes; None if they were not tried and there is no time."""
        found = self.analyst.known(changes)
        if found is None and between and time.monotonic() < self.deadline:
            found = self.analyst.analysed(changes)
        return None if found is None else found.outcome


def _is_less(score: float, limit: float, best: float) -> bool:
    return score < limit if math.isfinite(best) else score < best


def _rank(item: Suggestion) -> tuple[bool, float]:
    """Rank gradient clipping first: for others the ratio alone does not show that they learn."""
    return not MECHANISMS[item.mechanism].clips_gradients, item.outcome.score


def _title(recipe: Recipe) -> str:
    """Return what was changed, by topic."""
    own = [change.change for change in recipe.changes if change.topic == TOPIC]
    made = [change.topic for change in recipe.changes if change.topic != TOPIC]
    what = own[0] if own else recipe.mechanism
    return f"{what}: {', '.join(made)}" if made else what


BUDGET: Final = 120.0
"""Seconds, by default."""
_REHEARSALS: Final = 0.25
_PROBES: Final = 0.5
"""Shares of the time for rehearsals, and for rehearsals of everything."""
_MOST: Final = 64
_LEAST: Final = 2
_WORK: Final = 2e8
"""Floating-point operations of one measurement."""
_DATA: Final = 8
"""Factor for more operations if examples are given: their mean is more informative."""


@one_thread()
def suggest(
    model: ImportedModel,
    settings: Settings,
    examples: Examples | None = None,
    budget: float = BUDGET,
    observe: Progress | None = None,
    *,
    probe: bool = False,
) -> Suggestions:
    """Return changes with which a private run of the network learns more, by noise over signal.

    With examples, recipes that have less noise over signal than plain gradient clipping are
    rehearsed next to it.

    Args:
        model: the imported network.
        settings: the settings of the run.
        examples: those at which gradients are measured, which costs privacy that no ε covers if
            they are private; None: random admissible ones.
        budget: seconds after which nothing more is tried.
        observe: is called with progress.
        probe: rehearse every recipe.

    Raises:
        UsageError: as `bounded` does for the settings, and for a probe without examples that can
            be rehearsed.
        UnsupportedModelError: as `bounded` does.
    """
    settings = settings.with_inputs(model.graph.inputs)
    check_complete(settings)
    check_single("suggest", settings)
    started = time.monotonic()
    base = bounded(model, settings)
    trials = _trials(base, examples, probe=probe)
    share = _PROBES if probe else _REHEARSALS
    for_runs = 0.0 if isinstance(trials, str) else min(share * budget, SECONDS)
    graph = base.unclipped
    is_biased = any(use.slot == "bias" for use in graph.trained_uses())
    known = families(settings, is_biased)
    if examples is None:
        measured = _drawn(base, settings)
    else:
        measured = _evenly_spaced(examples, int(_DATA * _WORK / work(base.program)))
    session = Session(
        analyst=Analyst(base, settings, measured),
        families=known,
        home=() if settings.enforced.acts else known[:1],
        started=started,
        end=started + budget - for_runs,
        observe=observe,
        trials=trials,
        seconds=for_runs,
        probe=probe,
    )
    found = session.suggestions(model.path)
    if examples is None or measured is None:
        return found
    said = findings_on_examples(measured, session.analyst.analysed(()).observed, settings)
    outside = tuple(f"{item.message}; {item.remedy}" for item in said if item.code == "LC304")
    return replace(found, stops=(*outside, *found.stops), diagnostics=said)


def _trials(base: Bounded, examples: Examples | None, *, probe: bool) -> Trials | str:
    """Return examples for rehearsals, or why there are none; UsageError if they were requested."""
    if examples is None:
        if probe:
            raise UsageError("probe: a run needs examples with their labels; give --data FILE")
        return "give public examples (--data FILE, public=(x, y))"
    try:
        return Trials.of(base, examples)
    except UsageError as error:
        if probe:
            raise UsageError(f"probe: {error}") from error
        return f"none was made: {error}"


def _drawn(base: Bounded, settings: Settings) -> Examples | None:
    """Draw random admissible examples, few enough to be measured again and again."""
    count = int(min(max(_WORK / work(base.program), _LEAST), _MOST))
    graph = base.unclipped
    known = base
    if not math.isfinite(base.at_input.norm):
        within = held("clipless", settings, biased=True)
        known = Analyst(base, settings, None).analysed((within,)).found
    return random_examples(graph.input_shape, known.domain, base.loss, graph.output_shape, count)


def _evenly_spaced(examples: Examples, count: int) -> Examples:
    """Return this many of the examples, evenly spaced: a file may be sorted by its labels."""
    count = max(count, _MOST)
    if len(examples) <= count:
        return examples
    rows = np.linspace(0, len(examples) - 1, count).astype(int)
    return replace(examples, x=examples.x[rows], y=examples.y[rows])
