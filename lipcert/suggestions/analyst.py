"""Analyst: analyse one set of changes after another, as `lipcert analyze` would.

Every set of changes gets an `Outcome`, from derived bounds and measured gradients under its
settings; whatever several of them share is derived and measured once.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from lipcert.analysis.bounded import Bounded, Shared, bounded_again
from lipcert.analysis.observing import observed_at, plain_gradients
from lipcert.analysis.release import Release, plan_of, planned_multiplier
from lipcert.analysis.usefulness import usefulness_of
from lipcert.core.claims import total_sensitivity
from lipcert.errors import UsageError
from lipcert.gradient_stats.examples import Examples
from lipcert.gradient_stats.measure import Met, Observed
from lipcert.graph.ir import Graph
from lipcert.settings.settings import Settings
from lipcert.suggestions.records import TOPIC, Change, Outcome
from lipcert.text.numbers import finite

_OF_NOISE: Final = frozenset({"allocation", "run", "sampling"})
"""Topics that affect neither bounds nor gradients."""
_ORDER: Final = (TOPIC, "biases", "loss clip", "affine", "allocation")
"""The order in which changes are made, whatever the order in which they are given."""
_REACH: Final = 2.0
"""Factor of its radius by which noise may move a weight, and the radius of a free weight: twice the
norm of initial weights in torch, about 1."""


@dataclass(frozen=True, eq=False)
class Analysed:
    """An analysed network: bounds, measured gradients, and a summary of both."""

    settings: Settings
    found: Bounded
    observed: Observed | None
    outcome: Outcome


@dataclass(frozen=True, eq=False)
class Analyst:
    """Analyses one network with changes to its settings.

    base: the network under any settings. examples: those at which gradients are measured; None:
    no measurements.
    """

    base: Bounded
    settings: Settings
    examples: Examples | None
    _known: dict[tuple[Change, ...], Analysed] = field(default_factory=dict)
    _shared: Shared = field(init=False)
    _plain: dict[object, Met | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_shared", Shared.of(self.base))

    def analysed(self, changes: tuple[Change, ...]) -> Analysed:
        """Return the network with these changes, the mechanism among them, in any order.

        Raises the same errors as `applied` and `bounded_again`.
        """
        key = _ordered(changes)
        if key not in self._known:
            self._known[key] = self._analysed(key)
        return self._known[key]

    def known(self, changes: tuple[Change, ...]) -> Analysed | None:
        """Return an earlier analysis; None if there is none."""
        return self._known.get(_ordered(changes))

    def _analysed(self, changes: tuple[Change, ...]) -> Analysed:
        settings = applied(self.settings, changes)
        bound = tuple(change for change in changes if change.topic not in _OF_NOISE)
        if len(bound) < len(changes):
            same = self.analysed(bound)
            found, observed = same.found, same.observed
        else:
            found = bounded_again(self.base, settings, shared=self._shared)
            observed = self._observed(found, settings)
        return Analysed(settings, found, observed, outcome_of(found, settings, observed))

    def _observed(self, found: Bounded, settings: Settings) -> Observed | None:
        """Measure gradients at the examples.

        The pass for gradient clipping is the same for all mechanisms, and is made only once.
        """
        examples = self.examples
        if examples is None:
            return None
        groups = tuple((group.name, group.parameters) for group in found.groups)
        key = (found.loss, groups, None if examples.is_drawn else found.premises.clip)
        if key not in self._plain:
            try:
                self._plain[key] = plain_gradients(found, examples)
            except TypeError:  # for a loss whose gradient is not known here
                self._plain[key] = None
        plain = self._plain[key]
        return None if plain is None else observed_at(found, settings, examples, plain)


def _ordered(changes: tuple[Change, ...]) -> tuple[Change, ...]:
    return tuple(sorted(changes, key=lambda change: place(change.topic)))


def place(topic: str) -> int:
    """Return the place of a topic in the order of changes."""
    return _ORDER.index(topic) if topic in _ORDER else len(_ORDER)


def outcome_of(found: Bounded, settings: Settings, observed: Observed | None) -> Outcome:
    """Summarise bounds and measured gradients under the noise of the settings."""
    released = release_of(found, settings)
    use = usefulness_of(released, settings, plan_of(settings), observed)
    return Outcome(
        grad_norm=finite(total_sensitivity(group.grad_norm for group in found.groups)),
        sensitivity=finite(released.total_sensitivity),
        noise=use.noise,
        noise_to_signal=use.noise_to_signal,
        noise_to_signal_of_run=use.noise_to_signal_of_run,
        noise_to_signal_of_one=_of_one(use.noise, observed),
        relative_cost=use.relative_cost,
        verdict=use.verdict,
    )


def release_of(found: Bounded, settings: Settings) -> Release:
    """Return the noise that bounds need; UsageError if nothing is trained."""
    if not found.groups:
        raise UsageError("nothing is trained under these settings")
    multiplier = planned_multiplier(plan_of(settings), settings, found.groups)
    return Release.of(found.groups, settings, multiplier)


def learning_rate(graph: Graph, settings: Settings, steps: int) -> float:
    """Return a rate for Adam from public numbers: noise alone moves weights by two radii at most.

    Adam divides entries by their own deviation: under noise of any size each moves by about η in a
    step, and by η√T in T independent ones. A matrix of m × n such entries has a norm of about
    η√T·(√m + √n), or η√T·√(mn) by Frobenius. A lower η leaves the signal unused, which adds up in
    proportion to T; with a higher one, noise moves weights far and constraints project them back.
    """
    held = settings.constraint
    shapes = [use.operand.shape for use in graph.trained_uses() if use.is_linear_map]
    sides = [(shape[0], math.prod(shape[1:])) for shape in shapes if len(shape) > 1]
    by_entry = held is not None and held.kind == "frobenius"
    norms = (math.sqrt(m * n) if by_entry else math.sqrt(m) + math.sqrt(n) for m, n in sides)
    free = 1.0 if settings.enforced.holds_weights() else _REACH
    radius = free if held is None else held.radius
    return float(f"{_REACH * radius / (max(norms, default=1.0) * math.sqrt(steps)):.2g}")


def _of_one(noise: float | None, observed: Observed | None) -> float | None:
    if noise is None or observed is None or not observed.signal > 0.0:
        return None
    return noise / observed.signal


def changed(before: Settings, after: Settings) -> Mapping[str, object]:
    """Return the fields of settings that differ, with their new values."""
    names = Settings.__dataclass_fields__
    return {
        name: getattr(after, name)
        for name in names
        if getattr(after, name) != getattr(before, name)
    }


def applied(settings: Settings, changes: tuple[Change, ...]) -> Settings:
    """Return settings with changes; UsageError if they contradict each other or the settings."""
    fields: dict[str, object] = {}
    freeze, constraints = settings.freeze, settings.constraints
    for change in changes:
        if change.topic == TOPIC and "constraints" in change.settings:
            constraints = ()
        for name, value in change.settings.items():
            if name == "freeze":
                freeze = tuple(dict.fromkeys((*freeze, *value)))  # type: ignore[misc]
            elif name == "constraints":
                constraints = (*value, *constraints)  # type: ignore[misc]
            else:
                fields[name] = value
    moves = {"mechanism", "constraint", "bias_norm"} & fields.keys() or constraints
    if moves:
        fields.setdefault("scope", "auto")
    if "batch_size" in fields:
        fields.setdefault("reduction", "auto")
    return replace(settings, **fields, freeze=freeze, constraints=constraints)  # type: ignore[arg-type]
