"""Assembly: from a model, an optimizer and a loader to a private run.

    private = make_private(model, optimizer, loader, mechanism, target_epsilon=3.0, delta=1e-5,
                           epochs=20, folder="run/")

What enters: ordinary PyTorch objects and a mechanism. What leaves: a `Private`. The data flow:
module → exported and imported graph → bounds → noise → hooks around forward pass and optimizer.
Invariant: nothing is trained unless every group of parameters has a finite certified bound.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, final

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from lipcert.audit.observation import unwrapped
from lipcert.audit.recorder import Chosen
from lipcert.choices import AccountantName, SamplingName
from lipcert.errors import UsageError
from lipcert.privacy.accounting import accountant_named
from lipcert.settings import Settings
from lipcert.training.calibration import Calibration, calibrated, literal, recalculated
from lipcert.training.certification import certified, write_certificate
from lipcert.training.criterion import PrivateLoss
from lipcert.training.enforcement import Enforcement, enforced
from lipcert.training.guards import StepGuard
from lipcert.training.hooks import Hooks
from lipcert.training.ledger import Ledger, LedgerHeader
from lipcert.training.likeness import Likeness, require_gradients
from lipcert.training.loader import PrivateLoader
from lipcert.training.mechanisms import PlannedRun, TrainingMechanism
from lipcert.training.network import TrainedNetwork, copy_file, trained_network
from lipcert.training.noise import NoiseSource
from lipcert.training.private import CHECKPOINT, Private
from lipcert.training.release import Release
from lipcert.training.sampling import Sampler, Seed
from lipcert.training.settings_file import write_settings
from lipcert.training.world import PATIENCE, World, checksum
from lipcert.upper import Upper

__all__ = ["SeedWarning", "make_private"]

_MODEL: Final = "model.onnx"
_LEDGER: Final = "ledger.jsonl"
_MOST_AHEAD: Final = 16
"""so many releases are counted by one write to the disk, where that is 1 % of the run at most"""
TRACE: Final = "trace"
SETTINGS: Final = "lipcert.toml"
CERTIFICATE: Final = "model.lipcert.json"


@final
class SeedWarning(UserWarning):
    """A run whose noise can be repeated, and taken off again."""


def make_private(
    model: nn.Module,
    optimizer: Optimizer,
    loader: DataLoader[Any],
    mechanism: TrainingMechanism,
    *,
    delta: float,
    target_epsilon: float | None = None,
    noise_multiplier: float | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    sampling: SamplingName = "poisson",
    accountant: AccountantName | None = None,
    folder: str | os.PathLike[str] | None = None,
    model_file: str | os.PathLike[str] | None = None,
    resume: bool = False,
    record_every: Chosen | None = 200,
    max_physical_batch: int | None = None,
    patience: float = PATIENCE,
    seed: int | None = None,
) -> Private:
    """A private run; the model is projected onto the constraints of the mechanism at once.

    loader: of a map-style data set of (x, y); its batch size is B, the expected one and the
    constant that sums of gradients are divided by. target_epsilon: or noise_multiplier; epochs: or
    steps. folder: for model, settings, ledger, checkpoints and, unless record_every is None, a
    trace; without one, all of this ends with the process. model_file: this module as an ONNX file,
    with any weights, instead of exporting it. resume: go on with the run in the
    folder. patience: seconds that the ranks of a process group wait for one another. seed: makes
    sampling and noise reproducible, and so not private: for tests only.

    Raises UsageError for what does not fit together, UnsupportedModelError for a model that cannot
    be imported, NoVerdictError where a gradient has no bound.
    """
    if seed is not None:
        warnings.warn(
            "training: the seed is given, so whoever knows it knows the noise: this run is "
            "reproducible, and not private",
            SeedWarning,
            stacklevel=2,
        )
    world = World.here(patience)
    with world.telling():
        run = PlannedRun(
            dataset_size=len(loader.dataset),  # type: ignore[arg-type]  # PrivateLoader says why not
            batch_size=_batch_size(loader),
            delta=delta,
            target_epsilon=target_epsilon,
            noise_multiplier=noise_multiplier,
            epochs=epochs,
            steps=steps,
            sampling=sampling,
            accountant=accountant,
        )
        place = None if folder is None else _place(Path(folder), world, resume=resume)
        x = _example(loader, model)
        world.agree("the mechanism, the plan or the optimizer",
                    repr((mechanism, run, _options(optimizer), folder is None,
                          record_every is None)))  # fmt: skip
        world.agree("the weights", checksum(_state(model)))
        file = None if model_file is None else Path(model_file)
        network = _network(model, x, place, file, world, resume=resume)
        trained = _trained(network, optimizer, mechanism)
        settings = _settings(mechanism.settings(run), network, trained)
        calibration = calibrated(network.graph, settings)
        moves = settings.scope == "point"
        if place is not None and not moves:
            calibration = _certified(network, calibration, place, world)
        enforcement = enforced(network, calibration, mechanism)
        require_gradients(network, calibration.bounds.graph, training=True)
        enforcement.project()
        if place is not None and moves and not resume:
            network = _network(model, x, place, None, world, resume=False)
            _certified(network, calibration, place, world)
        world.agree("the bounds", repr([asdict(group) for group in calibration.groups]))
        header = _header(calibration, network, mechanism, run, seed)
        ledger = _ledger(place, header, world)
        parts = _Parts(model, optimizer, loader, network, calibration, enforcement, trained, ledger,
                       world, place)  # fmt: skip
        private = _assembled(parts, x, seed, max_physical_batch)
        if place is not None:
            _write_down(private, place, record_every, resume=resume)
        private.settle()
        return private


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
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


def _options(optimizer: Optimizer) -> object:
    """What an optimizer was told, without its parameters."""
    kinds = (bool, int, float, str, tuple, type(None))
    groups = [
        sorted((key, value) for key, value in group.items() if isinstance(value, kinds))
        for group in optimizer.param_groups
    ]
    return type(optimizer).__qualname__, groups


def _state(model: nn.Module) -> list[Tensor]:
    """All numbers that a module holds."""
    return [item for item in unwrapped(model).state_dict().values() if isinstance(item, Tensor)]


def _batch_size(loader: DataLoader[Any]) -> int:
    if loader.batch_size is None:
        raise UsageError("training: the loader has no batch_size, the expected size of a batch")
    return loader.batch_size


def _place(folder: Path, world: World, *, resume: bool) -> Path:
    """The run's folder: a new one, or one that holds a run that is to be gone on with."""
    exists = (folder / _LEDGER).exists()
    if exists and not resume:
        raise UsageError(
            f"training: {folder} holds a run already; give resume=True to go on with it, or "
            "another folder"
        )
    if resume and not exists and world.is_first:
        raise UsageError(f"training: {folder} holds no run to go on with; leave out resume=True")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _example(loader: DataLoader[Any], model: nn.Module) -> Tensor:
    """The first example as a batch of one, on the device of the model."""
    first = loader.dataset[0]
    x = first[0] if isinstance(first, tuple | list) and first else None
    if not isinstance(x, Tensor):
        raise UsageError("training: the data set must give pairs (x, y), x a tensor")
    parameter = next(model.parameters(), None)
    if parameter is None:
        raise UsageError("training: the model has no parameters")
    return x.unsqueeze(0).to(parameter.device)


