"""Build a private run from a model, an optimizer, a loader and a mechanism (`make_private`).

    private = make_private(model, optimizer, loader, mechanism, target_epsilon=3.0, delta=1e-5,
                           epochs=20, folder="run/")

The steps: export the module and import the file; bound its per-example gradients; set the noise
from the bounds; install hooks on the forward pass and on the optimizer. Mismatches between the
inputs are reported before the folder of the run is created.

Invariants: no run starts unless every group of parameters has a finite certified bound; sampling
and noise use two independent secrets.
"""

import hashlib
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from lipcert.analysis.bounded import Bounded, bounded
from lipcert.audit import tape
from lipcert.audit.observation import options_of
from lipcert.audit.recorder import Chosen
from lipcert.core.certificate import Certificate
from lipcert.privacy.accounting import accountant_named
from lipcert.process.files import write_whole
from lipcert.process.progress import ProgressReport
from lipcert.settings.settings import Settings
from lipcert.settings.values import AccountantName, SamplingName, check_positive, whole
from lipcert.settings.written import settings_toml
from lipcert.training.calibration import (
    Calibration,
    as_certified,
    calibrated,
    certified,
    recalculated,
    warn_of_noise,
)
from lipcert.training.criterion import PrivateLoss
from lipcert.training.enforcement import Enforcement, enforced
from lipcert.training.guards import StepGuard
from lipcert.training.hooks import Hooks, refuse_watched
from lipcert.training.intake import (
    FirstExamples,
    KnownExamples,
    batch_size_of,
    dataset_size_of,
    numbers_of,
    require_given,
    trained_parameters,
    with_frozen,
)
from lipcert.training.ledger import Ledger, LedgerHeader
from lipcert.training.loader import PrivateLoader, Sampler, checked_seed
from lipcert.training.mechanisms import PlannedRun, TrainingMechanism
from lipcert.training.modes import EvalMode, without_drawn
from lipcert.training.network import Example, TrainedNetwork, trained_network
from lipcert.training.private import (
    CERTIFICATE,
    CHECKPOINT,
    LEDGER,
    MODEL,
    SETTINGS,
    TRACE,
    UNCERTIFIED,
    Private,
    copy_file,
    opened,
    usable,
)
from lipcert.training.release import NoiseSource, Release
from lipcert.training.same_network import require_gradients
from lipcert.training.world import PATIENCE, World

_HEAD: Final = "The settings of a private training run: lipcert certify MODEL --config THIS"
_MOST_AHEAD: Final = 16
"""One write to the ledger covers up to this many releases, but at most about 1 % of the run."""


