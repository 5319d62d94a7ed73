"""Suggesting: from a module and a planned run to changes, an edited module and its mechanism.

    found = lipcert.suggest(module, example, Settings(input_box=(0, 1), target_epsilon=8, …))
    print(found)
    model = found.module  # what is left to do by hand: found.to_edit
    private = make_private(model, optimizer, loader, found.mechanism(), **found.run())

What enters: a module, one batch that shows the shape of its examples, and settings. What leaves:
`ModuleSuggestions`: what `lipcert.suggestions` found of the exported module, and the recipe made.
Invariant: the numbers of the edited module come from an analysis of that module, exported anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, final

from torch import Tensor, nn

from lipcert.analysis.bounded import bounded
from lipcert.analysis.usefulness import times
from lipcert.audit.observation import unwrapped
from lipcert.errors import LipCertError, UsageError
from lipcert.gradient_stats.examples import Examples
from lipcert.gradient_stats.measure import signal_words
from lipcert.process.progress import ProgressReport
from lipcert.settings.patterns import matches
from lipcert.settings.settings import Settings
from lipcert.suggestions import engine
from lipcert.suggestions.records import Outcome, Recipe, Suggestions
from lipcert.suggestions.remarks import rehearsal_told
from lipcert.training.intake import KnownExamples, examples_of
from lipcert.training.mechanisms import (
    Clipless,
    GradientClipping,
    TrainingMechanism,
    mechanism_of,
)
from lipcert.training.network import Example, TrainedNetwork, exported_network
from lipcert.training.replacing import make_trainable
from lipcert.training.surgery import edited
from lipcert.upper import root_sum_square

_RUN: Final = ("noise_multiplier", "target_epsilon", "delta", "epochs", "steps", "dataset_size",
               "sampling", "accountant")  # fmt: skip
_ORTHOGONAL: Final = 1
"""iterations that keep weights next to orthogonal ones, as the code of recipes says"""
_CLOSE: Final = 1e-7
"""relative: numbers in the code of a module become float32 when it is exported"""


@final
@dataclass(frozen=True, slots=True, eq=False)
class ModuleSuggestions:
    """suggestions: of the module as it was given. recipe: the one of them that was made.

    replaced: batch normalisations, which no private run can have, by group normalisations, before
    anything was analysed. module: a copy of the given one with the recipe; changes: what was
    changed in it; to_edit: what has to be changed by hand. settings: of a run of that module.
    grad_norm: G of the module as it is now under them; None: no bound.
    """

    suggestions: Suggestions
    replaced: tuple[str, ...]
    recipe: Recipe
    module: nn.Module
    changes: tuple[str, ...]
    to_edit: tuple[str, ...]
    settings: Settings
    grad_norm: float | None
    _subject: _Subject

    def mechanism(self) -> TrainingMechanism:
        """What `make_private` takes to run this recipe."""
        own = mechanism_of(replace(self.settings, freeze=(), trainable=()))
        turned = any(change.topic == "weights" for change in self.recipe.changes)
        if turned and isinstance(own, Clipless):
            return replace(own, orthogonalize=_ORTHOGONAL)
        return own

    def run(self) -> Mapping[str, Any]:
        """The plan of the settings, as keyword arguments of `make_private`."""
        given = {name: getattr(self.settings, name) for name in _RUN}
        return {name: value for name, value in given.items() if value is not None}

    def under(self, mechanism: str) -> ModuleSuggestions:
        """The same with the best recipe of another mechanism: "clipless", say."""
        for recipe in self.suggestions.recipes:
            if recipe.mechanism == mechanism:
                return self._subject.made(self.suggestions, recipe)
        known = ", ".join(recipe.mechanism for recipe in self.suggestions.recipes)
        raise UsageError(f"suggest: no recipe for {mechanism!r} was found; there are {known}")

    @property
    def is_whole(self) -> bool:
        """Whether the module has the bound that the recipe states, to 1e-7."""
        stated, own = self.recipe.outcome.grad_norm, self.grad_norm
        if stated is None or own is None:
            return stated is own
        return abs(own - stated) <= _CLOSE * stated

    def __str__(self) -> str:
        found, recipe, of_norms = self.suggestions, self.recipe, self.suggestions.of_norms
        lines = [f"STOP    {text}" for text in (*self.replaced, *found.stops)]
        lines.append(f"Now     {found.baseline_mechanism}: {_shown(found.baseline, of_norms)}")
        lines.append(f"Recipe  {recipe.mechanism}: {_shown(recipe.outcome, of_norms)}")
        lines += [_told(f"{change.change}: {change.how}") for change in recipe.changes]
        if found.rehearsal is not None:
            lines += ["Rehearsed", *map(_told, rehearsal_told(found.rehearsal))]
        lines += ["Done in .module", *(f"  {line}" for line in self.changes or ("nothing",))]
        if self.to_edit:
            lines += ["To be edited by hand", *map(_told, self.to_edit)]
        if not self.is_whole:
            now = "no bound" if self.grad_norm is None else f"{self.grad_norm:.3g}"
            lines.append(f"G of .module as it is: {now}")
        others = [other for other in found.recipes if other.mechanism != recipe.mechanism]
        if others:
            lines.append("Other mechanisms, by .under(NAME)")
            lines += [_told(f"{found.unproven}.")] if found.unproven else []
            lines += [f"  {other.mechanism}: {_shown(other.outcome, of_norms)}" for other in others]
        return "\n".join(lines)


def suggest(
    module: nn.Module,
    example: Example,
    settings: Settings | None = None,
    examples: Examples | None = None,
    *,
    budget: float = engine.BUDGET,
    probe: bool = False,
    data: KnownExamples | None = None,
    public: KnownExamples | None = None,
    progress: bool | None = None,
) -> ModuleSuggestions:
    """What would make a private run of a module learn, and the module with the best of it.

    example: a batch [examples, …] that shows the shape of an example, a tuple of them for several
    inputs; its numbers are not used. settings: the run and its mechanism; that of a training
    mechanism is `mechanism.settings(run)`.
    public: examples (x, y) at which gradients are measured; data: private ones, which costs privacy
    that no ε of the run covers; neither: random admissible inputs. budget, in seconds, probe and
    examples: of `lipcert.suggestions.engine.suggest`. progress: as for `make_private`.

    Raises UsageError for what does not fit together, UnsupportedModelError for a module that cannot
    be imported.
    """
    if not all(
        isinstance(x, Tensor) for x in (example if isinstance(example, tuple) else (example,))
    ):
        raise UsageError(
            "suggest: give a batch of examples, as in suggest(module, x[:1]), or one for each of "
            "several inputs: suggest(module, (a[:1], b[:1]))"
        )
    without = make_trainable(module, GradientClipping())  # which keeps dropout
    given = Settings() if settings is None else settings
    network = _with_statistics(exported(without.module, example, Settings(loss=given.loss)))
    declared = network.under(given)
    if sum(given is not None for given in (examples, data, public)) > 1:
        raise UsageError("suggest: give one of data, public and examples")
    shape = network.graph.input_shape
    if data is not None:
        examples = examples_of("data", data, shape, is_private=True)
    elif public is not None:
        examples = examples_of("public examples", public, shape, is_private=False)
    with ProgressReport(wanted=progress) as shown:
        found = engine.suggest(
            network.model, declared, examples, budget, shown.observe, probe=probe
        )
    modes = {name: part.training for name, part in unwrapped(without.module).named_modules()}
    subject = _Subject(declared, network, example, without.changes, modes)
    return subject.made(found, found.recipe)


def exported(
    module: nn.Module, example: Example, settings: Settings | None = None
) -> TrainedNetwork:
    """The graph of the module in evaluation mode, and the module in that mode; settings: under
    which its file is read."""
    with exported_network(module, example, settings) as network:
        return network


def _with_statistics(network: TrainedNetwork) -> TrainedNetwork:
    """The network in which batch normalisations, where there still are any, are no layers that
    compute something else in training: all are in evaluation mode, and stay so."""
    graph = network.graph
    left = tuple(layer for layer in graph.eval_layers if layer.is_dropout)
    return replace(network, model=replace(network.model, graph=replace(graph, eval_layers=left)))


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Subject:
    """What suggestions are of. declared: the settings without any; modes: of the parts, by name,
    whether they were training."""

    declared: Settings
    network: TrainedNetwork
    example: Example
    replaced: tuple[str, ...]
    modes: Mapping[str, bool]

    def made(self, found: Suggestions, recipe: Recipe) -> ModuleSuggestions:
        """A recipe in the module, which is analysed again."""
        stated, declared = recipe.settings, self.declared
        done = edited(self.network, recipe.changes, declared, stated)
        if done.prepares:
            stated = replace(stated, input_box=declared.input_box, input_norm=declared.input_norm)
        plain = replace(recipe.settings, freeze=(), trainable=())
        kind = mechanism_of(plain) if plain.enforced.acts else None
        for name, part in done.module.named_modules():
            part.training = self.modes.get(name, self.modes[""])
        trainable = make_trainable(done.module, kind)
        settings, grad_norm = analysed_again(trainable.module, self.example, stated)
        return ModuleSuggestions(
            suggestions=found,
            replaced=self.replaced,
            recipe=recipe,
            module=trainable.module,
            changes=(*done.changes, *trainable.changes),
            to_edit=done.to_edit,
            settings=settings,
            grad_norm=grad_norm,
            _subject=self,
        )


def analysed_again(
    module: nn.Module, example: Example, settings: Settings
) -> tuple[Settings, float | None]:
    """Settings that speak of the parameters which the module has, and G under them.

    None: there is no bound, or the module can no longer be imported.
    """
    try:
        network = exported(module, example, Settings(loss=settings.loss))
    except LipCertError:
        return settings, None
    names = list(network.graph.parameters)
    constraints = tuple(
        (pattern, constraint)
        for pattern, constraint in settings.constraints
        if any(matches(name, (pattern,)) for name in names)
    )
    known = network.under(replace(settings, freeze=(), trainable=(), constraints=constraints))
    try:
        groups = bounded(network.model, known).groups
    except LipCertError:
        return known, None
    bound = root_sum_square(group.grad_norm for group in groups)
    return known, bound.value if bound.is_finite else None


def _told(text: str) -> str:
    """Below a head; further lines of it further in."""
    return "  " + text.replace("\n", "\n      ")


def _shown(outcome: Outcome, of_norms: bool) -> str:
    bound = "no bound" if outcome.grad_norm is None else f"G {outcome.grad_norm:.3g}"
    ratio, when = outcome.noise_to_signal_of_run, "over the run"
    if ratio is None:
        ratio, when = outcome.noise_to_signal, "at every step"
    if ratio is not None:
        bound = f"{bound}, noise {times(ratio)} times {signal_words(of_norms=of_norms)} {when}"
    return f"{bound}: {outcome.verdict}"
