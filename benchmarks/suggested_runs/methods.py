"""Methods: what is trained in place of a network as it was written, and how.

What enters: a problem. What leaves: a module, a mechanism, how examples enter, how long the run is.
Invariant: all methods draw their learning rate from one grid (`RATES`), and begin from the same
weights where they keep the network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, final

from torch import Tensor, nn

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

__all__ = ["METHODS", "RATES", "Method", "Recipe"]

RATES: Final = (0.01, 0.03, 0.1)
"""learning rates of Adam, which takes gradients of every scale alike"""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """One way to train. prepared: what is done to inputs, by a formula that holds no data."""

    module: nn.Module
    mechanism: TrainingMechanism
    batch_size: int
    epochs: int
    prepared: Callable[[Tensor], Tensor] | None = None

    def enter(self, x: Tensor) -> Tensor:
        """Examples as the module reads them."""
        return x if self.prepared is None else self.prepared(x)


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
        )
    }
)
"""DP-SGD as Opacus' guides have it, every mechanism as it comes, what `suggest` proposes."""
