"""Release: what each step of a planned run releases, how noisy it is, and what it costs.

Every trained parameter is in exactly one group, whose bound is the joint one √Σ G² of its members,
since the gradient with respect to several tensors is their concatenation. Groups get their bounds
from the network or from a clip, then their sensitivities, then noise for the multiplier σ of the
plan; its cost is in the `Account`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from lipcert.core.claims import clipped_group, sensitivity_up, total_sensitivity
from lipcert.core.ledger.premises import Premises
from lipcert.errors import UsageError
from lipcert.graph.ir import Graph
from lipcert.importer.metadata import is_anonymous
from lipcert.importer.origins import module_of
from lipcert.privacy.account import POINT_ONLY, Account, account_for
from lipcert.privacy.accounting import accountant_named, noise_for_epsilon
from lipcert.privacy.noise import Allocation, Group, allocate, joint_multiplier
from lipcert.privacy.plan import TrainingPlan
from lipcert.settings.settings import Settings, values_of
from lipcert.settings.values import missing

_DEFAULT_MULTIPLIER: Final = 1.0


def group_parameters(
    graph: Graph, grad_norms: Mapping[str, float], per_layer: bool
) -> tuple[Group, ...]:
    """Return trained parameters, one group each or one group per layer.

    A layer is what a state_dict calls one: "conv1.weight" and "conv1.bias" share the prefix
    "conv1". Parameters without such a prefix are grouped by the node that uses them first; those
    with names that an exporter made up, by its module.
    """
    uses = first_uses(graph)
    modules = _modules(graph)
    members: dict[str, list[str]] = {}
    for name in uses:
        if graph.parameters[name].trainable:
            key = name
            if per_layer:
                node = uses[name]
                key = modules.get(node, name) if is_anonymous(name) else layer_of(name, node)
            members.setdefault(key, []).append(name)
    return tuple(
        Group(
            key,
            sum(graph.parameters[name].size for name in names),
            parameters=tuple(names),
            grad_norm=total_sensitivity(grad_norms[name] for name in names),
        )
        for key, names in members.items()
    )


def first_uses(graph: Graph) -> dict[str, str]:
    """Map each parameter to the node that uses it first; unused ones come last."""
    uses: dict[str, str] = {}
    for use in graph.uses():
        uses.setdefault(use.parameter, use.node.name)
    for name in graph.parameters:
        uses.setdefault(name, "")
    return uses


def _modules(graph: Graph) -> dict[str, str]:
    """Map each node to its module's name in a state_dict, or to itself if that is unknown.

    A node of a layer reads parameters of one prefix, or is named after the path of its module.
    """
    prefixes: dict[str, set[str]] = {}
    for use in graph.uses():
        own = prefixes.setdefault(use.node.name, set())
        if not is_anonymous(use.parameter):
            own.update(filter(None, [use.parameter.rpartition(".")[0]]))
    found = {}
    for node, known in prefixes.items():
        path = module_of(node, graph.parameters) if node.startswith("/") else ""
        found[node] = next(iter(known)) if len(known) == 1 else path or node
    return found


def layer_of(parameter: str, node: str) -> str:
    """Return the layer of a parameter: its prefix, or the node that uses it first."""
    prefix, dot, _ = parameter.rpartition(".")
    return prefix if dot and prefix else node or parameter


def clipped_groups(
    groups: tuple[Group, ...], premises: Premises, *, lasts: bool
) -> tuple[Group, ...]:
    """Return groups as the mechanism releases them, given those that the network bounds.

    A flat clip bounds all parameters jointly, and says no more of any part: they are one group.
    lasts: whether bounds of the network hold at every step in question, as it is trained.
    """
    if premises.clip is None or not groups:
        return groups
    if premises.clip.clip_scope == "flat":
        joint = total_sensitivity(group.grad_norm for group in groups)
        names = tuple(name for group in groups for name in group.parameters)
        size = sum(group.dimension for group in groups)
        groups = (Group("all", size, parameters=names, grad_norm=joint),)
    return tuple(
        replace(
            group,
            grad_norm=clipped_group(group.grad_norm, len(groups), premises, lasts=lasts),
        )
        for group in groups
    )


def check_complete(settings: Settings) -> None:
    """Raise UsageError that lists what an analysis lacks, or what contradicts a run."""
    if settings.asks:
        raise missing(settings.asks)
    plan_of(settings)


def check_single(verb: str, settings: Settings) -> None:
    """Raise UsageError for several trials, as the ε is that of a single one."""
    if (settings.trials or 1) > 1:
        raise UsageError(
            f"trials: {verb} states the ε of one run; leave it out, find σ by `lipcert privacy "
            f"--trials {settings.trials} --target-epsilon E`, and give --noise-multiplier"
        )


def plan_of(settings: Settings) -> TrainingPlan | None:
    """Return the run that the settings describe; UsageError if it is incomplete or inconsistent."""
    return TrainingPlan.described(values_of(settings)) if settings.describes_a_run else None


def known_plan(settings: Settings) -> TrainingPlan | None:
    """Return the run that the settings describe; None if something is missing."""
    return None if settings.asks else plan_of(settings)


def planned_multiplier(
    plan: TrainingPlan | None, settings: Settings, groups: Sequence[Group]
) -> float:
    """Return σ: given, solved for the target ε, joint over the groups' multipliers, or 1."""
    if plan is not None and settings.target_epsilon is not None:
        return noise_for_epsilon(
            plan, settings.target_epsilon, accountant_named(settings.accountant)
        ).noise_multiplier
    if settings.noise_multiplier is not None:
        return settings.noise_multiplier
    joint = None
    if settings.noise_multipliers:
        joint = joint_multiplier(measured_groups(groups, settings))
    return _DEFAULT_MULTIPLIER if joint is None else joint


