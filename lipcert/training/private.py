"""Private: a private run in progress, as the training loop sees it, and the folder that keeps it.

    for x, y in private.loader:
        optimizer.zero_grad()
        private.criterion(model(x), y).backward()
        optimizer.step()

`Private` holds the parts that `make_private` assembled. It offers the batches, the loss, the ε
spent, checkpoints, and the trained network as a file. Invariants: every number reported about the
run's privacy comes from its ledger; all ranks of its trace agree on their counts, even after they
were killed in the middle of a step.

The folder of a run is created once the run is certain to start; each file in it is written
atomically. Invariants: a run in a folder is never started a second time; neither seeds nor states
of generators are written, since a reader of them would know the noise. So a resumed run draws new
batches and new noise, while the ledger, a file of its own, has counted all releases since the
checkpoint.
"""

import pickle
import shutil
import time
import types
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lipcert.audit.recorder import Chosen, Recorder
from lipcert.audit.trace.files import MANIFEST
from lipcert.audit.trace.reading import read_trace
from lipcert.audit.trace.records import Step
from lipcert.audit.trace.writing import TraceWriter
from lipcert.errors import NoVerdictError, UsageError
from lipcert.process.files import write_whole
from lipcert.settings.settings import Settings
from lipcert.training.batches import parted
from lipcert.training.calibration import Calibration, warn_uncertified
from lipcert.training.criterion import PrivateLoss
from lipcert.training.exporting import export
from lipcert.training.ledger import Ledger
from lipcert.training.loader import PrivateLoader, examples_in, split
from lipcert.training.network import TrainedNetwork
from lipcert.training.release import Release
from lipcert.training.same_network import require_numbers, warn_of_others
from lipcert.training.world import World

MODEL: Final = "model.onnx"
CERTIFICATE: Final = "model.lipcert.json"
SETTINGS: Final = "lipcert.toml"
LEDGER: Final = "ledger.jsonl"
CHECKPOINT: Final = "checkpoint.pt"
TRACE: Final = "trace"
_LARGEST: Final = 2**25 - 2**16
"""Bytes, a little less than the largest block of which the GNU C library takes note."""
UNCERTIFIED: Final = "no_certificate.txt"
"""Contains the reason why a run has no certificate."""


class Stateful(Protocol):
    """A module, an optimizer or a scheduler."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the object, by name."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Restore the state of the object."""


def usable(folder: Path, *, resume: bool, is_first: bool) -> Path:
    """Return the folder if a run can be started, or continued, in it.

    is_first: whether this rank writes the folder.
    """
    exists = (folder / LEDGER).exists()
    if exists and not resume:
        raise UsageError(
            f"training: {folder} holds a run already; give resume=True to continue it, or "
            "another folder"
        )
    if resume and not exists and is_first:
        raise UsageError(f"training: {folder} holds no run to continue; leave out resume=True")
    return folder


def opened(folder: Path, stage: Path) -> None:
    """Create the folder from the staged files; do nothing if it is the stage itself."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (MODEL, CERTIFICATE, UNCERTIFIED):
        if folder != stage and (stage / name).exists():
            shutil.move(stage / name, folder / name)


def copy_file(source: Path, path: Path) -> None:
    """Copy a file atomically; raise NoVerdictError if it cannot be read."""
    try:
        data = source.read_bytes()
    except OSError as error:
        raise NoVerdictError(f"training: cannot read {source}: {error.strerror}") from error
    write_whole(path, data)


def write_checkpoint(path: Path, parts: Mapping[str, Stateful], releases: int) -> None:
    """Write the state of all parts, and the number of releases made at this state."""
    states = {name: part.state_dict() for name, part in parts.items()}
    content = {"releases": releases, "parts": states}
    write_whole(path, lambda file: torch.save(content, file))


def read_checkpoint(path: Path, parts: Mapping[str, Stateful]) -> int:
    """Restore the state of every part; return the number of releases when it was written."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
        releases, states = int(found["releases"]), found["parts"]
    except (OSError, RuntimeError, KeyError, TypeError, ValueError, EOFError,
            pickle.UnpicklingError) as error:  # fmt: skip
        raise NoVerdictError(
            f"training: {path} is not a checkpoint of a private run: {error}"
        ) from error
    missing = sorted(parts.keys() - states.keys())
    if missing:
        raise UsageError(f"training: the checkpoint {path} holds no {', '.join(missing)}")
    for name, part in parts.items():
        part.load_state_dict(states[name])
    return releases


