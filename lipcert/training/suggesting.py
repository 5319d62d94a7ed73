"""Suggest: turn a module and a planned run into a module that can be trained, and its mechanism.

    found = lipcert.suggest(module, example, Settings(input_box=(0, 1), target_epsilon=8, …))
    print(found)
    private = make_private(found.module, optimizer, loader, found.mechanism(), **found.run())

A module gets only those new layers that `make_trainable` needs; `to_edit` lists changes that a
person may make.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.optim import Adam

from lipcert.audit.observation import unwrapped
from lipcert.errors import UsageError
from lipcert.gradient_stats.examples import Examples
from lipcert.gradient_stats.measure import signal_words
from lipcert.process.progress import ProgressReport
from lipcert.settings.settings import RUN_KEYS, Settings
from lipcert.suggestions import session
from lipcert.suggestions.records import Outcome, Recipe, Suggestions
from lipcert.text.numbers import times
from lipcert.training.intake import KnownExamples, examples_of
from lipcert.training.mechanisms import Clipless, GradientClipping, TrainingMechanism, mechanism_of
from lipcert.training.network import Example, TrainedNetwork, exported_network
from lipcert.training.replacing import make_trainable


@dataclass(frozen=True, slots=True, eq=False)
class ModuleSuggestions:
    """The suggestions for a module, and one of their recipes.

    suggestions: for the module as `make_trainable` made it. recipe: one of them. module: a copy of
    the given module for the recipe; what the recipe does not train needs no gradient. changes: what
    `make_trainable` replaced in it, one line for each place. settings: of a run of that module.
    """

    suggestions: Suggestions
    recipe: Recipe
    module: nn.Module
    changes: tuple[str, ...]
    settings: Settings
    _network: TrainedNetwork

    def mechanism(self) -> TrainingMechanism:
        """Return the mechanism that `make_private` takes to run this recipe."""
        found = mechanism_of(replace(self.settings, freeze=(), trainable=()))
        turns = self.recipe.orthogonalize
        return replace(found, orthogonalize=turns) if isinstance(found, Clipless) else found

    def optimizer(self) -> Adam:
        """Return an optimizer of the trained parameters of `module`, at the rate of the recipe."""
        if self.recipe.learning_rate is None:
            raise UsageError("suggest: a learning rate depends on the run: describe it in settings")
        trained = [weight for weight in self.module.parameters() if weight.requires_grad]
        return Adam(trained, lr=self.recipe.learning_rate)

    def run(self) -> Mapping[str, Any]:
        """Return the plan of the settings, as keyword arguments of `make_private`."""
        given = {name: getattr(self.settings, name) for name in (*RUN_KEYS, "noise_multiplier")}
        return {name: value for name, value in given.items() if value is not None}

    def under(self, mechanism: str) -> ModuleSuggestions:
        """Return the same with the best recipe of another mechanism, for example "clipless"."""
        for recipe in self.suggestions.recipes:
            if recipe.mechanism == mechanism:
                return _made(self.suggestions, recipe, self._network, self.changes)
        known = ", ".join(recipe.mechanism for recipe in self.suggestions.recipes)
        raise UsageError(f"suggest: no recipe for {mechanism!r} was found; available: {known}")

    @property
    def to_edit(self) -> tuple[str, ...]:
        """Changes of the network, to be made by hand, for which bounds by weights may be smaller;
        not analysed."""
        return tuple(f"{edit.change}: {edit.how}" for edit in self.suggestions.edits)

    def __str__(self) -> str:
        found, recipe, of_norms = self.suggestions, self.recipe, self.suggestions.of_norms
        lines = [f"STOP    {text}" for text in found.stops]
        lines.append(f"Now     {found.baseline_mechanism}: {_shown(found.baseline, of_norms)}")
        lines.append(f"Recipe  {recipe.mechanism}: {_shown(recipe.outcome, of_norms)}")
        lines += [_indented(f"{change.change}: {change.how}") for change in recipe.changes]
        if recipe.learning_rate is not None:
            lines.append(_indented(f".optimizer(): Adam(lr={recipe.learning_rate})"))
        if found.rehearsal is not None:
            lines.append(f"Rehearsed, by {found.rehearsal.measure}")
            lines += [f"  {run.title}: {run.why or run.accuracy}" for run in found.rehearsal.runs]
        lines += ["Done in .module", *(f"  {line}" for line in self.changes or ("nothing",))]
        others = [other for other in found.recipes if other.mechanism != recipe.mechanism]
        if others:
            lines.append("Other mechanisms, by .under(NAME)")
            lines += [_indented(f"{found.unproven}.")] if found.unproven else []
            lines += [f"  {other.mechanism}: {_shown(other.outcome, of_norms)}" for other in others]
        if self.to_edit:
            lines.append("Other networks, to be written by hand: bounds by weights may be smaller")
            lines += map(_indented, self.to_edit)
        return "\n".join(lines)


def suggest(
    module: nn.Module,
    example: Example,
    settings: Settings | None = None,
    examples: Examples | None = None,
    *,
    budget: float = session.BUDGET,
    probe: bool = False,
    data: KnownExamples | None = None,
    public: KnownExamples | None = None,
    progress: bool | None = None,
) -> ModuleSuggestions:
    """Find what makes a private run of a module learn, and return the module for the best recipe.

    Args:
        example: a batch [examples, …] that shows the shape of an example, or a tuple of them for
            several inputs; its numbers are not used.
        settings: the run and its mechanism; for a training mechanism, `mechanism.settings(run)`.
        examples: gives the gradients to compare with, as in `lipcert.suggestions.session.suggest`.
        budget: seconds, as in `lipcert.suggestions.session.suggest`.
        probe: as in `lipcert.suggestions.session.suggest`.
        data: private examples (x, y) at which gradients are measured and on which runs are
            rehearsed, which costs privacy that no ε of the run covers.
        public: examples (x, y) that are not private. Without public, data and examples, random
            admissible inputs are used.
        progress: as for `make_private`.

    Raises:
        UsageError: if arguments contradict one another.
        UnsupportedModelError: if the module cannot be imported.
    """
    if not all(
        isinstance(x, Tensor) for x in (example if isinstance(example, tuple) else (example,))
    ):
        raise UsageError(
            "suggest: give a batch of examples, as in suggest(module, x[:1]), or one for each of "
            "several inputs: suggest(module, (a[:1], b[:1]))"
        )
    if sum(given is not None for given in (examples, data, public)) > 1:
        raise UsageError("suggest: give one of data, public and examples")
    without = make_trainable(module, GradientClipping())  # which keeps dropout
    given = Settings() if settings is None else settings
    with exported_network(without.module, example, Settings(loss=given.loss)) as found:
        network = replace(_with_statistics(found), module=unwrapped(without.module))
    if data is not None:
        examples = examples_of("data", data, network.graph, is_private=True)
    elif public is not None:
        examples = examples_of("public examples", public, network.graph, is_private=False)
    with ProgressReport(wanted=progress) as shown:
        suggestions = session.suggest(
            network.model, network.under(given), examples, budget, shown.observe, probe=probe
        )
    return _made(suggestions, suggestions.recipe, network, without.changes)


def _with_statistics(network: TrainedNetwork) -> TrainedNetwork:
    """Return the network without its batch normalisations among the layers that training mode
    changes.

    They are all in evaluation mode, and stay there.
    """
    graph = network.model.graph
    left = tuple(layer for layer in graph.eval_layers if layer.is_dropout)
    return replace(network, model=replace(network.model, graph=replace(graph, eval_layers=left)))


def _made(
    found: Suggestions, recipe: Recipe, network: TrainedNetwork, changes: tuple[str, ...]
) -> ModuleSuggestions:
    """Return the module for a recipe.

    changes: what was replaced before in the module of the network.
    """
    plain = replace(recipe.settings, freeze=(), trainable=())
    kind = mechanism_of(plain) if plain.enforced.acts else None
    made = make_trainable(network.module, kind)
    own = dict(made.module.named_parameters(remove_duplicate=False))
    for name, match in network.matches.items():
        if match.recorded in own and not recipe.settings.is_trained(name):
            own[match.recorded].requires_grad_(False)
    return ModuleSuggestions(
        suggestions=found,
        recipe=recipe,
        module=made.module,
        changes=tuple(dict.fromkeys((*changes, *made.changes))),
        settings=recipe.settings,
        _network=network,
    )


def _indented(text: str) -> str:
    """Indent a text below its head, and its further lines deeper."""
    return "  " + text.replace("\n", "\n      ")


def _shown(outcome: Outcome, of_norms: bool) -> str:
    bound = "no bound" if outcome.grad_norm is None else f"G {outcome.grad_norm:.3g}"
    ratio, when = outcome.noise_to_signal_of_run, "over the run"
    if ratio is None:
        ratio, when = outcome.noise_to_signal, "at every step"
    if ratio is not None:
        bound = f"{bound}, noise {times(ratio)} times {signal_words(of_norms=of_norms)} {when}"
    return f"{bound}: {outcome.verdict}"
