"""Engine: `suggest` lets a `Session` analyse, rank and combine changes to one network."""

import math
import time
from dataclasses import replace
from typing import Final

import numpy as np

from lipcert.analysis.bounded import Bounded, Progress, bounded
from lipcert.analysis.observing import findings_on_examples
from lipcert.analysis.pipeline import require_arguments
from lipcert.analysis.release import check_complete, check_single
from lipcert.errors import UsageError
from lipcert.gradient_stats.examples import Examples, random_examples
from lipcert.importer.model import ImportedModel
from lipcert.process.threads import one_thread
from lipcert.search.norms import Propose
from lipcert.search.pullbacks import work
from lipcert.settings.settings import Settings
from lipcert.suggestions.analyst import Analyst, Remembered
from lipcert.suggestions.changes import families, held
from lipcert.suggestions.records import Suggestions
from lipcert.suggestions.rehearsal import SECONDS, Trials
from lipcert.suggestions.session import Session

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
        probe: rehearse every recipe and the first single changes.

    Raises:
        UsageError: as `bounded` does for the settings, and for a probe without examples that can
            be rehearsed.
        UnsupportedModelError: as `bounded` does.
    """
    require_arguments("suggest", model, settings)
    settings = settings.with_inputs(model.graph.inputs)
    check_complete(settings)
    check_single("suggest", settings)
    started = time.monotonic()
    remembered = Remembered()
    base = bounded(model, settings, None, remembered)
    trials = _trials(base, examples, probe=probe)
    share = _PROBES if probe else _REHEARSALS
    for_runs = 0.0 if isinstance(trials, str) else min(share * budget, SECONDS)
    graph = base.unclipped
    is_biased = any(use.slot == "bias" for use in graph.trained_uses())
    known = families(settings, is_biased)
    if examples is None:
        measured = _drawn(base, settings, remembered)
    else:
        measured = _evenly_spaced(examples, int(_DATA * _WORK / work(base.program)))
    session = Session(
        analyst=Analyst(base, settings, measured, remembered),
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


def _drawn(base: Bounded, settings: Settings, propose: Propose) -> Examples | None:
    """Draw random admissible examples, few enough to be measured again and again."""
    count = int(min(max(_WORK / work(base.program), _LEAST), _MOST))
    graph = base.unclipped
    known = base
    if not math.isfinite(base.at_input.norm):
        within = held("clipless", settings, biased=True)
        known = Analyst(base, settings, None, propose).analysed((within,)).found
    return random_examples(graph.input_shape, known.domain, base.loss, graph.output_shape, count)


def _evenly_spaced(examples: Examples, count: int) -> Examples:
    """Return this many of the examples, evenly spaced: a file may be sorted by its labels."""
    count = max(count, _MOST)
    if len(examples) <= count:
        return examples
    rows = np.linspace(0, len(examples) - 1, count).astype(int)
    return replace(examples, x=examples.x[rows], y=examples.y[rows])