def level(folder: Path, world: World) -> None:
    """Add the steps that other ranks recorded and this one did not; all ranks must call it."""
    if world.ranks == 1:
        return
    trace = read_trace(folder) if (folder / MANIFEST).exists() else None
    is_ours = trace is not None and world.rank in trace.ranks
    own = sum(1 for _ in trace.steps(world.rank)) if trace is not None and is_ours else 0
    most = world.most(own)
    if trace is None or own == most:
        return
    writer = TraceWriter(folder, trace.manifest, world.rank)
    for number in range(own, most):
        writer.append(Step(world.rank, number, time.time()))
    writer.abandon()


@dataclass(slots=True, eq=False, repr=False)
class Private:
    """A private run. Close it, or use it in a `with` block, so that its trace records a regular
    end.

    loader: yields private batches. criterion: the loss to differentiate. calibration: the noise as
    planned. undo: removes the hooks. max_physical_batch: how many examples `step` takes at once.
    """

    model: nn.Module
    optimizer: Optimizer
    loader: PrivateLoader
    criterion: PrivateLoss
    calibration: Calibration
    network: TrainedNetwork
    ledger: Ledger
    world: World
    release: Release
    undo: ExitStack
    folder: Path | None
    max_physical_batch: int | None
    example: Tensor | tuple[Tensor, ...]
    _is_closed: bool = field(default=False, init=False)

    def __repr__(self) -> str:
        """Show what was spent so far, and nothing about the data."""
        return f"<private run: {self.ledger.summary}>"

    @property
    def settings(self) -> Settings:
        """The settings by which `lipcert analyze`, `certify` and `audit` describe this run."""
        return self.calibration.settings

    @property
    def noise_multiplier(self) -> float:
        """σ of each release, all groups together."""
        return self.calibration.noise_multiplier

    @property
    def releases(self) -> int:
        """The number of noised gradients released, including those of processes that died."""
        return self.ledger.releases

    @property
    def epsilon(self) -> float:
        """ε of all releases so far, at the δ of the run."""
        return self.ledger.epsilon()

    def outputs(self, joined: Tensor) -> Mapping[str, Tensor]:
        """Split the output of a model with several outputs, in training mode, by name.

        In training mode such a model returns the entries of all outputs with a loss, side by side.
        """
        return self.network.outputs.apart(joined)

    def step(self, *batch: Any) -> float:
        """Make one release on a batch of the loader, and return the criterion's value.

        batch: as the loader yields it, whole or in parts: step(batch), step(x, y), step(a, b, y).
        The value is computed from private data and is not private: do not publish it.
        """
        self.optimizer.zero_grad()
        total = 0.0
        given = batch[0] if len(batch) == 1 else batch
        for some in split(given, self.max_physical_batch or max(examples_in(given), 1)):
            inputs, labels = parted(some, self.model, len(self.network.outputs.heads) or 1)
            loss = self.criterion(self.model(*inputs), labels)
            loss.backward()
            total += float(loss.detach())
        self.optimizer.step()
        return total

    def save(self, also: Mapping[str, Stateful] = types.MappingProxyType({})) -> Path:
        """Write a checkpoint into the run's folder.

        also: schedulers and the like, by name.

        Raises:
            UsageError: if the weights are not those that the last step left.
        """
        path = self._checkpoint()
        self.ledger.require_here()
        self.release.guard.numbers.require(anew=True)
        if self.world.is_first:
            write_checkpoint(path, {**self._parts(), **also}, self.releases)
        return path

    def restore(self, also: Mapping[str, Stateful] = types.MappingProxyType({})) -> int:
        """Go back to the checkpoint; return how many releases had been made when it was written.

        Releases made since then stay counted.
        """
        before = read_checkpoint(self._checkpoint(), {**self._parts(), **also})
        self.release.enforcement.project()
        self.release.guard.settle()
        self._keep()
        return before

    def settle(self) -> None:
        """Start watching, after all hooks are installed: only the trained weights may change from
        now on.

        A block that is freed at once raises the size from which the C library returns memory; else
        steps would ask the system for the same pages again and again.
        """
        torch.empty(_LARGEST, dtype=torch.uint8)
        self._keep()

    def _keep(self) -> None:
        """Check that untrained numbers are those that were bounded, and refuse later changes of
        them."""
        require_numbers(self.network, self.release.guard.trained)
        self.release.guard.numbers.keep()

    def export(self, path: str | Path) -> Path:
        """Write the network, with the weights that the last step left, as an ONNX file."""
        self.release.guard.numbers.require(anew=True)
        warn_of_others(self.network, self.calibration.bounds.graph, self.example)
        return export(self.network.module, self.example, path)

    def record(self, folder: Path, model_file: Path, every: Chosen, *, store_data: bool) -> None:
        """Begin the trace, or continue it.

        every: which steps are recorded with their tensors; with store_data, their examples are
        recorded, too.
        """
        plan, names = self.calibration.plan, self.network.matches
        present = len(self.loader.dataset)  # type: ignore[arg-type]  # PrivateLoader says why not
        level(folder, self.world)
        recorder = Recorder(
            folder,
            self.model,
            self.optimizer,
            every=every,
            store_data=store_data,
            model_file=model_file,
            rank=self.world.rank,
            ranks=self.world.ranks,
        )
        recorder.declare(
            dataset_size=plan.dataset_size,
            batch_size=plan.batch,
            sampling=plan.sampling,
            sampling_rate=plan.batch / plan.dataset_size,
            steps=plan.releases,
            noise_multiplier=self.noise_multiplier,
            groups={
                group.name: tuple(names[item].recorded for item in group.parameters)
                for group in self.calibration.groups
            },
            reduction="sum",
            divisor=float(plan.batch),
            weight_decay=self.release.enforcement.weight_decay,
            dropout=self.release.enforcement.masked,
            examples=None if present == plan.dataset_size else present,
        )
        recorder.wrap_loss(self.criterion)
        self.release.record_with(recorder)

    def close(self) -> None:
        """End the run: remove hooks; close the trace, the ledger and connections.

        A run without a certificate warns again.

        Raises:
            UsageError: after closing, if the model does not hold what the last step left; the trace
                then records no regular end.
        """
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        """Close the run.

        After an exception the trace records no regular end, and the other ranks are notified. An
        exception of closing never replaces one from the block.
        """
        if self._is_closed:
            return
        self._is_closed = True
        error = failure[1]
        if isinstance(error, BaseException):
            try:
                self._end(error)
            except Exception as further:  # noqa: BLE001  the first one is told, with this
                error.add_note(f"closing the run failed, too: {further!r}")
            return
        try:
            self.release.guard.numbers.require_released()
        except BaseException as changed:
            self._end(changed)
            raise
        self._end(None)
        warn_of_others(self.network, self.network.graph, self.example)

    def _end(self, error: BaseException | None) -> None:
        """Remove hooks; in the process that made the run, also close its files and connections."""
        self.undo.close()
        if not self.ledger.is_here:
            return
        if error is not None:
            self.world.fail(error)
        if self.release.recorder is not None:
            self.release.recorder.__exit__(type(error) if error else None)
        reason = None if self.folder is None else self.folder / UNCERTIFIED
        if reason is not None and self.world.is_first and reason.exists():
            warn_uncertified(reason.read_text(encoding="utf-8").strip())
        self.ledger.close()
        self.world.leave()

    def _parts(self) -> Mapping[str, Stateful]:
        return {"model": self.network.module, "optimizer": self.optimizer}

    def _checkpoint(self) -> Path:
        if self.folder is None:
            raise UsageError("training: a checkpoint needs a folder: make_private(…, folder=…)")
        return self.folder / CHECKPOINT