class SeedWarning(UserWarning):
    """The run has a given seed, so its noise can be reproduced and subtracted."""


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
    dataset_size: int | None = None,
    sampling: SamplingName = "poisson",
    accountant: AccountantName | None = None,
    folder: str | os.PathLike[str] | None = None,
    model_file: str | os.PathLike[str] | None = None,
    resume: bool = False,
    record_every: Chosen | None = 200,
    record_data: bool = False,
    max_physical_batch: int | None = None,
    patience: float = PATIENCE,
    progress: bool | None = None,
    seed: int | None = None,
    public: KnownExamples | None = None,
) -> Private:
    """Return a private run; the model is projected onto the mechanism's constraints at once.

    Args:
        loader: its data set is map-style and yields (x, y), (a, b, y), ((a, b), y), or mappings
            whose keys are the names of forward's arguments. Its batch size is B: the expected batch
            size, and the constant that sums of gradients are divided by.
        target_epsilon: give either this or noise_multiplier.
        epochs: give either this or steps.
        dataset_size: N, a public constant. It determines the sampling rate B/N and the number of
            steps in an epoch, whatever the number of examples. If None, the examples are counted,
            and ε holds only for neighbours of equal size (under add-remove, a warning says so).
        folder: where the model, settings, ledger, checkpoints and (unless record_every is None) a
            trace are written. Without a folder they end with the process.
        model_file: an ONNX file of this module, with any weights, to use instead of exporting it.
        resume: continue the run in the folder.
        record_data: store the raw examples of recorded steps in the trace. Otherwise the trace
            stores only their indices, and an audit needs the data set.
        patience: seconds that the ranks of a process group wait for one another.
        progress: None shows a bar on a terminal and nothing elsewhere; True shows a bar or lines;
            False shows nothing.
        seed: makes sampling and noise reproducible, and therefore not private: for tests only.
        public: non-private examples (x, y) at which the ratio of a NoiseWarning is measured; if
            None, random examples of the declared domain are used.

    Raises:
        UsageError: if arguments contradict one another.
        UnsupportedModelError: if the model cannot be imported.
        NoVerdictError: if a gradient has no bound.
    """
    require_given(model, optimizer, loader, mechanism)
    refuse_watched(model)
    _warn_of_seed(seed)
    folder, seed, progress = _as_in_twin(folder, seed, progress)
    world = World.here(patience)
    shown = ProgressReport(wanted=progress if world.is_first else False)
    as_usual = torch.inference_mode(False)  # gradients are compared, even under no_grad()
    with world.notifying(), shown, as_usual, ExitStack() as staging:
        run = PlannedRun(
            batch_size=batch_size_of(loader),
            dataset_size=dataset_size_of(loader, dataset_size, mechanism),
            delta=delta,
            target_epsilon=target_epsilon,
            noise_multiplier=noise_multiplier,
            epochs=epochs,
            steps=steps,
            sampling=sampling,
            accountant=accountant,
            dataset_size_from="data" if dataset_size is None else "declared",
        )
        declared = mechanism.settings(run)
        max_physical_batch = _physical_batch(max_physical_batch)
        first = FirstExamples.of(loader, model, len(declared.heads) or 1)
        first.require_inputs(declared)
        place = (
            None if folder is None else usable(Path(folder), resume=resume, is_first=world.is_first)
        )
        stage = staging.enter_context(_staged(place if resume and world.is_first else None))
        failing = staging.enter_context(ExitStack())
        undo = failing.enter_context(ExitStack())
        parts = _Assembly(model, optimizer, loader, mechanism, run, seed, first.example, resume,
                          world, shown, place, stage, undo)  # fmt: skip
        still = parts.with_eval_mode()
        world.agree("the mechanism, the plan or the optimizer",
                    repr((mechanism, run, type(optimizer).__qualname__, options_of(optimizer, {}),
                          folder is None, record_every is None)))  # fmt: skip
        world.agree("the weights", tape.digest_of(numbers_of(model)))
        network = parts.network(declared, None if model_file is None else Path(model_file))
        trained = trained_parameters(network, optimizer, mechanism)
        settings = with_frozen(declared.with_inputs(network.graph.inputs), network, trained)
        calibration = calibrated(network.model, settings, shown.observe)
        first.require_network(settings, calibration.bounds.loss, network.graph.output_shape)
        if world.is_first and not resume:
            warn_of_noise(calibration, public)
        moves = settings.scope == "point"
        if place is not None and not moves:
            calibration = parts.certified(network, calibration)
        enforcement = enforced(network, calibration, mechanism, still)
        for handle in enforcement.handles:
            undo.callback(handle.remove)
        require_gradients(network, calibration.bounds.graph)
        enforcement.project()
        if place is not None and moves and not resume:
            network = parts.network(declared, None)
            if world.is_first:
                found = bounded(network.model, settings, shown.observe, every_step=False)
                parts.certificate(network, settings, found)
        world.agree("the bounds", repr([asdict(group) for group in calibration.groups]))
        if place is not None and world.is_first:
            opened(place, stage)
        ledger = failing.enter_context(parts.ledger(network, calibration))
        private = parts.private(
            network,
            calibration,
            enforcement,
            trained,
            ledger,
            max_physical_batch=max_physical_batch,
        )
        if place is not None:
            _write_down(private, place, record_every, store_data=record_data, resume=resume)
        private.settle()
        failing.pop_all()
        return private