def _network(
    model: nn.Module,
    x: Tensor,
    place: Path | None,
    file: Path | None,
    world: World,
    *,
    resume: bool,
) -> TrainedNetwork:
    """The imported module; its file stays where the run has a folder."""
    with tempfile.TemporaryDirectory() as temporary:
        keeps = place is not None and world.is_first
        path = (place if keeps and place is not None else Path(temporary)) / _MODEL
        exists = resume and keeps
        if file is not None and not exists:
            copy_file(file, path)
            exists = True
        return trained_network(model, x, path, exists=exists)


def _certified(
    network: TrainedNetwork, calibration: Calibration, place: Path, world: World
) -> Calibration:
    """The noise as the first rank certifies it; the certificate stays in the run's folder."""
    if world.is_first:
        data, calibration = certified(network.model, calibration)
        if data is not None:
            write_certificate(data, place / CERTIFICATE)
    told = world.text_from_first(
        json.dumps([group.grad_norm.hex() for group in calibration.groups])
    )
    if world.is_first:
        return calibration
    groups = tuple(
        replace(group, grad_norm=Upper(float.fromhex(norm)))
        for group, norm in zip(calibration.bounds.groups, json.loads(told), strict=True)
    )
    return recalculated(calibration, replace(calibration.bounds, groups=groups))


