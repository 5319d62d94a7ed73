"""Wiring: guards, hooks, noise and sampler around the objects of a training script.

What enters: `Parts`: what was given, what was imported and bounded, and the ledger. What leaves: a
`Private` with all hooks in place, of which nothing is recorded yet. Invariant: samples and noise
come from two secrets that have nothing in common.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from lipcert.progress import ProgressReport
from lipcert.training.calibration import Calibration
from lipcert.training.criterion import PrivateLoss
from lipcert.training.enforcement import Enforcement
from lipcert.training.guards import StepGuard
from lipcert.training.hooks import Hooks
from lipcert.training.ledger import Ledger
from lipcert.training.likeness import Likeness
from lipcert.training.loader import PrivateLoader
from lipcert.training.network import TrainedNetwork
from lipcert.training.noise import NoiseSource
from lipcert.training.private import Private
from lipcert.training.release import Release
from lipcert.training.sampling import Sampler, Seed
from lipcert.training.world import World


@final
@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """What a run is put together from. trained: live parameters by the module's names."""

    model: nn.Module
    optimizer: Optimizer
    loader: DataLoader[Any]
    network: TrainedNetwork
    calibration: Calibration
    enforcement: Enforcement
    trained: Mapping[str, nn.Parameter]
    ledger: Ledger
    world: World
    place: Path | None
    progress: ProgressReport


def wired(parts: Parts, x: Tensor, seed: int | None, max_physical_batch: int | None) -> Private:
    """Hooks in place, nothing recorded yet."""
    settings, world, plan = parts.calibration.settings, parts.world, parts.calibration.plan
    likeness = Likeness(parts.model, parts.network, parts.calibration.bounds.graph, parts.trained)
    guard = StepGuard(parts.network.module, parts.trained, settings, likeness)
    hooks = Hooks(parts.model, guard, plan)
    done = parts.ledger.releases
    noise = NoiseSource(world.shared_secret(seed), done)
    secret = world.shared_secret(seed)
    release = Release(
        parts.optimizer,
        parts.trained,
        {name: match.recorded for name, match in parts.network.matches.items()},
        module=parts.network.module,
        enforcement=parts.enforcement,
        guard=guard,
        hooks=hooks,
        ledger=parts.ledger,
        noise=noise,
        world=world,
        divisor=float(plan.batch),
    )
    sampler = Sampler(
        plan,
        Seed.shared(secret) if seed is None else Seed.given(seed),
        rank=world.rank,
        ranks=world.ranks,
        first=done,
        examples=len(parts.loader.dataset),  # type: ignore[arg-type]  # PrivateLoader says why not
    )
    return Private(
        model=parts.model,
        optimizer=parts.optimizer,
        loader=PrivateLoader(parts.loader, sampler, parts.ledger, hooks.drawn, parts.progress),
        criterion=_criterion(parts, guard),
        calibration=parts.calibration,
        network=parts.network,
        ledger=parts.ledger,
        world=world,
        guard=guard,
        enforcement=parts.enforcement,
        release=release,
        hooks=hooks,
        recorder=None,
        folder=parts.place,
        max_physical_batch=max_physical_batch,
        example=x,
    )


def _criterion(parts: Parts, guard: StepGuard) -> PrivateLoss:
    bounds, enforcement = parts.calibration.bounds, parts.enforcement
    return PrivateLoss(
        bounds.loss,
        bounds.graph.output_shape,
        float(parts.calibration.plan.batch),
        bounds.loss_clip,
        guard=guard,
        gradients=enforcement.gradients,
    )