@dataclass(frozen=True, slots=True, eq=False)
class _Assembly:
    """A run that is being assembled.

    example: one example, as the model takes it. place: the folder of the run, if it has one. stage:
    the folder for model and certificate until the run is certain to start. undo: removes the hooks.
    """

    model: nn.Module
    optimizer: Optimizer
    loader: DataLoader[Any]
    mechanism: TrainingMechanism
    run: PlannedRun
    seed: int | None
    example: Example
    resume: bool
    world: World
    shown: ProgressReport
    place: Path | None
    stage: Path
    undo: ExitStack

    def with_eval_mode(self) -> frozenset[nn.Module]:
        """Keep resting parts in evaluation mode, and return them."""
        mode = EvalMode(self.model)
        self.undo.callback(mode.remove)
        return mode.parts

    def network(self, settings: Settings, file: Path | None) -> TrainedNetwork:
        """Import the module, which draws no masks of its own until the run ends; its file stays
        in `stage`, and is there already on resuming."""
        path, exists = self.stage / MODEL, self.resume and self.world.is_first
        if file is not None and not exists:
            copy_file(file, path)
            exists = True
        masks = settings.enforced.clips_gradients
        found = trained_network(
            self.model, self.example, path, settings, exists=exists, masks=masks
        )
        self.undo.enter_context(without_drawn(found.module))
        return found

    def certified(self, network: TrainedNetwork, calibration: Calibration) -> Calibration:
        """Return the noise for the bounds that the first rank's certificate states."""
        if self.world.is_first:
            stated = self.certificate(network, calibration.settings, calibration.bounds)
            calibration = calibration if stated is None else as_certified(calibration, stated)
        norms = self.world.numbers_from_first(group.grad_norm for group in calibration.groups)
        return recalculated(calibration, norms)

    def certificate(
        self, network: TrainedNetwork, settings: Settings, found: Bounded
    ) -> Certificate | None:
        """Write a certificate of these bounds into `stage`; if there is none, write the reason."""
        made = certified(network.model, settings, found)
        (self.stage / UNCERTIFIED).unlink(missing_ok=True)
        if isinstance(made, str):
            (self.stage / UNCERTIFIED).write_text(f"{made}\n", encoding="utf-8")
            return None
        write_whole(self.stage / CERTIFICATE, made.data)
        return made.certificate

    def ledger(self, network: TrainedNetwork, calibration: Calibration) -> Ledger:
        """Return the ledger. Only the first rank writes it to disk; the other ranks count along."""
        secret = "" if self.seed is None else "; the seed was given: not private"
        content = f"{network.model.sha256} {calibration.settings!r}"
        header = LedgerHeader(
            plan=calibration.plan,
            noise_multiplier=calibration.noise_multiplier,
            mechanism=f"{self.mechanism!r}{secret}",
            digest=hashlib.sha256(content.encode()).hexdigest(),
            target_epsilon=self.run.target_epsilon,
            accountant=accountant_named(self.run.accountant),
        )
        if not self.world.is_first:
            return Ledger(header, spent=self.world.from_first(0))
        ahead = min(_MOST_AHEAD, 1 + header.plan.releases // 100)
        place = None if self.place is None else self.place / LEDGER
        found = Ledger(header, place, ahead=ahead)
        self.world.from_first(found.releases)
        return found

    def private(
        self,
        network: TrainedNetwork,
        calibration: Calibration,
        enforcement: Enforcement,
        trained: Mapping[str, nn.Parameter],
        ledger: Ledger,
        *,
        max_physical_batch: int | None,
    ) -> Private:
        """Return the run with its hooks installed and nothing recorded yet.

        trained: live parameters, by the module's names.
        """
        world, plan, bounds = self.world, calibration.plan, calibration.bounds
        for handle in network.outputs.join_in_training(network.module):
            self.undo.callback(handle.remove)
        settings, forward = calibration.settings, enforcement.forward
        guard = StepGuard(network.module, trained, settings, enforcement.leaves, forward)
        is_bare = forward is not None and self.model is network.module
        hooks = Hooks(self.model, guard, plan, is_bare=is_bare)
        self.undo.callback(hooks.remove)
        self.undo.callback(_forget_compiled)
        _forget_compiled()
        done = ledger.releases
        release = Release(
            optimizer=self.optimizer,
            trained=trained,
            names={name: match.recorded for name, match in network.matches.items()},
            module=network.module,
            enforcement=enforcement,
            guard=guard,
            hooks=hooks,
            ledger=ledger,
            noise=NoiseSource(world.shared_secret(self.seed), done, is_alone=world.ranks == 1),
            world=world,
            divisor=float(plan.batch),
        )
        self.undo.callback(release.remove)
        sampler = Sampler(
            plan,
            world.shared_secret(self.seed),  # another one, unless a seed is given
            rank=world.rank,
            ranks=world.ranks,
            first=done,
            examples=len(self.loader.dataset),  # type: ignore[arg-type]  # PrivateLoader says why not
        )
        return Private(
            model=self.model,
            optimizer=self.optimizer,
            loader=PrivateLoader(self.loader, sampler, ledger, hooks.drawn, self.shown),
            criterion=PrivateLoss(
                bounds.loss,
                bounds.graph.output_shape,
                float(plan.batch),
                bounds.loss_clip,
                guard=guard,
                gradients=enforcement.gradients,
            ),
            calibration=calibration,
            network=network,
            ledger=ledger,
            world=world,
            release=release,
            undo=self.undo,
            folder=self.place,
            max_physical_batch=max_physical_batch,
            example=self.example,
        )


def _forget_compiled() -> None:
    """Let torch.compile compile anew: code that it compiled before ignores later hooks, such as
    clips, and goes on with those that are removed."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()


def _warn_of_seed(seed: int | None) -> None:
    """Raise UsageError for an invalid seed; warn if a seed is given."""
    if seed is not None:
        checked_seed(seed)
        warnings.warn(
            "training: the seed is given, and anyone who knows it knows the noise: this run is "
            "reproducible, and not private",
            SeedWarning,
            stacklevel=3,
        )


def _as_in_twin(
    folder: str | os.PathLike[str] | None, seed: int | None, progress: bool | None
) -> tuple[str | os.PathLike[str] | None, int | None, bool | None]:
    """Inside a twin run, return a new folder, the secret that both runs share, and no progress."""
    twin = tape.current()
    if twin is None:
        return folder, seed, progress
    return None if folder is None else twin.place(), twin.secret() if seed is None else seed, False


def _physical_batch(given: int | None) -> int | None:
    """Return the largest number of examples per forward pass, checked to be a whole number above
    0."""
    found = None if given is None else whole("max-physical-batch", given)
    check_positive("max-physical-batch", found)
    return found


@contextmanager
def _staged(place: Path | None) -> Iterator[Path]:
    """Yield the folder in which model and certificate are written until the run is certain to
    start.

    place: the run's folder, if it exists already.
    """
    if place is not None:
        yield place
        return
    with tempfile.TemporaryDirectory() as temporary:
        yield Path(temporary)


def _write_down(
    private: Private, place: Path, record_every: Chosen | None, *, store_data: bool, resume: bool
) -> None:
    """Restore the checkpoint when resuming, write the settings, and start the trace."""
    if resume and (place / CHECKPOINT).exists():
        private.restore()
    if private.world.is_first:
        text = settings_toml(private.settings, _HEAD)
        write_whole(place / SETTINGS, text.encode())
    if record_every is not None:
        private.record(place / TRACE, place / MODEL, record_every, store_data=store_data)
