"""Methods: what is trained in place of a network as it was written, and how.

What enters: a problem. What leaves: a module, a mechanism, how examples enter, how long the run is.
Invariant: all methods draw their learning rate from one grid (`RATES`), and begin from the same
weights where they keep the network.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Final, final

import torch
from torch import nn

import lipcert
from benchmarks.suggested_runs.problems import Problem
from lipcert.training import (
    BackpropClipping,
    Clipless,
    FixedWeightNorm,
    GradientClipping,
    TrainingMechanism,
    WeightClipping,
    make_trainable,
)
from lipcert.training.suggesting import ModuleSuggestions

__all__ = ["METHODS", "RATES", "Method", "Recipe"]

RATES: Final = (0.01, 0.03, 0.1)
"""learning rates of Adam, which takes gradients of every scale alike"""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """One way to train. changes: what `suggest` made of the network and its run, in words."""

    module: nn.Module
    mechanism: TrainingMechanism
    batch_size: int
    epochs: int
    changes: tuple[str, ...] = ()


@final
@dataclass(frozen=True, slots=True, eq=False)
class Method:
    """A column of the table: from a problem and a fresh network to what is trained."""

    name: str
    title: str
    recipe: Callable[[Problem, nn.Module], Recipe]


def _as_is(name: str, title: str, mechanism: Callable[[Problem], TrainingMechanism]) -> Method:
    def recipe(problem: Problem, module: nn.Module) -> Recipe:
        chosen = mechanism(problem)
        network = make_trainable(module, chosen).module
        if isinstance(chosen, BackpropClipping):
            _freeze_what_no_layer_owns(network)
        return Recipe(network, chosen, problem.batch_size, problem.epochs)

    return Method(name, title, recipe)


def _longer(problem: Problem, module: nn.Module) -> Recipe:
    """Plain DP-SGD with what recipes change of a run: what is left is what else they gain."""
    chosen = GradientClipping(clip_norm=1.0)
    network = make_trainable(module, chosen).module
    return Recipe(network, chosen, 2 * problem.batch_size, 2 * problem.epochs)


def _suggested(name: str, title: str, mechanism: str | None = None) -> Method:
    """The recipe as the tool makes it, or its best one of a mechanism, at the weights of a seed."""

    def recipe(problem: Problem, module: nn.Module) -> Recipe:
        found = _suggestions(problem)
        if mechanism is not None:
            found = found.under(mechanism)
        network, settings = copy.deepcopy(found.module), found.settings
        begun = dict(make_trainable(module, GradientClipping()).module.named_parameters())
        with torch.no_grad():
            for key, parameter in network.named_parameters():
                if parameter.requires_grad:
                    parameter.copy_(begun[key])
        chosen = found.mechanism()
        if isinstance(chosen, BackpropClipping):
            _freeze_what_no_layer_owns(network)
        if settings.batch_size is None or settings.epochs is None:
            raise ValueError(f"{problem.name}: no run")
        changes = tuple(change.change for change in found.recipe.changes)
        return Recipe(network, chosen, settings.batch_size, round(settings.epochs), changes)

    return Method(name, title, recipe)


@cache
def _suggestions(problem: Problem) -> ModuleSuggestions:
    """For the run at the smallest ε, from the network that seed 0 begins."""
    settings = problem.planned(1.0)
    return lipcert.suggest(
        problem.fresh(0), problem.split().images[:1], settings, problem.examples(), progress=False
    )


def _freeze_what_no_layer_owns(network: nn.Module) -> None:
    """Clips are put around layers: what stands beside them (learned positions) has none."""
    for part in network.modules():
        if next(part.children(), None) is not None:
            for parameter in part.parameters(recurse=False):
                parameter.requires_grad_(False)


METHODS: Final[Mapping[str, Method]] = MappingProxyType(
    {
        method.name: method
        for method in (
            _as_is("dp-sgd", "DP-SGD, C 1", lambda _: GradientClipping(clip_norm=1.0)),
            _as_is(
                "clipping-groups",
                "gradient clipping by group",
                lambda _: GradientClipping(clip_norm=1.0, clip_scope="group"),
            ),
            _as_is("backprop", "backprop clipping", lambda _: BackpropClipping()),
            _as_is(
                "clipless",
                "clipless",
                lambda problem: Clipless(bias_norm=1.0, input_box=problem.box),
            ),
            _as_is(
                "fixed-norm",
                "fixed weight norm",
                lambda problem: FixedWeightNorm(bias_norm=1.0, input_box=problem.box),
            ),
            _as_is(
                "weight-clipping",
                "weight clipping",
                lambda problem: WeightClipping(bias_norm=1.0, input_box=problem.box, slack=1.0),
            ),
            Method("dp-sgd-longer", "DP-SGD, batch and epochs × 2", _longer),
            _suggested("suggested", "what `suggest` proposes"),
            _suggested(
                "suggested-backprop", "its recipe of backprop clipping", "backprop-clipping"
            ),
            _suggested("suggested-clipless", "its recipe of clipless training", "clipless"),
        )
    }
)
"""DP-SGD as Opacus' guides have it, every mechanism as it comes, what `suggest` proposes."""