def _trained(
    network: TrainedNetwork, optimizer: Optimizer, mechanism: TrainingMechanism
) -> Mapping[str, nn.Parameter]:
    """The parameters of the graph that the optimizer trains, by the module's names."""
    optimized = {id(item) for group in optimizer.param_groups for item in group["params"]}
    frozen = Settings(freeze=mechanism.freeze)
    trained: dict[str, nn.Parameter] = {}
    for name, match in network.matches.items():
        live = network.live(match.recorded)
        if id(live) not in optimized or not isinstance(live, nn.Parameter):
            continue
        if not frozen.is_trained(name):
            raise UsageError(
                f"training: {name} is frozen in the mechanism, and the optimizer trains it; leave "
                "it out of the optimizer"
            )
        if live.requires_grad:
            trained[match.recorded] = live
    if not trained:
        raise UsageError("training: the optimizer trains no parameter of the model")
    return trained


def _settings(
    settings: Settings, network: TrainedNetwork, trained: Mapping[str, nn.Parameter]
) -> Settings:
    """With everything frozen that the optimizer does not train."""
    still = tuple(
        literal(name)
        for name, item in network.graph.parameters.items()
        if item.trainable
        and (name not in network.matches or network.matches[name].recorded not in trained)
    )
    return replace(settings, freeze=(*settings.freeze, *still))


def _header(
    calibration: Calibration,
    network: TrainedNetwork,
    mechanism: TrainingMechanism,
    run: PlannedRun,
    seed: int | None,
) -> LedgerHeader:
    """What the run is, for its ledger."""
    secret = "" if seed is None else "; the seed was given: not private"
    told = f"{network.model.sha256} {calibration.settings!r}"
    return LedgerHeader(
        plan=calibration.plan,
        noise_multiplier=calibration.noise_multiplier,
        mechanism=f"{mechanism!r}{secret}",
        digest=hashlib.sha256(told.encode()).hexdigest(),
        target_epsilon=run.target_epsilon,
        accountant=accountant_named(run.accountant),
    )


def _ledger(place: Path | None, header: LedgerHeader, world: World) -> Ledger:
    """The first rank's is the one that is written; the others count along."""
    if not world.is_first:
        return Ledger.open(None, header, spent=world.from_first(0))
    ahead = min(_MOST_AHEAD, 1 + header.plan.releases // 100)
    ledger = Ledger.open(None if place is None else place / _LEDGER, header, ahead=ahead)
    world.from_first(ledger.releases)
    return ledger


def _assembled(
    parts: _Parts, x: Tensor, seed: int | None, max_physical_batch: int | None
) -> Private:
    """Hooks in place, nothing recorded yet."""
    settings, world, plan = parts.calibration.settings, parts.world, parts.calibration.plan
    guard = StepGuard(parts.network.module, parts.trained, settings)
    likeness = Likeness(parts.network, parts.calibration.bounds.graph)
    hooks = Hooks(parts.model, guard, plan, likeness)
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
    )
    return Private(
        model=parts.model,
        optimizer=parts.optimizer,
        loader=PrivateLoader(parts.loader, sampler, parts.ledger, hooks.drawn),
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


def _criterion(parts: _Parts, guard: StepGuard) -> PrivateLoss:
    bounds, enforcement = parts.calibration.bounds, parts.enforcement
    return PrivateLoss(
        bounds.loss,
        bounds.graph.output_shape,
        float(parts.calibration.plan.batch),
        bounds.loss_clip,
        guard=guard,
        gradients=enforcement.gradients,
    )


def _write_down(
    private: Private, place: Path, record_every: Chosen | None, *, resume: bool
) -> None:
    """Checkpoint taken up, settings and trace in the folder."""
    if resume and (place / CHECKPOINT).exists():
        private.restore()
    if private.world.is_first:
        write_settings(private.settings, place / SETTINGS)
    if record_every is not None:
        private.record(place / TRACE, place / _MODEL, every=record_every)
