"""Lightning: a callback that turns the fit of a Trainer into a private run.

    private = PrivateTraining(mechanism, network="net", folder="run/", target_epsilon=3.0,
                              delta=1e-5)
    Trainer(callbacks=[private], max_epochs=20).fit(module, loader)

    def training_step(self, batch):
        x, y = batch
        return self.criterion(self.net(x), y)

It works with `lightning.pytorch` or `pytorch_lightning` 2, whichever is installed. The run is the
one that `make_private` creates from the module's network, the Trainer's optimizer and its loader.

Invariants: the ledger in the folder counts all releases, whatever checkpoint the Trainer returns
to; options by which a Trainer would change gradients are refused.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from inspect import signature
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from lipcert.audit.lightning import callback_class
from lipcert.errors import NoVerdictError, UsageError
from lipcert.training.assembly import make_private
from lipcert.training.hooks import apart
from lipcert.training.loader import PrivateLoader
from lipcert.training.mechanisms import TrainingMechanism
from lipcert.training.private import Private

_PRECISIONS: Final = ("32-true", "64-true", "32", "64", 32, 64)
_STATE: Final = "lipcert"


def require_plain(trainer: Any) -> None:
    """Raise UsageError for options by which a Trainer would change gradients besides the
    mechanism."""
    count = len(trainer.optimizers)
    clips = trainer.gradient_clip_val
    reasons = {
        f"{count} optimizers: one release is one step of one optimizer": count != 1,
        f"accumulate_grad_batches={trainer.accumulate_grad_batches}: every batch is a release; "
        "choose a larger batch_size": trainer.accumulate_grad_batches != 1,
        f"gradient_clip_val={clips}: it clips the sum over the batch before it is noised; clip in "
        "the mechanism": clips not in (None, 0),
        f"precision={trainer.precision!r}: scaled or converted gradients are not those that were "
        "bounded; use '32-true' or '64-true'": trainer.precision not in _PRECISIONS,
    }
    found = [reason for reason, holds in reasons.items() if holds]
    if found:
        raise UsageError(f"PrivateTraining: {'; '.join(found)}")


def called_module(trainer: Any, pl_module: Any) -> nn.Module:
    """Return the object that the Trainer calls: the module, or the wrapper that exchanges its
    gradients."""
    model: nn.Module = trainer.model
    if not (model is pl_module or isinstance(model, DistributedDataParallel)):
        raise UsageError(
            f"PrivateTraining: the Trainer's strategy puts a {type(model).__name__} around the "
            "module; use one device, or strategy='ddp'"
        )
    return model


def data_source(trainer: Any) -> Any:
    """Return the source of the Trainer's training batches."""
    source = getattr(trainer.fit_loop, "_data_source", None)
    if source is None:
        raise UsageError("PrivateTraining: this Trainer is not of Lightning 2; install that")
    return source


def loader_of(source: Any) -> DataLoader[Any]:
    """Return the single loader of a source."""
    loader = source.dataloader()
    if not isinstance(loader, DataLoader):
        raise UsageError(
            f"PrivateTraining: the training batches come from a {type(loader).__name__}; give one "
            "DataLoader, whose sampling a private run replaces"
        )
    return loader


def planned_length(trainer: Any) -> tuple[float | None, int | None]:
    """Return epochs or steps of the run, as given to the Trainer."""
    if trainer.max_steps > 0:
        return None, int(trainer.max_steps)
    if trainer.max_epochs is not None and trainer.max_epochs > 0:
        return float(trainer.max_epochs), None
    raise UsageError("PrivateTraining: give epochs or steps, here or to the Trainer")


class PrivateEpochs:
    """The batches of a run in epochs of ⌈N/B⌉, for a Trainer; the last one ends with the budget."""

    def __init__(self, loader: PrivateLoader, batches: int) -> None:
        self._loader = loader
        self._batches = batches

    def __len__(self) -> int:
        """Return the number of batches of the next epoch."""
        return min(self._batches, len(self._loader))

    def __iter__(self) -> Iterator[Any]:
        """Continue where the last epoch ended."""
        return islice(iter(self._loader), self._batches)


