"""Records: the answer to `lipcert suggest`, as plain records that every report format prints.

Every number is that of an analysis of the network under these settings and nothing else; None
stands for "no bound" or "not measured".
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from lipcert.analysis.records import VerdictName
from lipcert.core.codec import member
from lipcert.diagnostics import Diagnostic
from lipcert.settings.settings import Settings

TOPIC: Final = "mechanism"
"""The topic of changes that state a mechanism."""
_APART: Final = member(apart=True)
"""Marks fields that documents have in another form, or not at all."""


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """Settings that a run might use instead of its own.

    topic: at most one change of each topic is made. how: lines that can be pasted: options of the
    command line, a table of the settings file (TOML), or the mechanism in Python. settings: fields
    of `Settings` that the change replaces; it adds to "freeze" and "constraints". in_recipe:
    whether a recipe may contain it: not if less is trained, or another run is made.
    """

    topic: str = field(metadata=_APART)
    change: str
    how: str
    settings: Mapping[str, object] = field(default_factory=dict, metadata=_APART)
    in_recipe: bool = field(default=True, metadata=_APART)


@dataclass(frozen=True, slots=True)
class ModuleEdit:
    """Another network that a user may write; it is not analysed. how: lines of Python."""

    change: str
    how: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an analysis says of a network under settings.

    noise, noise_to_signal, noise_to_signal_of_run, relative_cost, verdict: as in
    `analysis.records.Usefulness`. noise_to_signal_of_one: the noise over the norm of the mean
    gradient, as for a released sum of one example; also known if no batch size is stated.
    """

    grad_norm: float | None
    sensitivity: float | None
    noise: float | None
    noise_to_signal: float | None
    noise_to_signal_of_run: float | None
    noise_to_signal_of_one: float | None
    relative_cost: float | None
    verdict: VerdictName

    @property
    def usable(self) -> bool:
        """Whether training under this noise may learn anything."""
        return self.verdict not in {"not usable", "unknown", "nothing trained"}

    @property
    def score(self) -> float:
        """The number by which outcomes are ranked, the smaller the better.

        It is noise over signal, of the run if one is described; or the noise without a signal.
        """
        of_release = self.noise_to_signal, self.noise_to_signal_of_one, self.noise
        known = (self.noise_to_signal_of_run, *of_release)
        return next((number for number in known if number is not None), math.inf)


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A change, and the outcome with it under a mechanism.

    settings: all settings that differ from the given ones. mechanism: the one under which it was
    analysed.
    """

    change: Change
    mechanism: str
    settings: Mapping[str, object]
    outcome: Outcome
    with_recipe: bool = False


@dataclass(frozen=True, slots=True)
class Recipe:
    """Changes made together.

    steps: the outcome after each of them, or without changes if there are none; None if there was
    no time for it. settings: of the run, complete; changed: those of them that differ from the
    given ones. code: the mechanism, as `make_private` takes it; "" for none. orthogonalize: of
    `Clipless`. learning_rate: of Adam, None if no run is planned. accuracy_probe: of a short run,
    if one was made. freeze: patterns of what is not trained.
    """

    mechanism: str
    changes: tuple[Change, ...]
    steps: tuple[Outcome | None, ...]
    outcome: Outcome
    settings: Settings
    changed: Mapping[str, object]
    code: str
    orthogonalize: int
    learning_rate: float | None
    accuracy_probe: float | None = None
    freeze: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Skipped:
    """A change that was not analysed, and why."""

    change: str
    why: str


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """A short run. title: the changes. rate: of Adam.

    curve: by step, the accuracy on the examples kept out; accuracy: at the end. margin: that above
    gradient clipping; better: whether this is statistically clear, so that the recipe may rank
    above clipping. why: the reason if there was no run, else "".
    """

    mechanism: str
    title: str
    rate: float | None
    curve: tuple[tuple[int, float], ...]
    accuracy: float | None
    margin: float | None
    better: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Short private runs at the noise of the plan from the weights of the file.

    That of gradient clipping comes first. kept_out: the number of examples for accuracies. measure:
    "accuracy", "ROC AUC" for rare classes, or "R²" for targets. majority: that of the most frequent
    class, or of the mean target; before: that of the network as it is given.
    """

    steps: int
    batch: int
    kept_out: int
    measure: str
    majority: float
    before: float
    runs: tuple[Rehearsed, ...]


@dataclass(frozen=True, slots=True)
class Suggestions:
    """The complete result.

    source: where the signal is measured, "" for nowhere; is_private: whether that costs privacy.
    baseline: of the settings as given; clipping: of gradient clipping at C = 1 instead.
    recipe: the first of `recipes`: the best gradient clipping that was found, or a recipe that a
    rehearsal showed to be better. After it, and after gradient clipping, recipes are ordered by
    noise over signal; so are the suggestions, each on its own.
    unproven: why a recipe with less noise over signal than `recipe` does not come first; "" if
    there is none.
    others: changes that train less or run differently, and are part of no recipe.
    stops: what keeps a run from being private, data outside of its domain first.
    remarks: sentences about this network. untried: changes for which there was no time.
    diagnostics: about the given examples. rehearsal: the short runs, if any were made.
    of_norms: noise is compared with the mean norm of gradients, as the labels are random.
    edits: other networks, whose bounds may be smaller.
    """

    model: str = field(metadata=member("model.path"))
    sha256: str = field(metadata=member("model.sha256"))
    parameters: int = field(metadata=member("model.parameters"))
    source: str = field(metadata=member("signal.source"))
    is_private: bool = field(metadata=member("signal.is_private"))
    examples: int = field(metadata=member("signal.examples"))
    baseline_mechanism: str = field(metadata=_APART)
    baseline: Outcome = field(metadata=_APART)
    clipping: Outcome | None = field(metadata=_APART)
    recipe: Recipe = field(metadata=_APART)
    recipes: tuple[Recipe, ...] = field(metadata=_APART)
    suggestions: tuple[Suggestion, ...] = field(metadata=_APART)
    others: tuple[Suggestion, ...] = field(metadata=_APART)
    stops: tuple[str, ...]
    remarks: tuple[str, ...]
    skipped: tuple[Skipped, ...]
    untried: tuple[str, ...]
    seconds: float
    diagnostics: tuple[Diagnostic, ...] = ()
    rehearsal: Rehearsal | None = None
    unproven: str = ""
    of_norms: bool = field(default=False, metadata=member("signal.of_norms"))
    edits: tuple[ModuleEdit, ...] = ()