def account_of(plan: TrainingPlan, multiplier: float, settings: Settings) -> Account:
    """Return the cost of the run if every release has the stated sensitivities and noise."""
    wanted = accountant_named(settings.accountant)
    account = account_for(plan, multiplier, wanted, allocation=settings.allocation)
    if settings.scope == "point" and not settings.is_stepwise:
        account = replace(account, diagnostics=(*account.diagnostics, POINT_ONLY))
    return account


def planned_sensitivity(grad_norm: float, settings: Settings) -> float:
    """Return the sensitivity of a released gradient under the settings' relation and reduction."""
    divisor = settings.batch_size if settings.reduction == "mean" else None
    return sensitivity_up(grad_norm, divisor, settings.neighbours)


def measured_groups(groups: Sequence[Group], settings: Settings) -> tuple[Group, ...]:
    """Return the groups with their sensitivities and weights under these settings."""
    return tuple(
        replace(
            group,
            sensitivity=planned_sensitivity(group.grad_norm, settings),
            weight=settings.noise_weight(group.name),
        )
        for group in groups
    )


@dataclass(frozen=True, slots=True)
class Release:
    """What each step releases: groups with the noise of the chosen allocation, if it is finite.

    multiplier: σ of all groups together. energies: of the noise of each allocation, None if a
    bound is absent.
    """

    groups: tuple[Group, ...]
    multiplier: float
    energies: Mapping[Allocation, float | None]
    chosen: Allocation

    @classmethod
    def of(cls, groups: Sequence[Group], settings: Settings, multiplier: float) -> Release:
        """Return the three allocations of the noise at σ, and a custom one if declared."""
        measured, chosen = measured_groups(groups, settings), Allocation(settings.allocation)
        allocated = {
            way: allocate(measured, multiplier, way)
            for way in Allocation
            if way is not Allocation.CUSTOM or settings.noise_multipliers
        }
        energies = {
            way: None if noise is None else noise.energy for way, noise in allocated.items()
        }
        noised = allocated[chosen]
        return cls(measured if noised is None else noised.groups, multiplier, energies, chosen)

    @property
    def energy(self) -> float | None:
        """The energy of the noise; None if a bound is absent."""
        return self.energies[self.chosen]

    @property
    def total_sensitivity(self) -> float:
        """√Σ Δ² over the groups: how far one example can move the whole release."""
        return total_sensitivity(group.sensitivity for group in self.groups)