class PrivateTrainingHooks:
    """The hooks of the callback; options not listed here are those of `make_private`.

    While the fit lasts, and after it, `private` is the run.

    Args:
        network: name of the module's attribute that is trained privately, an nn.Module from
            examples to logits.
        criterion: name under which the module finds the loss while the fit runs. It takes the
            network's output and the labels; training_step must return what it returns.
        epochs: of the whole run. Without epochs and steps, the Trainer's are used.
        steps: of the whole run.
        resume: continue the run in the folder, whose ledger is kept; a fit with ckpt_path= of a
            private run does so by itself.
    """

    def __init__(
        self,
        mechanism: TrainingMechanism,
        *,
        network: str,
        folder: str | os.PathLike[str],
        epochs: float | None = None,
        steps: int | None = None,
        criterion: str = "criterion",
        resume: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        self.private: Private | None = None
        self._network = network
        self._criterion = criterion
        self._folder = Path(folder)
        self._epochs, self._steps = epochs, steps
        self._resume = resume
        options |= {"folder": self._folder, "progress": False}
        signature(make_private).bind(None, None, None, mechanism, **options)  # now, not in a fit
        self._make: Callable[..., Private] = partial(make_private, mechanism=mechanism, **options)
        self._loaded: Mapping[str, Any] | None = None
        self._restored = ExitStack()

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin the run, once the module is on its device and the optimizer exists."""
        self.private = None
        require_plain(trainer)
        optimizer: Optimizer = trainer.optimizers[0]
        network = getattr(pl_module, self._network, None)
        if not isinstance(network, nn.Module):
            raise UsageError(f"PrivateTraining: the module has no network {self._network!r}")
        with ExitStack() as restored:
            restored.enter_context(apart(called_module(trainer, pl_module)))
            restored.callback(optimizer.register_step_pre_hook(_evaluate_closure).remove)
            source = data_source(trainer)
            private = self._made(trainer, network, optimizer, loader_of(source))
            restored.callback(private.close)
            self._require_same(private)
            epochs = PrivateEpochs(private.loader, private.calibration.plan.batches_per_epoch)
            restored.callback(setattr, source, "instance", source.instance)
            source.instance = epochs
            restored.callback(_set(pl_module, self._criterion, _as_function(private.criterion)))
            self._restored = restored.pop_all()
        self.private = private

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stop the Trainer when all planned releases are made."""
        del pl_module, outputs, batch, batch_idx
        if self.private is not None and not self.private.ledger.left:
            trainer.should_stop = True

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Add the number of releases to a checkpoint; the ledger has a file of its own."""
        del trainer, pl_module
        if self.private is not None:
            checkpoint[_STATE] = {
                "releases": self.private.releases,
                "digest": self.private.ledger.header.digest,
            }

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Read the number of releases from a checkpoint; one without a private run has none."""
        del trainer, pl_module
        self._loaded = checkpoint.get(_STATE)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """End the run after training has finished."""
        del trainer, pl_module
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the run after training has failed: notify other ranks, and leave the trace without an
        end."""
        del trainer, pl_module
        if self.private is not None:
            self.private.__exit__(type(exception), exception, exception.__traceback__)
        self._end()

    def _end(self) -> None:
        self._loaded = None
        self._restored.close()

    def _made(
        self, trainer: Any, network: nn.Module, optimizer: Optimizer, loader: DataLoader[Any]
    ) -> Private:
        epochs, steps = self._epochs, self._steps
        if epochs is None and steps is None:
            epochs, steps = planned_length(trainer)
        resume = self._resume or self._loaded is not None
        return self._make(network, optimizer, loader, epochs=epochs, steps=steps, resume=resume)

    def _require_same(self, private: Private) -> None:
        """Raise NoVerdictError if the checkpoint belongs to a run that this ledger does not
        count."""
        if self._loaded is None:
            return
        made, digest = self._loaded["releases"], self._loaded["digest"]
        if digest != private.ledger.header.digest or made > private.releases:
            raise NoVerdictError(
                f"PrivateTraining: the checkpoint is of a private run after {made} releases, but "
                f"the ledger in {self._folder} is of another run, or counts "
                f"{private.releases}: give the folder of that run, with its ledger as it "
                "was written"
            )


def _evaluate_closure(
    optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Evaluate the closure that a Trainer passes to every step, before gradients are inspected."""
    del optimizer
    closures = [item for item in (*args, *kwargs.values()) if callable(item)]
    for closure in closures:
        with torch.enable_grad():
            closure()
    rest = tuple(item for item in args if not callable(item))
    return rest, {key: item for key, item in kwargs.items() if not callable(item)}


def _as_function(criterion: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """Wrap the criterion in a function, so that the module that holds it does not register it."""

    def call(logits: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = criterion(logits, labels)
        return loss

    return call


def _set(module: nn.Module, name: str, value: object) -> Callable[[], None]:
    """Set an attribute; return a function that restores the previous state."""
    was_own = name in vars(module) or name in dict(module.named_children())
    before = getattr(module, name, None)
    if was_own:
        delattr(module, name)
    setattr(module, name, value)

    def restore() -> None:
        delattr(module, name)
        if was_own:
            setattr(module, name, before)

    return restore


if TYPE_CHECKING:
    PrivateTraining = PrivateTrainingHooks
else:
    PrivateTraining = type(
        "PrivateTraining",
        (PrivateTrainingHooks, callback_class()),
        {"__doc__": PrivateTrainingHooks.__doc__, "__module__": __name__},
    )
